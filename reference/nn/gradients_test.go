package nn

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// random returns a tensor of normal numbers with full mantissas.
func random(r *rand.Rand, shape ...int) ad.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	x := ad.Tensor{Shape: shape, Data: make([]float64, n)}
	for i := range x.Data {
		x.Data[i] = r.NormFloat64()
	}
	return x
}

// size draws a length from 1 on.
func size(t *rapid.T, name string, most int) int { return rapid.IntRange(1, most).Draw(t, name) }

func drawRand(t *rapid.T) *rand.Rand { return rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)) }

// drawMask draws which keys are seen; a query may see none.
func drawMask(r *rand.Rand, shape ...int) ad.Mask {
	x := random(r, shape...)
	m := ad.Mask{Shape: shape, On: make([]bool, len(x.Data))}
	for i, v := range x.Data {
		m.On[i] = v > -0.4
	}
	return m
}

// operations are all operations of the package as functions of their tensors, but for the convolution, which has tests of its
// own.
var operations = map[string]func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor){
	"Linear": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		b, n, in, out := size(t, "b", 2), size(t, "t", 3), size(t, "in", 4), size(t, "out", 4)
		return func(x []*ad.Var) *ad.Var { return Linear(x[0], x[1], x[2]) },
			[]ad.Tensor{random(r, b, n, in), random(r, out, in), random(r, out)}
	},
	"Conv1D": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		n, in, out := size(t, "t", 3), size(t, "in", 4), size(t, "out", 4)
		return func(x []*ad.Var) *ad.Var { return Conv1D(x[0], x[1], x[2]) },
			[]ad.Tensor{random(r, n, in), random(r, in, out), random(r, out)}
	},
	"LoRA": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		n, in, out, rank := size(t, "t", 3), size(t, "in", 4), size(t, "out", 4), size(t, "rank", 3)
		return func(x []*ad.Var) *ad.Var { return LoRA{A: x[1], B: x[2], Scale: 0.7}.Delta(x[0]) },
			[]ad.Tensor{random(r, n, in), random(r, rank, in), random(r, out, rank)}
	},
	"Embedding": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		v := size(t, "v", 4)
		ids := []int{r.IntN(v), r.IntN(v), r.IntN(v), r.IntN(v)}
		return func(x []*ad.Var) *ad.Var { return Embedding(x[0], ids, 2, 2) }, []ad.Tensor{random(r, v, size(t, "c", 3))}
	},
	"LayerNorm": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		n, c := size(t, "t", 3), 2+size(t, "c", 4)
		return func(x []*ad.Var) *ad.Var { return LayerNorm(x[0], x[1], x[2], 0.1) },
			[]ad.Tensor{random(r, n, c), random(r, c), random(r, c)}
	},
	"RMSNorm": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		n, c := size(t, "t", 3), 1+size(t, "c", 4)
		return func(x []*ad.Var) *ad.Var { return RMSNorm(x[0], x[1], 0.1) }, []ad.Tensor{random(r, n, c), random(r, c)}
	},
	"GELU": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		return func(x []*ad.Var) *ad.Var { return GELU(x[0]) }, []ad.Tensor{random(r, size(t, "n", 6))}
	},
	"GELUTanh": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		return func(x []*ad.Var) *ad.Var { return GELUTanh(x[0]) }, []ad.Tensor{random(r, size(t, "n", 6))}
	},
	"SwiGLU": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		n := size(t, "n", 6)
		return func(x []*ad.Var) *ad.Var { return SwiGLU(x[0], x[1]) }, []ad.Tensor{random(r, n), random(r, n)}
	},
	"Softmax": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		n, s := size(t, "t", 3), 1+size(t, "s", 4)
		m := drawMask(r, n, s)
		m.On[0], m.On[1] = true, true // two seen, so that something has a slope
		return func(x []*ad.Var) *ad.Var { return Softmax(x[0], m) }, []ad.Tensor{random(r, n, s)}
	},
	"Attention": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		b, n, s, kv, g, d := size(t, "b", 2), size(t, "t", 2), 1+size(t, "s", 2), size(t, "kv", 2), size(t, "group", 2), size(t, "d", 3)
		m := drawMask(r, b, 1, n, s)
		m.On[0], m.On[1] = true, true
		return func(x []*ad.Var) *ad.Var { return Attention(x[0], x[1], x[2], m, 0.6) },
			[]ad.Tensor{random(r, b, n, kv*g, d), random(r, b, s, kv, d), random(r, b, s, kv, d)}
	},
	"RoPE": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		half, rest := size(t, "half", 3), rapid.IntRange(0, 2).Draw(t, "rest")
		p := RoPE{Dim: 2 * half, Theta: 10, Interleaved: rapid.Bool().Draw(t, "interleaved")}
		pos := []int{r.IntN(9), r.IntN(9), r.IntN(9), r.IntN(9)}
		return func(x []*ad.Var) *ad.Var { return p.Apply(x[0], pos) }, []ad.Tensor{random(r, 2, 2, size(t, "h", 2), 2*half+rest)}
	},
	"LogProb": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		v := 1 + size(t, "v", 4)
		ids := []int{r.IntN(v), r.IntN(v), r.IntN(v)}
		return func(x []*ad.Var) *ad.Var { return LogProb(x[0], ids) }, []ad.Tensor{random(r, 3, v)}
	},
	"CrossEntropy": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		v := 1 + size(t, "v", 4)
		ids := []int{r.IntN(v), r.IntN(v), -100, r.IntN(v)}
		return func(x []*ad.Var) *ad.Var { return CrossEntropy(x[0], ids, -100) }, []ad.Tensor{random(r, 2, 2, v)}
	},
	"ValueHead": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		c := size(t, "c", 4)
		return func(x []*ad.Var) *ad.Var { return ValueHead(x[0], x[1], x[2]) },
			[]ad.Tensor{random(r, 2, size(t, "t", 3), c), random(r, 1, c), random(r, 1)}
	},
	"SequenceScore": func(t *rapid.T, r *rand.Rand) (ad.Func, []ad.Tensor) {
		c := size(t, "c", 4)
		return func(x []*ad.Var) *ad.Var { return SequenceScore(x[0], x[1], x[2], x[3]) },
			[]ad.Tensor{random(r, 2, size(t, "t", 3), c), random(r, 1, c), random(r, 1), random(r, 1)}
	},
}

// No operation writes a derivative, but each must be made of primitives whose derivatives reach all of its inputs.
func TestGradients(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(operations)) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				r := drawRand(t)
				f, in := operations[name](t, r)
				require.NoError(t, ad.CheckGrad(name, f, in, r))
			})
		})
	}
}
