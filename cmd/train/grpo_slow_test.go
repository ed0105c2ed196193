//go:build slow && unix

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/rundir"
)

func TestSourceFaults(t *testing.T) {
	// Without a fault both runs get through.
	for _, causal := range []bool{false, true} {
		out, code := (&sourceFault{id: "none", file: grpoFile, old: "package train", new: "package train", causal: causal}).run(t)
		require.Zero(t, code, out)
	}
	for i, f := range sourceFaults {
		if !cases.Due(i) {
			continue
		}
		t.Run(strings.ReplaceAll(f.id, " ", "_"), func(t *testing.T) { f.caught(t) })
	}
}

// heldOut returns the rewards in eval.jsonl.
func heldOut(t testing.TB, dir string) []float64 {
	t.Helper()
	lines, err := rundir.ReadLog(filepath.Join(dir, "eval.jsonl"))
	require.NoError(t, err)
	var rewards []float64
	for _, l := range lines {
		var row struct{ Reward float64 }
		require.NoError(t, json.Unmarshal(l.Text, &row))
		rewards = append(rewards, row.Reward)
	}
	require.NotEmpty(t, rewards)
	return rewards
}

// The embedded defaults learn: against the same run with learning rate 0, same seed and same held-out inputs, the reward is better by
// more than two standard errors of the paired difference, in every seed. What does not learn is as good after one step as after all.
func TestGRPOLearns(t *testing.T) {
	once := map[string]string{"masked": "max_iters=1", "causal": "max_steps=1"}
	for name, args := range map[string][]string{"masked": {"grpo", "out_dir="}, "causal": {"grpo", "--config", "grpo_causal", "output_dir="}} {
		for seed := 1; seed <= seeds; seed++ {
			run := func(more ...string) []float64 {
				dir := filepath.Join(t.TempDir(), "run")
				all := append([]string{}, args...)
				all[len(all)-1] += dir
				trains(t, append(append(all, fmt.Sprint("seed=", seed)), more...)...)
				return heldOut(t, dir)
			}
			still, learned := run("learning_rate=0", "min_lr=0", once[name]), run()
			require.Len(t, learned, len(still))
			var before, after, mean, deviation float64
			n := float64(len(still))
			for i := range still {
				before, after, mean = before+still[i]/n, after+learned[i]/n, mean+(learned[i]-still[i])/n
			}
			for i := range still {
				deviation += (learned[i] - still[i] - mean) * (learned[i] - still[i] - mean)
			}
			deviation = math.Sqrt(deviation / (n - 1) / n)
			fmt.Printf("%s seed %d: held-out reward %.4f with learning rate 0, %.4f trained: %+.4f ± %.4f\n", name, seed, before, after, mean, deviation)
			require.Greater(t, mean, 2*deviation, "%s, seed %d", name, seed)
		}
	}
}

// The embedded models are what their configurations make, byte for byte.
func TestModelsReproducible(t *testing.T) {
	if seeds == 1 {
		t.Skip("trains four models, minutes: make learn")
	}
	for config, name := range map[string]string{"sft": "tiny", "sft_masked": "tiny_masked", "sft_judge": "tiny_judge", "sft_gptj": "tiny_gptj"} {
		dir := filepath.Join(t.TempDir(), "run")
		trains(t, "sft", "--config", config, "training.output_dir="+dir)
		want, err := os.ReadFile(filepath.Join("../../internal/assets", name, "model.safetensors"))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(dir, "final", "model.safetensors"))
		require.NoError(t, err)
		require.True(t, string(want) == string(got), "%s: run make models", name)
	}
}
