package cpu

import (
	"runtime"
	"sync/atomic"
	"time"
)

// linger is how long a goroutine that ran out of tasks waits for the next Run before it ends. To wake a processor that sleeps takes some
// 0.1 ms, as long as a product of 512 × 896 × 896 numbers can lose; the products of a layer follow each other within microseconds.
const linger = 100 * time.Microsecond

// Run calls f(0) … f(tasks−1), each once, on up to GOMAXPROCS goroutines, and returns when all are done. Tasks are handed out in
// order but end in any order: each must write what no other reads or writes. Then the result does not depend on the number of
// goroutines. A sum over tasks is added up by the caller, in the order of tasks.
//
// A panic in a task ends the others' supply and is raised again in the caller. With one task, or one processor, f runs in the
// caller's goroutine; so do the tasks of a Run within tasks that keep all processors busy.
func Run(tasks int, f func(task int)) {
	processors := runtime.GOMAXPROCS(0)
	workers := min(processors, tasks)
	if workers <= 1 || int(running.Load()) >= processors {
		for i := range tasks {
			f(i)
		}
		return
	}
	j := &job{f: f, tasks: int64(tasks), finished: make(chan struct{}, workers-1)}
	helpers := int32(workers - 1)
	j.seats.Store(helpers)
	offered.Store(j)
	for range helpers - min(helpers, lingering.Load()) {
		go j.help()
	}
	j.work()
	offered.CompareAndSwap(j, nil)
	joined := helpers - max(0, j.seats.Swap(-helpers))
	for range joined {
		j.wait()
	}
	if p := j.raised.Load(); p != nil {
		panic(*p)
	}
}

// job is one call of Run. A helper that finds no seat, because the tasks were done before it came, has no part in it.
type job struct {
	f        func(task int)
	tasks    int64
	next     atomic.Int64
	seats    atomic.Int32
	finished chan struct{}
	raised   atomic.Pointer[any]
}

func (j *job) work() {
	running.Add(1)
	defer func() {
		running.Add(-1)
		if p := recover(); p != nil {
			j.raised.CompareAndSwap(nil, &p)
			j.next.Store(j.tasks)
		}
	}()
	for {
		i := j.next.Add(1) - 1
		if i >= j.tasks {
			return
		}
		j.f(int(i))
	}
}

// help takes a seat and works, and does so for what is offered until nothing was for as long as linger.
func (j *job) help() {
	for j != nil {
		if j.seats.Add(-1) >= 0 {
			j.work()
			j.finished <- struct{}{}
		}
		j = another(j)
	}
}

// wait waits for a helper to finish. To sleep costs what linger says, so the caller sleeps only when it is long.
func (j *job) wait() {
	within(linger, func() bool { return len(j.finished) > 0 })
	<-j.finished
}

// within asks again and again, for at most d, whether something is so.
func within(d time.Duration, so func() bool) bool {
	for began := time.Now(); time.Since(began) < d; runtime.Gosched() {
		for range 100 {
			if so() {
				return true
			}
		}
	}
	return false
}

// another waits for another job than last, which ended; nil when none came.
func another(last *job) *job {
	lingering.Add(1)
	defer lingering.Add(-1)
	var j *job
	within(linger, func() bool {
		if j = offered.Load(); j == last {
			j = nil
		}
		return j != nil
	})
	return j
}

var (
	// offered is the job that goroutines without tasks may join. Of two calls of Run at once the later one stands here.
	offered atomic.Pointer[job]
	// lingering is how many goroutines wait for it.
	lingering atomic.Int32
)

// running is how many goroutines take tasks.
var running atomic.Int32

// Split calls f(lo, hi) for the ranges [0, grain), [grain, 2·grain) … up to n, as [Run] does. The ranges depend on n and grain
// alone.
func Split(n, grain int, f func(lo, hi int)) {
	Run((n+grain-1)/grain, func(i int) { f(i*grain, min(n, (i+1)*grain)) })
}
