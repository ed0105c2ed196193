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
