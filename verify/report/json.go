package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode"

	"plumbline/verify/check"
)

// SchemaVersion is the version of the JSON form. It rises when a field changes its meaning or goes.
const SchemaVersion = 1

// Schema is the JSON Schema (draft 2020-12) of the JSON form.
//
//go:embed schema.json
var Schema []byte

// Number is a float64 in JSON: the shortest form that reads back as the same number, and a string where it is not finite.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	v := float64(n)
	switch {
	case math.IsNaN(v):
		return []byte(`"NaN"`), nil
	case math.IsInf(v, 1):
		return []byte(`"Infinity"`), nil
	case math.IsInf(v, -1):
		return []byte(`"-Infinity"`), nil
	}
	return strconv.AppendFloat(nil, v, 'g', -1, 64), nil
}

type jsonReport struct {
	SchemaVersion int            `json:"schema_version"`
	Tool          Tool           `json:"tool"`
	Command       string         `json:"command"`
	Exit          int            `json:"exit"`
	Meaning       string         `json:"meaning"`
	Error         string         `json:"error,omitempty"`
	Counts        map[string]int `json:"counts"`
	Inputs        []Input        `json:"inputs"`
	Results       []jsonResult   `json:"results"`
	Lines         []string       `json:"lines"`
	Lists         []Section      `json:"lists,omitempty"`
	Files         []string       `json:"files"`
	Headline      string         `json:"headline,omitempty"`
	Coverage      string         `json:"coverage,omitempty"`
	Findings      []jsonFinding  `json:"findings,omitempty"`
	Metrics       []jsonMetric   `json:"metrics,omitempty"`
	Run           Run            `json:"run"`
}

type jsonFinding struct {
	Name     string   `json:"name"`
	Verdict  string   `json:"verdict"`
	Title    string   `json:"title"`
	Where    string   `json:"where,omitempty"`
	Got      string   `json:"got,omitempty"`
	Right    string   `json:"right,omitempty"`
	Yours    string   `json:"yours,omitempty"`
	Theirs   string   `json:"theirs,omitempty"`
	Whose    string   `json:"whose,omitempty"`
	Evidence string   `json:"evidence,omitempty"`
	Or       []string `json:"or,omitempty"`
	Cause    string   `json:"cause,omitempty"`
	Better   string   `json:"better_cause,omitempty"`
	Follows  []string `json:"follows,omitempty"`
	Dump     string   `json:"dump,omitempty"`
	Effect   string   `json:"effect,omitempty"`
	Fix      string   `json:"fix,omitempty"`
	SeenIn   []string `json:"seen_in"`
	First    *int     `json:"first_bad,omitempty"`
	Known    bool     `json:"known,omitempty"`
}

// findingsOf are the causes in the order of the short form.
func findingsOf(b *check.Brief) (list []jsonFinding) {
	for _, f := range b.Findings {
		j := jsonFinding{Name: f.Name, Verdict: f.Verdict.String(), Title: f.Title, Where: f.Where, Got: f.Got, Right: f.Right, Yours: f.Yours, Theirs: f.Theirs, Whose: f.Whose,
			Evidence: f.Evidence, Or: f.Or, Effect: f.Effect, Fix: f.Fix, SeenIn: f.Seen,
			Cause: f.Cause, Better: f.Better, Follows: f.Follows, Dump: f.Dump, Known: f.Known}
		if f.First >= 0 {
			j.First = &f.First
		}
		list = append(list, j)
	}
	return list
}

type jsonMetric struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Spark   string `json:"spark"`
	First   *int64 `json:"first_bad,omitempty"`
	Text    string `json:"text"`
	Formula string `json:"formula,omitempty"`
	Trap    string `json:"trap,omitempty"`
}

// metricsOf are the rows of a log.
func metricsOf(b *check.Brief) (list []jsonMetric) {
	for _, m := range b.Metrics {
		j := jsonMetric{Name: m.Name, Verdict: m.Verdict.String(), Spark: m.Spark, Text: m.Text, Formula: m.Formula, Trap: m.Trap}
		if m.Verdict != check.Pass && m.First >= 0 {
			j.First = &m.First
		}
		list = append(list, j)
	}
	return list
}

type jsonResult struct {
	Check        string            `json:"check"`
	Subject      string            `json:"subject"`
	Verdict      string            `json:"verdict"`
	Reason       string            `json:"reason,omitempty"`
	Formula      string            `json:"formula,omitempty"`
	Steps        *jsonSteps        `json:"steps,omitempty"`
	Metric       string            `json:"metric,omitempty"`
	Measured     *Number           `json:"measured,omitempty"`
	Limit        *Number           `json:"limit,omitempty"`
	Ratio        *Number           `json:"ratio,omitempty"`
	Compared     int               `json:"compared"`
	Resolution   *Number           `json:"resolution,omitempty"`
	Where        string            `json:"where,omitempty"`
	Facts        []jsonFact        `json:"facts,omitempty"`
	Explanations []jsonExplanation `json:"explanations,omitempty"`
	Class        []string          `json:"class,omitempty"`
	Details      []string          `json:"details,omitempty"`
	Fix          string            `json:"fix,omitempty"`
	Repeat       string            `json:"repeat,omitempty"`
	Key          string            `json:"key,omitempty"`
	Known        bool              `json:"known,omitempty"`
}

type jsonFact struct {
	Name  string `json:"name"`
	Value Number `json:"value"`
}

type jsonSteps struct {
	Judged int  `json:"judged"`
	Bad    int  `json:"bad"`
	First  *int `json:"first_bad,omitempty"`
}

type jsonExplanation struct {
	Fault    string       `json:"fault,omitempty"`
	Title    string       `json:"title"`
	Evidence string       `json:"evidence,omitempty"`
	Lead     bool         `json:"lead"`
	Cause    string       `json:"cause,omitempty"`
	Rows     []string     `json:"rows,omitempty"`
	Options  []jsonOption `json:"options,omitempty"`
	Apart    *Number      `json:"apart,omitempty"`
}

type jsonOption struct {
	Option   string `json:"option"`
	Value    string `json:"value"`
	Declared string `json:"declared"`
	Origin   string `json:"origin,omitempty"`
}

func (r *Report) json(w io.Writer) error {
	out := jsonReport{
		SchemaVersion: SchemaVersion, Tool: r.Tool, Command: r.Command, Exit: r.Exit, Meaning: meaning(r.Exit), Error: r.Err,
		Counts: map[string]int{}, Inputs: r.Inputs, Results: []jsonResult{}, Lines: r.Lines, Lists: r.Lists, Files: r.Files, Run: r.Run,
	}
	if out.Inputs == nil {
		out.Inputs = []Input{}
	}
	if out.Lines == nil {
		out.Lines = []string{}
	}
	if out.Files == nil {
		out.Files = []string{}
	}
	if r.Brief != nil {
		out.Headline, out.Coverage, out.Findings = r.headline(), coverage(r.Brief), findingsOf(r.Brief)
		out.Metrics = metricsOf(r.Brief)
	}
	for i := range r.Results {
		res := &r.Results[i]
		out.Counts[res.Verdict.String()]++
		j := jsonResult{Check: res.Check, Subject: res.Subject, Verdict: res.Verdict.String(), Reason: res.Reason, Formula: res.Formula, Metric: res.Metric,
			Class: res.Class, Details: res.Details, Compared: res.Compared, Where: res.Where, Fix: res.Fix}
		if res.Metric != "" {
			measured, limit, ratio := Number(res.Measured), Number(res.Limit), Number(res.Ratio())
			j.Measured, j.Limit, j.Ratio = &measured, &limit, &ratio
		}
		if res.Resolution > 0 {
			n := Number(res.Resolution)
			j.Resolution = &n
		}
		for _, f := range res.Facts {
			j.Facts = append(j.Facts, jsonFact{f.Name, Number(f.Value)})
		}
		for _, e := range res.Explanations {
			j.Explanations = append(j.Explanations, explanationOf(e))
		}
		if st := res.Steps; st != nil {
			j.Steps = &jsonSteps{Judged: st.Judged, Bad: st.Bad}
			if st.Bad > 0 {
				j.Steps.First = &st.First
			}
		}
		if res.Verdict != check.Pass && res.Verdict != check.Note {
			j.Repeat = r.repeat(res)
		}
		if needsAttention(res.Verdict) {
			j.Key, j.Known = r.key(res), res.Known
		}
		out.Results = append(out.Results, j)
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(out); err != nil {
		return err
	}
	return writeEscaped(w, text.Bytes(), `\u%04x`)
}

// writeEscaped writes text with the characters that [Printable] replaces, but for those below a blank, as format says: a terminal that
// shows the file must not be driven by a name in it. They stand in strings only.
func writeEscaped(w io.Writer, text []byte, format string) error {
	var out bytes.Buffer
	for _, c := range string(text) {
		if c >= ' ' && unicode.In(c, unicode.Cc, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
			fmt.Fprintf(&out, format, c)
			continue
		}
		out.WriteRune(c)
	}
	_, err := w.Write(out.Bytes())
	return err
}

func explanationOf(e check.Explanation) jsonExplanation {
	j := jsonExplanation{Fault: e.Fault, Title: e.Title, Evidence: e.Evidence, Lead: e.Lead, Cause: e.Cause, Rows: e.Rows}
	for _, o := range e.Options {
		j.Options = append(j.Options, jsonOption(o))
	}
	if e.Apart > 0 {
		n := Number(e.Apart)
		j.Apart = &n
	}
	return j
}
