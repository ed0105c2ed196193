package projection

import (
	"runtime"
	"sync"
)

// blockFloats is about the size of a block of rows: 8 MiB of float64.
const blockFloats = 1 << 20

// maxThreads bounds the blocks held at a time: beyond it the disk is the limit, not the cores.
const maxThreads = 8

// stream reads Q in blocks of rows, hands each to body together with a fresh part, and merges the parts in row order.
// Blocks are cut by the shape alone and merged in order, so the result is the same for any number of threads.
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
			var err error
			if in.Context != nil {
				err = in.Context.Err()
			}
			if err == nil {
				err = in.Basis.rows(buf[:n*k], from)
			}
			var part P
			if err == nil {
				part = start()
				body(part, buf[:n*k], from, n)
			}
			mu.Lock()
			for merged != b && failed == nil {
				turn.Wait()
			}
			if err != nil && failed == nil {
				failed = err
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
	return failed
}
