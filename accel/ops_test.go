package accel_test

import (
	"flag"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel"
	"plumbline/accel/bf16"
	"plumbline/accel/f32"
	"plumbline/accel/f64"
	"plumbline/accel/i8"
	"plumbline/verify/op"
)

var cases = flag.Int("cases", 150, "cases of every op and variant")

// products are the ops of this test with their specs.
var products = []op.Op{
	op.Quantize.With(i8.QuantizeRows),
	op.I8Gemm.With(i8.Gemm),
	op.I8Scaled.With(i8.GemmScaled),
	op.W8A16.With(bf16.W8A16),
	op.W8A16DX.With(bf16.W8A16DX),
	op.F32Gemm.With(f32.Gemm),
	op.F64Gemm.With(f64.Gemm),
}

// Every variant of every op against its spec.
func TestOps(t *testing.T) {
	t.Logf("GOMAXPROCS %d", runtime.GOMAXPROCS(0))
	for _, o := range products {
		t.Run(o.Name, func(t *testing.T) {
			accel.Each(o.Name, func(v accel.Variant) {
				t.Run(v.Name, func(t *testing.T) {
					if v.Broken {
						t.Fatal(v.Missing)
					}
					if v.Missing != "" {
						op.Skip(t, v.Name, v.Missing)
					}
					n := *cases
					if v.Name == accel.Generic {
						n = (n + 2) / 3
					}
					o.Under(v.Name).Test(t, v.Name, 1, n)
				})
			})
		})
	}
}

// What VERIFY_REQUIRE names must have run: a variant of that name, of one op at least, that this machine can use.
func TestRequired(t *testing.T) {
	for _, name := range strings.Split(os.Getenv(op.RequireEnv), ",") {
		if name == "" {
			continue
		}
		reason := "no op has such a variant"
		for _, o := range accel.Ops() {
			for _, v := range accel.Variants(o) {
				if v.Name == name && reason != "" {
					reason = v.Missing
				}
			}
		}
		require.Empty(t, reason, "%s=%s", op.RequireEnv, name)
	}
}

// The same bits whatever the number of goroutines: the specs demand bits, so it is enough that they hold.
func TestOpsOnOtherNumbersOfProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 8} {
		runtime.GOMAXPROCS(procs)
		for _, o := range products {
			o.Under(used(o.Name)).Test(t, used(o.Name), 2, 20)
		}
	}
}

// The longest sums are defined: one more product is refused.
func TestLongestSum(t *testing.T) {
	a := make([]int8, i8.MaxK+1)
	for i := range a {
		a[i] = 127
	}
	c := []int32{0}
	accel.Each("i8.Gemm", func(v accel.Variant) {
		i8.Gemm(c, 1, a, i8.MaxK, a, i8.MaxK, 1, 1, i8.MaxK)
		require.EqualValues(t, i8.MaxK*127*127, c[0], v.Name)
		five := make([]int32, 5) // several rows may take another way
		i8.Gemm(five, 1, slices.Repeat(a, 5), len(a), a, len(a), 5, 1, i8.MaxK)
		require.Equal(t, slices.Repeat(c, 5), five, v.Name)
		require.PanicsWithValue(t, "accel: i8.Gemm: a sum of 133145 products can exceed int32; at most 133144", func() {
			i8.Gemm(c, 1, a, len(a), a, len(a), 1, 1, len(a))
		})
	})
	y := []float32{0}
	require.Panics(t, func() { i8.GemmScaled(y, 1, a, len(a), y, a, len(a), y, nil, 1, 1, len(a)) })
}

func TestSizesThatDoNotFit(t *testing.T) {
	x, c8, c32 := make([]float32, 100), make([]int8, 100), make([]int32, 100)
	require.Panics(t, func() { f32.Gemm(x, 4, x, 4, x, 4, 5, 5, 5, false, false, false) })
	require.Panics(t, func() { f32.Gemm(x, 10, x, 10, x, 10, 10, 10, 11, false, true, false) })
	require.Panics(t, func() { i8.Gemm(c32, 10, c8, 10, c8, 10, 11, 10, 10) })
	require.Panics(t, func() { i8.Gemm(c32, 10, c8, 10, c8, 10, -1, 10, 10) })
	require.Panics(t, func() { bf16.W8A16(x, 10, x, 10, c8, 10, x[:9], nil, 10, 10, 10) })
	require.Panics(t, func() { bf16.W8A16(x, 10, x, 10, c8, 10, x, x[:9], 10, 10, 10) })
	require.Panics(t, func() { bf16.W8A16DX(x, 10, x, 10, c8, 10, x[:9], 10, 10, 10, false) })
	require.Panics(t, func() { i8.QuantizeRows(c8, 10, x[:9], x, 10, 10, 10) })
	require.Panics(t, func() { i8.Scales(x[:3], x[:2]) })
}
