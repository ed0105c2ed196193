package cluster

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// disk mounts a file system of so many kilobytes.
func disk(t *testing.T, size string) (dir string) {
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		lacking(t, "tmpfs", "no disk of one's own: "+err.Error())
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill leaves no byte of a disk free, and returns what gives it back.
func fill(t *testing.T, dir string) (free func()) {
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = io.Copy(f, &zeros{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	return func() { require.NoError(t, os.Remove(path)) }
}

type zeros struct{}

func (*zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A worker whose disk is full, where rollouts go through a shared folder, says so and hands its tasks back, and nothing is lost: when
// there is room again, the step ends with the samples of one process. What a killed write left behind is gone.
func TestWorkerDiskFull(t *testing.T) {
	t.Parallel()
	shared, dir := disk(t, "256k"), t.TempDir()
	out := filepath.Join(dir, "out")
	c := start(t, "coordinator", []string{"CLUSTER_URL=embedded", "CLUSTER_LISTEN=127.0.0.1:0", "CLUSTER_DIR=" + filepath.Join(dir, "cluster"), "CLUSTER_BLOBS=" + shared, "CLUSTER_OUT=" + out, "CLUSTER_STEPS=2"})
	c.says(t, "ready at")
	require.Eventually(t, func() bool { list, _ := os.ReadDir(shared); return len(list) == 1 }, 20*time.Second, 10*time.Millisecond, "the policy")
	free := fill(t, shared)
	w := start(t, "worker", []string{"CLUSTER_URL=" + strings.Fields(c.text())[2]})
	w.says(t, "storing a rollout")
	require.Contains(t, w.text(), "no space left on device")
	require.NotContains(t, c.text(), "ended")
	free()
	c.ends(t)
	require.NotContains(t, c.text(), "ended")
	got, err := readSteps(out)
	require.NoError(t, err)
	require.Equal(t, expected(t, 2), got)
	w.says(t, "the run has ended")
	left, err := filepath.Glob(filepath.Join(shared, ".*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// A coordinator whose disk is full ends and says why. What it had taken is there when it goes on.
func TestCoordinatorDiskFull(t *testing.T) {
	t.Parallel()
	dir := disk(t, "2m")
	srv, err := embed("127.0.0.1:0", t.TempDir(), Security{})
	require.NoError(t, err)
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	out := filepath.Join(t.TempDir(), "out")
	env := []string{"CLUSTER_URL=" + srv.ClientURL(), "CLUSTER_DIR=" + dir, "CLUSTER_OUT=" + out, "CLUSTER_STEPS=3"}
	c := start(t, "coordinator", append(env, "CLUSTER_STEPS=2", "CLUSTER_STAY=1"))
	w := start(t, "worker", []string{"CLUSTER_URL=" + srv.ClientURL()})
	require.Eventually(t, func() bool { text, _ := os.ReadFile(out); return bytes.Count(text, []byte("\n")) == 2 }, 20*time.Second, 10*time.Millisecond)
	c.kill()
	free := fill(t, dir)
	c = start(t, "coordinator", env)
	c.ends(t)
	require.Contains(t, c.text(), "no space left on device")
	free()
	before, err := os.ReadFile(filepath.Join(dir, "rollouts.jsonl"))
	require.NoError(t, err)
	c = start(t, "coordinator", env)
	c.ends(t)
	require.NotContains(t, c.text(), "ended")
	got, err := readSteps(out)
	require.NoError(t, err)
	require.Equal(t, expected(t, 3), got)
	after, err := os.ReadFile(filepath.Join(dir, "rollouts.jsonl"))
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(after, before))
	w.says(t, "the run has ended")
}

// The same disk without root: the first syncs of a worker fail for want of room, as strace has it.
func TestWorkerStorageFails(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err == nil { // a container may forbid it to look at others
		err = exec.Command(strace, "-f", "-o", os.DevNull, "true").Run()
	}
	if err != nil {
		lacking(t, "strace", err.Error())
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	c := start(t, "coordinator", []string{"CLUSTER_URL=embedded", "CLUSTER_LISTEN=127.0.0.1:0", "CLUSTER_DIR=" + filepath.Join(dir, "cluster"), "CLUSTER_BLOBS=" + filepath.Join(dir, "blobs"), "CLUSTER_OUT=" + out, "CLUSTER_STEPS=2"})
	c.says(t, "ready at")
	w := start(t, "worker", []string{"CLUSTER_URL=" + strings.Fields(c.text())[2]}, strace, "-f", "-qq", "-o", filepath.Join(dir, "strace"), "-e", "trace=fsync", "-e", "inject=fsync:error=ENOSPC:when=1")
	c.ends(t)
	require.NotContains(t, c.text(), "ended")
	said, err := os.ReadFile(filepath.Join(dir, "strace"))
	require.NoError(t, err)
	require.Contains(t, string(said), "(INJECTED)")
	require.Contains(t, w.text(), "no space left on device")
	got, err := readSteps(out)
	require.NoError(t, err)
	require.Equal(t, expected(t, 2), got)
}
