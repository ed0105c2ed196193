package report

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// A finding of the baseline is known and changes no exit code; one of another cause, of another place, a worse verdict or a second of
// the same is not.
func TestBaselineKnows(t *testing.T) {
	old := &Report{Command: "projection", Results: []check.Result{
		{Check: "a", Subject: "x", Verdict: check.Fail, Compared: 1, Explanations: []check.Explanation{{Fault: "ONE"}}},
		{Check: "b", Subject: "x", Verdict: check.Undetermined},
	}}
	path := filepath.Join(t.TempDir(), "old.json")
	require.NoError(t, os.WriteFile(path, []byte(write(t, old, Options{Format: "json"})), 0o600))
	exit := func(change func(r *Report)) int {
		r := &Report{Command: old.Command, Results: append([]check.Result{}, old.Results...)}
		change(r)
		_, err := Changes(path, r)
		require.NoError(t, err)
		return check.Exit(r.Results, check.Policy{})
	}
	require.Equal(t, check.ExitPass, exit(func(*Report) {}))
	for name, change := range map[string]func(r *Report){
		"another cause": func(r *Report) { r.Results[0].Explanations = []check.Explanation{{Fault: "TWO"}} },
		"no cause":      func(r *Report) { r.Results[0].Explanations = nil },
		"another place": func(r *Report) { r.Results[0].Subject = "y" },
		"worse verdict": func(r *Report) { r.Results[1].Verdict = check.Fail },
		"another of it": func(r *Report) { r.Results = append(r.Results, r.Results[0]) },
		"another check": func(r *Report) { r.Results[0].Check = "c" },
	} {
		require.Equal(t, check.ExitFail, exit(change), name)
	}
	require.Equal(t, check.ExitPass, exit(func(r *Report) { r.Results[0].Measured = 1e9 }), "numbers may grow")
}
