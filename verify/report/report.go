// Package report prints the results of a run: tables for a terminal, JSON for programs, JUnit for CI servers. All forms
// are made from one [Report], so they say the same.
package report

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// Report is everything a run has to say.
type Report struct {
	Command string // "projection"
	Tool    Tool
	Repeat  string  // command line that repeats the run, without its output flags
	Inputs  []Input // in the order of the command line
	Results []check.Result
	Lines   []string  // printed as they are, in the form that the source document gives them
	Lists   []Section // printed under a heading, long ones only on demand
	Files   []string  // written beside the report: pictures, repaired bases
	Err     string    // what ended the run early
	Exit    int
	Run     Run

	Pictures *check.Pictures // of a page; nil: none

	Brief *check.Brief // the same in a few lines, causes in place of checks; nil: the terminal shows the checks
}

// Tool names the program and its version.
type Tool struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Input is a file that was read.
type Input struct {
	Role   string `json:"role"` // "basis", "grad", …
	Path   string `json:"path"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
	What   string `json:"what"` // "65536 × 32 float32"
}

// Run holds what differs between two equal runs: clocks and the machine. Comparisons of reports skip it.
type Run struct {
	Started string  `json:"started"` // RFC 3339
	Seconds float64 `json:"seconds"`
	Machine Machine `json:"machine"`
}

// Machine is where the run took place.
type Machine struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPUs int    `json:"cpus"`
	Go   string `json:"go"`
}

// Section is lines of one kind, such as the options that override others.
type Section struct {
	Title string   `json:"title"` // without a colon
	Items []string `json:"items"`
	Whole bool     `json:"-"` // printed however long it is
}

// Formats lists the forms a report can take.
var Formats = []string{"human", "json", "junit", "markdown", "html", "sarif"}

// Options controls the form.
type Options struct {
	Format  string // one of Formats
	Color   bool
	Verbose bool // every result and line
	Quiet   bool // only what is not a pass
	Details bool // no table before the details
	ASCII   bool // no other characters in the short form
	Width   int  // columns that the short form is wrapped to; 0: 80
}

// Write writes r to w in the form of opt.
func (r *Report) Write(w io.Writer, opt Options) error {
	var buf bytes.Buffer
	var err error
	switch opt.Format {
	case "human":
		if r.Brief != nil && !opt.Verbose {
			err = r.brief(&buf, opt)
		} else {
			err = r.human(&buf, opt)
		}
	case "json":
		err = r.json(&buf)
	case "junit":
		err = r.junit(&buf)
	case "markdown":
		err = r.Markdown(&buf, MaxMarkdown)
	case "sarif":
		err = r.sarif(&buf)
	case "html":
		err = r.html(&buf)
	default:
		return fmt.Errorf("unknown format %q; one of %s", opt.Format, strings.Join(Formats, ", "))
	}
	if err != nil {
		return err
	}
	_, err = w.Write(buf.Bytes())
	return err
}

// repeat returns the command that repeats one result.
func (r *Report) repeat(res *check.Result) string {
	if r.Repeat == "" {
		return ""
	}
	if res.Repeat != "" {
		return r.Repeat + " " + res.Repeat
	}
	return r.Repeat + " --select " + res.Check
}

// counts returns how many results have each verdict, in the order of the verdicts.
func (r *Report) counts() string {
	n := map[check.Verdict]int{}
	for _, res := range r.Results {
		n[res.Verdict]++
	}
	var parts []string
	for v := check.Pass; v <= check.Untested; v++ {
		if n[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[v], v))
		}
	}
	if parts == nil {
		return "no results"
	}
	return strings.Join(parts, ", ")
}

// Verdict is the report in a line for a picture: the worst check with its number, its limit and the bug, or how many passed.
func (r *Report) Verdict() string {
	worst := r.Worst(1)
	if len(worst) == 0 {
		return r.counts()
	}
	w := worst[0]
	text := fmt.Sprintf("%s %s", w.Verdict, w.Check)
	if w.Metric != "" {
		text += fmt.Sprintf(": %.3g, limit %.3g", w.Measured, w.Limit)
	}
	if len(w.Explanations) > 0 && w.Explanations[0].Fault != "" {
		text += ": " + w.Explanations[0].Fault
	}
	return text
}

// meaning says what an exit code means.
func meaning(code int) string {
	switch code {
	case check.ExitPass:
		return "nothing failed"
	case check.ExitFail:
		return "a check failed"
	case check.ExitUsage:
		return "usage or configuration error, or a path that does not exist"
	case check.ExitInternal:
		return "internal error, or the environment failed"
	case check.ExitMalformed:
		return "malformed or refused input file"
	case check.ExitNothing:
		return "nothing was checked"
	case check.ExitUndetermined:
		return "undetermined, and nothing failed"
	case check.ExitInterrupted:
		return "interrupted"
	}
	return "unknown"
}

// severity orders verdicts from worst to best for the choice of a check's one line.
var severity = []check.Verdict{check.Fail, check.Convention, check.Undetermined, check.Warn, check.Pass, check.Note, check.Untested, check.NotSeen, check.Skip}

func worse(a, b *check.Result) bool {
	sa, sb := slices.Index(severity, a.Verdict), slices.Index(severity, b.Verdict)
	if sa != sb {
		return sa < sb
	}
	return a.Metric != "" && b.Metric != "" && a.Ratio() > b.Ratio()
}
