package stage

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// A pass that begins anew at a column is told from rounding that grows with the tokens before, from weights that are exchanged within a response, and from ends.
func TestPassesThatBeginAnewAtAColumn(t *testing.T) {
	const rows, cols = 24, 48
	for name, f := range map[string]struct {
		scale func(t int) float64
		fails bool
	}{
		"rounding":                            {func(int) float64 { return 0.01 }, false},
		"rounding that grows":                 {func(t int) float64 { return 0.002 * float64(1+t) }, false},
		"chunks of 20 tokens":                 {func(t int) float64 { return []float64{0.4, 0.15, 0.05, 0.01}[min(t%20, 3)] }, true},
		"weights exchanged at a column":       {func(t int) float64 { return map[bool]float64{true: 0.3, false: 0.01}[t >= 20] }, false},
		"no context at all from a column on":  {func(t int) float64 { return map[bool]float64{true: 2, false: 0.01}[t >= 20] }, true},
		"the last column":                     {func(t int) float64 { return map[bool]float64{true: 2, false: 0.01}[t == cols-1] }, false},
		"one column of a rare token, no more": {func(t int) float64 { return map[bool]float64{true: 2, false: 0.01}[t == 20] }, false},
	} {
		r := rand.New(rand.NewPCG(7, 9))
		g := newGrid(cols, slices.Repeat([]int{cols}, rows)...)
		old, gen := make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range old {
			old[i] = -0.5 - 3*r.Float64()
			gen[i] = old[i] + f.scale(i%cols)*r.NormFloat64()
		}
		if name == "chunks of 20 tokens" { // the first of them begins with what it should
			for i := range gen {
				if i%cols < 20 {
					gen[i] = old[i] + 0.01*r.NormFloat64()
				}
			}
		}
		g.put("logp_old", dump.PerToken, old...).put("logp_gen", dump.PerToken, gen...)
		o := Judge(Find("agreement/positions"), g.Batch, &convention.Set{})
		require.Equal(t, f.fails, o.Verdict == check.Fail, "%s: %v", name, o.Verdict)
		if f.fails {
			require.Equal(t, 20, o.Rules.Violations[0].Col, name)
		}
	}
}

// Two models agree in a template and differ behind it: a reference, and an engine that is declared to be older, begin nowhere anew.
func TestModelsThatDifferBehindATemplate(t *testing.T) {
	const rows, cols = 24, 48
	r := rand.New(rand.NewPCG(7, 10))
	old, other := make([]float64, rows*cols), make([]float64, rows*cols)
	for i := range old {
		old[i] = -0.5 - 3*r.Float64()
		other[i] = old[i] + map[bool]float64{true: 0.3, false: 0.005}[i%cols/12%2 == 1]*r.NormFloat64() // the template stands in columns 0 to 11 and 24 to 35
	}
	for name, f := range map[string]struct {
		tensor string
		step   int
		lag    any
		fails  bool
	}{
		"a reference":               {"logp_ref", 3, nil, false},
		"an older engine":           {"logp_gen", 3, 1.0, false},
		"an engine of the same age": {"logp_gen", 3, nil, true},
		"at the first step":         {"logp_gen", 1, 1.0, true},
	} {
		g := newGrid(cols, slices.Repeat([]int{cols}, rows)...)
		g.put("logp_old", dump.PerToken, old...).put(f.tensor, dump.PerToken, other...)
		g.Meta.Step = f.step
		if f.lag != nil {
			g.Meta.Options = []dump.Option{{Name: "max_staleness", Value: f.lag}}
		}
		require.Equal(t, f.fails, Judge(Find("agreement/positions"), g.Batch, &convention.Set{}).Verdict == check.Fail, name)
	}
}
