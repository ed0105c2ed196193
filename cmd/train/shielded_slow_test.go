//go:build slow

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/rundir"
)

// rewards returns reward_mean and shield_drift of every step of a run.
func rewards(t *testing.T, dir string) (reward, drift []float64) {
	lines, err := rundir.ReadLog(filepath.Join(dir, "metrics.jsonl"))
	require.NoError(t, err)
	for _, l := range lines {
		var m struct {
			Reward float64 `json:"reward_mean"`
			Drift  float64 `json:"shield_drift"`
		}
		require.NoError(t, json.Unmarshal(l.Text, &m))
		reward, drift = append(reward, m.Reward), append(drift, m.Drift)
	}
	return reward, drift
}

func average(x []float64) (mean float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	return mean
}

// The toy run: in every seed the reward of the last ten steps is above that of the same steps at lr 0, in less than two minutes of
// two cores; every checkpoint passes verify projection and verify checkpoint, the dumps pass verify dump. Without the projection,
// and with gradients projected before Adam, verify projection fails.
func TestShieldedToy(t *testing.T) {
	verify := filepath.Join(t.TempDir(), "verify")
	out, err := exec.Command("go", "build", "-o", verify, "../verify").CombinedOutput()
	require.NoError(t, err, "%s", out)
	judge := func(want int, args ...string) {
		t.Helper()
		cmd := exec.Command(verify, args...)
		out, _ := cmd.CombinedOutput()
		require.Equal(t, want, cmd.ProcessState.ExitCode(), "verify %v\n%s", args, out)
	}
	train := func(dir string, args ...string) time.Duration {
		t.Helper()
		cmd := exec.Command(binaryPath, append([]string{"shielded", "--config", "shielded_toy", "output_dir=" + dir}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	for _, seed := range []string{"42", "1", "2"}[:seeds] {
		run, still := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "still")
		used := train(run, "--seed", seed, "dump.every=10")
		require.Less(t, used, 4*time.Minute, "two minutes of two cores")
		train(still, "--seed", seed, "lr=0", "save_every=0")
		got, drift := rewards(t, run)
		base, none := rewards(t, still)
		require.Len(t, got, 30)
		require.Equal(t, base[0], got[0], "the first answers are drawn from the same model")
		t.Logf("seed %s: reward %.4f, at lr 0 %.4f, shield_drift %.2g, %v of CPU", seed, average(got[20:]), average(base[20:]), drift[29], used)
		require.Greater(t, average(got[20:]), average(base[20:])+.05)
		require.Equal(t, 0., none[29])
		for _, step := range []string{"step_10", "step_20", "final"} {
			judge(0, "projection", "--basis", filepath.Join(run, "basis.safetensors"), "--adapter", filepath.Join(run, step), "--init", filepath.Join(run, "lora_init"))
			judge(0, "checkpoint", filepath.Join(run, step), "--init", filepath.Join(run, "lora_init"), "--base", "../../internal/assets/tiny_gptj")
		}
		judge(0, "dump", filepath.Join(run, "dump"))
	}
	basis := filepath.Join(t.TempDir(), "basis.safetensors")
	for _, ablation := range []string{"--no-projection", "projection.mode=grad"} {
		run := filepath.Join(t.TempDir(), "run")
		train(run, ablation, "steps=10", "projection.basis="+basis)
		_, drift := rewards(t, run)
		t.Logf("%s: shield_drift %.2g after 10 steps", ablation, drift[9])
		judge(1, "projection", "--basis", basis, "--adapter", filepath.Join(run, "final"), "--init", filepath.Join(run, "lora_init"))
	}
}

// Every planted fault makes its tests fail, in a build with that one edit.
func TestShieldedPlanted(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	for i, p := range planted {
		if !cases.Due(i) {
			continue
		}
		t.Run(p.id, func(t *testing.T) {
			path := filepath.Join(root, p.file)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			edited := replaceOnce(t, string(text), p.old, p.new)
			dir := t.TempDir()
			write(t, filepath.Join(dir, "edited.go"), edited)
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: filepath.Join(dir, "edited.go")}})
			require.NoError(t, err)
			write(t, filepath.Join(dir, "overlay.json"), string(overlay))
			vet := exec.Command("go", "build", "-o", os.DevNull, "-overlay", filepath.Join(dir, "overlay.json"), "./"+p.pkg)
			vet.Dir = root
			out, err := vet.CombinedOutput()
			require.NoError(t, err, "the edit compiles\n%s", out)
			args := []string{"test", "-overlay", filepath.Join(dir, "overlay.json"), "./" + p.pkg, "-run", "^(" + p.tests + ")"}
			if p.pkg == "internal/train" {
				args = append(args, "-rapid.nofailfile") // a failure that is wanted leaves nothing in the tree
			}
			cmd := exec.Command("go", args...)
			cmd.Dir, cmd.Env = root, append(os.Environ(), "GOFLAGS=-overlay="+filepath.Join(dir, "overlay.json"))
			out, err = cmd.CombinedOutput()
			require.Error(t, err, "fault %d is not caught by %s\n%s", i, p.tests, out)
			require.Contains(t, string(out), "--- FAIL", fmt.Sprint(p.id))
		})
	}
}

// replaceOnce replaces what must be there exactly once.
func replaceOnce(t testing.TB, text, old, new string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, old), "%q", old)
	return strings.Replace(text, old, new, 1)
}
