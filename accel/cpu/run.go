package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
)

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
	var (
		next   atomic.Int64
		wg     sync.WaitGroup
		raised atomic.Pointer[any]
	)
	work := func() {
		running.Add(1)
		defer func() {
			running.Add(-1)
			if p := recover(); p != nil {
				raised.CompareAndSwap(nil, &p)
				next.Store(int64(tasks))
			}
		}()
		for {
			i := int(next.Add(1)) - 1
			if i >= tasks {
				return
			}
			f(i)
		}
	}
	for range workers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	if p := raised.Load(); p != nil {
		panic(*p)
	}
}

// running is how many goroutines take tasks.
var running atomic.Int32

// Split calls f(lo, hi) for the ranges [0, grain), [grain, 2·grain) … up to n, as [Run] does. The ranges depend on n and grain
// alone.
func Split(n, grain int, f func(lo, hi int)) {
	Run((n+grain-1)/grain, func(i int) { f(i*grain, min(n, (i+1)*grain)) })
}
