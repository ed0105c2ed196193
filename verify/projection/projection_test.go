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

var plain = Scenario{D: 1024, K: 16, Norm: 1, Basis: format.F32, Vector: format.F32, Passes: 1, Steps: 30}

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

// Every executable fault is caught by the check that ships it, and explained first as itself.
func TestFaults(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		planted, err := PlantAll(seed)
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(planted), 40)
		withFault := map[string]bool{}
		for _, p := range planted {
			require.True(t, p.Caught, "seed %d: %s %s (%s) is not caught; seen by %v", seed, p.Check, p.Fault.ID, p.Fault.Title, p.By)
			require.Equal(t, p.Fault.ID, p.Named, "seed %d: %s (%s)", seed, p.Check, p.Fault.Title)
			require.NotEmpty(t, p.Fault.Cause)
			require.NotEmpty(t, p.Fault.Source)
			withFault[p.Check] = true
		}
		for _, c := range Suite {
			require.True(t, withFault[c.Name], "%s ships no fault: a check never seen failing is no check", c.Name)
		}
	}
}

// Healthy data of all types and norms raise no alarm.
func TestNoFalseAlarms(t *testing.T) {
	n := 10000
	if testing.Short() {
		n = 500
	}
	r := random(11)
	for range n {
		s := RandomScenario(r)
		require.Empty(t, Alarm(s, judge(t, s.Draw(r))))
	}
}

// The same gradients without projection never leave with exit code 0, with or without the projected file.
func TestUnprojectedNeverPasses(t *testing.T) {
	r := random(12)
	for range 1000 {
		s := RandomScenario(r)
		s.Steps = 0
		in := s.Draw(r)
		if s.Vector == format.F16 && s.Norm < 1e-3 {
			continue // below the normal numbers of float16 nothing can be told
		}
		if c := linalg.Components(in.Basis.numbers(), s.K, in.Grads[0].Tensors[0].Data, 1); norm(c) < 0.5*s.Norm*math.Sqrt(float64(s.K)/float64(s.D)) {
			continue // by chance the gradient has hardly a component
		}
		alone := in.with(func(c *Input) { c.Projected = nil })
		require.NotEqual(t, check.ExitPass, check.Exit(judge(t, alone), check.Policy{}), "%+v", s)
		same := in.with(func(c *Input) { c.Projected = c.Grads })
		require.Equal(t, check.ExitFail, check.Exit(judge(t, same), check.Policy{}), "%+v", s)
	}
}

// Blocks and threads: bit-equal for any number of threads, and within the bound of the sums equal to one piece.
func TestBlocks(t *testing.T) {
	s := Scenario{D: 150_000, K: 24, Norm: 3, Basis: format.F32, Vector: format.F32, Passes: 1}
	in := s.Draw(random(5))
	run := func(change func(*Input)) *facts {
		f, err := in.with(change).measure()
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
	bound := 2 * float64(s.D) * 0x1p-53 * 1.001
	require.InDeltaSlice(t, whole.gram, first.gram, bound)
	require.InDeltaSlice(t, whole.pairs[0].raw.comp, first.pairs[0].raw.comp, 3*bound)
	require.InDelta(t, whole.pairs[0].refNorm2, first.pairs[0].refNorm2, 9*bound)
	require.Equal(t, whole.pairs[0].tight[0].N, first.pairs[0].tight[0].N)

	broken := in.with(func(c *Input) {
		b := *in.Basis
		b.Elements = func([]float64, int) error { return errors.New("disk on fire") }
		c.Basis = &b
	})
	_, err := Suite.Run(broken, check.Selection{})
	require.ErrorContains(t, err, "disk on fire")
	broken.Basis.Elements = func([]float64, int) error { panic("a bug") }
	require.PanicsWithValue(t, "a bug", func() { _, _ = Suite.Run(broken.with(func(*Input) {}), check.Selection{}) }, "in this goroutine, where it can be recovered from")
}

// A wide file is its transpose, a Fortran file is read by column: the same numbers come out.
func TestOrders(t *testing.T) {
	const d, k = 300, 7
	q := RandomBasis(random(6), d, k)
	byColumn := make([]float64, 0, d*k)
	for j := range k {
		for i := range d {
			byColumn = append(byColumn, q[i*k+j])
		}
	}
	b := DenseBasis(byColumn, d, k, format.F64)
	b.ColumnMajor = true
	require.Equal(t, q, b.numbers())
	b.ColumnMajor, b.Transposed = false, true
	require.Equal(t, q, b.numbers())
	b.ColumnMajor = true
	require.Equal(t, byColumn, b.numbers())
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
			in := &Input{Basis: DenseBasis(RandomBasis(random(1), c.d, 1), c.d, 1, format.F64), Kind: c.kind}
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

// The order that the basis file records is the one used, and what contradicts it is said with both numbers.
func TestRecordedOrder(t *testing.T) {
	in := plain.Draw(random(3))
	b := *in.Basis
	in.Basis = &b
	cut := plain.D / 4
	b.Order = []Span{{loraA, cut}, {loraB, plain.D - cut}}
	require.Equal(t, check.Pass, one(t, in.with(func(*Input) {}), "adapter/drift").Verdict)
	for _, c := range []struct {
		order    []Span
		fragment string
	}{
		{[]Span{{"x", cut}}, `"x"`},
		{[]Span{{loraA, cut + 1}, {loraB, plain.D - cut - 1}}, fmt.Sprint(cut + 1)},
		{[]Span{{loraA, cut}}, fmt.Sprint(plain.D)},
	} {
		b.Order = c.order
		require.Contains(t, in.match(*in.Adapter, rawWeights, "lora_flat").problem, c.fragment)
	}
}

// A gradient so small that the limit passes it whatever it holds.
func TestTinyGradients(t *testing.T) {
	s := plain
	s.Norm, s.Steps = 1e-6, 0
	in := s.Draw(random(4))
	raw := in.with(func(c *Input) { c.Projected = nil })
	require.Equal(t, check.Undetermined, one(t, raw, "gradient/component").Verdict)
	done := in.with(func(c *Input) { c.Grads, c.Projected = c.Projected, nil })
	require.Equal(t, check.Pass, one(t, done, "gradient/component").Verdict)
	both := one(t, in, "projection/formula")
	require.Equal(t, check.Pass, both.Verdict, both.Reason)
}

// A norm that overflows makes every component look small.
func TestOverflowingNormDecidesNothing(t *testing.T) {
	in := plain.Draw(random(4))
	huge := make([]float64, plain.D)
	for i := range huge {
		huge[i] = 1e200
	}
	in = in.with(func(c *Input) { c.Grads, c.Projected = []Set{vectorSet("g", format.F64, huge)}, nil })
	require.Equal(t, check.Undetermined, one(t, in, "gradient/component").Verdict)
}

// Clipping by one scalar after projecting is safe, and said to be that.
func TestClippedAfterwards(t *testing.T) {
	in := plain.Draw(random(8))
	p := append([]float64(nil), in.Projected[0].Tensors[0].Data...)
	for i := range p {
		p[i] = float64(float32(p[i] * 0.37))
	}
	r := one(t, in.with(func(c *Input) { c.Projected = []Set{vectorSet("p", format.F32, p)} }), "projection/formula")
	require.Equal(t, check.Warn, r.Verdict)
	require.Contains(t, r.Reason, "0.37")
}

// With a basis that is not orthonormal, what follows from that is not a second fault.
func TestOneFaultOneFailure(t *testing.T) {
	for _, f := range Orthonormal.Faults[:2] {
		failed := 0
		for _, r := range judge(t, f.Plant(random(9), plain.Draw(random(9)))) {
			if r.Verdict == check.Fail {
				failed++
				require.Equal(t, "basis/orthonormal", r.Check, "%s: %+v", f.ID, r)
			}
		}
		require.Equal(t, 1, failed, f.ID)
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
	q := DenseBasis(RandomBasis(random(1), 4, 1), 4, 1, format.F64)
	in := &Input{Basis: q, Grads: []Set{g}, Adapter: &young}
	require.Equal(t, check.Pass, one(t, in, "gradient/flow").Verdict)
	young.Tensors[1].Data = []float64{0.3, 0}
	require.Equal(t, check.Fail, one(t, in.with(func(*Input) {}), "gradient/flow").Verdict)
	missing := in.with(func(c *Input) { c.Grads = []Set{set("zero", "other")} })
	require.Equal(t, check.Fail, one(t, missing, "gradient/flow").Verdict)
	require.Contains(t, one(t, missing, "gradient/flow").Reason, "exactly 0 everywhere")
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
