package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const report = `{"exit": 1, "tool": {"version": "a"}, "counts": {"FAIL": 1}, "results": [
	{"check": "kl/token", "subject": "step 1", "verdict": "FAIL", "measured": 0.5, "reason": "2 of 3", "class": ["KL-BETA"]}, {"check": "gae/advantage", "verdict": "PASS"}]}`

func TestDifferences(t *testing.T) {
	for _, c := range []struct {
		name, with string
		exit       int
		kinds      []string
	}{
		{"the same", report, 1, nil},
		{"another version", `{"exit": 1, "tool": {"version": "b"}, "counts": {"FAIL": 1}, "results": [{"check": "gae/advantage", "verdict": "PASS"},
			{"check": "kl/token", "subject": "step 1", "verdict": "FAIL", "measured": 0.5, "reason": "2 of 3", "class": ["KL-BETA"]}]}`, 1, nil},
		{"exit code", report, 2, []string{exit}},
		{"a verdict, its count and a bug's name", `{"exit": 1, "counts": {"FAIL": 0}, "results": [
			{"check": "kl/token", "subject": "step 1", "verdict": "WARN", "measured": 0.5, "reason": "2 of 3"}, {"check": "gae/advantage", "verdict": "PASS"}]}`, 1, []string{verdict, verdict, verdict}},
		{"the last bit of a number, and a text", `{"exit": 1, "counts": {"FAIL": 1}, "results": [
			{"check": "kl/token", "subject": "step 1", "verdict": "FAIL", "measured": 0.5000000000000001, "reason": "3 of 3", "class": ["KL-BETA"]}, {"check": "gae/advantage", "verdict": "PASS"}]}`, 1,
			[]string{number, text}},
		{"a check that is gone", `{"exit": 1, "counts": {"FAIL": 1}, "results": [
			{"check": "kl/token", "subject": "step 1", "verdict": "FAIL", "measured": 0.5, "reason": "2 of 3", "class": ["KL-BETA"]}]}`, 1, []string{text, verdict}},
		{"no report", "panic", 1, []string{text, text}},
	} {
		var kinds []string
		for _, d := range differences(answer{1, []byte(report), nil}, answer{c.exit, []byte(c.with), nil}, true) {
			kinds = append(kinds, d.kind)
		}
		require.Equal(t, c.kinds, kinds, c.name)
	}
	require.Len(t, differences(answer{0, []byte("a\nb\n"), []byte("x\n")}, answer{0, []byte("a\nc\nd\n"), nil}, false), 3)
	require.Len(t, differences(answer{0, []byte("a\nb\n"), nil}, answer{0, []byte("b\na\n"), nil}, false), 1, "the order counts")
}

func TestJobsReachEveryKind(t *testing.T) {
	list, err := jobs("../..")
	require.NoError(t, err)
	count := map[string]int{}
	for _, args := range list {
		count[args[0]]++
	}
	for command, least := range map[string]int{"dump": 100, "diff": 100, "checkpoint": 50, "log": 20, "projection": 10, "golden": 1, "museum": 1} {
		require.GreaterOrEqual(t, count[command], least, command)
	}
}
