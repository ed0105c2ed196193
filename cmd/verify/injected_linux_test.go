package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every system call on the files that a command publishes is made to fail, one run for each: the command ends with exit code 3 and a message,
// what was there before stays, and nothing else does. It runs in make hostile, where a missing strace is a failure.
func TestInjected(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if os.Getenv("HOSTILE") == "" {
		t.Skip("runs in make hostile")
	}
	require.NoError(t, err, "faults of system calls cannot be tried: apt-get install strace")
	dir := hostileFolder(t)
	old := []byte("what was there before")
	seen := map[string]int{}
	for _, c := range []struct {
		target string
		args   []string
	}{
		{"out.npy", []string{"--orthonormalize", "out.npy"}},
		{"report.json", []string{"--format", "json", "--output", "report.json"}},
		{"plot.svg", []string{"--grad", "g.npy", "--plot", "plot.svg"}},
	} {
		target := filepath.Join(dir, c.target)
		temporary := filepath.Join(dir, "."+c.target+".plumbline-0.tmp")
		for _, call := range []string{"openat:EACCES", "openat:EACCES:+", "write:EIO", "write:ENOSPC", "fsync:EIO", "close:EIO", "renameat:EXDEV"} {
			name, errno, _ := strings.Cut(call, ":")
			errno, on, _ := strings.Cut(errno, ":") // +: and every one of a thread's calls after it
			for when := 1; when <= 20; when++ {
				require.NoError(t, os.WriteFile(target, old, 0o644))
				log := filepath.Join(t.TempDir(), "strace")
				cmd := exec.Command(strace, append([]string{"-f", "-qq", "-o", log, "-P", temporary, "-P", target, "-P", filepath.Base(temporary), "-P", c.target, "-e", "trace=" + name,
					"-e", fmt.Sprintf("inject=%s:error=%s:when=%d%s", name, errno, when, on), binaryPath, "projection", "--basis", "q.npy"}, c.args...)...)
				cmd.Dir = dir
				out, _ := cmd.CombinedOutput()
				said, err := os.ReadFile(log)
				require.NoError(t, err, "%s", out)
				if !strings.Contains(string(said), "(INJECTED)") {
					require.Zero(t, cmd.ProcessState.ExitCode(), "%s %d: %s", call, when, out)
					break // there are no more of these calls
				}
				seen[name]++
				where := fmt.Sprintf("%s, %s number %d: %s\n%s", c.target, call, when, said, out)
				require.NotContains(t, string(out), "goroutine ", where)
				require.Contains(t, []int{0, 3}, cmd.ProcessState.ExitCode(), where)
				got, err := os.ReadFile(target)
				require.NoError(t, err, where)
				if cmd.ProcessState.ExitCode() == 3 {
					require.Equal(t, old, got, where)
				} else {
					require.NotEqual(t, old, got, where)
				}
				require.NoFileExists(t, temporary, where)
			}
		}
	}
	t.Logf("faults injected, by call: %v", seen)
	for _, name := range []string{"openat", "write", "fsync", "close", "renameat"} {
		require.Positive(t, seen[name], "no fault struck %s", name)
	}
}
