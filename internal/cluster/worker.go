package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"plumbline/internal/rng"
	"plumbline/internal/train"
)

// Worker draws samples for a coordinator.
type Worker struct {
	URL      string
	Run      string        // of several on one cluster; "": the only one that has not ended
	Wait     time.Duration // for a coordinator that does not answer; 0: 10 minutes
	Security Security
	// Open opens the model of a run.
	Open func(Spec) (train.Policy, train.Tokenizer, error)
	// Say is told what the worker does; nil: nobody.
	Say func(format string, a ...any)

	now    func() time.Time // a clock of one's own; nil: the machine's
	name   string
	conn   *nats.Conn
	js     jetstream.JetStream
	ended  chan struct{}
	spec   Spec
	blobs  blobs
	policy train.Policy
	print  string // of the tokenizer
	loaded string // policy that the masters hold
	ticket string
	heard  time.Time // when a coordinator was there last
}

// errAgain says that something went that may come back.
var errAgain = errors.New("the coordinator does not answer")

// errEnded says that a run has ended.
var errEnded = errors.New("the run has ended")

// Work draws samples until the run has ended, the worker is refused or ctx is cancelled. A coordinator that is gone is waited for, for
// as long as [Worker.Wait] says.
func (w *Worker) Work(ctx context.Context) error {
	host, _ := os.Hostname()
	id := make([]byte, 4)
	rand.Read(id)
	w.name, w.ended = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), hex.EncodeToString(id)), make(chan struct{})
	if w.Say == nil {
		w.Say = func(string, ...any) {}
	}
	w.Wait = cmp.Or(w.Wait, 10*time.Minute)
	if w.now == nil {
		w.now = time.Now
	}
	w.heard = w.now()
	var err error
	if w.conn, err = connect(w.URL, w.name, w.Security); err != nil {
		return err
	}
	defer w.conn.Close()
	if w.js, err = jetstream.New(w.conn); err != nil {
		return err
	}
	last := ""
	for {
		err := again(silent(w.conn, w.URL))
		if w.conn.IsConnected() {
			err = w.session(ctx)
		}
		var refused *RefusedError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case w.over() || errors.Is(err, errEnded):
			w.Say("the run has ended")
			return nil
		case errors.As(err, &refused) || !errors.Is(err, errAgain):
			return err
		case w.conn.IsClosed(): // for good, as after credentials that were refused
			return silent(w.conn, w.URL)
		case w.now().Sub(w.heard) > w.Wait:
			return &GoneError{w.URL, w.Wait, err}
		}
		if err.Error() != last {
			w.Say("waiting: %v", err)
			last = err.Error()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.ended:
		case <-time.After(pause(err)):
		}
	}
}

// errStoring says that a rollout could not be stored, as on a full disk.
var errStoring = errors.New("storing a rollout")

// pause is the time before the next try: longer where a rollout that was drawn could not be stored, for others to take its task.
func pause(err error) time.Duration {
	if errors.Is(err, errStoring) {
		return time.Second
	}
	return 100 * time.Millisecond
}

func again(err error) error { return fmt.Errorf("%w: %w", errAgain, err) }

func (w *Worker) over() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// session works for one coordinator until something is lost, or the run has ended.
func (w *Worker) session(ctx context.Context) error {
	kv, err := w.find(ctx)
	if err != nil {
		return err
	}
	ended, err := w.conn.Subscribe("plumbline."+w.spec.Run+".ended", func(*nats.Msg) {
		if !w.over() {
			close(w.ended)
		}
	})
	if err != nil {
		return again(err)
	}
	defer ended.Unsubscribe()
	if w.policy == nil {
		p, text, err := w.Open(w.spec)
		if err != nil {
			return err
		}
		w.policy, w.print = p, TokenizerPrint(text)
	}
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	queue, err := w.js.Consumer(short, streamName(w.spec.Run), "workers")
	if err != nil {
		return again(err)
	}
	for !w.over() {
		if err := w.take(ctx, kv); err != nil {
			return err
		}
		batch, err := queue.Fetch(1, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return again(err)
		}
		for m := range batch.Messages() {
			if err := w.do(ctx, kv, m); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, jetstream.ErrNoMessages) {
			return again(err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if w.now().Sub(w.heard) > w.Wait/4 { // a cluster of others answers without a coordinator
			if _, err := w.conn.Request("plumbline."+w.spec.Run+".who", nil, 5*time.Second); err != nil {
				return again(err)
			}
			w.heard = w.now()
		}
	}
	return errEnded
}

// find finds the run and what it is made of.
func (w *Worker) find(ctx context.Context) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	runs := []string{w.Run}
	if w.Run == "" {
		runs = nil
		names := w.js.KeyValueStoreNames(ctx)
		for name := range names.Name() {
			if id, ours := strings.CutPrefix(name, bucketName("")); ours {
				runs = append(runs, id)
			}
		}
		switch {
		case names.Error() != nil:
			return nil, again(names.Error())
		case len(runs) == 0:
			return nil, again(errors.New("no run is there"))
		}
	}
	var kv jetstream.KeyValue
	var spec Spec
	var open []string
	for _, run := range runs {
		bucket, err := w.js.KeyValue(ctx, bucketName(run))
		if err != nil {
			return nil, again(err)
		}
		entry, err := bucket.Get(ctx, "spec")
		if err != nil {
			return nil, again(err)
		}
		var s Spec
		if err := json.Unmarshal(entry.Value(), &s); err != nil {
			return nil, err
		}
		if !s.Ended {
			kv, spec, open = bucket, s, append(open, run)
		}
	}
	switch {
	case len(open) == 0:
		return nil, errEnded
	case len(open) > 1:
		return nil, &RefusedError{"several runs", "say which: " + strings.Join(open, ", ")}
	}
	if w.policy != nil && (string(spec.Model) != string(w.spec.Model) || spec.Run != w.spec.Run) {
		w.policy, w.loaded, w.ticket = nil, "", ""
	}
	w.spec = spec
	var err error
	w.blobs, err = openBlobs(reachable(spec.Blobs, w.conn.ConnectedUrl()), spec.Token, w.Security)
	return kv, err
}

// reachable returns where a worker finds blobs: a coordinator that listens on every interface has no name for itself, but the worker has
// reached its queue under one.
func reachable(blobs, queue string) string {
	b, err1 := url.Parse(blobs)
	q, err2 := url.Parse(queue)
	if err1 != nil || err2 != nil || q.Host == "" {
		return blobs
	}
	if ip := net.ParseIP(b.Hostname()); ip == nil || !ip.IsUnspecified() {
		return blobs
	}
	b.Host = net.JoinHostPort(q.Hostname(), b.Port())
	return b.String()
}

// take makes the policy of the run that of the worker and has the canary pass.
func (w *Worker) take(ctx context.Context, kv jetstream.KeyValue) error {
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	e, err := kv.Get(short, "policy")
	if err != nil {
		return again(err)
	}
	var entry policyEntry
	if err := json.Unmarshal(e.Value(), &entry); err != nil {
		return err
	}
	if entry.SHA256 == w.loaded && w.ticket != "" {
		return nil
	}
	if entry.SHA256 != w.loaded {
		w.loaded, w.ticket = "", ""
		blob, err := w.blobs.get(ctx, entry.SHA256)
		if err != nil {
			if _, asked := w.ask("restore", nil); asked != nil {
				err = errors.Join(err, asked)
			}
			return again(err)
		}
		if err := decodePolicy(w.policy.Params(), blob); err != nil {
			return &RefusedError{WrongBase, err.Error()}
		}
		w.loaded = entry.SHA256
	}
	song, err := sing(w.policy, entry.Canary)
	if err != nil {
		return err
	}
	r, err := w.ask("join", joining{w.name, w.loaded, w.policy.Variant(), w.policy.Fingerprint(), w.print, song})
	if err != nil {
		return err
	}
	switch r.Reason {
	case "":
		w.ticket = r.Ticket
		w.Say("policy %d, %.12s: the canary passes", entry.Version, w.loaded)
		return nil
	case Stale:
		return again(errors.New("the policy is another one by now"))
	}
	return &RefusedError{r.Reason, r.Detail}
}

func (w *Worker) ask(subject string, question any) (r reply, err error) {
	text, err := json.Marshal(question)
	if err != nil {
		return r, err
	}
	m, err := w.conn.Request("plumbline."+w.spec.Run+"."+subject, text, 5*time.Second)
	if err != nil {
		return r, again(err)
	}
	w.heard = w.now()
	return r, json.Unmarshal(m.Data, &r)
}

// do draws the samples of a task. The message is acknowledged when the coordinator has written them down; a task that takes long is
// kept as long as tokens come.
func (w *Worker) do(ctx context.Context, kv jetstream.KeyValue, m jetstream.Msg) error {
	var t task
	if err := json.Unmarshal(m.Data(), &t); err != nil {
		m.Term()
		return nil
	}
	if t.Policy != w.loaded {
		if err := w.take(ctx, kv); err != nil {
			m.Nak()
			return err
		}
		if t.Policy != w.loaded {
			m.Term() // of a policy that is gone; what is still wanted the coordinator puts in again
			return nil
		}
	}
	alive := w.now()
	ids, logp, err := w.policy.Sample(ctx, t.Prompts, t.Sampling, rng.Keyed(t.Seed), t.First, t.EOS, func(train.Drawn) {
		if w.now().Sub(alive) > time.Second {
			alive = w.now()
			m.InProgress()
		}
	})
	if ctx.Err() != nil {
		m.Nak()
		return ctx.Err()
	}
	s := submission{Worker: w.name, Ticket: w.ticket, Task: t.ID, Policy: t.Policy}
	if err != nil {
		s.Failed = err.Error()
	}
	for {
		if s.Failed == "" {
			text, err := json.Marshal(rollout{t.Policy, t.Seed, t.First, t.Samples, ids, logp})
			if err != nil {
				return err
			}
			if s.Blob, err = w.blobs.put(ctx, text); err != nil {
				m.Nak()
				return again(fmt.Errorf("%w: %w", errStoring, err))
			}
		}
		r, err := w.ask("submit", s)
		if err != nil {
			m.Nak()
			return err
		}
		switch r.Reason {
		case NotAdmitted: // another coordinator, which knows nothing of the ticket
			w.ticket = ""
			if err := w.take(ctx, kv); err != nil {
				m.Nak()
				return err
			}
			s.Ticket = w.ticket
			if t.Policy == w.loaded {
				continue
			}
			m.Term()
		case "", Duplicate:
			m.Ack()
		case BadBlob, Malformed:
			w.Say("task %.12s: %s: %s", t.ID, r.Reason, r.Detail)
			m.Nak()
			return again(errors.New(r.Detail))
		default:
			w.Say("task %.12s: %s: %s", t.ID, r.Reason, r.Detail)
			m.Term()
		}
		return nil
	}
}
