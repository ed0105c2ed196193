package report

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

func markdown(t *testing.T, r *Report, limit int) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Markdown(&b, limit))
	require.LessOrEqual(t, b.Len(), limit)
	require.True(t, utf8.Valid(b.Bytes()))
	// Every fence that is opened is closed, and so is every fold.
	open := ""
	for _, line := range strings.Split(b.String(), "\n") {
		switch fence := strings.TrimRight(line, "abcdefghijklmnopqrstuvwxyz"); {
		case open == "" && strings.HasPrefix(fence, "```"):
			open = fence
		case line == open:
			open = ""
		}
	}
	require.Empty(t, open)
	require.Equal(t, strings.Count(b.String(), "\n<details><summary>"), strings.Count(b.String(), "\n</details>\n"))
	return b.String()
}

func failing(n, checks int) *Report {
	r := &Report{Command: "dump", Tool: Tool{Name: "verify"}, Repeat: "verify dump run", Exit: check.ExitFail}
	for i := range n {
		res := check.Result{Check: fmt.Sprintf("group/check%d", i%checks), Subject: fmt.Sprintf("step %d", i), Verdict: check.Fail, Reason: "beyond its bound", Metric: "max|Δ|",
			Measured: float64(i), Limit: 1, Compared: 10, Where: "row 3", Fix: "mend it", Explanations: []check.Explanation{{Fault: "F1", Title: "a bug"}}}
		r.Results = append(r.Results, res)
	}
	return r
}

// A report of any size stays below the cap, says how much has no room, and ends properly.
func TestMarkdownCap(t *testing.T) {
	for _, c := range []struct{ results, checks, limit int }{{100_000, 40, MaxMarkdown}, {100_000, 100_000, MaxMarkdown}, {1000, 10, 20_000}, {1000, 1000, 5000}, {10, 10, 2000}} {
		text := markdown(t, failing(c.results, c.checks), c.limit)
		require.Contains(t, text, "have no room here", "%v", c)
		require.Contains(t, text, fmt.Sprintf("%d FAIL", c.results))
		require.Contains(t, text, "verify dump run\n")
		require.Greater(t, len(text), c.limit/3, "the room is used")
	}
	text := markdown(t, failing(20, 5), MaxMarkdown)
	require.NotContains(t, text, "no room")
	require.Equal(t, 20, strings.Count(text, "explanation  F1: a bug"))
	require.Equal(t, 5, strings.Count(text, "| FAIL | group/check"))
	require.Contains(t, text, "| FAIL | group/check4 | step 19 (+3) | 19 | 1 | 19 |")
	require.Less(t, strings.Index(text, "step 19"), strings.Index(text, "step 3 "), "the worst first")
	r := failing(2, 2)
	r.Lines = []string{strings.Repeat("x", 2*MaxMarkdown)}
	require.Contains(t, markdown(t, r, MaxMarkdown), "1 more findings and lines")
}

// escaped is a character that is no markdown.
var escaped = regexp.MustCompile(`\\.`)

// Nothing that comes from a file is markdown or HTML.
func TestMarkdownIsText(t *testing.T) {
	evil := "a|b\n# x <script>alert(1)</script> ```\n</details> [l](http://x) ![i](http://x) `c` @team \x1b[31m"
	r := failing(1, 1)
	r.Results[0].Subject, r.Results[0].Reason, r.Results[0].Where = evil, evil, "````"
	r.Err, r.Lines, r.Files = evil, []string{evil}, []string{evil}
	r.Inputs = []Input{{Role: "step 1", Path: evil, What: evil}}
	r.Lists = []Section{{Title: evil, Items: []string{evil}}}
	text := markdown(t, r, MaxMarkdown)
	inFence := ""
	for _, line := range strings.Split(text, "\n") {
		if fence := strings.TrimSuffix(line, "text"); strings.HasPrefix(line, "```") && (inFence == "" || line == inFence) {
			if inFence == "" {
				inFence = fence
			} else {
				inFence = ""
			}
			continue
		}
		if inFence != "" {
			continue
		}
		line = escaped.ReplaceAllString(line, "")
		for _, s := range []string{"<script", "](http", "\x1b", "# x <"} {
			require.NotContains(t, line, s)
		}
		if strings.HasPrefix(line, "|") {
			require.Equal(t, 7, strings.Count(line, "|"), line)
		}
	}
	require.Empty(t, inFence)
}

func TestMarkdownPass(t *testing.T) {
	r := &Report{Command: "dump", Tool: Tool{Name: "verify"}, Results: []check.Result{{Check: "a/b", Verdict: check.Pass, Metric: "m", Measured: math.NaN(), Limit: 0}}}
	text := markdown(t, r, MaxMarkdown)
	require.Contains(t, text, "## ✅ verify dump: nothing failed")
	require.Contains(t, text, "| PASS | a/b |")
	r.Exit = check.ExitNothing
	require.Contains(t, markdown(t, r, MaxMarkdown), "❌")
}

func TestWorst(t *testing.T) {
	r := failing(30, 3)
	r.Results = append(r.Results, check.Result{Check: "x", Verdict: check.Warn}, check.Result{Check: "y", Verdict: check.Pass}, check.Result{Check: "z", Verdict: check.Convention})
	var got []string
	for _, res := range r.Worst(10) {
		got = append(got, res.Check+" "+res.Subject)
	}
	require.Equal(t, []string{"group/check2 step 29", "group/check1 step 28", "group/check0 step 27", "z ", "x "}, got)
	require.Len(t, r.Worst(2), 2)
}
