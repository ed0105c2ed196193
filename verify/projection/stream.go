package projection

import (
	"errors"
	"runtime"
	"sync"
)

// blockFloats is about the size of a block of rows: 8 MiB of float64.
const blockFloats = 1 << 20

// maxThreads bounds the blocks held at a time: beyond it the disk is the limit, not the cores.
const maxThreads = 8

// stream reads Q in blocks of rows, hands each to body together with a fresh part, and merges the parts in row order.
// Blocks are cut by the shape alone and merged in order, so the result is the same for any number of threads. A panic in
// a block is raised again where stream was called, for who called it to recover from.
func stream[P any](in *Input, pass string, start func() P, body func(part P, q []float64, from, n int), merge func(P)) error {
	d, k := in.Basis.D, in.Basis.K
	// At least k rows, so that merging K×K parts stays cheaper than making them; no more than the widest vector allows.
	rows := max(blockFloats/max(k, in.widest), k)
	threads := in.Threads
	if threads == 0 {
		threads = min(runtime.GOMAXPROCS(0), maxThreads)
	}
	if in.Reference {
		rows, threads = d, 1
	}
	rows = min(rows, d)
	blocks := (d + rows - 1) / rows

	var (
		mu     sync.Mutex
		turn   = sync.NewCond(&mu)
		next   int // first block not handed out
		merged int // blocks merged
		failed error
		crash  any // what a block panicked with
		wg     sync.WaitGroup
	)
	work := func() {
		defer wg.Done()
		buf := make([]float64, rows*k)
		for {
			mu.Lock()
			b := next
			next++
			stop := failed != nil
			mu.Unlock()
			if stop || b >= blocks {
				return
			}
			from := b * rows
			n := min(rows, d-from)
			var part P
			var panicked any
			err := func() (err error) {
				defer func() {
					if panicked = recover(); panicked != nil {
						err = errPanic
					}
				}()
				if in.Context != nil && in.Context.Err() != nil {
					return in.Context.Err()
				}
				if err := in.Basis.rows(buf[:n*k], from); err != nil {
					return err
				}
				part = start()
				body(part, buf[:n*k], from, n)
				return nil
			}()
			mu.Lock()
			for merged != b && failed == nil {
				turn.Wait()
			}
			if err != nil && failed == nil {
				failed, crash = err, panicked
			}
			if failed == nil {
				merge(part)
				merged++
				if in.Progress != nil {
					in.Progress(pass, from+n, d)
				}
			}
			turn.Broadcast()
			mu.Unlock()
		}
	}
	for range min(threads, blocks) {
		wg.Add(1)
		go work()
	}
	wg.Wait()
	if crash != nil {
		panic(crash)
	}
	return failed
}

var errPanic = errors.New("projection: a block panicked")
