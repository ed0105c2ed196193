package main

import (
	"bytes"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
)

// Workers draw what one process draws: logs and checkpoints are the same, byte for byte.
func TestClusterSameBits(t *testing.T) {
	for i, workers := range []int{2, 4} {
		if i%cases.Every != 0 {
			continue
		}
		sameOnWorkers(t, workers, func(dir string) []string { return smallCausal(dir, "lora.r=2") })
	}
}

// sameOnWorkers compares a run with the same one whose samples workers draw.
func sameOnWorkers(t *testing.T, workers int, args func(dir string) []string) {
	plain := filepath.Join(t.TempDir(), "plain")
	trains(t, args(plain)...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	var all []*exec.Cmd
	var said []*bytes.Buffer
	for range workers {
		cmd, out := exec.Command(binaryPath, "worker", "--url", "nats://"+address, "--wait", "20s"), &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		require.NoError(t, cmd.Start())
		all, said = append(all, cmd), append(said, out)
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	}
	dir := filepath.Join(t.TempDir(), "cluster")
	trains(t, append(args(dir), "cluster=embedded", "--listen", address)...)
	joined := 0 // one that opens its model after the end draws nothing
	for i, cmd := range all {
		err := cmd.Wait()
		if n := strings.Count(said[i].String(), "the canary passes"); n > 0 {
			joined += n
			require.NoError(t, err, said[i])
			require.Contains(t, said[i].String(), "the run has ended")
		}
	}
	require.Positive(t, joined)
	sameFolder(t, filepath.Join(plain, "final"), filepath.Join(dir, "final"))
	require.Equal(t, timeless(t, plain), timeless(t, dir), "%d workers", workers)
}

// What a worker cannot use it says at once, by name.
func TestWorkerRefuses(t *testing.T) {
	for url, want := range map[string]string{
		"":                   "--url is missing",
		"nonsense":           "is no address: want nats://",
		"http://127.0.0.1:1": "is no address: want nats://",
		"nats://10.1.2.3:4":  "lacks TLS",
	} {
		out, err := exec.Command(binaryPath, "worker", "--url", url).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 2, exit.ExitCode(), url)
		require.Contains(t, string(out), want)
	}
	out, err := exec.Command(binaryPath, "worker", "--url", "nats://127.0.0.1:1", "--wait", "100ms").CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 3, exit.ExitCode(), string(out))
	require.Contains(t, string(out), "no coordinator at nats://127.0.0.1:1 for 100ms")
	out, err = exec.Command(binaryPath, smallCausal(filepath.Join(t.TempDir(), "run"), "lora.r=2", "cluster=nats://127.0.0.1:1")...).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "no NATS server answers")
}
