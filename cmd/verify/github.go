package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/report"
)

// maxAnnotations is how many notes of each kind GitHub shows for a step.
const maxAnnotations = 10

// onGitHub adds the report to the summary of the step and its worst results as annotations, where GitHub Actions runs this
// program. Annotations go to stderr, which the runner reads too: stdout carries the report only. What fails here is said and
// changes no exit code.
func onGitHub(stderr io.Writer, r *report.Report) {
	if os.Getenv("GITHUB_ACTIONS") != "true" {
		return
	}
	annotate(stderr, r)
	if file := os.Getenv("GITHUB_STEP_SUMMARY"); file != "" {
		if err := appendSummary(file, r); err != nil {
			fmt.Fprintf(stderr, "verify: the step summary was not written: %v\n", err)
		}
	}
}

// appendSummary appends to a summary that other commands of the step may have begun; the limit is that of them together.
func appendSummary(file string, r *report.Report) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	room := report.MaxMarkdown - int(min(info.Size(), report.MaxMarkdown))
	if room < 2000 {
		return fmt.Errorf("the commands before have left no room in %s", file)
	}
	var text bytes.Buffer
	if err := r.Markdown(&text, room); err != nil {
		return err
	}
	if _, err := f.Write(text.Bytes()); err != nil {
		return err
	}
	return f.Close()
}

// annotate prints the worst results as workflow commands.
func annotate(w io.Writer, r *report.Report) {
	left := maxAnnotations
	say := func(kind, title, text string) {
		if left--; left >= 0 {
			fmt.Fprintf(w, "::%s title=%s::%s\n", kind, property.Replace(title), data.Replace(text))
		}
	}
	if r.Err != "" {
		say("error", "verify "+r.Command, report.Printable(r.Err))
	}
	for _, res := range r.Worst(maxAnnotations) {
		kind := "warning"
		if res.Verdict == check.Fail || res.Verdict == check.Convention && r.Exit != check.ExitPass {
			kind = "error"
		}
		text := []string{res.Verdict.String() + " " + res.Subject}
		if res.Metric != "" {
			text = append(text, fmt.Sprintf("%s = %.4g, limit %.4g", res.Metric, res.Measured, res.Limit))
		}
		text = append(text, res.Reason, res.Where)
		for _, e := range res.Explanations[:min(1, len(res.Explanations))] {
			text = append(text, "explanation: "+strings.TrimPrefix(e.Fault+": "+e.Title, ": "))
		}
		text = append(text, res.Fix)
		var lines []string
		for _, t := range text {
			if t = strings.TrimSpace(t); t != "" {
				lines = append(lines, report.Printable(t))
			}
		}
		say(kind, "verify "+r.Command+" "+res.Check, strings.Join(lines, "\n"))
	}
}

// Workflow commands end at a line, their properties at a colon or comma.
var (
	data     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)
