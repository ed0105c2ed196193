//go:build unix

package rundir

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain is also the process that is killed: it saves for ever, or until the operation that the environment names.
func TestMain(m *testing.M) {
	path := os.Getenv("RUNDIR_VICTIM")
	if path == "" {
		os.Exit(m.Run())
	}
	n, _ := strconv.Atoi(os.Getenv("RUNDIR_OPERATION"))
	disk := &broken{left: n, before: func() {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until the signal arrives
	}}
	r, err := Create(path, Options{Keep: 2, Disk: disk})
	if err != nil {
		panic(err)
	}
	c, _, err := Newest(path)
	if err != nil {
		panic(err)
	}
	step := 0
	if c != nil {
		if _, err := r.Resume(c); err != nil {
			panic(err)
		}
		step = c.Manifest.Step
	}
	for {
		step++
		if err := save(r, step); err != nil {
			panic(err)
		}
		fmt.Println(step)
	}
}

func victim(path string, operation int) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "RUNDIR_VICTIM="+path, "RUNDIR_OPERATION="+strconv.Itoa(operation))
	return cmd
}

// saved returns the last step that a victim said was saved.
func saved(out []byte) int {
	last := 0
	for _, word := range strings.Fields(string(out)) {
		if n, err := strconv.Atoi(word); err == nil {
			last = n
		}
	}
	return last
}

// TestKilledAtRandom kills a process somewhere in a save: after it has said that so many are made, and after as many yields of the
// scheduler as a random number says, so that no clock decides whether the test finds anything.
func TestKilledAtRandom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	rng := rand.New(rand.NewPCG(7, 8))
	known, inSave := 0, 0
	for i := range kills {
		cmd := victim(path, 0)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewReader(out)
		for range rng.IntN(3) {
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			known = max(known, saved([]byte(line)))
		}
		for range rng.IntN(2000) {
			runtime.Gosched()
		}
		require.NoError(t, cmd.Process.Kill())
		rest, err := io.ReadAll(lines)
		require.NoError(t, err)
		cmd.Wait()
		known = max(known, saved(rest))
		if known > 0 {
			got := newest(t, path)
			require.GreaterOrEqual(t, got, known, "kill %d", i)
			require.LessOrEqual(t, got, known+1, "kill %d", i)
			known = got
		}
		if left, err := filepath.Glob(filepath.Join(path, "*.tmp-*")); err == nil && len(left) > 0 {
			inSave++
		}
	}
	require.Greater(t, known, kills/4, "saves between the kills")
	t.Logf("%d of %d kills came in the middle of a save", inSave, kills)
}

// TestKilledAtEveryOperation kills a process before each operation of its first three saves.
func TestKilledAtEveryOperation(t *testing.T) {
	by := 1
	if testing.Short() {
		by = 7
	}
	for n := 1; ; n += by {
		path := filepath.Join(t.TempDir(), "run")
		out, err := victim(path, n).Output()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
		known := saved(out)
		got := newest(t, path)
		require.GreaterOrEqual(t, got, known, "operation %d", n)
		require.LessOrEqual(t, got, known+1, "operation %d", n)
		r := open(t, path, Options{Keep: 2})
		names, err := OS{}.Names(path)
		require.NoError(t, err)
		for _, name := range names {
			require.NotRegexp(t, temporary, name)
		}
		require.NoError(t, r.Close())
		if known == 3 {
			require.Greater(t, n, 50)
			return
		}
	}
}
