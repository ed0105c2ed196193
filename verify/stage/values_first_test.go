package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
)

func TestValuesAtTheFirstUpdate(t *testing.T) {
	r := rand.New(rand.NewPCG(69, 1))
	lengths := make([]int, 12)
	for i := range lengths {
		lengths[i] = 8 + r.IntN(5)
	}
	base := func(mean, spread, noise float64) grid {
		g := newGrid(12, lengths...)
		v := g.fill("values", dump.PerToken, func() float64 { return mean + spread*r.NormFloat64() })
		g = g.token("values", v...)
		now := slices.Clone(v)
		for i := range now {
			now[i] += noise * r.NormFloat64()
		}
		lp := make([]float64, len(v))
		for i := range lp {
			lp[i] = -r.ExpFloat64()
		}
		return g.token("values_new", now...).token("logp_old", lp...).token("logp_new", slices.Clone(lp)...)
	}
	judge := func(g grid, when string) *Assertion {
		return ValuesAreNew(NewCase(g.Batch, set(t, "").WithFact("first_update", when), 0x1p-24))
	}
	for _, e := range []struct {
		name                string
		mean, spread, noise float64
	}{{"float32", 0.2, 0.5, 1e-6}, {"bfloat16 of a deep model", 0, 0.5, 0.02}, {"all alike, with rounding", 5, 1e-3, 0.2}, {"a head of zeros", 0, 0, 0}} {
		a := judge(base(e.mean, e.spread, e.noise), FirstUpdate)
		require.NotNil(t, a, e.name)
		require.Empty(t, a.Violations, e.name)
	}
	faults := map[string]func(v []float64, cols int){
		"rows of others": func(v []float64, cols int) {
			x := slices.Clone(v)
			copy(v, x[cols:])
			copy(v[len(v)-cols:], x[:cols])
		},
		"another batch": func(v []float64, _ int) {
			for i := range v {
				v[i] = 0.2 + 0.5*r.NormFloat64()
			}
		},
		"another scale":  func(v []float64, _ int) { each(v, func(x float64) float64 { return 6 * x }) },
		"another sign":   func(v []float64, _ int) { each(v, func(x float64) float64 { return -x }) },
		"zeros":          func(v []float64, _ int) { clear(v) },
		"one column off": func(v []float64, _ int) { copy(v[1:], slices.Clone(v)) },
	}
	for name, edit := range faults {
		g := base(0.2, 0.5, 1e-6)
		edit(g.Tensors["values"].Data, g.Cols)
		a := judge(g, FirstUpdate)
		require.NotEmpty(t, a.Violations, name)
		want := "VALUES-OTHER-PASS"
		if name == "rows of others" {
			want = "VALUES-OF-OTHER-ROWS"
		}
		require.Equal(t, want, a.Violations[0].Fault, name)
		require.Nil(t, judge(g, UnknownUpdate), name)
		require.Nil(t, judge(g, LaterUpdate), name)
		each(g.Tensors["logp_new"].Data, func(x float64) float64 { return x + 0.1*math.Expm1(x)*r.NormFloat64() })
		require.Nil(t, judge(g, FirstUpdate), "%s: the policy has moved, so this is no first update", name)
	}
}

// Where the value behind the response is kept, one that is 0 in the rollout and not in its first update was masked.
func TestValuesThatEndOneTokenEarly(t *testing.T) {
	r := rand.New(rand.NewPCG(69, 2))
	judged := func(option string, change func(g grid, i int)) *Assertion {
		g := newGrid(12, 8, 9, 10, 11, 12, 12)
		v := g.fill("values", dump.PerToken, r.NormFloat64)
		lp := g.fill("logp_old", dump.PerToken, func() float64 { return -r.ExpFloat64() })
		g = g.token("values", v...).token("values_new", slices.Clone(v)...).token("logp_old", lp...).token("logp_new", slices.Clone(lp)...)
		for row, n := range []int{8, 9, 10, 11} {
			if change != nil {
				change(g, row*12+n)
			}
		}
		return ValuesAreNew(NewCase(g.Batch, set(t, option).WithFact("first_update", FirstUpdate), 0x1p-24))
	}
	cut := func(g grid, i int) { g.Tensors["values"].Data[i] = 0 }
	a := judged("gae.value_mask=p1", cut)
	require.Len(t, a.Violations, 1)
	require.Equal(t, "VALUE-MASK", a.Violations[0].Fault)
	for what, a := range map[string]*Assertion{
		"healthy":                judged("gae.value_mask=p1", nil),
		"values of the answer":   judged("gae.value_mask=response", cut),
		"both passes are masked": judged("gae.value_mask=p1", func(g grid, i int) { cut(g, i); g.Tensors["values_new"].Data[i] = 0 }),
	} {
		require.True(t, a == nil || len(a.Violations) == 0, what)
	}
}

func each(x []float64, f func(float64) float64) {
	for i, v := range x {
		x[i] = f(v)
	}
}

// Values that are those of the token behind are told from few tokens, to the last digit.
func TestValuesOfTheTokenBehind(t *testing.T) {
	r := rand.New(rand.NewPCG(81, 82))
	const rows, cols = 4, 5
	now, old := make([]float64, rows*cols), make([]float64, rows*cols)
	for i := range now {
		now[i] = r.NormFloat64()
	}
	for i := range old {
		if old[i] = r.NormFloat64(); i%cols < cols-1 {
			old[i] = now[i+1]
		}
	}
	lp := make([]float64, rows*cols)
	for i := range lp {
		lp[i] = -0.1 - r.ExpFloat64()
	}
	g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", lp...).token("logp_old", lp...).token("values_new", now...).token("values", old...)
	a := ValuesAreNew(NewCase(g.Batch, set(t, "").WithFact("first_update", FirstUpdate), 0x1p-24))
	require.Len(t, a.Violations, 1)
	require.Equal(t, "GAE-VALUES-LATE", a.Violations[0].Fault)
}
