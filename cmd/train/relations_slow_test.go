//go:build slow && unix

package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/diff"
)

// The relations of verify diff are silent on the trainers where they hold, and name what breaks them where they do not: a loss that is a
// mean of the means of micro-batches, other random numbers, a key without an effect.
func TestRelations(t *testing.T) {
	dir := t.TempDir()
	runs := 0
	dumped := func(args ...string) string {
		runs++
		name := filepath.Join(dir, string(rune('a'+runs)))
		trains(t, append([]string{"grpo", "--config", "grpo_causal", "output_dir=" + name, "--dump", name + "_dump", "max_steps=4", "save_steps=2", "num_generations=8", "learning_rate=0.001", "min_lr=0.001",
			"warmup_steps=0", "max_completion_length=10", "dataset.held_out=0", "eval_samples=0"}, args...)...)
		return name + "_dump"
	}
	one := []string{"per_device_train_batch_size=16", "gradient_accumulation_steps=1"}
	two := []string{"per_device_train_batch_size=8", "gradient_accumulation_steps=2"}
	with := func(base []string, more ...string) []string { return append(append([]string{}, base...), more...) }
	plain := dumped(one...)
	for _, c := range []struct {
		relation string
		a, b     string
		verdict  check.Verdict
		cause    string
	}{
		{"repeat", plain, dumped(one...), check.Pass, ""},
		{"repeat", plain, dumped(with(one, "seed=7")...), check.Fail, "NOT-REPEATABLE"},
		{"partition", plain, dumped(two...), check.Pass, ""},
		{"partition", dumped(with(one, "loss_type=grpo")...), dumped(with(two, "loss_type=grpo")...), check.Pass, ""},
		{"partition", dumped(with(one, "loss_type=bnpo")...), dumped(with(two, "loss_type=bnpo")...), check.Fail, "AGG-LOCAL-DENOMINATOR"},
		{"toggle=beta", plain, dumped(with(one, "beta=0.1")...), check.Pass, ""},
		{"toggle=gradient_checkpointing", plain, dumped(with(one, "gradient_checkpointing=true")...), check.Fail, "OPTION-IGNORED"},
	} {
		rel, err := diff.ParseRelation(c.relation)
		require.NoError(t, err)
		a, err := dumpfile.Open(t.Context(), []string{c.a})
		require.NoError(t, err)
		b, err := dumpfile.Open(t.Context(), []string{c.b})
		require.NoError(t, err)
		r, err := diff.Runs(t.Context(), a, b, diff.Options{Relation: rel})
		require.NoError(t, err)
		cause := ""
		if len(r.Brief.Findings) > 0 {
			cause = r.Brief.Findings[0].Name
		}
		require.Equal(t, []any{c.verdict, c.cause}, []any{r.Results[0].Verdict, cause}, "%s: %s", c.relation, r.Results[0].Reason)
	}
}

// A run that was saved after two steps and resumed keeps the numbers of the one that was not; resumed with another seed it does not.
func TestResumeRelation(t *testing.T) {
	dir := t.TempDir()
	args := func(name string, more ...string) []string {
		return append([]string{"grpo", "--config", "grpo_causal", "output_dir=" + filepath.Join(dir, name), "--dump", filepath.Join(dir, name+"_dump"), "save_steps=2", "num_generations=8",
			"per_device_train_batch_size=16", "gradient_accumulation_steps=1", "learning_rate=0.001", "min_lr=0.001", "warmup_steps=0", "max_completion_length=10", "dataset.held_out=0", "eval_samples=0"}, more...)
	}
	trains(t, args("whole", "max_steps=4")...)
	for name, seed := range map[string]string{"kept": "seed=42", "lost": "seed=7"} {
		trains(t, args(name, "max_steps=2")...)
		trains(t, args(name, "max_steps=4", seed, "--allow-config-change", "max_steps,seed")...)
		a, err := dumpfile.Open(t.Context(), []string{filepath.Join(dir, "whole_dump")})
		require.NoError(t, err)
		b, err := dumpfile.Open(t.Context(), []string{filepath.Join(dir, name+"_dump")})
		require.NoError(t, err)
		r, err := diff.Runs(t.Context(), a, b, diff.Options{Relation: diff.Relation{Name: "resume"}})
		require.NoError(t, err)
		if name == "kept" {
			require.Equal(t, check.Pass, r.Results[0].Verdict, r.Results[0].Reason)
			continue
		}
		require.Equal(t, check.Fail, r.Results[0].Verdict)
		require.Contains(t, []string{"RNG-LOST", "STATE-LOST"}, r.Brief.Findings[0].Name, r.Results[0].Reason)
		require.Equal(t, 3, r.Brief.Findings[0].First)
	}
}
