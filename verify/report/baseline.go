package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// maxBaseline bounds the size of a stored report.
const maxBaseline = 64 << 20

// key names a finding for a baseline: its check, what explains it, and what it is of; the steps of a run of dumps, which any further
// step changes, are no part of it.
func (r *Report) key(res *check.Result) string {
	parts := []string{res.Check}
	for _, e := range res.Explanations {
		if e.Lead {
			continue
		}
		name := e.Fault
		for _, o := range e.Options {
			name += " " + o.Option + "=" + o.Value
		}
		if name == "" || e.Fault == "FACTOR" {
			name += " " + e.Title
		}
		parts = append(parts, strings.TrimSpace(name))
		break
	}
	if r.Command != "dump" {
		parts = append(parts, res.Subject)
	}
	return strings.Join(parts, " | ")
}

// mark marks the results that a baseline has: of the same key, with a verdict that was as bad or worse. One of the baseline stands for one.
func (r *Report) mark(old []verdictOf) {
	had := map[string][]int{} // how bad they were
	for _, o := range old {
		if v, err := check.ParseVerdict(o.verdict); err == nil && o.key != "" && needsAttention(v) {
			had[o.key] = append(had[o.key], slices.Index(severity, v))
		}
	}
	for i := range r.Results {
		res := &r.Results[i]
		if !needsAttention(res.Verdict) {
			continue
		}
		key := r.key(res)
		if k := slices.IndexFunc(had[key], func(s int) bool { return s <= slices.Index(severity, res.Verdict) }); k >= 0 {
			had[key] = slices.Delete(had[key], k, k+1)
			res.Known = true
		}
	}
	if r.Brief == nil {
		return
	}
	for i := range r.Brief.Findings {
		f := &r.Brief.Findings[i]
		f.Known = len(f.Results) > 0 && !slices.ContainsFunc(f.Results, func(k int) bool { return !r.Results[k].Known })
	}
}

// Changes marks the findings of r that the JSON report stored at path has, too (see [check.Result.Known]), compares both and returns a line for every result whose verdict differs, in
// the order of r, and for every one that is gone.
func Changes(path string, r *Report) ([]string, error) {
	f, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Size > maxBaseline {
		return nil, format.Malformed(path, "", "%d bytes, a report has at most %d", f.Size, maxBaseline)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	old, err := readVerdicts(path, data)
	if err != nil {
		return nil, err
	}
	r.mark(old)
	type key struct{ check, subject string }
	before := map[key][]string{}
	for _, o := range old {
		k := key{o.check, o.subject}
		before[k] = append(before[k], o.verdict)
	}
	var lines []string
	for _, res := range r.Results {
		k := key{res.Check, res.Subject}
		now := res.Verdict.String()
		switch was := before[k]; {
		case len(was) == 0:
			lines = append(lines, fmt.Sprintf("since baseline: %s %s is new: %s", k.check, k.subject, now))
		default:
			if was[0] != now {
				lines = append(lines, fmt.Sprintf("since baseline: %s %s was %s, is %s", k.check, k.subject, was[0], now))
			}
			before[k] = was[1:]
		}
	}
	for _, o := range old {
		k := key{o.check, o.subject}
		if len(before[k]) > 0 {
			before[k] = before[k][1:]
			lines = append(lines, fmt.Sprintf("since baseline: %s %s was %s, is gone", k.check, k.subject, o.verdict))
		}
	}
	if lines == nil {
		lines = []string{"since baseline: nothing changed"}
	}
	return lines, nil
}

type verdictOf struct{ check, subject, verdict, key string }

// readVerdicts reads the results of a stored report.
func readVerdicts(path string, data []byte) ([]verdictOf, error) {
	var out []verdictOf
	version := int64(-1)
	sc := format.NewScanner(path, data, 0)
	err := sc.Document(func(field string) error {
		switch field {
		case "schema_version":
			var err error
			version, err = sc.Int()
			return err
		case "results":
			return sc.Array(func(int) error {
				var v verdictOf
				into := map[string]*string{"check": &v.check, "subject": &v.subject, "verdict": &v.verdict, "key": &v.key}
				err := sc.Object(func(key string) error {
					to, ok := into[key]
					if !ok {
						return sc.Skip()
					}
					var err error
					*to, err = sc.String()
					return err
				})
				if err == nil && (v.check == "" || v.verdict == "") {
					err = sc.Malformed("a result without check or verdict")
				}
				out = append(out, v)
				return err
			})
		}
		return sc.Skip()
	})
	if err == nil && version != SchemaVersion {
		err = format.Malformed(path, "schema_version", "found %d, want %d", version, SchemaVersion)
	}
	return out, err
}
