package main

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/assets"
	"plumbline/internal/rundir"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// TestAcceleratedModes takes one way through each mode of the kernels that is not the default: a trainer runs and judges its own dumps, the
// run is cut back to a step and ends in the same bytes, its checkpoints say the mode and another that goes on is told so, its dumps pass
// verify dump once more from their files, and the reference samples the adapter.
func TestAcceleratedModes(t *testing.T) {
	for mode, trainer := range map[string]string{"llm.int8": "ppo", "w8a8": "grpo_causal", "bf16": "grpo_causal", "f32": "ppo"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			whole := filepath.Join(t.TempDir(), "whole")
			args := func(dir, mode string) []string {
				return accelerated[trainer](dir, "--policy", "accel:"+mode, "--verify", "--dump", filepath.Join(dir, "dump"))
			}
			require.Contains(t, trains(t, args(whole, mode)...), "policy: accel "+mode+", a base of")
			c, err := rundir.Verify(filepath.Join(whole, "final"))
			require.NoError(t, err)
			require.Equal(t, "accel "+mode, c.Manifest.Variant)
			holds(t, filepath.Join(whole, "dump"))

			broken := cut(t, whole, "final", "step_3", "step_4")
			_, errs, code := program(t, args(broken, mode)...)
			require.Zero(t, code, errs)
			require.NotContains(t, errs, "was computed by")
			sameFolder(t, filepath.Join(whole, "final"), filepath.Join(broken, "final"))
			require.Equal(t, timeless(t, whole), timeless(t, broken))
			holds(t, filepath.Join(broken, "dump"))

			other := cut(t, whole, "final", "step_3", "step_4")
			_, errs, code = program(t, args(other, "w8a16")...)
			require.Zero(t, code, errs)
			require.Contains(t, errs, "was computed by accel "+mode+", and accel w8a16 goes on")

			text, errs, code := program(t, "sample", "--model", whole, "--prompt", "2 + 3", "--tokens", "4", "--ids")
			require.Zero(t, code, errs)
			require.Regexp(t, regexp.MustCompile(`^\d+(,\d+)*\n$`), text)
		})
	}
}

// holds demands that verify dump finds nothing in a dump and could decide most of its checks: a mini-batch of PPO does not hold the rollout
// over whose advantages the moments are taken.
func holds(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "step_*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	results, err := dump.CheckFiles(context.Background(), dump.Options{}, files...)
	require.NoError(t, err)
	passed := 0
	for _, r := range results {
		require.NotEqual(t, check.Fail, r.Verdict, "%s: %s", r.Check, r.Reason)
		if r.Verdict == check.Pass {
			passed++
		} else if r.Verdict == check.Undetermined {
			require.Contains(t, r.Reason, "the other steps of the rollout batch", r.Check)
		}
	}
	require.Greater(t, passed, 10)
}

// TestAcceleratedRefusesWeights: a weight that is no number is an error of the file, with its tensor and element, before a step is made.
func TestAcceleratedRefusesWeights(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base")
	require.NoError(t, os.CopyFS(base, assets.Tiny))
	base = filepath.Join(base, "tiny")
	path := filepath.Join(base, "model.safetensors")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	header := binary.LittleEndian.Uint64(data)
	first := data[8+header:]
	for i, bits := range []uint32{0x7fc00000, 0x7f800000, 0xff800000} { // NaN, +Inf, −Inf as float32, and no number as any 16 bits of it either
		for at := 0; at < len(first)-4; at += len(first) / 64 &^ 3 {
			binary.LittleEndian.PutUint32(first[at:], bits)
		}
		require.NoError(t, os.WriteFile(path, data, 0o644))
		for _, mode := range []string{"accel", "accel:llm.int8", "accel:f32"} {
			dir := filepath.Join(t.TempDir(), "run")
			_, errs, code := program(t, small(dir, "lora.r=2", "model.name="+base, "--policy", mode)...)
			require.Equal(t, 4, code, errs)
			require.Regexp(t, `tensor ".*element \d+ is (NaN|[+-]Inf), want finite weights`, errs, "case %d", i)
			require.NoDirExists(t, filepath.Join(dir, "step_1"))
		}
	}
}
