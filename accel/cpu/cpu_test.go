package cpu_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/cpu"
)

func TestRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 2, 8} {
		runtime.GOMAXPROCS(procs)
		for _, n := range []int{0, 1, 2, 7, 1000} {
			did := make([]int32, n)
			cpu.Run(n, func(i int) { atomic.AddInt32(&did[i], 1) })
			for i := range did {
				require.EqualValues(t, 1, did[i], "task %d of %d on %d", i, n, procs)
			}
		}
		require.PanicsWithValue(t, "task 3", func() {
			cpu.Run(10, func(i int) {
				if i == 3 {
					panic("task 3")
				}
			})
		})
	}
}

// Calls at once and calls within tasks share the goroutines that wait for work; none may take another's tasks for its own, or end before
// its own are done.
func TestRunsAtOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{2, 4} {
		runtime.GOMAXPROCS(procs)
		var callers sync.WaitGroup
		for caller := range 4 {
			callers.Go(func() {
				for round := range 500 {
					var sum, inner atomic.Int64
					n := 1 + (round*7+caller)%9
					cpu.Run(n, func(i int) {
						sum.Add(int64(i) + 1)
						cpu.Run(3, func(int) { inner.Add(1) })
					})
					if got := sum.Load(); got != int64(n*(n+1)/2) {
						t.Errorf("caller %d, round %d: tasks add up to %d of %d", caller, round, got, n*(n+1)/2)
					}
					if got := inner.Load(); got != int64(3*n) {
						t.Errorf("caller %d, round %d: %d inner tasks of %d", caller, round, got, 3*n)
					}
					if round%100 == 0 {
						if p := raisedBy(func() { cpu.Run(5, func(i int) { panic(caller) }) }); p != caller {
							t.Errorf("caller %d raised %v", caller, p)
						}
					}
				}
			})
		}
		callers.Wait()
	}
}

func raisedBy(f func()) (p any) {
	defer func() { p = recover() }()
	f()
	return nil
}

func TestSplit(t *testing.T) {
	for _, n := range []int{0, 1, 4, 5, 9} {
		did := make([]int32, n)
		cpu.Split(n, 4, func(lo, hi int) {
			if lo%4 != 0 || hi-lo > 4 {
				t.Errorf("range [%d, %d)", lo, hi)
			}
			for i := lo; i < hi; i++ {
				atomic.AddInt32(&did[i], 1)
			}
		})
		for i := range did {
			require.EqualValues(t, 1, did[i])
		}
	}
}

// What a machine has does not change while it runs.
func TestMissing(t *testing.T) {
	require.Empty(t, cpu.Missing(cpu.None))
	for f := cpu.AVX2; f <= cpu.AMX; f++ {
		require.Equal(t, cpu.Missing(f), cpu.Missing(f))
		t.Logf("%v: %q", f, cpu.Missing(f))
	}
}

// A comparison is made once, and a probe that is not there is not faster.
func TestFaster(t *testing.T) {
	require.False(t, cpu.Faster("peak/none", "avx2", "avx512"))
	require.False(t, cpu.Faster("peak/f32", "sse", "avx2"))
	for range 3 {
		require.Equal(t, cpu.Faster("peak/bf16", "avx512bf16", "avx512"), cpu.Faster("peak/bf16", "avx512bf16", "avx512"))
	}
}
