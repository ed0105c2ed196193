//go:build slow && unix

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/rundir"
)

// The shipped configuration learns: after training, the reward of questions that were never trained on is above that of the same
// run with a learning rate of 0, by more than two standard errors of the difference question by question, for every seed; so is the share of
// right answers, since there are more answers.
func TestPPOLearns(t *testing.T) {
	for seed := 1; seed <= seeds; seed++ {
		rose := held(t, seed, "ppo")
		require.Greater(t, rose["reward"].mean, 2*rose["reward"].deviation)
		require.Greater(t, rose["right"].mean, 2*rose["right"].deviation)
	}
}

// It learns to be right, too: asked for the answer, the share of right answers to questions that were never trained on rises by three
// standard errors, for the seed of the configuration and others. That the shipped configuration's answers are right more often, and that
// the kernels step as the reference does, is tried at every make slow.
func TestPPOIsRight(t *testing.T) {
	if seeds == 1 {
		t.Skip("a hundred steps, minutes: make learn")
	}
	for _, seed := range []int{42, 1, 2}[:seeds] {
		right := held(t, seed, "ppo", "--config", "config_right", "--policy", "accel:f32")["right"]
		require.Greater(t, right.mean, 3*right.deviation)
	}
}

// rise is a mean over questions and its standard error.
type rise struct{ mean, deviation float64 }

// held returns by how much training raises the numbers of eval.jsonl, in the mean over the questions that are not trained on: the same
// questions with the same random numbers, before and after.
func held(t *testing.T, seed int, args ...string) map[string]rise {
	var rewards, rights [2][]float64
	for i, more := range []string{"training.total_ppo_steps=0", "training.save_interval=0"} {
		dir := filepath.Join(t.TempDir(), "run")
		cmd := exec.Command(binaryPath, append(args[:len(args):len(args)], "training.output_dir="+dir, fmt.Sprintf("training.seed=%d", seed), more)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		used := cmd.ProcessState.UserTime()
		t.Logf("seed %d, %s: %v of user time; %s", seed, more, used.Round(time.Second), lastLine(string(out)))
		require.Less(t, used, 10*time.Minute, "5 minutes on 2 cores")
		lines, err := rundir.ReadLog(filepath.Join(dir, "eval.jsonl"))
		require.NoError(t, err)
		for _, l := range lines {
			var row struct{ Reward, Right float64 }
			require.NoError(t, json.Unmarshal(l.Text, &row))
			rewards[i], rights[i] = append(rewards[i], row.Reward), append(rights[i], row.Right)
		}
		if i == 1 {
			t.Log(curve(t, filepath.Join(dir, "metrics.jsonl")))
		}
	}
	all := map[string]rise{}
	for what, numbers := range map[string][2][]float64{"reward": rewards, "right": rights} {
		require.Len(t, numbers[0], len(numbers[1]))
		for i, r := range numbers[0] {
			numbers[1][i] -= r
		}
		mean, deviation := meanError(numbers[1])
		t.Logf("seed %d: %s rose by %.4f ± %.4f, %.1f standard errors", seed, what, mean, deviation, mean/deviation)
		all[what] = rise{mean, deviation}
	}
	return all
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// curve draws the mean reward of the rollouts of every step.
func curve(t *testing.T, path string) string {
	lines, err := rundir.ReadLog(path)
	require.NoError(t, err)
	var rewards []float64
	for _, l := range lines {
		var row struct {
			Epoch  int
			Reward float64 `json:"rollout/reward_mean"`
		}
		require.NoError(t, json.Unmarshal(l.Text, &row))
		if row.Epoch == 1 {
			rewards = append(rewards, row.Reward)
		}
	}
	top := 0.0
	for _, r := range rewards {
		top = math.Max(top, r)
	}
	bars := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, r := range rewards {
		b.WriteRune(bars[min(7, int(8*r/top))])
	}
	return fmt.Sprintf("reward of the rollouts, %.3f to %.3f: %s", rewards[0], rewards[len(rewards)-1], b.String())
}
