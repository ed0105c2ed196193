package report

import (
	"encoding/json"
	"fmt"
	"io"

	"plumbline/internal/format"
)

// maxBaseline bounds the size of a stored report.
const maxBaseline = 64 << 20

// Changes compares r with the JSON report stored at path and returns a line for every result whose verdict differs, in
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
	var old struct {
		SchemaVersion int `json:"schema_version"`
		Results       []struct{ Check, Subject, Verdict string }
	}
	if err := json.Unmarshal(data, &old); err != nil {
		return nil, format.Malformed(path, "", "no report of verify --format json: %v", err)
	}
	if old.SchemaVersion != SchemaVersion {
		return nil, format.Malformed(path, "schema_version", "found %d, want %d", old.SchemaVersion, SchemaVersion)
	}
	type key struct{ check, subject string }
	before := map[key][]string{}
	for _, o := range old.Results {
		k := key{o.Check, o.Subject}
		before[k] = append(before[k], o.Verdict)
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
	for _, o := range old.Results {
		k := key{o.Check, o.Subject}
		if len(before[k]) > 0 {
			before[k] = before[k][1:]
			lines = append(lines, fmt.Sprintf("since baseline: %s %s was %s, is gone", k.check, k.subject, o.Verdict))
		}
	}
	if lines == nil {
		lines = []string{"since baseline: nothing changed"}
	}
	return lines, nil
}
