package accel_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"plumbline/accel"
	"plumbline/accel/bf16"
	"plumbline/accel/cpu"
	"plumbline/accel/i8"
	"plumbline/verify/op"
)

// The shapes that take every way through the blocks of AMX: one tile of rows, two, an odd number and rows left over; columns that fill panels
// and that do not; one block of k, several, and a last step that is not whole; sums that are gathered in a stripe because rows of c fall
// into few sets of the caches.
func TestTiles(t *testing.T) {
	shapes := [][3]int{
		{5, 32, 64}, {16, 32, 65}, {17, 33, 127}, {32, 64, 128}, {33, 31, 129}, {48, 96, 191}, {49, 65, 641}, {50, 64, 645}, {64, 32, 1281},
		{80, 70, 1347}, {97, 256, 703}, {100, 512, 66}, {129, 257, 31}, {200, 40, 33}, {770, 34, 71},
	}
	for _, o := range products {
		t.Run(o.Name, func(t *testing.T) {
			accel.Each(o.Name, func(v accel.Variant) {
				if v.Name != "amx" {
					return
				}
				if v.Broken {
					t.Fatal(v.Missing)
				}
				if v.Missing != "" {
					op.Skip(t, v.Name, v.Missing)
				}
				runtime.LockOSThread() // the smallest shape runs in this thread
				defer runtime.UnlockOSThread()
				seed := uint64(0)
				for _, s := range shapes {
					for pad := range 2 {
						seed++
						c := op.Case{Family: []string{op.Normal, op.Heavy, op.NonFinite, op.Saturate}[seed%4], Dims: []int{s[0], s[1], s[2], 3 * pad, pad}, Seed: seed}
						if r := o.Under(v.Name).CheckCase(c); !r.OK() {
							t.Errorf("%v", r)
						}
						if cpu.TilesInUse() {
							t.Errorf("%v: the tiles were not released", c)
						}
					}
				}
			})
		})
	}
}

// A machine says whether it has tiles, or why not: the permission is asked for, not taken for given.
func TestTilesAreThereOrMissed(t *testing.T) {
	why := cpu.Missing(cpu.AMX)
	for _, v := range accel.Variants("i8.Gemm") {
		if v.Name == "amx" && v.Missing != why {
			t.Errorf("AMX is %q and the variant %q", why, v.Missing)
		}
	}
	if why != "" {
		op.Skip(t, "amx", why)
	}
	t.Log("AMX " + strconv.Quote(why))
}

// Goroutines that are stopped, moved to other threads and collected around them compute right products: 16 of them, a loop of collections, 2 and 8
// processors. -cases is how many calls each makes for a processor count.
func TestTilesUnderCollections(t *testing.T) {
	if why := cpu.Missing(cpu.AMX); why != "" {
		op.Skip(t, "amx", why)
	}
	for _, name := range []string{"i8.Gemm", "bf16.W8A16"} {
		if !slices.ContainsFunc(accel.Variants(name), func(v accel.Variant) bool { return v.Name == "amx" }) {
			op.Skip(t, "amx", "no op has such a variant in this build")
		}
		release, err := accel.Force(name, "amx")
		if err != nil {
			t.Fatal(err)
		}
		defer release()
	}
	const m, n, k = 37, 64, 320
	x, _, _ := fill(rand.New(rand.NewPCG(1, 1)), m*k)
	_, _, a := fill(rand.New(rand.NewPCG(1, 2)), m*k)
	scale, _, w := fill(rand.New(rand.NewPCG(1, 3)), n*k)
	sums, outputs := make([]int32, m*n), make([]float32, m*n)
	i8.Gemm(sums, n, a, k, w, k, m, n, k)
	bf16.W8A16(outputs, n, x, k, w, k, scale, nil, m, n, k)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{2, 8} {
		runtime.GOMAXPROCS(procs)
		var done atomic.Bool
		var group, collector sync.WaitGroup
		collector.Go(func() {
			for !done.Load() {
				runtime.GC()
			}
		})
		var wrong atomic.Int64
		for range 16 {
			group.Go(func() {
				c, y := make([]int32, m*n), make([]float32, m*n)
				for range *cases {
					i8.Gemm(c, n, a, k, w, k, m, n, k)
					bf16.W8A16(y, n, x, k, w, k, scale, nil, m, n, k)
					if !slices.Equal(c, sums) || !slices.Equal(y, outputs) {
						wrong.Add(1)
					}
				}
			})
		}
		group.Wait()
		done.Store(true)
		collector.Wait()
		if wrong.Load() > 0 {
			t.Errorf("%d processors: %d of %d pairs of products are wrong", procs, wrong.Load(), 16**cases)
		}
	}
	t.Logf("%d products", 2*2*16**cases)
}
