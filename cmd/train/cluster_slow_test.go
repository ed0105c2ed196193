//go:build slow

package main

import (
	"net"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClusterKilled kills the process that learns, and before each start the workers, at any moment and with SIGKILL: a run that goes
// on ends in the bytes of one that was left alone.
func TestClusterKilled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	var workers []*exec.Cmd
	dismiss := func() {
		for _, w := range workers {
			w.Process.Kill()
			w.Wait()
		}
		workers = nil
	}
	t.Cleanup(dismiss)
	killed(t, func(dir string) []string {
		dismiss()
		for range 2 {
			w := exec.Command(binaryPath, "worker", "--url", "nats://"+address)
			require.NoError(t, w.Start())
			workers = append(workers, w)
		}
		return smallCausal(dir, "lora.r=2", "save_steps=1", "cluster=embedded", "--listen", address)
	})
}

// Every trainer that samples, with all weights or an adapter, on both policies, draws on workers what one process draws.
func TestClusterSameBitsOfTrainers(t *testing.T) {
	for name, args := range map[string]func(dir string) []string{
		"ppo":                 func(dir string) []string { return small(dir) },
		"ppo, adapter":        func(dir string) []string { return small(dir, "lora.r=2") },
		"shielded":            smallShielded,
		"shielded, accel":     func(dir string) []string { return append(smallShielded(dir), "--policy", "accel") },
		"grpo_causal, accel":  func(dir string) []string { return append(smallCausal(dir, "lora.r=2"), "--policy", "accel") },
		"grpo_causal, 3 rows": func(dir string) []string { return append(smallCausal(dir, "lora.r=2"), "--task-rows", "3") },
	} {
		t.Run(name, func(t *testing.T) { sameOnWorkers(t, 2, args) })
	}
}
