package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/rundir"
)

// paused starts the program and holds it before its first instruction, so that its process number, which names of temporary files have, is
// known before it works.
func paused(t *testing.T, args ...string) (cmd *exec.Cmd, out *bytes.Buffer) {
	t.Helper()
	cmd = exec.Command("sh", append([]string{"-c", `kill -STOP $$; exec "$0" "$@"`, binaryPath}, args...)...)
	out = new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	waitFor(t, cmd.Process.Pid, "State:\tT")
	return cmd, out
}

// waitFor waits until the status of a process has a text.
func waitFor(t *testing.T, pid int, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		require.NoError(t, err)
		if strings.Contains(string(status), text) {
			return
		}
		require.True(t, time.Now().Before(end), "no %q in the status of process %d:\n%s", text, pid, status)
		time.Sleep(time.Millisecond)
	}
}

// Every system call by which a training run writes its folder is made to fail, one run for each: the run ends with exit code 3 and a message,
// no checkpoint is half there, nothing temporary is left where the folder could be cleaned, and the next start goes on to the bytes of a run in
// which nothing failed. It runs in make hostile, where a missing strace is a failure.
func TestInjected(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if os.Getenv("HOSTILE") == "" {
		t.Skip("runs in make hostile")
	}
	require.NoError(t, err, "faults of system calls cannot be tried: apt-get install strace")
	args := func(dir string) []string {
		return small(dir, "training.total_ppo_steps=2", "ppo.rollout_samples=2", "ppo.batch_size=2", "ppo.epochs=1", "dataset.max_gen_length=2")
	}
	whole := filepath.Join(t.TempDir(), "whole")
	trains(t, args(whole)...)
	seen := map[string]int{}
	codes := map[int]int{}
	for _, call := range []string{"openat:EACCES", "mkdirat:ENOSPC", "write:EIO", "write:ENOSPC", "fsync:EIO", "close:EIO", "renameat:EIO", "unlinkat:EACCES", "ftruncate:EIO"} {
		name, errno, _ := strings.Cut(call, ":")
		for when := 1; when <= injections; when++ {
			dir := filepath.Join(t.TempDir(), "run")
			if name == "unlinkat" || name == "ftruncate" { // what a start that was killed leaves
				require.NoError(t, os.CopyFS(dir, os.DirFS(cut(t, whole, "final"))))
				require.NoError(t, os.Mkdir(filepath.Join(dir, "step_2.tmp-1"), 0o755))
			}
			cmd, out := paused(t, args(dir)...)
			pid := cmd.Process.Pid
			log := filepath.Join(t.TempDir(), "strace")
			tracing := []string{"-f", "-qq", "-o", log, "-p", fmt.Sprint(pid), "-e", "trace=" + name, "-e", fmt.Sprintf("inject=%s:error=%s:when=%d", name, errno, when)}
			for _, path := range written(whole, dir, pid) {
				tracing = append(tracing, "-P", path)
			}
			tracer := exec.Command(strace, tracing...)
			tracer.Stderr = os.Stderr
			require.NoError(t, tracer.Start())
			waitFor(t, pid, fmt.Sprintf("TracerPid:\t%d", tracer.Process.Pid))
			require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
			_ = cmd.Wait()
			_ = tracer.Wait()
			said, err := os.ReadFile(log)
			require.NoError(t, err)
			code := cmd.ProcessState.ExitCode()
			where := fmt.Sprintf("%s number %d: %s\n%s", call, when, said, out)
			if !strings.Contains(string(said), "(INJECTED)") {
				require.Zero(t, code, where)
				break // no thread makes more of these calls
			}
			seen[name]++
			codes[code]++
			require.NotContains(t, out.String(), "goroutine ", where)
			require.Contains(t, []int{0, 3}, code, where)
			if code == 3 {
				require.Contains(t, out.String(), "train: ", where)
				require.Contains(t, out.String(), filepath.Base(dir), where)
			}
			if _, err := os.Stat(dir); err == nil {
				_, refused, err := rundir.Newest(dir)
				require.NoError(t, err, where)
				require.Empty(t, refused, where)
			}
			trains(t, args(dir)...)
			require.Empty(t, temporaries(t, dir), where)
			if name != "unlinkat" && name != "ftruncate" { // those go on from a copy, whose log has other times
				sameRun(t, whole, dir)
			}
		}
	}
	t.Logf("faults injected, by call: %v; exit codes: %v", seen, codes)
	for _, name := range []string{"openat", "mkdirat", "write", "fsync", "close", "renameat", "unlinkat"} {
		require.Positive(t, seen[name], "no fault struck %s", name)
	}
	require.Greater(t, codes[3], codes[0], "a fault ends the run")
}

// injections is how many calls of each name are struck, one in each run.
const injections = 5

// written are the paths that a run writes, with the temporary names that it has for them.
func written(whole, dir string, pid int) (paths []string) {
	paths = []string{dir, filepath.Join(dir, "step_2.tmp-1")}
	_ = filepath.WalkDir(whole, func(path string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(whole, path)
		if err != nil || rel == "." {
			return err
		}
		first, rest, below := strings.Cut(rel, "/")
		for _, name := range []string{first, fmt.Sprintf("%s.tmp-%d", first, pid), fmt.Sprintf(".%s.plumbline-0.tmp", first)} {
			if below {
				name += "/" + rest
			}
			paths = append(paths, filepath.Join(dir, name))
		}
		return nil
	})
	return paths
}

// temporaries are the names of temporary files and folders of a run.
func temporaries(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if strings.Contains(e.Name(), ".tmp") {
			names = append(names, e.Name())
		}
	}
	return names
}
