package report

import (
	_ "embed"
	"encoding/json"
	"io"
	"math"
	"strconv"

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
	Run           Run            `json:"run"`
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
		out.Results = append(out.Results, j)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
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
