package report

import (
	"bytes"
	"encoding/json"
	"io"
	"net/url"
	"path/filepath"
	"strings"

	"plumbline/verify/check"
)

// SARIF 2.1.0 (OASIS), as far as it is written here.
type sarifLog struct {
	Schema  string     `json:"$schema"`
	Version string     `json:"version"`
	Runs    []sarifRun `json:"runs"`
}

type sarifRun struct {
	Tool struct {
		Driver sarifDriver `json:"driver"`
	} `json:"tool"`
	Results     []sarifResult     `json:"results"`
	Invocations []sarifInvocation `json:"invocations"`
}

type sarifDriver struct {
	Name    string      `json:"name"`
	Version string      `json:"version"`
	Rules   []sarifRule `json:"rules"`
}

type sarifRule struct {
	ID string `json:"id"`
}

type sarifText struct {
	Text string `json:"text"`
}

type sarifResult struct {
	RuleID       string            `json:"ruleId"`
	Level        string            `json:"level"`
	Message      sarifText         `json:"message"`
	Locations    []sarifLocation   `json:"locations,omitempty"`
	Fingerprints map[string]string `json:"partialFingerprints"`
	State        string            `json:"baselineState,omitempty"`
}

type sarifLocation struct {
	Physical struct {
		Artifact struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region *sarifRegion `json:"region,omitempty"`
	} `json:"physicalLocation"`
}

type sarifRegion struct {
	StartLine int `json:"startLine"`
}

type sarifInvocation struct {
	Success bool `json:"executionSuccessful"`
	Exit    int  `json:"exitCode"`
}

// sarif writes the results that need attention as SARIF. The rule is the bug that explains a result, else its check; the place is the file
// that the result names, else the first that was read.
func (r *Report) sarif(w io.Writer) error {
	run := sarifRun{Results: []sarifResult{}, Invocations: []sarifInvocation{{r.Err == "", r.Exit}}}
	run.Tool.Driver = sarifDriver{Name: "plumbline", Version: r.Tool.Version, Rules: []sarifRule{}}
	rules := map[string]bool{}
	for i := range r.Results {
		res := &r.Results[i]
		if !needsAttention(res.Verdict) {
			continue
		}
		out := sarifResult{RuleID: res.Check, Level: "warning", Fingerprints: map[string]string{"plumbline/v1": r.key(res)}}
		if res.Verdict == check.Fail || res.Verdict == check.Convention && r.Exit != check.ExitPass {
			out.Level = "error"
		}
		text := []string{res.Verdict.String() + " " + strings.TrimSpace(res.Check+" "+res.Subject)}
		if len(res.Explanations) > 0 && !res.Explanations[0].Lead {
			if out.RuleID = res.Explanations[0].Fault; out.RuleID == "" {
				out.RuleID = res.Check
			}
			text = append(text, res.Explanations[0].Title)
		}
		for _, t := range []string{res.Reason, res.Fix} {
			if t != "" {
				text = append(text, t)
			}
		}
		out.Message.Text = strings.Join(text, "\n")
		if file := r.fileOf(res); file != "" || res.At != nil {
			var at sarifLocation
			at.Physical.Artifact.URI = file
			if res.At != nil {
				at.Physical.Artifact.URI, at.Physical.Region = uri(res.At.Path), &sarifRegion{res.At.Number}
			}
			out.Locations = []sarifLocation{at}
		}
		if res.Known {
			out.State = "unchanged"
		}
		if !rules[out.RuleID] {
			rules[out.RuleID] = true
			run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{out.RuleID})
		}
		run.Results = append(run.Results, out)
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(sarifLog{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []sarifRun{run}}); err != nil {
		return err
	}
	return writeEscaped(w, text.Bytes(), `\u%04x`)
}

// fileOf is the URI of the input that a result names; a configuration that was read comes before data.
func (r *Report) fileOf(res *check.Result) string {
	path := ""
	for _, in := range r.Inputs {
		switch {
		case in.Path != "" && (strings.Contains(res.Where, in.Path) || strings.Contains(res.Subject, in.Path)):
			return uri(in.Path)
		case path == "":
			path = in.Path
		}
	}
	return uri(path)
}

// uri is a path as a relative reference of RFC 3986, or with the scheme file where it is absolute.
func uri(path string) string {
	if path == "" {
		return ""
	}
	u := (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath()
	if strings.HasPrefix(u, "/") {
		return "file://" + u
	}
	return strings.ReplaceAll(u, ":", "%3A")
}
