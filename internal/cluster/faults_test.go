//go:build slow

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"plumbline/internal/rng"
	"plumbline/internal/train"
)

// hand is a worker of this process that can be killed: its connection goes at once, and nothing is said or handed back.
type hand struct {
	w    *Worker
	stop context.CancelFunc
	gone chan struct{}
}

func work(t *testing.T, address string) *hand {
	ctx, cancel := context.WithCancel(context.Background())
	h := &hand{stop: cancel, gone: make(chan struct{})}
	h.w = &Worker{URL: address, Open: func(Spec) (train.Policy, train.Tokenizer, error) {
		p, text := tiny(t)
		return p, text, nil
	}}
	go func() { h.w.Work(ctx); close(h.gone) }()
	return h
}

func (h *hand) kill() {
	if h.w.conn != nil {
		h.w.conn.Close()
	}
	h.stop()
	<-h.gone
}

// disturbance happens while the samples of a step are drawn.
type disturbance struct {
	name string
	do   func(r *scene)
}

type scene struct {
	t     *testing.T
	dir   string
	c     *Coordinator
	hands []*hand
	draw  func(n int) int
}

func (s *scene) js(f func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	f(ctx)
}

var disturbances = []disturbance{
	{"a worker is killed", func(s *scene) {
		k := s.draw(len(s.hands))
		s.hands[k].kill()
		s.hands[k] = work(s.t, s.c.Address())
	}},
	{"all workers are killed", func(s *scene) {
		for k, h := range s.hands {
			h.kill()
			s.hands[k] = work(s.t, s.c.Address())
		}
	}},
	{"a message is lost", func(s *scene) { // somebody takes it and does nothing
		s.js(func(ctx context.Context) {
			if q, err := s.c.js.Consumer(ctx, streamName(s.c.spec.Run), "workers"); err == nil {
				q.Fetch(1, jetstream.FetchMaxWait(10*time.Millisecond))
			}
		})
	}},
	{"the queue is deleted", func(s *scene) { s.js(func(ctx context.Context) { s.c.js.DeleteStream(ctx, streamName(s.c.spec.Run)) }) }},
	{"the keys are deleted", func(s *scene) {
		s.js(func(ctx context.Context) { s.c.js.DeleteKeyValue(ctx, bucketName(s.c.spec.Run)) })
	}},
	{"the server and its store are gone", func(s *scene) {
		s.c.mu.Lock()
		srv := s.c.server
		s.c.mu.Unlock()
		srv.Shutdown()
		srv.WaitForShutdown()
		os.RemoveAll(filepath.Join(s.dir, "jetstream"))
	}},
	{"what was handed over comes twice, and nonsense", func(s *scene) {
		for _, subject := range []string{"submit", "join"} {
			for _, text := range []string{"", "{", "[]", `{"task":"x"}`, fmt.Sprintf(`{"policy":%q,"worker":"w","ticket":"00"}`, s.c.spec.Base)} {
				s.c.conn.Publish(s.c.subject(subject), []byte(text))
			}
		}
	}},
	{"a blob is corrupted", func(s *scene) {
		list, _ := os.ReadDir(filepath.Join(s.dir, "blobs"))
		if len(list) == 0 {
			return
		}
		name := filepath.Join(s.dir, "blobs", list[s.draw(len(list))].Name())
		if data, err := os.ReadFile(name); err == nil && len(data) > 0 {
			data[s.draw(len(data))] ^= 1
			os.WriteFile(name, data, 0o644)
		}
	}},
	{"a blob is missing", func(s *scene) {
		list, _ := os.ReadDir(filepath.Join(s.dir, "blobs"))
		if len(list) > 0 {
			os.Remove(filepath.Join(s.dir, "blobs", list[s.draw(len(list))].Name()))
		}
	}},
}

// TestRandomFaults disturbs the rollouts of a run and restarts its coordinator: every step has the samples of one process, and the
// folder ends with the same set. CLUSTER_FAULTS is their number.
func TestRandomFaults(t *testing.T) {
	faults := 20
	if text := os.Getenv("CLUSTER_FAULTS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		faults = n
	}
	p, text := tiny(t)
	random, drawn := rng.New(11, 1), uint64(0)
	s := &scene{t: t, dir: t.TempDir(), draw: func(n int) int { drawn++; return int(random.Word(drawn) % uint64(n)) }}
	s.c = coordinate(t, s.dir, p, text)
	s.hands = []*hand{work(t, s.c.Address()), work(t, s.c.Address())}
	defer func() {
		for _, h := range s.hands {
			h.kill()
		}
		s.c.Close(false)
	}()
	want := map[string]bool{}
	happened := map[string]int{}
	for step := range faults {
		move(p, uint64(step))
		ids, logp := sampled(t, p, text, 4*step)
		if s.draw(8) == 0 { // the coordinator dies in the middle of a step, and comes back on its address
			happened["the coordinator is killed"]++
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.draw(60))*time.Millisecond)
			s.c.Policy().Sample(ctx, rows(text), how, rng.New(7, 2), 4*step, text.EOS(), nil)
			cancel()
			listen := s.c.Listen
			require.NoError(t, s.c.Close(false))
			c, err := Open(context.Background(), Config{URL: Embedded, Listen: listen, Dir: s.dir, Policy: p, Text: text, Model: s.c.Model, Check: s.c.Check, AckWait: s.c.AckWait})
			require.NoError(t, err)
			s.c = c
		}
		d := disturbances[s.draw(len(disturbances))]
		happened[d.name]++
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(time.Duration(s.draw(40)) * time.Millisecond)
			d.do(s)
		}()
		began := time.Now()
		got, gotLP := sampled(t, s.c.Policy(), text, 4*step)
		<-done
		t.Logf("step %d: %s: %.1f s", step, d.name, time.Since(began).Seconds())
		require.Equal(t, ids, got, "step %d: %s", step, d.name)
		require.Equal(t, logp, gotLP, "step %d: %s", step, d.name)
		for i := range 4 {
			b := rows(text)
			want[sampleID(s.c.entry.SHA256, rng.New(7, 2).Key(), 4*step+i, text.EOS(), how, b.IDs[6*i:6*i+6], b.Real[6*i:6*i+6])] = true
		}
	}
	have := map[string]bool{}
	for id := range s.c.ledger.at {
		have[id] = true
	}
	for id := range have {
		require.True(t, want[id], "a sample that no step asked for")
	}
	t.Log(happened, s.c.Counts())
}
