//go:build unix

package main

import (
	"bufio"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Real kills −9 of every trainer: whenever the process dies, the folder can be gone on with, and the end is that of a run that was
// never killed.
func TestKilled(t *testing.T) {
	for name, args := range map[string]func(dir string) []string{
		"ppo": func(dir string) []string { return small(dir) },
		"sft": func(dir string) []string {
			return []string{"sft", "training.output_dir=" + dir, "sft.steps=4", "training.save_interval=1", "training.log_interval=1", "sft.batch_size=2", "sft.eval_samples=4"}
		},
		"sft_masked":  func(dir string) []string { return smallSFT("sft_masked", dir, "training.log_interval=1") },
		"sft_judge":   func(dir string) []string { return smallSFT("sft_judge", dir, "training.log_interval=1") },
		"grpo":        func(dir string) []string { return smallGRPO(dir, "save_interval=1") },
		"grpo_causal": func(dir string) []string { return smallCausal(dir, "save_steps=1") },
		"shielded":    func(dir string) []string { return smallShielded(dir) },
		"arc":         func(dir string) []string { return smallArc(dir, "epochs=2", "save_every=1", "log_every=1") },
	} {
		t.Run(name, func(t *testing.T) { killed(t, args) })
	}
}

var stepLine = regexp.MustCompile(`^(step|iter|\[Batch) +\d+`)

func killed(t *testing.T, args func(dir string) []string) {
	whole := filepath.Join(t.TempDir(), "whole")
	trains(t, args(whole)...)
	random := rand.New(rand.NewPCG(3, 4))
	died, resumed := 0, 0
	for died < trainKills {
		dir := t.TempDir() // a kill may come before the program makes it
		for at := 0; died < trainKills && at < 6; at++ {
			cmd := exec.Command(binaryPath, args(dir)...)
			lines, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			// While the model is loaded, or soon after a step, whose save comes next.
			said := random.IntN(3)
			for in := bufio.NewScanner(lines); said > 0 && in.Scan(); {
				if stepLine.MatchString(in.Text()) {
					said--
				}
			}
			time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
			require.NoError(t, cmd.Process.Kill())
			if cmd.Wait() == nil {
				break // it had ended
			}
			died++
			step := 0
			if c := newestOf(t, dir); c != nil {
				step = c.Manifest.Step
				resumed++
			}
			t.Logf("kill %d: step %d is whole", died, step)
		}
		trains(t, args(dir)...)
		sameFolder(t, filepath.Join(whole, "final"), filepath.Join(dir, "final"))
		require.Equal(t, timeless(t, whole), timeless(t, dir))
	}
	if trainKills > 3 {
		require.Positive(t, resumed, "kills with a checkpoint to go on from")
	}
}

// smallShielded is a run of four steps with a checkpoint after each.
func smallShielded(dir string) []string {
	return append(append([]string{}, quick...), "output_dir="+dir, "steps=4", "save_every=1", "max_new_tokens=8", "reward=shaped")
}
