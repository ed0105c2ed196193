//go:build unix

package main

import (
	"bufio"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/rundir"
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
		"accel":       func(dir string) []string { return append(smallShielded(dir), "--policy", "accel") },
		"arc":         func(dir string) []string { return smallArc(dir, "epochs=2", "save_every=1", "log_every=1") },
	} {
		if !cases.All && !slices.Contains([]string{"ppo", "accel", "arc"}, name) {
			continue // the life cycle of a run is one for all
		}
		t.Run(name, func(t *testing.T) { killed(t, args) })
	}
}

var stepLine = regexp.MustCompile(`^(step|iter|\[Batch) +\d+`)

// killed kills a run again and again, each time after another event: it said a line, a row stands in its log, a save began, a
// checkpoint is there. What it waits for is never a time.
func killed(t *testing.T, args func(dir string) []string) {
	whole := filepath.Join(t.TempDir(), "whole")
	trains(t, args(whole)...)
	random := rand.New(rand.NewPCG(3, 4))
	died, resumed, twice := 0, 0, 0
	for died < trainKills {
		dir := t.TempDir() // a kill may come before the program makes it
		for at := 0; died < trainKills && at < 6; at++ {
			rows := len(readAll(filepath.Join(dir, "metrics.jsonl")))
			ended := victim(t, args(dir), func(said func() int) []func() bool {
				after := 1 + random.IntN(3)
				return []func() bool{
					func() bool { return said() >= after-1 },
					func() bool { return len(readAll(filepath.Join(dir, "metrics.jsonl"))) > rows+100*after },
					func() bool { return matches(dir, "step_*.tmp-*") > 0 },
					func() bool { return matches(dir, "step_[0-9]") >= after },
				}
			}, random)
			if ended {
				break
			}
			died++
			step := 0
			if c := newestOf(t, dir); c != nil {
				step = c.Manifest.Step
				resumed++
			}
			ahead := 0
			if lines, err := rundir.ReadLog(filepath.Join(dir, "metrics.jsonl")); err == nil && len(lines) > 0 && lines[len(lines)-1].Step > step {
				ahead = lines[len(lines)-1].Step - step
				twice++
			}
			t.Logf("kill %d: step %d is whole, the log is %d ahead", died, step, ahead)
		}
		trains(t, args(dir)...)
		sameFolder(t, filepath.Join(whole, "final"), filepath.Join(dir, "final"))
		require.Equal(t, timeless(t, whole), timeless(t, dir))
	}
	if trainKills > 3 {
		require.Positive(t, resumed, "kills with a checkpoint to go on from")
		require.Positive(t, twice, "kills that left rows of a step that was made again")
	}
}

func readAll(path string) []byte {
	text, _ := os.ReadFile(path)
	return text
}

func matches(dir, pattern string) int {
	list, _ := filepath.Glob(filepath.Join(dir, pattern))
	return len(list)
}

// victim starts a run and kills it when one of the events has come, and a few yields of the scheduler later. It reports whether the run
// had ended by itself.
func victim(t *testing.T, args []string, events func(said func() int) []func() bool, random *rand.Rand) (ended bool) {
	cmd := exec.Command(binaryPath, args...)
	lines, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var said atomic.Int32
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for in := bufio.NewScanner(lines); in.Scan(); {
			if stepLine.MatchString(in.Text()) {
				said.Add(1)
			}
		}
	}()
	list := events(func() int { return int(said.Load()) })
	come := list[random.IntN(len(list))]
	for !come() {
		select {
		case <-gone:
			cmd.Wait()
			return true
		default:
			runtime.Gosched()
		}
	}
	for range random.IntN(3000) {
		runtime.Gosched()
	}
	require.NoError(t, cmd.Process.Kill())
	<-gone
	return cmd.Wait() == nil
}

// smallShielded is a run of four steps with a checkpoint after each.
func smallShielded(dir string) []string {
	return append(append([]string{}, quick...), "output_dir="+dir, "steps=4", "save_every=1", "max_new_tokens=8", "reward=shaped")
}
