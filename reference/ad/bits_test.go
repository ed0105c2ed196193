package ad

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// digest is FNV-1a over the bits of x, little-endian.
func digest(xs ...[]float64) string {
	h := fnv.New64a()
	for _, x := range xs {
		for _, v := range x {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], math.Float64bits(v))
			h.Write(b[:])
		}
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// TestBits runs a small network made of everything except the functions of
// package math: + − × ÷ √, comparisons, sums, products and moves. Its value,
// gradients and tangents have the same bits under GOAMD64=v1 and v3, because no
// product is fused into a sum.
//
// The digest was printed by this test under GOAMD64=v1, Go 1.26. It guards
// against change; that the numbers are right is for the other tests.
func TestBits(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("off amd64 gonum's products are Go code, which the compiler may fuse")
	}
	const want = "322702102d594c89"

	var tape Tape
	fill := func(salt int, shape ...int) []float64 {
		x := make([]float64, size(shape))
		for i := range x {
			x[i] = float64((i+salt)*7919%1009-504) / 331 // one rounding, full mantissa
		}
		return x
	}
	param := func(salt int, shape ...int) *Var { return tape.Param(fill(salt, shape...), shape...) }

	const b, s, d, h = 3, 7, 9, 17
	x, gain := param(1, b, s, d), param(2, d)
	w1, w2, w3 := param(3, d, h), param(4, d, h), param(5, h, d)
	table := param(6, 11, d)
	ids := make([]int, b*s)
	for i := range ids {
		ids[i] = i * 5 % 11
	}
	// RMSNorm, a gated layer with clipped ReLU, a normalised score, CumSum.
	y := Add(x, Embedding(table, ids, b, s))
	y = Mul(Div(y, Sqrt(AddScalar(Mean(Mul(y, y), true, -1), 1e-5))), gain)
	gate := Clamp(MatMul(y, w1, false, false), 0, 3)
	y = Add(y, MatMul(Mul(gate, MatMul(y, w2, false, false)), w3, false, false))
	score := Scale(MatMul(y, y, false, true), 1/3.0)
	score = Mul(score, score)
	score = Div(score, AddScalar(Sum(score, true, -1), 1))
	y = MatMul(score, y, true, false)
	y = Sub(Permute(Abs(Permute(y, 2, 1, 0)), 2, 1, 0), Max(y, MaxReduce(y, true, 0)))
	y = CumSum(Mul(y, Min(y, gain)), 1)

	Backward(y, fill(7, b, s, d))
	params := []*Var{x, gain, w1, w2, w3, table}
	out := [][]float64{y.Data()}
	var dx [][]float64
	for k, p := range params {
		out = append(out, p.Grad())
		dx = append(dx, fill(8+k, p.Shape()...))
	}
	out = append(out, JVP(y, params, dx))
	for _, o := range out {
		require.True(t, finite(o))
	}
	require.Equal(t, want, digest(out...))
}
