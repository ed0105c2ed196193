//go:build slow

package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/rundir"
)

// The shipped configuration stays where the debugging notes expect a healthy run: no warning, a KL penalty of at most 0.1 that reaches
// 0.001, and a spread of the rewards above 0.01 in every iteration. The rate and weight that it had before are the fault: they leave the
// band.
func TestGRPOBands(t *testing.T) {
	run := func(more ...string) (most, spread float64, errs string) {
		dir := filepath.Join(t.TempDir(), "run")
		_, errs, code := program(t, append([]string{"grpo", "eval_samples=0", "save_interval=0", "out_dir=" + dir}, more...)...)
		require.Zero(t, code, errs)
		lines, err := rundir.ReadLog(filepath.Join(dir, "metrics.jsonl"))
		require.NoError(t, err)
		require.NotEmpty(t, lines)
		spread = 1
		for _, l := range lines {
			var m struct {
				KL  float64 `json:"kl_penalty"`
				Std float64 `json:"std_reward"`
			}
			require.NoError(t, json.Unmarshal(l.Text, &m))
			most, spread = max(most, m.KL), min(spread, m.Std)
		}
		return most, spread, errs
	}
	most, spread, errs := run()
	require.NotContains(t, errs, "WARNING")
	require.Greater(t, most, 0.001)
	require.LessOrEqual(t, most, 0.1)
	require.Greater(t, spread, 0.01)
	most, _, errs = run("learning_rate=1e-3", "kl_beta=0.02", "max_iters=12")
	require.Greater(t, most, 0.1)
	require.Contains(t, errs, "B10")
}
