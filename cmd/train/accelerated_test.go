package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/cuda"
	"plumbline/internal/cases"
	"plumbline/internal/rundir"
)

// accelerated are small runs of every trainer with an adapter.
var accelerated = map[string]func(dir string, more ...string) []string{
	"ppo": func(dir string, more ...string) []string { return append(small(dir, "lora.r=2"), more...) },
	"sft": func(dir string, more ...string) []string {
		return append([]string{"sft", "training.output_dir=" + dir, "lora.r=2", "sft.steps=4", "training.save_interval=1", "training.log_interval=1", "sft.batch_size=2", "sft.eval_samples=4"}, more...)
	},
	"grpo_causal": func(dir string, more ...string) []string {
		return append(smallCausal(dir, "save_steps=1", "lora.r=2"), more...)
	},
	"shielded": func(dir string, more ...string) []string { return append(smallShielded(dir), more...) },
}

// TestAccelerated demands that every trainer with an adapter runs on the kernels, that its checkpoints say so, that a run which goes on from a
// checkpoint ends in the same bytes, and that its dumps pass its own checks.
func TestAccelerated(t *testing.T) {
	for name, args := range accelerated {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole, broken := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "broken")
			accel := []string{"--policy", "accel"}
			if name != "sft" {
				accel = append(accel, "--verify")
			}
			out := trains(t, args(whole, accel...)...)
			require.Contains(t, out, "policy: accel w8a16, a base of")
			c, err := rundir.Verify(filepath.Join(whole, "final"))
			require.NoError(t, err)
			require.Equal(t, "accel w8a16", c.Manifest.Variant)
			env, err := os.ReadFile(filepath.Join(whole, "env.json"))
			require.NoError(t, err)
			require.Contains(t, string(env), `"policy": "accel"`)

			trains(t, args(broken, accel...)...)
			require.NoError(t, os.RemoveAll(filepath.Join(broken, "final")))
			require.NoError(t, os.RemoveAll(filepath.Join(broken, "step_3")))
			trains(t, args(broken, accel...)...)
			sameFolder(t, filepath.Join(whole, "final"), filepath.Join(broken, "final"))
		})
	}
}

// TestLockstep demands that reference and kernels stay together in a run.
func TestLockstep(t *testing.T) {
	lockstep(t, accelerated["sft"](filepath.Join(t.TempDir(), "run"), "--lockstep", "sft.steps=2"))
}

func lockstep(t *testing.T, args []string) {
	out := trains(t, args...)
	require.Contains(t, out, "lockstep: gradients of A")
	require.Contains(t, out, "lockstep: free drift after")
	require.NotContains(t, out, "PARTS")
	t.Log(out)
}

// TestSimulated demands that a trainer runs on the kernels of a GPU, interpreted, that its checkpoints say so and that a run which goes on ends in
// the same bytes; and that a run in lockstep stays together with the reference.
func TestSimulated(t *testing.T) {
	run, whole := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "whole")
	sim := []string{"--policy", "sim", "sft.steps=2", "sft.eval_samples=0"}
	out := trains(t, accelerated["sft"](run, sim...)...)
	require.Contains(t, out, "policy: sim w8a16 on PTX simulator")
	c, err := rundir.Verify(filepath.Join(run, "final"))
	require.NoError(t, err)
	require.Equal(t, "sim w8a16", c.Manifest.Variant)
	require.NoError(t, os.Rename(filepath.Join(run, "final"), whole))
	require.NoError(t, os.RemoveAll(filepath.Join(run, "step_2")))
	trains(t, accelerated["sft"](run, sim...)...)
	sameFolder(t, whole, filepath.Join(run, "final"))
	if cases.All {
		lockstep(t, accelerated["sft"](filepath.Join(t.TempDir(), "run"), "--lockstep", "--policy", "sim", "sft.steps=3", "sft.eval_samples=0"))
	}
}

// TestPolicyWithoutGPU: the environment lacks what was asked for, which is no matter of usage.
func TestPolicyWithoutGPU(t *testing.T) {
	if d, err := cuda.Open("", 0); err == nil {
		require.NoError(t, d.Close())
		t.Skip("not run: this machine has a GPU")
	}
	for _, more := range [][]string{{"--policy", "cuda"}, {"--policy", "cuda", "--lockstep"}} {
		_, errs, code := program(t, accelerated["sft"](filepath.Join(t.TempDir(), "run"), more...)...)
		require.Equal(t, 3, code)
		require.Regexp(t, `(?m)^train: --policy cuda: cuda: no usable NVIDIA GPU: .*$`, errs)
	}
}

func TestPolicyRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{small(filepath.Join(t.TempDir(), "run"), "--policy", "accel"), "set lora.r=8"},
		{small(filepath.Join(t.TempDir(), "run"), "--lockstep"), "set lora.r=8"},
		{small(filepath.Join(t.TempDir(), "run"), "--policy", "sim"), "set lora.r=8"},
		{small(filepath.Join(t.TempDir(), "run"), "--policy", "sim:w8a16"), "want reference, accel"},
		{small(filepath.Join(t.TempDir(), "run"), "--policy", "fast"), "want reference, accel"},
		{small(filepath.Join(t.TempDir(), "run"), "--policy", "accel:int4"), "want reference, accel"},
		{smallArc(filepath.Join(t.TempDir(), "run"), "--policy", "accel"), "the ARC agent is computed by the reference only"},
		{smallGRPO(filepath.Join(t.TempDir(), "run"), "--policy", "accel"), "a masked language model is computed by the reference only"},
		{smallSFT("sft_masked", filepath.Join(t.TempDir(), "run"), "--policy", "accel"), "is computed by the reference only"},
	} {
		_, errs, code := program(t, c.args...)
		require.Equal(t, 2, code)
		require.Contains(t, errs, c.says)
	}
}
