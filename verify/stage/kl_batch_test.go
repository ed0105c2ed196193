package stage

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// grid is a batch of one file under construction.
type grid struct{ *dump.Batch }

// newGrid returns a batch of one file whose rows have the given numbers of tokens; mask cells are from the left.
func newGrid(cols int, lengths ...int) grid {
	b := &dump.Batch{Rows: len(lengths), Cols: cols, Tensors: map[string]*dump.Tensor{}, Mask: make([]bool, cols*len(lengths))}
	b.Files = []dump.FileInfo{{Lo: 0, Hi: b.Rows, Cols: cols, PromptCols: -1}}
	for r, n := range lengths {
		for t := range n {
			b.Mask[r*cols+t] = true
		}
		b.Origin = append(b.Origin, dump.Origin{Row: r})
	}
	return grid{b}
}

// randomGrid returns a batch with rows of random lengths, and with holes in some if it may have them.
func randomGrid(r *rand.Rand, rows, cols int, holes bool) grid {
	lengths := make([]int, rows)
	for i := range lengths {
		lengths[i] = 1 + r.IntN(cols)
	}
	g := newGrid(cols, lengths...)
	for i := range g.Mask {
		if holes && r.IntN(5) == 0 {
			g.Mask[i] = false
		}
	}
	return g
}

func (g grid) put(name string, layout dump.Layout, x ...float64) grid {
	width := 1
	switch {
	case layout == dump.PerToken && len(g.Mask) > 0:
		width = len(x) / len(g.Mask)
	case layout == dump.PerRow && g.Rows > 0:
		width = len(x) / g.Rows
	}
	g.Tensors[name] = &dump.Tensor{Name: name, Layout: layout, Width: width, Data: x, Type: format.F32}
	return g
}

func (g grid) token(name string, x ...float64) grid { return g.put(name, dump.PerToken, x...) }
func (g grid) row(name string, x ...float64) grid   { return g.put(name, dump.PerRow, x...) }

// fill puts a tensor of float32 numbers drawn one by one.
func (g grid) fill(name string, layout dump.Layout, draw func() float64) []float64 {
	n := g.Rows
	if layout == dump.PerToken {
		n *= g.Cols
	}
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(float32(draw()))
	}
	g.put(name, layout, x...)
	return x
}

// set returns the options "name=value …".
func set(t require.TestingT, text string) *convention.Set {
	s := &convention.Set{}
	for _, kv := range strings.Fields(text) {
		name, value, _ := strings.Cut(kv, "=")
		v, err := convention.Parse(name, value)
		require.NoError(t, err)
		s = s.With(name, v, "test")
	}
	return s
}

// worst collects the largest error over its bound among healthy outputs, by family.
type worst map[string]float64

// add judges the output of a check and demands that it is within its bounds.
func (w worst) add(t testing.TB, family, id string, b *dump.Batch, s *convention.Set) *Outcome {
	t.Helper()
	o := Judge(Find(id), b, s)
	require.True(t, o.Case.OK(), "%s: %s", id, o.Lacking())
	require.NotNil(t, o.Tally, id)
	require.Positive(t, o.Tally.N+o.Exact, id)
	if o.Verdict == check.Fail {
		i := o.Tally.Worst.Index
		t.Fatalf("%s, %s: a correct program is said to be wrong: %+v, terms %v", id, family, o.Tally.Worst, o.Pred.Terms(i))
	}
	// An interval that reaches from 0 to 1/ε is filled to its ends, and decides nothing.
	if r := o.Tally.Worst.Ratio; o.Verdict == check.Pass && r > w[family] {
		w[family] = r
	}
	return o
}

// sorted returns the names of families, so that every run draws the same data.
func sorted[V any](families map[string]V) []string { return slices.Sorted(maps.Keys(families)) }

// tight demands that the bounds are not vacuous.
func (w worst) tight(t testing.TB) {
	t.Helper()
	most := 0.0
	for _, family := range sorted(w) {
		most = max(most, w[family])
		t.Logf("%-24s largest error/bound %.3f", family, w[family])
	}
	require.GreaterOrEqual(t, most, 0.02, "the bounds are too wide to verify anything")
}

// fails demands that the check finds the output wrong.
func fails(t testing.TB, id string, b *dump.Batch, s *convention.Set) *Outcome {
	t.Helper()
	o := Judge(Find(id), b, s)
	require.Equal(t, check.Fail, o.Verdict, "%s: %s", id, o.Lacking())
	return o
}

// lacks demands that the check cannot tell, for want of something.
func lacks(t testing.TB, id string, b *dump.Batch, s *convention.Set, what string) {
	t.Helper()
	o := Judge(Find(id), b, s)
	require.Equal(t, check.Undetermined, o.Verdict, id)
	require.Contains(t, o.Lacking(), what)
}

func f32(x float64) float32 { return float32(x) }

// exp32 and log32 are elementary functions as a float32 library has them: rounded once, and then one more unit off.
// exp32 is within one neighbour of e^x, and 1 at 0, as in every library.
func exp32(r *rand.Rand, x float32) float32 {
	if x == 0 {
		return 1
	}
	return blur(r, float32(math.Exp(float64(x))))
}

func log32(r *rand.Rand, x float32) float32 { return blur(r, float32(math.Log(float64(x)))) }

func blur(r *rand.Rand, x float32) float32 {
	switch r.IntN(4) {
	case 0:
		return math.Nextafter32(x, float32(math.Inf(1)))
	case 1:
		return math.Nextafter32(x, float32(math.Inf(-1)))
	}
	return x
}

// backwards32 sums from the end.
func backwards32(x []float32) float32 {
	var s float32
	for i := len(x) - 1; i >= 0; i-- {
		s += x[i]
	}
	return s
}

// lanes32 sums in eight lanes.
func lanes32(x []float32) float32 {
	var lane [8]float32
	for i, v := range x {
		lane[i%8] += v
	}
	return (lane[0] + lane[4]) + (lane[1] + lane[5]) + (lane[2] + lane[6]) + (lane[3] + lane[7])
}

func sums32(r *rand.Rand) func([]float32) float32 {
	if r.IntN(2) == 0 {
		return backwards32
	}
	return lanes32
}

func TestSumErrorOfCascades(t *testing.T) {
	require.InEpsilon(t, 100*tol.U32, sumError(100, tol.U32), 1e-6)
	require.InEpsilon(t, (cascade+8)*tol.U32, sumError(cascade<<8, tol.U32), 1e-5)
	require.Greater(t, sumError(cascade+1, tol.U32), sumError(cascade, tol.U32))
	// Sums of a million numbers by cascades, as libraries take them, keep to it.
	r := rand.New(rand.NewPCG(3, 1))
	for _, offset := range []float64{0, 1, 1000} {
		x := make([]float32, 1<<20)
		var exact, size float64
		for i := range x {
			x[i] = float32(offset + r.NormFloat64())
			exact += float64(x[i])
			size += math.Abs(float64(x[i]))
		}
		var parts []float32
		for lo := 0; lo < len(x); lo += 2048 {
			parts = append(parts, lanes32(x[lo:lo+2048]))
		}
		err := math.Abs(float64(lanes32(parts)) - exact)
		require.LessOrEqual(t, err, sumError(len(x), tol.U32)*size)
	}
}

// b16 rounds to bfloat16.
func b16(x float32) float32 {
	bits := math.Float32bits(x)
	return math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
}

// Programs that compute in bfloat16 keep to the bounds of bfloat16: every operation is rounded, sums are those of float32.
func TestBoundsInBFloat16(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	most := map[string]float64{}
	judge := func(id string, b *dump.Batch, s *convention.Set) {
		t.Helper()
		o := JudgeAs(Find(id), b, s, Arithmetic{Unit: tol.UB})
		require.True(t, o.Case.OK(), o.Lacking())
		require.Zero(t, o.Tally.Failed, "%s: %+v", id, o.Tally.Worst)
		most[id] = max(most[id], o.Tally.Worst.Ratio)
	}
	kl := set(t, "kl.place=token_reward kl.kind=k3 kl.clamp_in=none kl.clamp_out=none")
	gae := set(t, plainGAE+"gae.hole=carry gae.gamma=1 gae.lambda=0.95")
	group := set(t, plainGroup+"adv.center=mean adv.scale=group_std adv.ddof=1 adv.eps=1e-4 adv.zero_std=divide_eps")
	draw := func() float64 { return float64(b16(f32(r.NormFloat64()))) }
	for range 2000 {
		n := 2 + r.IntN(8)
		lengths := make([]int, n)
		for i := range lengths {
			lengths[i] = 1
		}
		g := newGrid(1, lengths...).row("group_id", make([]float64, n)...)
		lp, ref, out := g.fill("logp_old", dump.PerToken, draw), g.fill("logp_ref", dump.PerToken, draw), make([]float64, n)
		for i := range out {
			x := b16(f32(ref[i]) - f32(lp[i]))
			out[i] = float64(b16(b16(b16(exp32(r, x))-x) - 1))
		}
		judge("kl/token", g.token("kl", out...).Batch, kl)

		x := narrow(g.fill("scores", dump.PerRow, draw))
		mean := b16(sums32(r)(x) / float32(n))
		squares := make([]float32, n)
		for i, v := range x {
			c := b16(v - mean)
			squares[i] = b16(c * c)
		}
		std := b16(float32(math.Sqrt(float64(b16(sums32(r)(squares) / float32(n-1))))))
		a := make([]float64, n)
		for i, v := range x {
			a[i] = float64(b16(b16(v-mean) / b16(std+b16(1e-4))))
		}
		judge("advantage/group", g.row("advantages", a...).Batch, group)

		g = newGrid(n, n)
		reward, value := narrow(g.fill("token_rewards", dump.PerToken, draw)), narrow(g.fill("values", dump.PerToken, draw))
		adv := make([]float64, n)
		var next, last float32
		for i := n - 1; i >= 0; i-- {
			delta := b16(b16(reward[i]+next) - value[i])
			last = b16(delta + b16(b16(0.95)*last))
			next = value[i]
			adv[i] = float64(last)
		}
		judge("gae/advantage", g.token("advantages", adv...).Batch, gae)
	}
	for id, ratio := range most {
		t.Logf("%-16s largest error/bound %.3f", id, ratio)
		require.GreaterOrEqual(t, ratio, 0.1, id)
	}
}
