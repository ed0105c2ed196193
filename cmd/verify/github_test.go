package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/report"
)

// The tests may run in GitHub Actions themselves: what they plant is not for its summary.
func init() {
	os.Unsetenv("GITHUB_ACTIONS")
	os.Unsetenv("GITHUB_STEP_SUMMARY")
}

func TestGitHub(t *testing.T) {
	dir := workspace(t)
	summary := filepath.Join(t.TempDir(), "summary.md")
	stdout, stderr, code := verify(t, dir, "projection", "--basis", "q_column_scaled.npy", "--format", "json")
	require.Equal(t, 1, code)
	require.NotContains(t, stdout+stderr, "::error")

	t.Setenv("GITHUB_ACTIONS", "true")
	t.Setenv("GITHUB_STEP_SUMMARY", summary)
	again, stderr, code := verify(t, dir, "projection", "--basis", "q_column_scaled.npy", "--format", "json")
	require.Equal(t, 1, code)
	require.Equal(t, strings.Split(stdout, `"run"`)[0], strings.Split(again, `"run"`)[0], "stdout carries the report only")
	require.Contains(t, stderr, "::error title=verify projection basis/")
	text, err := os.ReadFile(summary)
	require.NoError(t, err)
	require.Contains(t, string(text), "## ❌ verify projection")
	require.Contains(t, string(text), "column 5 is not normalised")

	// The next command of the step appends.
	_, _, code = verify(t, dir, "projection", "--basis", "q.npy")
	require.Equal(t, 0, code)
	both, err := os.ReadFile(summary)
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(both, text))
	require.Contains(t, string(both), "## ✅ verify projection")

	// A summary that cannot be written changes nothing.
	t.Setenv("GITHUB_STEP_SUMMARY", dir)
	_, stderr, code = verify(t, dir, "projection", "--basis", "q.npy")
	require.Equal(t, 0, code)
	require.Contains(t, stderr, "the step summary was not written")
}

// The commands of a step share the limit of its summary.
func TestGitHubSummaryIsShared(t *testing.T) {
	file := filepath.Join(t.TempDir(), "summary.md")
	r := &report.Report{Command: "dump", Exit: check.ExitFail}
	for i := range 100_000 {
		r.Results = append(r.Results, check.Result{Check: fmt.Sprintf("a/c%d", i%50), Verdict: check.Fail, Subject: strings.Repeat("s", 80), Reason: strings.Repeat("r", 80)})
	}
	refused := 0
	for range 4 {
		if err := appendSummary(file, r); err != nil {
			require.ErrorContains(t, err, "no room")
			refused++
		}
	}
	require.Positive(t, refused)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(report.MaxMarkdown))
	require.Greater(t, info.Size(), int64(report.MaxMarkdown/2))
}

// Ten annotations at most, one a line, and nothing in a text ends or begins one.
func TestAnnotations(t *testing.T) {
	r := &report.Report{Command: "dump", Err: "a\n::error::b", Exit: check.ExitFail}
	for i := range 30 {
		r.Results = append(r.Results, check.Result{Check: fmt.Sprintf("a/c%d", i), Verdict: check.Fail, Metric: "m", Measured: float64(i), Limit: 1,
			Subject: "x,y:z%0A", Reason: "one\n::error::two", Explanations: []check.Explanation{{Fault: "F1", Title: "a bug"}}, Fix: "mend it"})
	}
	var b bytes.Buffer
	annotate(&b, r)
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, maxAnnotations)
	for _, line := range lines {
		require.True(t, strings.HasPrefix(line, "::error title=verify dump"), line)
		require.NotContains(t, line[2:], "\n::")
	}
	require.Contains(t, lines[1], "title=verify dump a/c29::FAIL x,y:z%250A%0Am = 29, limit 1%0A")
	require.Contains(t, lines[1], "explanation: F1: a bug%0Amend it")

	b.Reset()
	annotate(&b, &report.Report{Command: "dump", Results: []check.Result{{Check: "a/b", Verdict: check.Convention}, {Check: "a/c", Verdict: check.Warn}, {Check: "a/d", Verdict: check.Pass}}})
	require.Equal(t, 2, strings.Count(b.String(), "::warning"))
	require.NotContains(t, b.String(), "::error")
}
