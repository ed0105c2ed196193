package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"plumbline/verify/check"
)

type junitSuites struct {
	XMLName xml.Name `xml:"testsuites"`
	junitCounts
	Suite junitSuite `xml:"testsuite"`
}

// junitCounts are what a suite, and all of them, say first.
type junitCounts struct {
	Name     string `xml:"name,attr"`
	Tests    int    `xml:"tests,attr"`
	Failures int    `xml:"failures,attr"`
	Errors   int    `xml:"errors,attr"`
	Skipped  int    `xml:"skipped,attr"`
	Time     string `xml:"time,attr"`
}

type junitSuite struct {
	junitCounts
	Timestamp string      `xml:"timestamp,attr"`
	Cases     []junitCase `xml:"testcase"`
	Out       string      `xml:"system-out,omitempty"` // the headline
}

type junitCase struct {
	Name      string       `xml:"name,attr"`
	ClassName string       `xml:"classname,attr"`
	Time      string       `xml:"time,attr"`
	Failure   *junitResult `xml:"failure,omitempty"`
	Error     *junitResult `xml:"error,omitempty"`
	Skipped   *junitResult `xml:"skipped,omitempty"`
	Out       string       `xml:"system-out,omitempty"`
}

type junitResult struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
	Text    string `xml:",chardata"`
}

// junit writes the report as JUnit XML. Some servers show neither message nor type, so the numbers stand in the text of
// a failure too. UNDETERMINED is an error and not a skip: a skip looks like a pass.
func (r *Report) junit(w io.Writer) error {
	s := junitSuite{junitCounts: junitCounts{Name: "verify " + r.Command, Time: fmt.Sprintf("%.3f", r.Run.Seconds)}, Timestamp: r.Run.Started}
	add := func(c junitCase) {
		s.Tests++
		switch {
		case c.Failure != nil:
			s.Failures++
		case c.Error != nil:
			s.Errors++
		case c.Skipped != nil:
			s.Skipped++
		}
		s.Cases = append(s.Cases, c)
	}
	for i := range r.Results {
		res := &r.Results[i]
		var text strings.Builder
		r.detail(&text, res, Options{Verbose: true})
		c := junitCase{Name: xmlText(strings.TrimSpace(res.Check + " " + res.Subject)), ClassName: "verify." + r.Command + "." + strings.ReplaceAll(res.Check, "/", "."), Time: "0"}
		out := &junitResult{Message: xmlText(res.Reason), Type: res.Verdict.String(), Text: xmlText(text.String())}
		if res.Known { // the baseline has it
			c.Out = "known: " + out.Text
			add(c)
			continue
		}
		switch res.Verdict {
		case check.Fail:
			c.Failure = out
		case check.Convention:
			c.Failure = out
			if r.Exit == check.ExitPass {
				c.Failure, c.Out = nil, out.Text
			}
		case check.Undetermined:
			c.Error = out
		case check.Skip, check.NotSeen, check.Untested:
			c.Skipped = out
		default:
			c.Out = out.Text
		}
		add(c)
	}
	if r.Err != "" {
		add(junitCase{Name: "run", ClassName: "verify." + r.Command, Time: "0", Error: &junitResult{Message: xmlText(r.Err), Type: meaning(r.Exit), Text: xmlText(r.Err)}})
	}
	if r.Brief != nil {
		s.Out = xmlText(r.headline())
	}
	all := junitSuites{junitCounts: s.junitCounts, Suite: s}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	var text bytes.Buffer
	enc := xml.NewEncoder(&text)
	enc.Indent("", "  ")
	if err := enc.Encode(all); err != nil {
		return err
	}
	text.WriteByte('\n')
	return writeEscaped(w, text.Bytes(), "&#x%X;")
}

// xmlText drops what XML 1.0 forbids: control characters but tab, LF and CR, and U+FFFE and U+FFFF.
func xmlText(s string) string {
	return strings.Map(func(c rune) rune {
		if c < 0x20 && c != '\t' && c != '\n' && c != '\r' || c == 0xFFFE || c == 0xFFFF {
			return -1
		}
		return c
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
