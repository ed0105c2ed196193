//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// untried skips a lock that this machine cannot try. In CI and in make hostile that is a failure: a lock that nobody tries is none.
func untried(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" || os.Getenv("HOSTILE") != "" {
		t.Fatal("a lock is not tried: " + why)
	}
	t.Skip(why)
}

// What cannot be written is an error of the environment, exit code 3, with a message, and leaves nothing behind.
func TestOutputThatFails(t *testing.T) {
	dir := hostileFolder(t)
	if _, err := os.Stat("/dev/full"); err != nil {
		untried(t, "no /dev/full on this system")
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	require.NoError(t, os.Symlink("/dev/full", filepath.Join(dir, "full.svg")))
	require.NoError(t, os.Symlink("/dev/full", filepath.Join(dir, "full.npy")))
	before, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, args := range [][]string{
		{}, {"--format", "json"}, {"--format", "junit"}, {"--output", "/dev/full"}, {"--format", "json", "--output", "/dev/full"},
		{"--grad", "g.npy", "--plot", "full.svg"}, {"--orthonormalize", "full.npy"},
	} {
		cmd := exec.Command(binaryPath, append([]string{"projection", "--basis", "q.npy"}, args...)...)
		cmd.Dir = dir
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if len(args) == 0 || args[0] == "--format" && len(args) == 2 {
			cmd.Stdout = full
		}
		_ = cmd.Run()
		require.Equal(t, 3, cmd.ProcessState.ExitCode(), "%v\n%s%s", args, out.String(), errs.String())
		require.Contains(t, out.String()+errs.String(), "no space left on device", args)
	}
	after, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, after, len(before), "no half-written file stays behind")
}

// A reader that goes away ends the program by SIGPIPE, as it does others, or with exit code 3 where that is ignored.
func TestClosedPipe(t *testing.T) {
	dir := hostileFolder(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	cmd := exec.Command(binaryPath, "projection", "--basis", "q.npy")
	cmd.Dir, cmd.Stdout = dir, w
	var errs bytes.Buffer
	cmd.Stderr = &errs
	_ = cmd.Run()
	require.NoError(t, w.Close())
	signalled := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGPIPE
	require.True(t, signalled || cmd.ProcessState.ExitCode() == 3, "%v %s", cmd.ProcessState, errs.String())
}

// A folder that must not be written to, and a file that must not be read.
func TestWithoutPermission(t *testing.T) {
	dir := hostileFolder(t)
	locked := filepath.Join(dir, "locked")
	require.NoError(t, os.Mkdir(locked, 0o555))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret.npy"), nil, 0))
	run := func(args ...string) outcome {
		cmd := exec.Command(binaryPath, append([]string{"projection"}, args...)...)
		cmd.Dir = dir
		if os.Geteuid() == 0 { // to whom permissions are nothing
			for path := dir; path != filepath.Dir(path) && path != os.TempDir(); path = filepath.Dir(path) {
				require.NoError(t, os.Chmod(path, 0o755))
			}
			require.NoError(t, os.Chmod(filepath.Dir(binaryPath), 0o755))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); cmd.ProcessState == nil {
			untried(t, "the program cannot be started as another user: "+err.Error())
		}
		return outcome{stdout: out.String(), stderr: errs.String(), code: cmd.ProcessState.ExitCode()}
	}
	require.Zero(t, run("--basis", "q.npy").code)
	for _, args := range [][]string{
		{"--basis", "q.npy", "--output", "locked/r.txt"}, {"--basis", "q.npy", "--format", "json", "--output", "locked/r.json"},
		{"--basis", "q.npy", "--grad", "g.npy", "--plot", "locked/p.svg"}, {"--basis", "q.npy", "--orthonormalize", "locked/q.npy"},
		{"--basis", "secret.npy"}, {"--basis", "q.npy", "--baseline", "secret.npy"},
	} {
		o := run(args...)
		require.Equal(t, 3, o.code, "%v\n%s%s", args, o.stdout, o.stderr)
		require.Contains(t, o.stdout+o.stderr, "permission denied", args)
	}
	left, err := os.ReadDir(locked)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A baseline that cannot be compared with does not take the findings with it.
func TestBaselineThatFails(t *testing.T) {
	dir := hostileFolder(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "old.json"), []byte("{"), 0o666))
	stdout, stderr, code := verify(t, dir, "projection", "--basis", "q.npy", "--baseline", "old.json", "--format", "json")
	require.Equal(t, 4, code, stderr)
	var r struct {
		Exit    int
		Error   string
		Results []json.RawMessage
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, 4, r.Exit)
	require.Contains(t, r.Error, "old.json")
	require.NotEmpty(t, r.Results)
}

// A run that waits for the reader of a FIFO does not look at its first signal; a second ends it.
func TestSecondSignal(t *testing.T) {
	dir := hostileFolder(t)
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	cmd := exec.Command(binaryPath, "projection", "--basis", "q.npy", "--output", "fifo")
	cmd.Dir = dir
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.After(patience); ; {
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		select {
		case <-ended:
			return
		case <-deadline:
			require.NoError(t, cmd.Process.Kill())
			t.Fatal("signals do not end it")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// The report must not replace what was judged.
func TestOutputOverInput(t *testing.T) {
	dir := hostileFolder(t)
	before, err := os.ReadFile(filepath.Join(dir, "q.npy"))
	require.NoError(t, err)
	_, _, code := verify(t, dir, "projection", "--basis", "q.npy", "--output", "q.npy")
	after, err := os.ReadFile(filepath.Join(dir, "q.npy"))
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Equal(t, 2, code)
}

// An output that is a FIFO or a socket is refused before the work is done: nobody may read it. A pipe that the shell has opened is not.
func TestOutputIntoFIFO(t *testing.T) {
	dir := hostileFolder(t)
	fifo := filepath.Join(dir, "fifo.svg")
	require.NoError(t, syscall.Mkfifo(fifo, 0o644))
	require.NoError(t, os.Symlink("fifo.svg", filepath.Join(dir, "link.svg")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo.npy"), 0o644))
	for _, name := range []string{"fifo.svg", "link.svg"} {
		for _, args := range [][]string{{"--output", name}, {"--grad", "g.npy", "--plot", name}, {"--orthonormalize", "fifo.npy"}} {
			cmd := exec.Command(binaryPath, append([]string{"projection", "--basis", "q.npy"}, args...)...)
			cmd.Dir = dir
			errs, _ := cmd.CombinedOutput()
			require.Equal(t, 2, cmd.ProcessState.ExitCode(), "%v\n%s", args, errs)
			require.Contains(t, string(errs), "is a FIFO or a socket", args)
		}
	}
	cmd := exec.Command("sh", "-c", `"$0" projection --basis q.npy --format json --output /dev/stdout | cat`, binaryPath)
	cmd.Dir = dir
	out, err := cmd.Output()
	require.NoError(t, err)
	require.True(t, json.Valid(out), "%s", out)
}
