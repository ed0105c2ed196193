package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/rng"
	"plumbline/internal/train"
)

// role makes the test binary a worker or a coordinator of its own process: CLUSTER_ROLE, and what its flags would be in the others.
const role = "CLUSTER_ROLE"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "worker":
		w := Worker{URL: os.Getenv("CLUSTER_URL"), Open: openTiny, Security: Security{Insecure: true}, Say: func(f string, a ...any) { fmt.Printf(f+"\n", a...) }}
		if os.Getenv("CLUSTER_FORGET") != "" {
			w.Open = func(s Spec) (train.Policy, train.Tokenizer, error) {
				p, text, err := openTiny(s)
				return forgetful(p), text, err
			}
		}
		err = w.Work(context.Background())
	case "coordinator":
		err = learn()
	}
	if err != nil {
		fmt.Println("ended:", err)
		os.Exit(1)
	}
}

// lacking skips a test that the machine does not permit, or fails it where VERIFY_REQUIRE names what it needs, and in CI, which installs strace,
// for want of that.
func lacking(t *testing.T, what, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("VERIFY_REQUIRE"), ","), what) {
		t.Fatalf("%s is required by VERIFY_REQUIRE: %s", what, why)
	}
	require.False(t, what == "strace" && os.Getenv("CI") != "", "in CI strace must be there: %s", why)
	t.Skipf("%s: %s", what, why)
}

// expected are the samples of a run of so many steps in one process.
func expected(t *testing.T, steps int) (list []drawnStep) {
	p, text := tiny(t)
	for step := range steps {
		move(p, uint64(step))
		ids, logp := sampled(t, p, text, 4*step)
		list = append(list, drawnStep{ids, logp})
	}
	return list
}

// drawnStep is what a step drew.
type drawnStep struct {
	IDs  [][]int
	LogP [][]float64
}

// learn is a learner of CLUSTER_STEPS steps: each moves the policy and draws four samples, which go to CLUSTER_OUT as a line. A step
// that stands there is not drawn again, as after a checkpoint. A file beside it ends the run.
func learn() error {
	p, text, err := openTiny(Spec{})
	if err != nil {
		return err
	}
	steps, err := strconv.Atoi(os.Getenv("CLUSTER_STEPS"))
	if err != nil {
		return err
	}
	c, err := Open(context.Background(), Config{URL: os.Getenv("CLUSTER_URL"), Listen: os.Getenv("CLUSTER_LISTEN"), Dir: os.Getenv("CLUSTER_DIR"), Policy: p, Text: text, Model: json.RawMessage(`{}`),
		Blobs: os.Getenv("CLUSTER_BLOBS"), Check: 50 * time.Millisecond, AckWait: 500 * time.Millisecond, Security: Security{Insecure: true}})
	if err != nil {
		return err
	}
	fmt.Println("ready at", c.Address())
	out := os.Getenv("CLUSTER_OUT")
	done, err := readSteps(out)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	for step := range steps {
		if _, err := os.Stat(out + ".stop"); err == nil {
			break
		}
		move(p, uint64(step))
		if step < len(done) {
			continue
		}
		ids, logp, err := c.Policy().Sample(context.Background(), rows(text), how, rng.New(7, 2), 4*step, text.EOS(), nil)
		if err != nil {
			return err
		}
		line, err := json.Marshal(drawnStep{ids, logp})
		if err != nil {
			return err
		}
		if _, err := f.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	if os.Getenv("CLUSTER_STAY") != "" { // until it is killed
		select {}
	}
	return c.Close(true)
}

// readSteps reads the whole lines of that file; a last one that was cut is taken away.
func readSteps(path string) (list []drawnStep, err error) {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	for line := range bytes.Lines(whole) {
		var s drawnStep
		if err := json.Unmarshal(line, &s); err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	if err == nil && len(whole) < len(text) {
		err = os.Truncate(path, int64(len(whole)))
	}
	return list, err
}

// process is one that a test has started.
type process struct {
	cmd  *exec.Cmd
	mu   sync.Mutex
	said []string
	gone chan struct{}
}

// start runs the test binary in a role, by a command before it if there is one; it ends with the test.
func start(t *testing.T, what string, env []string, before ...string) *process {
	t.Helper()
	words := append(before, os.Args[0])
	p := &process{cmd: exec.Command(words[0], words[1:]...), gone: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), role+"="+what), env...)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.cmd.Stderr = p.cmd.Stdout
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.gone)
		in := bufio.NewScanner(out)
		for in.Scan() {
			p.mu.Lock()
			p.said = append(p.said, in.Text())
			p.mu.Unlock()
		}
		p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

// kill is kill -9.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.gone
}

// ends waits until the process has ended.
func (p *process) ends(t *testing.T) {
	t.Helper()
	select {
	case <-p.gone:
	case <-time.After(3 * time.Minute):
		t.Fatalf("never ends: %s", p.text())
	}
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.said, "\n")
}

// says waits until one of these stands in what the process says.
func (p *process) says(t *testing.T, any ...string) string {
	t.Helper()
	for range 600 {
		text := p.text()
		for _, s := range any {
			if strings.Contains(text, s) {
				return s
			}
		}
		select {
		case <-p.gone:
			if text == p.text() {
				t.Fatalf("ended without %q: %s", any, text)
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatalf("never said %q: %s", any, p.text())
	return ""
}

// copied is a folder of a run and copies of it, as two machines have them.
func copied(t *testing.T, n int) (dirs []string) {
	first := t.TempDir()
	l, err := openLedger(first, folder(filepath.Join(first, "blobs")))
	require.NoError(t, err)
	require.NoError(t, l.close())
	for range n {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(first)))
		dirs = append(dirs, dir)
	}
	return dirs
}

// Of coordinators that start on one run at the same moment one gets it, and the others say who has it, whether nobody had the run before
// or a coordinator that is dead.
func TestCoordinatorsRace(t *testing.T) {
	srv, err := embed("127.0.0.1:0", t.TempDir(), Security{})
	require.NoError(t, err)
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	const n = 6
	dirs := copied(t, n)
	p, text := tiny(t)
	for round := range 8 {
		opened, refused := make([]*Coordinator, n), make([]error, n)
		var all sync.WaitGroup
		for i, dir := range dirs {
			all.Go(func() {
				opened[i], refused[i] = Open(context.Background(), Config{URL: srv.ClientURL(), Dir: dir, Policy: p, Text: text, Model: json.RawMessage(`{}`)})
			})
		}
		all.Wait()
		won := 0
		for i, c := range opened {
			if refused[i] == nil {
				won++
				require.NoError(t, c.Close(false)) // and leaves its name, as one that is killed
				continue
			}
			var running *RunningError
			require.ErrorAs(t, refused[i], &running)
			require.Contains(t, running.Who, fmt.Sprint("process ", os.Getpid()))
		}
		require.Equal(t, 1, won, "round %d", round)
	}
}

// The same as processes on two copies of a folder. The one that has the run is killed, and the other gets it.
func TestTwoCoordinators(t *testing.T) {
	srv, err := embed("127.0.0.1:0", t.TempDir(), Security{})
	require.NoError(t, err)
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	dirs := copied(t, 2)
	begin := func(dir string) *process {
		return start(t, "coordinator", []string{"CLUSTER_URL=" + srv.ClientURL(), "CLUSTER_DIR=" + dir, "CLUSTER_OUT=" + filepath.Join(dir, "out"), "CLUSTER_STEPS=1"})
	}
	for range 3 {
		both := []*process{begin(dirs[0]), begin(dirs[1])}
		won := -1
		for i, p := range both {
			if p.says(t, "ready at", "has a coordinator already") == "ready at" {
				require.Equal(t, -1, won, "both have the run")
				won = i
			} else {
				require.Contains(t, p.text(), fmt.Sprintf("process %d on", both[1-i].cmd.Process.Pid))
			}
		}
		require.NotEqual(t, -1, won, "neither has the run")
		both[won].kill()
	}
	p, text := tiny(t)
	c, err := Open(context.Background(), Config{URL: srv.ClientURL(), Dir: dirs[0], Policy: p, Text: text, Model: json.RawMessage(`{}`), Check: 50 * time.Millisecond})
	require.NoError(t, err)
	defer c.Close(false)

	// One that was cut off, so that another one took its run over, ends by name when it is back; nothing that it took is lost.
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.Policy().Sample(context.Background(), rows(text), how, rng.New(7, 2), 0, text.EOS(), nil)
		ended <- err
	}()
	require.Eventually(t, func() bool { _, err := c.js.Stream(context.Background(), streamName(c.spec.Run)); return err == nil }, 10*time.Second, 10*time.Millisecond)
	kv, err := c.js.KeyValue(context.Background(), bucketName(c.spec.Run))
	require.NoError(t, err)
	other, _ := json.Marshal(holder{"0", "process 1 on another machine"})
	_, err = kv.Put(context.Background(), leaseKey, other)
	require.NoError(t, err)
	var running *RunningError
	require.ErrorAs(t, <-ended, &running)
	require.Contains(t, running.Error(), "process 1 on another machine, which took it over")
}
