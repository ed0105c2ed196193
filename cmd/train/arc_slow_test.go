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

// The embedded defaults learn, in every seed: the accuracy on held-out pairs rises by epoch 2 or 3 and is above that of the same run
// with learning rates 0 in every epoch from then on, in less than five minutes of two cores. The encoder has a gradient from the first
// batch, policy and value in every one; verify checkpoint passes the last checkpoint and the best.
func TestArcLearns(t *testing.T) {
	verify := filepath.Join(t.TempDir(), "verify")
	out, err := exec.Command("go", "build", "-o", verify, "../verify").CombinedOutput()
	require.NoError(t, err, "%s", out)
	type line struct {
		Event    string
		Accuracy float64 `json:"val_accuracy"`
		Solved   int
		Qwen     float64 `json:"qwen_grad"`
		Mean     float64 `json:"grad_norm/pi_mean"`
		Value    float64 `json:"grad_norm/value"`
		EFE      float64
		Mask     float64 `json:"mask_ratio"`
	}
	run := func(dir string, args ...string) (batches, epochs []line, used time.Duration) {
		cmd := exec.Command(binaryPath, append([]string{"arc", "output_dir=" + dir}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		lines, err := rundir.ReadLog(filepath.Join(dir, "metrics.jsonl"))
		require.NoError(t, err)
		for _, l := range lines {
			var m line
			require.NoError(t, json.Unmarshal(l.Text, &m))
			if m.Event == "validation" {
				epochs = append(epochs, m)
			} else {
				batches = append(batches, m)
			}
		}
		return batches, epochs, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	for _, seed := range []string{"42", "1", "2"}[:seeds] {
		dir := filepath.Join(t.TempDir(), "run")
		batches, epochs, used := run(dir, "--seed", seed)
		_, still, _ := run(filepath.Join(t.TempDir(), "still"), "--seed", seed, "--agent_lr", "0", "--qwen_lr", "0", "policy_lr=0", "save_every=0", "epochs=1")
		var curve []string
		for _, e := range epochs {
			curve = append(curve, fmt.Sprintf("%.3f", e.Accuracy))
		}
		t.Logf("seed %s: validation accuracy %v, %d grids solved; %.3f at learning rate 0; Qwen_grad %.2e in batch 0; %v of CPU", seed, curve, epochs[len(epochs)-1].Solved, still[0].Accuracy, batches[0].Qwen, used)
		require.Less(t, used, 10*time.Minute, "five minutes of two cores")
		require.Greater(t, max(epochs[2].Accuracy, epochs[3].Accuracy), epochs[0].Accuracy, "by epoch 2 or 3 (D13)")
		for _, e := range epochs[2:] {
			require.Greater(t, e.Accuracy, still[0].Accuracy+.2)
		}
		require.Positive(t, batches[0].Qwen, "D20")
		var first, last [2]float64
		n := len(batches) / 4
		for i, b := range batches {
			require.Positive(t, b.Mean, "batch %d: the policy's mean has a gradient (H8)", i)
			require.Positive(t, b.Value, "batch %d: the value has a gradient (H8)", i)
			if i < n {
				first[0], first[1] = first[0]+b.EFE/float64(n), first[1]+b.Mask/float64(n)
			}
			if i >= len(batches)-n {
				last[0], last[1] = last[0]+b.EFE/float64(n), last[1]+b.Mask/float64(n)
			}
		}
		require.Less(t, last[0], first[0], "the loss falls, without its weights (D9)")
		require.Less(t, last[1], first[1], "mask_ratio declines (D12)")
		best, err := filepath.Glob(filepath.Join(dir, "best", "step_*"))
		require.NoError(t, err)
		require.Len(t, best, 1)
		for _, folder := range append(best, filepath.Join(dir, "final")) {
			out, err := exec.Command(verify, "checkpoint", folder).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
}

// Every planted fault makes its tests fail, in a build with that one edit.
func TestArcPlanted(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	for i, p := range arcFaults {
		if !cases.Due(i) {
			continue
		}
		t.Run(p.id, func(t *testing.T) {
			path := filepath.Join(root, p.file)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			dir := t.TempDir()
			require.Equal(t, 1, strings.Count(string(text), p.old), "%q", p.old)
			write(t, filepath.Join(dir, "edited.go"), strings.Replace(string(text), p.old, p.new, 1))
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: filepath.Join(dir, "edited.go")}})
			require.NoError(t, err)
			write(t, filepath.Join(dir, "overlay.json"), string(overlay))
			arg := "-overlay=" + filepath.Join(dir, "overlay.json")
			build := exec.Command("go", "build", "-o", os.DevNull, arg, "./"+p.pkg)
			build.Dir = root
			out, err := build.CombinedOutput()
			require.NoError(t, err, "the edit compiles\n%s", out)
			args := []string{"test", arg, "./" + p.pkg, "-run", "^(" + p.tests + ")"}
			if p.pkg != "cmd/train" {
				args = append(args, "-rapid.nofailfile") // a failure that is wanted leaves nothing in the tree
			}
			cmd := exec.Command("go", args...)
			cmd.Dir, cmd.Env = root, append(os.Environ(), "GOFLAGS="+arg)
			out, err = cmd.CombinedOutput()
			require.Error(t, err, "not caught by %s\n%s", p.tests, out)
			require.Contains(t, string(out), "--- FAIL")
		})
	}
}
