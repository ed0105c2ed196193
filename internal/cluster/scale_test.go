package cluster

import (
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/rng"
)

// costs are the seconds that the parts of a call take. Each part of the coordinator does one thing at a time.
type costs struct {
	adapter float64 // bytes of the policy
	call    float64 // the hand-over: encode, store, the learner's own canary, keys
	publish float64 // a task into the queue
	send    float64 // the policy to one worker: read, hash, send, hash
	network float64 // bytes a second that leave the coordinator
	canary  float64 // a worker's song
	join    float64 // the coordinator's answer to it
	store   float64 // a rollout that comes: hash, write, sync
	submit  float64 // its acceptance: read, hash, look, a line of the index with its sync
	travel  float64 // a message and its answer
	draw    float64 // a task in a worker
}

// outcome of a call.
type outcome struct {
	seconds float64
	drawn   float64            // seconds that workers drew, all together
	served  map[string]float64 // seconds that each part of the coordinator worked, those after the end as well
}

// event is something that happens at a time; ties go by the order in which they were made.
type event struct {
	at  float64
	seq int
	do  func(at float64)
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// simulate runs one call of so many tasks on so many workers, under a policy that they do not have yet. A part that is asked while it is
// busy serves in the order of asking. Draws vary by a quarter around their mean, by the counter-based generator.
func simulate(c costs, workers, tasks int) outcome {
	var queue events
	made := 0
	at := func(t float64, do func(float64)) {
		made++
		heap.Push(&queue, event{t, made, do})
	}
	free, out := map[string]float64{}, outcome{served: map[string]float64{}}
	ask := func(part string, now, takes float64, then func(float64)) {
		begins := max(now, free[part])
		free[part], out.served[part] = begins+takes, out.served[part]+takes
		at(begins+takes, then)
	}
	published, taken, done := 0, 0, 0
	var idle []int
	var work func(w int, now float64)
	work = func(w int, now float64) {
		if taken == published {
			if taken < tasks {
				idle = append(idle, w)
			}
			return
		}
		k := taken
		taken++
		draw := c.draw * (.75 + .5*rng.New(5, 1).Uniform(uint64(k)))
		out.drawn += draw
		at(now+c.travel+draw, func(now float64) {
			ask("store", now, c.store, func(now float64) {
				ask("submit", now+c.travel, c.submit, func(now float64) {
					done++
					out.seconds = now
					work(w, now+c.travel)
				})
			})
		})
	}
	var publish func(now float64)
	publish = func(now float64) {
		if published++; published < tasks {
			ask("publish", now, c.publish, publish)
		}
		if len(idle) > 0 {
			w := idle[0]
			idle = idle[1:]
			work(w, now)
		}
	}
	ask("call", 0, c.call, func(now float64) {
		ask("publish", now, c.publish, publish)
		for w := range workers {
			ask("send", now, max(c.send, c.adapter/c.network), func(now float64) {
				at(now+c.canary, func(now float64) { ask("join", now+c.travel, c.join, func(now float64) { work(w, now) }) })
			})
		}
	})
	for len(queue) > 0 {
		e := heap.Pop(&queue).(event)
		e.do(e.at)
	}
	if done != tasks {
		panic(fmt.Sprintf("cluster: %d of %d tasks were done", done, tasks))
	}
	return out
}

// figures are round ones, for the laws of the simulation.
var figures = costs{adapter: 1e6, call: .05, publish: .0005, send: .002, network: 1.25e9, canary: .01, join: .0002, store: .001, submit: .002, travel: .0005, draw: 1}

// One worker takes the sum of what it does; twice the same is the same; no number of workers is faster than the part that every task
// passes, and a few are as fast as their number.
func TestSimulatedCluster(t *testing.T) {
	c := figures
	one := simulate(c, 1, 400)
	each := c.travel + c.draw + c.store + 2*c.travel + c.submit
	require.InEpsilon(t, c.call+c.publish+400*each, one.seconds, .02) // the mean of 400 uniform draws from ¾ to 1¼: 1 ± 0.007
	require.Equal(t, simulate(c, 1000, 10_000), simulate(c, 1000, 10_000))
	last := one.seconds
	for _, workers := range []int{2, 10, 100, 1000} {
		s := simulate(c, workers, 400)
		require.LessOrEqual(t, s.seconds, last)
		last = s.seconds
		require.GreaterOrEqual(t, s.seconds, 400*c.submit)
		require.GreaterOrEqual(t, s.seconds, float64(workers)*c.send, "the last worker has no policy yet, or no task is left for it")
		if workers <= 10 {
			require.InEpsilon(t, float64(workers), (one.seconds-c.call)/(s.seconds-c.call), .05)
		}
	}
	many := simulate(c, 1000, 100_000)
	require.InEpsilon(t, 1/c.submit, 100_000/many.seconds, .02, "1,000 workers could do 1,000 tasks a second: the index takes 500")
}

// measure takes the costs of this machine, each the least of several tries: what else runs adds to a time, and takes nothing from it.
func measure(t *testing.T, adapter int) costs {
	p, text := tiny(t)
	dir := t.TempDir()
	c := coordinate(t, dir, p, text)
	defer c.Close(false)
	ctx := context.Background()
	least := func(tries int, do func(i int)) float64 {
		best := math.Inf(1)
		for i := range tries {
			began := time.Now()
			do(i)
			best = min(best, time.Since(began).Seconds())
		}
		return best
	}
	ok := func(err error) { require.NoError(t, err) }
	m := costs{adapter: float64(adapter), network: 1.25e9}
	remote, err := openBlobs(c.spec.Blobs, c.spec.Token, Security{})
	ok(err)
	m.call = least(20, func(i int) {
		move(p, uint64(i))
		ok(c.handOver(ctx))
		ok(c.fill(ctx, true))
	})
	blob := make([]byte, adapter)
	m.call += least(3, func(i int) {
		blob[0] = byte(i)
		_, err := c.ledger.blobs.put(ctx, blob)
		ok(err)
	})
	m.send = least(30, func(int) {
		_, err := remote.get(ctx, hash(blob))
		ok(err)
	})
	var song []uint64
	m.canary = least(20, func(int) {
		song, err = sing(p, c.entry.Canary)
		ok(err)
	})
	question, err := json.Marshal(joining{"w", c.entry.SHA256, p.Variant(), p.Fingerprint(), TokenizerPrint(text), song})
	ok(err)
	m.join = least(50, func(int) { require.Empty(t, c.join(question).Reason) })
	m.travel = least(50, func(int) {
		_, err := c.conn.Request(c.subject("who"), nil, time.Second)
		ok(err)
	})
	// A task of four completions of 256 tokens.
	const tasks = 40
	var submissions [][]byte
	m.store = least(tasks, func(i int) {
		r := rollout{Policy: c.entry.SHA256, First: 4 * i, Samples: []string{hash(fmt.Append(nil, i)), "b", "c", "d"}}
		for range 4 {
			r.IDs, r.LogProbs = append(r.IDs, slices.Repeat([]int{i + 100}, 256)), append(r.LogProbs, slices.Repeat([]float64{-1.2345678901234567}, 256))
		}
		text, err := json.Marshal(r)
		ok(err)
		name, err := remote.put(ctx, text)
		ok(err)
		id := fmt.Sprint("task", i)
		c.tasks[id] = &task{ID: id, Policy: r.Policy, First: r.First, EOS: -1, Samples: r.Samples}
		c.tasks[id].Sampling.MaxNew = 256
		s, err := json.Marshal(submission{"w", c.ticket("w", r.Policy), id, r.Policy, name, ""})
		ok(err)
		submissions = append(submissions, s)
	})
	m.submit = least(tasks, func(i int) { require.Empty(t, c.submit(submissions[i]).Reason) })
	m.publish = least(50, func(i int) {
		_, err := c.js.Publish(ctx, c.subject(fmt.Sprint("task.", i)), submissions[0])
		ok(err)
	})
	return m
}

// TestScaling measures the parts on this machine and says when one coordinator is full. CLUSTER_SCALE=1 prints the tables.
func TestScaling(t *testing.T) {
	if os.Getenv("CLUSTER_SCALE") == "" {
		t.Skip("a measurement: make cluster-sim")
	}
	for _, adapter := range []int{1 << 20, 26 << 20} {
		c := measure(t, adapter)
		slowest, part := 0.0, ""
		for name, s := range map[string]float64{"publish": c.publish, "store": c.store, "submit": c.submit} {
			if s > slowest {
				slowest, part = s, name
			}
		}
		t.Logf("adapter %.1f MB; milliseconds: call %.1f, publish %.3f, send %.2f, canary %.2f, join %.3f, store %.2f, submit %.2f, travel %.3f; at most %.0f tasks a second, by %s",
			c.adapter/1e6, 1e3*c.call, 1e3*c.publish, 1e3*c.send, 1e3*c.canary, 1e3*c.join, 1e3*c.store, 1e3*c.submit, 1e3*c.travel, 1/slowest, part)
		for _, c.draw = range []float64{1, 10} {
			for _, workers := range []int{1, 10, 100, 300, 1000} {
				const tasksOfWorker = 8
				s := simulate(c, workers, tasksOfWorker*workers)
				t.Logf("draw %2.0f s, %4d workers, %d tasks each: %6.1f s a call, %6.1f tasks/s, workers draw %3.0f %% of the time; the coordinator sends %5.1f s, stores %4.1f s, accepts %4.1f s", c.draw, workers,
					tasksOfWorker, s.seconds, tasksOfWorker*float64(workers)/s.seconds, 100*s.drawn/(s.seconds*float64(workers)), s.served["send"], s.served["store"], s.served["submit"])
			}
		}
	}
}
