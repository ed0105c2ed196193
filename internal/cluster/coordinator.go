package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
)

// Config of a [Coordinator].
type Config struct {
	URL      string        // [Embedded], or that of a NATS cluster with JetStream
	Listen   string        // host and port of the embedded server; default 127.0.0.1:4222
	BlobsAt  string        // host and port of the blobs; default: the host of Listen, any port
	Blobs    string        // a folder that the workers share, in place of HTTP; default: none
	Dir      string        // RUN/cluster
	Rows     int           // samples of a task; default 1
	AckWait  time.Duration // without a new token from its worker a task goes to another one; default 30 s
	Check    time.Duration // between two looks at the queue; default 1 s
	Security Security
	Model    json.RawMessage // of [Spec]
	Policy   train.Policy
	Text     train.Tokenizer
	Warn     func(format string, a ...any)
}

// Counts are what a coordinator took and refused.
type Counts struct {
	Calls, Samples int            // asked for
	FromDisk       int            // of these, known from the folder
	Accepted       int            // samples that came
	Joined         int            // canaries that passed
	Refilled       int            // tasks that were put into the queue again
	Local          int            // tasks that the coordinator drew itself, because a worker could not
	Restarts       int            // of the embedded server
	Restored       int            // policies whose blob was lost
	Staleness      int            // the largest of a rollout that came, in versions of the policy
	Rejected       map[string]int // by reason
}

// Coordinator hands out the samples of a run.
type Coordinator struct {
	Config
	spec   Spec
	ledger *ledger
	server *server.Server
	conn   *nats.Conn
	js     jetstream.JetStream
	stop   func() error // of the blobs
	secret []byte
	me     holder
	holds  bool // the run

	mu      sync.Mutex
	entry   policyEntry
	song    []uint64         // of the learner, to the canary
	tasks   map[string]*task // that are open
	done    map[string]bool  // samples of this process's calls
	ids     map[string][]int
	logp    map[string][]float64
	failed  []string
	fault   error
	counts  Counts
	changed chan struct{}
	metrics *rundir.Log
}

// Open starts the coordinator of a run.
func Open(ctx context.Context, o Config) (_ *Coordinator, err error) {
	o.Listen = cmp.Or(o.Listen, "127.0.0.1:4222")
	o.Rows = max(1, o.Rows)
	o.AckWait = cmp.Or(o.AckWait, 30*time.Second)
	o.Check = cmp.Or(o.Check, time.Second)
	c := &Coordinator{Config: o, secret: make([]byte, 32), changed: make(chan struct{}, 1), tasks: map[string]*task{}, done: map[string]bool{}, ids: map[string][]int{},
		logp: map[string][]float64{}, counts: Counts{Rejected: map[string]int{}}}
	rand.Read(c.secret)
	defer func() {
		if err != nil {
			c.Close(false)
		}
	}()
	store := folder(filepath.Join(o.Dir, "blobs"))
	if o.Blobs != "" {
		store = folder(o.Blobs)
	}
	if c.ledger, err = openLedger(o.Dir, store); err != nil {
		return nil, err
	}
	if c.metrics, err = rundir.OpenLog(filepath.Join(o.Dir, "metrics.jsonl")); err != nil {
		return nil, err
	}
	address := o.URL
	if o.URL == Embedded {
		if c.server, err = embed(o.Listen, filepath.Join(o.Dir, "jetstream"), o.Security); err != nil {
			return nil, err
		}
		c.Listen = c.server.Addr().String()
		address = c.server.ClientURL()
	}
	if c.conn, err = connect(address, "coordinator", o.Security); err != nil {
		return nil, err
	}
	if !c.conn.IsConnected() {
		return nil, silent(c.conn, address)
	}
	if c.js, err = jetstream.New(c.conn); err != nil {
		return nil, err
	}
	c.spec = Spec{Run: c.ledger.run, Model: o.Model, Variant: o.Policy.Variant(), Base: o.Policy.Fingerprint(), Tokenizer: TokenizerPrint(o.Text), Blobs: string(store)}
	if err := c.alone(ctx); err != nil {
		return nil, err
	}
	if o.Blobs == "" {
		token := make([]byte, 16)
		rand.Read(token)
		c.spec.Token = hex.EncodeToString(token)
		listen := o.BlobsAt
		if listen == "" {
			host, _, _ := net.SplitHostPort(c.Listen)
			if o.URL != Embedded {
				host = "127.0.0.1"
			}
			listen = net.JoinHostPort(host, "0")
		}
		t, err := o.Security.server()
		if err != nil {
			return nil, err
		}
		scheme := "http://"
		if t != nil {
			scheme = "https://"
		}
		if err := o.Security.allows(scheme + listen); err != nil {
			return nil, err
		}
		if c.spec.Blobs, c.stop, err = serve(listen, t, c.spec.Token, store); err != nil {
			return nil, err
		}
	}
	for subject, answer := range map[string]func([]byte) reply{"join": c.join, "submit": c.submit, "restore": c.restore} {
		if _, err := c.conn.Subscribe(c.subject(subject), func(m *nats.Msg) {
			text, _ := json.Marshal(answer(m.Data))
			m.Respond(text)
		}); err != nil {
			return nil, err
		}
	}
	return c, c.conn.Flush()
}

func (c *Coordinator) subject(name string) string { return "plumbline." + c.spec.Run + "." + name }

// Address returns where workers find the coordinator: under the name of this machine if it listens on every interface.
func (c *Coordinator) Address() string {
	if c.server == nil {
		return c.URL
	}
	u, err := url.Parse(c.server.ClientURL())
	if host, named := os.Hostname(); err == nil && named == nil && net.ParseIP(u.Hostname()).IsUnspecified() {
		u.Host = net.JoinHostPort(host, u.Port())
		return u.String()
	}
	return c.server.ClientURL()
}

// Counts returns what was taken and refused so far.
func (c *Coordinator) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.counts
	n.Rejected = map[string]int{}
	maps.Copy(n.Rejected, c.counts.Rejected)
	return n
}

// end tells the workers that they can go, those that are there and, on a cluster of others, those that come later.
func (c *Coordinator) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c.mu.Lock()
	c.spec.Ended = true
	c.mu.Unlock()
	err := c.describe(ctx)
	if c.server == nil {
		if gone := c.js.DeleteStream(ctx, streamName(c.spec.Run)); gone != nil && !errors.Is(gone, jetstream.ErrStreamNotFound) {
			err = errors.Join(err, gone)
		}
	}
	return errors.Join(err, c.conn.Publish(c.subject("ended"), nil), c.conn.FlushTimeout(5*time.Second))
}

// Close stops the coordinator. Workers are told that they can go if the run has ended; else they wait for it to go on.
func (c *Coordinator) Close(ended bool) error {
	var errs []error
	if c.conn != nil {
		if ended {
			if err := c.end(); err != nil {
				errs = append(errs, fmt.Errorf("telling the workers that the run has ended: %w", err))
			}
		}
		c.conn.Close()
	}
	if c.stop != nil {
		errs = append(errs, c.stop())
	}
	if c.server != nil {
		// A server that stops drops what it has not sent yet: the workers are given the time to hear that the run has ended, and go.
		for range 200 {
			if !ended || c.server.NumClients() == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		c.server.Shutdown()
		c.server.WaitForShutdown()
	}
	if c.ledger != nil {
		errs = append(errs, c.ledger.close())
	}
	if c.metrics != nil {
		errs = append(errs, c.metrics.Close())
	}
	return errors.Join(errs...)
}

// Policy returns the policy of the configuration, whose samples the workers draw.
func (c *Coordinator) Policy() train.Policy { return &distributed{c.Config.Policy, c} }

type distributed struct {
	train.Policy
	c *Coordinator
}

// Sample implements [train.Policy].
func (d *distributed) Sample(ctx context.Context, prompts train.Batch, s train.Sampling, stream rng.Stream, first, eos int, progress func(train.Drawn)) ([][]int, [][]float64, error) {
	return d.c.sample(ctx, prompts, s, stream, first, eos, progress)
}

// handOver makes the masters as they are the policy of the run.
func (c *Coordinator) handOver(ctx context.Context) error {
	sha, version, err := c.ledger.policy(ctx, encodePolicy(c.Config.Policy.Params()))
	if err != nil || sha == c.entry.SHA256 {
		return err
	}
	canary := canaryOf(c.Text)
	song, err := sing(c.Config.Policy, canary)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.entry, c.song = policyEntry{Version: version, SHA256: sha, Base: c.spec.Base, Canary: canary}, song
	c.mu.Unlock()
	return c.ledger.dropPolicies(sha)
}

func (c *Coordinator) sample(ctx context.Context, prompts train.Batch, s train.Sampling, stream rng.Stream, first, eos int, progress func(train.Drawn)) (ids [][]int, logp [][]float64, err error) {
	if err := c.handOver(ctx); err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	began, n, width := time.Now(), prompts.Rows, prompts.Prompt
	names, missing, read := make([]string, n), []int(nil), map[string]*rollout{}
	c.tasks, c.ids, c.logp, c.failed = map[string]*task{}, map[string][]int{}, map[string][]float64{}, nil
	for i := range n {
		names[i] = sampleID(c.entry.SHA256, stream.Key(), first+i, eos, s, prompts.IDs[i*width:(i+1)*width], prompts.Real[i*width:(i+1)*width])
		if x, lp := c.ledger.find(ctx, names[i], read); x != nil && len(x) == len(lp) {
			c.ids[names[i]], c.logp[names[i]] = x, lp
		} else {
			missing = append(missing, i)
		}
	}
	for at := 0; at < len(missing); {
		from, to := missing[at], missing[at]+1
		for at++; at < len(missing) && missing[at] == to && to-from < c.Rows; at++ {
			to++
		}
		t := &task{ID: hash([]byte(strings.Join(names[from:to], " "))), Policy: c.entry.SHA256, Seed: stream.Key(), First: first + from, EOS: eos, Sampling: s, Samples: names[from:to],
			Prompts: train.Batch{Rows: to - from, Prompt: width, IDs: prompts.IDs[from*width : to*width], Real: prompts.Real[from*width : to*width]}}
		c.tasks[t.ID] = t
	}
	before := c.counts.Accepted
	c.counts.Calls, c.counts.Samples, c.counts.FromDisk = c.counts.Calls+1, c.counts.Samples+n, c.counts.FromDisk+n-len(missing)
	c.mu.Unlock()
	if err := c.await(ctx, names, s.MaxNew, progress); err != nil {
		return nil, nil, err
	}
	tokens := 0
	for _, id := range names {
		ids, logp = append(ids, slices.Clone(c.ids[id])), append(logp, slices.Clone(c.logp[id]))
		tokens += len(c.ids[id])
	}
	now := c.Counts()
	rejected, _ := json.Marshal(now.Rejected)
	return ids, logp, c.metrics.Append(rundir.Field{Key: "call", Value: now.Calls}, rundir.Field{Key: "policy", Value: c.entry.SHA256}, rundir.Field{Key: "version", Value: c.entry.Version},
		rundir.Field{Key: "samples", Value: n}, rundir.Field{Key: "from_disk", Value: n - len(missing)}, rundir.Field{Key: "accepted", Value: now.Accepted - before},
		rundir.Field{Key: "tokens", Value: tokens}, rundir.Field{Key: "staleness_max", Value: now.Staleness}, rundir.Field{Key: "refilled", Value: now.Refilled},
		rundir.Field{Key: "rejected_so_far", Value: string(rejected)}, rundir.Field{Key: "time_s", Value: time.Since(began).Seconds()})
}

// await fills the queue and returns when every sample is there.
func (c *Coordinator) await(ctx context.Context, names []string, longest int, progress func(train.Drawn)) error {
	tick := time.NewTicker(c.Check)
	defer tick.Stop()
	look, broken, fresh := true, 0, true
	for {
		c.mu.Lock()
		fault, open := c.fault, len(c.tasks)
		tokens, there := 0, 0
		for _, id := range names {
			if x, ok := c.ids[id]; ok {
				tokens, there = tokens+len(x), there+1
			}
		}
		var local *task
		if len(c.failed) > 0 {
			local, c.failed = c.tasks[c.failed[0]], c.failed[1:]
		}
		c.mu.Unlock()
		if fault != nil {
			return fault
		}
		if progress != nil {
			progress(train.Drawn{Position: longest * there / len(names), Tokens: tokens, Open: len(names) - there})
		}
		if open == 0 {
			return nil
		}
		if local != nil {
			if err := c.draw(ctx, local); err != nil {
				return err
			}
			continue
		}
		if look {
			err := c.fill(ctx, fresh)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if replaced := (&RunningError{}); errors.As(err, &replaced) {
				return replaced
			}
			stopped := c.server != nil && !c.server.Running()
			if err == nil {
				broken, fresh = 0, false
			} else if broken++; broken >= 3 || stopped {
				c.warn("the queue does not answer (%v): it is made again from %s", err, c.Dir)
				if err := c.again(); err != nil {
					return err
				}
				broken = 0
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.changed:
			look = false
		case <-tick.C:
			look = true
		}
	}
}

func (c *Coordinator) warn(format string, a ...any) {
	if c.Warn != nil {
		c.Warn(format, a...)
	}
}

// again restarts the embedded server with an empty store.
func (c *Coordinator) again() error {
	if c.server == nil {
		return nil // a cluster of others: it is waited for
	}
	c.server.Shutdown()
	c.server.WaitForShutdown()
	s, err := embed(c.Listen, filepath.Join(c.Dir, "jetstream"), c.Security)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.server, c.counts.Restarts = s, c.counts.Restarts+1
	c.mu.Unlock()
	return nil
}
