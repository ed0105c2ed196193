//go:build slow

package cluster

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"plumbline/internal/rng"
)

// scene is a run of processes: a coordinator, two workers, and one in a network of its own.
type scene struct {
	t        *testing.T
	dir, out string
	port     string
	net      *namespace
	c        *process
	workers  []*process
	conn     *nats.Conn
	js       jetstream.JetStream
	run      string
	draw     func(n int) int
	bases    int // workers without the adapter that were refused

	mu   sync.Mutex
	sent [][]byte // what workers handed over
}

func (s *scene) url(host string) string {
	return "CLUSTER_URL=nats://" + net.JoinHostPort(host, s.port)
}

func (s *scene) lead() {
	s.c = start(s.t, "coordinator", []string{"CLUSTER_URL=embedded", "CLUSTER_LISTEN=0.0.0.0:" + s.port, "CLUSTER_DIR=" + s.dir, "CLUSTER_OUT=" + s.out, "CLUSTER_STEPS=1000000"})
}

// hire starts worker k; the last one is in the other network if there is one.
func (s *scene) hire(k int) {
	if k == 2 && s.net != nil {
		s.workers[k] = start(s.t, "worker", []string{s.url(s.net.here)}, s.net.in()...)
	} else {
		s.workers[k] = start(s.t, "worker", []string{s.url("127.0.0.1")})
	}
}

func (s *scene) steps() int {
	list, err := os.ReadFile(s.out)
	require.True(s.t, err == nil || os.IsNotExist(err))
	n := 0
	for _, b := range list {
		if b == '\n' {
			n++
		}
	}
	return n
}

// blob returns the path of one that is there.
func (s *scene) blob() string {
	list, _ := os.ReadDir(filepath.Join(s.dir, "blobs"))
	if len(list) == 0 {
		return ""
	}
	return filepath.Join(s.dir, "blobs", list[s.draw(len(list))].Name())
}

func (s *scene) subject(name string) string { return "plumbline." + s.run + "." + name }

type disturbance struct {
	name string
	do   func(ctx context.Context, s *scene)
}

// cut is what needs a network of one's own.
const cut = "the network is cut"

// disturbances are what happens while samples are drawn.
var disturbances = []disturbance{
	{"a worker is killed", func(_ context.Context, s *scene) {
		k := s.draw(3)
		s.workers[k].kill()
		s.hire(k)
	}},
	{"all workers are killed", func(_ context.Context, s *scene) {
		for _, w := range s.workers {
			w.kill()
		}
		for k := range s.workers {
			s.hire(k)
		}
	}},
	{"the coordinator is killed", func(_ context.Context, s *scene) {
		s.c.kill()
		s.lead()
	}},
	{"a worker stands still, so that its task goes to another one and comes twice", func(_ context.Context, s *scene) {
		p := s.workers[s.draw(2)].cmd.Process
		p.Signal(syscall.SIGSTOP)
		time.Sleep(time.Second)
		p.Signal(syscall.SIGCONT)
	}},
	{cut, func(_ context.Context, s *scene) {
		s.net.set(s.t, "down")
		time.Sleep(time.Duration(100+s.draw(2000)) * time.Millisecond)
		s.net.set(s.t, "up")
	}},
	{"messages are lost", func(ctx context.Context, s *scene) { // somebody takes them and does nothing
		if q, err := s.js.Consumer(ctx, streamName(s.run), "workers"); err == nil {
			q.Fetch(1+s.draw(3), jetstream.FetchMaxWait(50*time.Millisecond))
		}
	}},
	{"messages come twice, those of older policies as well", func(_ context.Context, s *scene) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for range 8 {
			if len(s.sent) > 0 {
				s.conn.Publish(s.subject("submit"), s.sent[s.draw(len(s.sent))])
			}
		}
		if len(s.sent) > 0 {
			s.conn.Publish(s.subject("submit"), s.sent[len(s.sent)-1])
		}
	}},
	{"nonsense comes", func(_ context.Context, s *scene) {
		for _, subject := range []string{"submit", "join", "restore"} {
			for _, text := range []string{"", "{", "[]", `{"task":"x"}`, `{"policy":"x","worker":"w","ticket":"00"}`} {
				s.conn.Publish(s.subject(subject), []byte(text))
			}
		}
	}},
	{"the queue is deleted", func(ctx context.Context, s *scene) { s.js.DeleteStream(ctx, streamName(s.run)) }},
	{"the keys are deleted", func(ctx context.Context, s *scene) { s.js.DeleteKeyValue(ctx, bucketName(s.run)) }},
	{"the store is deleted", func(_ context.Context, s *scene) { os.RemoveAll(filepath.Join(s.dir, "jetstream")) }},
	{"a blob is corrupted", func(_ context.Context, s *scene) {
		if name := s.blob(); name != "" {
			if data, err := os.ReadFile(name); err == nil && len(data) > 0 {
				data[s.draw(len(data))] ^= 1
				os.WriteFile(name, data, 0o644)
			}
		}
	}},
	{"a blob is missing", func(_ context.Context, s *scene) {
		if name := s.blob(); name != "" {
			os.Remove(name)
		}
	}},
	{"a worker has the base without the adapter", func(_ context.Context, s *scene) {
		w := start(s.t, "worker", []string{s.url("127.0.0.1"), "CLUSTER_FORGET=1"})
		w.says(s.t, "refused by the coordinator: "+WrongCanary)
		w.ends(s.t)
		require.NotContains(s.t, w.text(), "passes")
		s.bases++
	}},
}

// TestRandomFaults disturbs a run of processes, while it goes on, by kill -9 of each of them, cuts of the network, lost and doubled
// messages and losses of what lies on the disk. The run ends with the samples of one process, step for step and bit for bit, and its
// folder with the same set of them. CLUSTER_FAULTS is their number.
func TestRandomFaults(t *testing.T) {
	faults := 24
	if text := os.Getenv("CLUSTER_FAULTS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		faults = n
	}
	random, drawn := rng.New(11, 1), uint64(0)
	dir := t.TempDir()
	s := &scene{t: t, dir: filepath.Join(dir, "cluster"), out: filepath.Join(dir, "out"), workers: make([]*process, 3),
		draw: func(n int) int { drawn++; return int(random.Word(drawn) % uint64(n)) }}
	var why string
	list := disturbances
	if s.net, why = newNamespace(t, 1); s.net == nil {
		t.Run("cuts of the network", func(t *testing.T) { lacking(t, "netns", why) }) // the other faults strike all the same
		list = slices.DeleteFunc(slices.Clone(list), func(d disturbance) bool { return d.name == cut })
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, s.port, err = net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	s.lead()
	s.c.says(t, "ready at")
	name, err := os.ReadFile(filepath.Join(s.dir, "run"))
	require.NoError(t, err)
	s.run = string(name)
	s.conn, err = connect("nats://127.0.0.1:"+s.port, "faults", Security{})
	require.NoError(t, err)
	defer s.conn.Close()
	s.js, err = jetstream.New(s.conn)
	require.NoError(t, err)
	_, err = s.conn.Subscribe(s.subject("submit"), func(m *nats.Msg) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(m.Data) > 100 && len(s.sent) < 4096 {
			s.sent = append(s.sent, m.Data)
		}
	})
	require.NoError(t, err)
	for k := range s.workers {
		s.hire(k)
	}
	happened := map[string]int{}
	for fault := range faults {
		before := s.steps()
		require.Eventually(t, func() bool { return s.steps() > before }, 2*time.Minute, 5*time.Millisecond, "after fault %d nothing moves: %s", fault, s.c.text())
		time.Sleep(time.Duration(s.draw(100)) * time.Millisecond)
		d := list[s.draw(len(list))]
		if fault < len(list) { // each of them once at least
			d = list[fault]
		}
		happened[d.name]++
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		d.do(ctx, s)
		cancel()
		t.Logf("fault %d, step %d: %s: %.1f s", fault, before, d.name, time.Since(began).Seconds())
	}
	before := s.steps()
	require.Eventually(t, func() bool { return s.steps() > before+2 }, 2*time.Minute, 10*time.Millisecond, "%s", s.c.text())
	require.NoError(t, os.WriteFile(s.out+".stop", nil, 0o644))
	s.c.ends(t)
	require.NotContains(t, s.c.text(), "ended:")
	got, err := readSteps(s.out)
	require.NoError(t, err)
	want := expected(t, len(got))
	for step := range want {
		require.Equal(t, want[step], got[step], "step %d", step)
	}
	var line struct{ Samples []string }
	have := map[string]bool{}
	require.NoError(t, eachLine(s.dir, "rollouts.jsonl", &line, func() {
		for _, id := range line.Samples {
			have[id] = true
		}
		line.Samples = nil
	}))
	require.Equal(t, asked(t, len(got)), have, "the set of rollouts")
	counts, _ := json.Marshal(happened)
	t.Logf("%d faults, %d steps, %d bases refused: %s", faults, len(got), s.bases, counts)
}

// asked are the hashes of the samples that so many steps ask for.
func asked(t *testing.T, steps int) map[string]bool {
	p, text := tiny(t)
	all := map[string]bool{}
	for step := range steps {
		move(p, uint64(step))
		b, policy := rows(text), hash(encodePolicy(p.Params()))
		for i := range 4 {
			all[sampleID(policy, rng.New(7, 2).Key(), 4*step+i, text.EOS(), how, b.IDs[6*i:6*i+6], b.Real[6*i:6*i+6])] = true
		}
	}
	return all
}
