package projection

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/reference/linalg"
	"plumbline/verify/check"
)

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

const (
	loraA = "base_model.model.h.0.attn.q_proj.lora_A.weight"
	loraB = "base_model.model.h.0.attn.q_proj.lora_B.weight"
)

// randomBasis returns k orthonormal columns in a random position, d×k.
func randomBasis(r *rand.Rand, d, k int) []float64 {
	q := make([]float64, d*k)
	for i := range q {
		q[i] = r.NormFloat64()
	}
	q, _, _ = linalg.Orthonormalise(q, k)
	return q
}

func numbers(t *testing.T, b *Basis) []float64 {
	t.Helper()
	q, err := b.Numbers()
	require.NoError(t, err)
	return q
}

func judge(t *testing.T, in *Input, ids ...string) []check.Result {
	t.Helper()
	results, err := Suite.Run(in, check.Selection{Select: ids})
	require.NoError(t, err)
	return results
}

func one(t *testing.T, in *Input, id string) check.Result {
	t.Helper()
	results := judge(t, in, id)
	require.NotEmpty(t, results)
	return results[0]
}

// Blocks and threads: bit-equal for any number of threads, and within the bound of the sums equal to one piece.
func TestBlocks(t *testing.T) {
	const d, k = 150_000, 24
	q, g := randomBasis(random(5), d, k), make([]float64, d)
	r := random(6)
	for i := range g {
		g[i] = 3 * r.NormFloat64() / math.Sqrt(d)
	}
	p := linalg.Project(q, k, g, 1, 1)
	set := func(name string, v []float64) []Set {
		return []Set{{Name: name, Tensors: []Tensor{{Name: name, DType: format.F64, Shape: []int{d}, Data: v}}}}
	}
	in := &Input{Basis: DenseBasis(q, d, k, format.F64), Grads: set("g", g), Projected: set("p", p)}
	run := func(change func(*Input)) *facts {
		f, err := in.With(change).measure()
		require.NoError(t, err)
		return f
	}
	whole := run(func(c *Input) { c.Reference = true })
	first := run(func(c *Input) { c.Threads = 1 })
	for _, threads := range []int{2, 3, 7} {
		f := run(func(c *Input) { c.Threads = threads })
		require.Equal(t, first.gram, f.gram)
		require.Equal(t, first.pairs[0].out.comp, f.pairs[0].out.comp)
		require.Equal(t, first.pairs[0].tight, f.pairs[0].tight)
	}
	// Either way of summing d products errs by at most d·u of the sum of magnitudes, which is at most 1 here.
	bound := 2 * float64(d) * 0x1p-53 * 1.001
	require.InDeltaSlice(t, whole.gram, first.gram, bound)
	require.InDeltaSlice(t, whole.pairs[0].raw.comp, first.pairs[0].raw.comp, 3*bound)
	require.InDelta(t, whole.pairs[0].refNorm2, first.pairs[0].refNorm2, 9*bound)
	require.Equal(t, whole.pairs[0].tight[0].N, first.pairs[0].tight[0].N)

	broken := in.With(func(c *Input) {
		b := *in.Basis
		b.Elements = func([]float64, int) error { return errors.New("disk on fire") }
		c.Basis = &b
	})
	_, err := Suite.Run(broken, check.Selection{})
	require.ErrorContains(t, err, "disk on fire")
	broken.Basis.Elements = func([]float64, int) error { panic("a bug") }
	require.PanicsWithValue(t, "a bug", func() { _, _ = Suite.Run(broken.With(func(*Input) {}), check.Selection{}) }, "in this goroutine, where it can be recovered from")
}

// A wide file is its transpose, a Fortran file is read by column: the same numbers come out.
func TestOrders(t *testing.T) {
	const d, k = 300, 7
	q := randomBasis(random(6), d, k)
	byColumn := make([]float64, 0, d*k)
	for j := range k {
		for i := range d {
			byColumn = append(byColumn, q[i*k+j])
		}
	}
	b := DenseBasis(byColumn, d, k, format.F64)
	b.ColumnMajor = true
	require.Equal(t, q, numbers(t, b))
	b.ColumnMajor, b.Transposed = false, true
	require.Equal(t, q, numbers(t, b))
	b.ColumnMajor = true
	require.Equal(t, byColumn, numbers(t, b))
	b.ColumnMajor, b.Transposed = true, false
	require.Equal(t, check.Pass, one(t, &Input{Basis: b}, "basis/orthonormal").Verdict)
}

func tensors(shapes map[string][]int) Set {
	s := Set{Name: "set"}
	for name, shape := range shapes {
		n := 1
		for _, d := range shape {
			n *= d
		}
		data := make([]float64, n)
		for i := range data {
			data[i] = 1
		}
		s.Tensors = append(s.Tensors, Tensor{Name: name, DType: format.F32, Shape: shape, Data: data})
	}
	return s
}

// Which vectors a basis is applied to.
func TestMatch(t *testing.T) {
	a, b := "m.q.lora_A.weight", "m.q.lora_B.weight"
	for _, c := range []struct {
		name    string
		d       int
		kind    Kind
		shapes  map[string][]int
		targets []string
		cols    int
		also    int
		left    int
		problem string
	}{
		{name: "one vector", d: 12, shapes: map[string][]int{"g": {12}}, targets: []string{"g"}, cols: 1},
		{name: "one matrix, flat", d: 12, shapes: map[string][]int{"g": {3, 4}}, targets: []string{"g"}, cols: 1},
		{name: "one matrix, side", d: 3, shapes: map[string][]int{"g": {3, 4}}, targets: []string{"g"}, cols: 4},
		{name: "all in a row", d: 12, shapes: map[string][]int{a: {2, 2}, b: {4, 2}}, targets: []string{"lora_flat"}, cols: 1},
		{name: "each", d: 8, shapes: map[string][]int{a: {2, 4}, b: {4, 2}}, targets: []string{a, b}, cols: 1},
		{name: "one of them", d: 8, shapes: map[string][]int{a: {2, 3}, b: {4, 2}}, targets: []string{b}, cols: 1, left: 1},
		{name: "side", d: 4, shapes: map[string][]int{a: {2, 3}, b: {4, 2}}, targets: []string{b}, cols: 2, left: 1},
		{name: "never lora_A on the side", d: 2, shapes: map[string][]int{a: {2, 3}, b: {4, 2}}, problem: "2 rows"},
		{name: "flat and side fit", d: 4, shapes: map[string][]int{a: {2, 2}, b: {4, 2}}, targets: []string{a}, cols: 1, also: 1, left: 1},
		{name: "flat and side fit, side stated", d: 4, kind: Side, shapes: map[string][]int{a: {2, 2}, b: {4, 2}}, targets: []string{b}, cols: 2, left: 1},
		{name: "stated, and does not fit", d: 12, kind: Side, shapes: map[string][]int{"g": {12}}, problem: "the reading is side"},
		{name: "nothing fits", d: 5, shapes: map[string][]int{a: {2, 3}, b: {4, 2}}, problem: "14 elements together"},
		{name: "value head left out", d: 14, shapes: map[string][]int{a: {2, 3}, b: {4, 2}, "v_head.summary.weight": {1, 9}}, targets: []string{"lora_flat"}, cols: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := &Input{Basis: DenseBasis(randomBasis(random(1), c.d, 1), c.d, 1, format.F64), Kind: c.kind}
			rd := in.match(tensors(c.shapes), weightDelta, "lora_flat")
			if c.problem != "" {
				require.Contains(t, rd.problem, c.problem)
				return
			}
			require.Empty(t, rd.problem)
			var names []string
			for _, target := range rd.targets {
				names = append(names, target.name)
				require.Equal(t, c.cols, target.cols)
				require.Equal(t, c.d*c.cols, len(target.v))
			}
			require.Equal(t, c.targets, names)
			require.Len(t, rd.also, c.also, "%v", rd.also)
			require.Len(t, rd.unfitted, c.left, "%v", rd.unfitted)
		})
	}
}

// What contradicts the order that the basis file records is said with both numbers.
func TestRecordedOrder(t *testing.T) {
	const d, cut = 16, 4
	b := DenseBasis(randomBasis(random(3), d, 2), d, 2, format.F64)
	adapter := Set{Tensors: []Tensor{
		{Name: loraA, DType: format.F32, Shape: []int{1, cut}, Data: make([]float64, cut)},
		{Name: loraB, DType: format.F32, Shape: []int{d - cut, 1}, Data: make([]float64, d-cut)},
	}}
	in := &Input{Basis: b}
	for _, c := range []struct {
		order    []Span
		fragment string
	}{
		{[]Span{{"x", cut}}, `"x"`},
		{[]Span{{loraA, cut + 1}, {loraB, d - cut - 1}}, fmt.Sprint(cut + 1)},
		{[]Span{{loraA, cut}}, fmt.Sprint(d)},
	} {
		b.Order = c.order
		require.Contains(t, in.match(adapter, rawWeights, "lora_flat").problem, c.fragment)
	}
}

func TestGradientFlow(t *testing.T) {
	set := func(names ...string) Set {
		s := Set{Name: "g"}
		for i, n := range names {
			s.Tensors = append(s.Tensors, Tensor{Name: n, DType: format.F32, Shape: []int{2}, Data: []float64{float64(i), -float64(i)}})
		}
		return s
	}
	f := FlowOf(set("a", "b", "c"), nil)
	require.Equal(t, "Gradient flow: min=0.000000, max=2.000000, mean=1.000000", f.String())
	require.Equal(t, "no trainable parameters", FlowOf(Set{}, nil).String())

	// At the first step lora_B is 0, so the gradient of lora_A is exactly 0: healthy there and only there.
	young := Set{Tensors: []Tensor{
		{Name: loraA, DType: format.F32, Shape: []int{2}, Data: []float64{0.1, 0.2}},
		{Name: loraB, DType: format.F32, Shape: []int{2}, Data: []float64{0, 0}},
	}}
	g := set("base_model.model.h.0.attn.q_proj.lora_A.default.weight", "base_model.model.h.0.attn.q_proj.lora_B.default.weight")
	q := DenseBasis(randomBasis(random(1), 4, 1), 4, 1, format.F64)
	in := &Input{Basis: q, Grads: []Set{g}, Adapter: &young}
	require.Equal(t, check.Pass, one(t, in, "gradient/flow").Verdict)
	young.Tensors[1].Data = []float64{0.3, 0}
	require.Equal(t, check.Fail, one(t, in.With(func(*Input) {}), "gradient/flow").Verdict)
	missing := in.With(func(c *Input) { c.Grads = []Set{set("zero", "other")} })
	require.Equal(t, check.Fail, one(t, missing, "gradient/flow").Verdict)
	require.Contains(t, one(t, missing, "gradient/flow").Reason, "exactly 0 everywhere")

	// Without an adapter the gradients say whether it is the first step: every lora_A has none, and every lora_B has one.
	for _, c := range []struct {
		qA, qB, kA, kB float64
		want           check.Verdict
		dead           float64
	}{{0, 1, 0, 1, check.Pass, 0}, {0, 1, 1, 1, check.Fail, 1}, {0, 1, 0, 0, check.Fail, 3}, {0, 0, 1, 1, check.Fail, 2}, {1, 0, 1, 1, check.Fail, 1}, {1, 1, 1, 1, check.Pass, 0}} {
		s := Set{Name: "g"}
		for i, v := range []float64{c.qA, c.qB, c.kA, c.kB} {
			name := "h.0." + []string{"q", "k"}[i/2] + "_proj.lora_" + []string{"A", "B"}[i%2] + ".weight"
			s.Tensors = append(s.Tensors, Tensor{Name: name, DType: format.F32, Shape: []int{2}, Data: []float64{v, -v}})
		}
		r := one(t, &Input{Basis: q, Grads: []Set{s}}, "gradient/flow")
		require.Equal(t, c.want, r.Verdict, "%+v", c)
		require.Equal(t, c.dead, r.Measured, "%+v", c)
	}
}

func ExampleCheckBasis() {
	q := []float64{ // two columns of three numbers; the second is too long
		1, 0,
		0, 1.001,
		0, 0,
	}
	results, err := CheckBasis(q, 3, 2, 0)
	if err != nil {
		panic(err)
	}
	for _, r := range results {
		if r.Verdict == check.Fail {
			fmt.Println(r.Check, r.Metric, "=", fmt.Sprintf("%.6f", r.Measured))
			fmt.Println(r.Explanations[0].Title)
		}
	}
	// Output:
	// basis/orthonormal max|QᵀQ − I| = 0.002001
	// column 1 is not normalised
}
