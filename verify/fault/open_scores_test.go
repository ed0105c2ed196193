package fault

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Where nobody declares β, the bounds of the scores and what advantages are divided by, a bug is told on top of those that the rows show under it.
func TestScoresUnderABug(t *testing.T) {
	p, _, err := convention.Lookup("trl-rloo@1.16")
	require.NoError(t, err)
	loo := func(x []float64, divisor float64) []float64 {
		y := make([]float64, len(x))
		for i := range x {
			g := i / 4 * 4
			y[i] = x[i] - (x[g]+x[g+1]+x[g+2]+x[g+3]-x[i])/divisor
		}
		return y
	}
	by := func(x []float64, s float64) []float64 {
		return mapped(x, func(v float64) float64 { return v / (s + 1e-4) })
	}
	for words, advantages := range map[string]func(score, kl, tokens []float64) []float64{
		"the mean over its tokens": func(score, kl, tokens []float64) []float64 {
			x := slices.Clone(score)
			for i := range x {
				x[i] -= 0.05 * kl[i] / tokens[i]
			}
			a := loo(x, 3)
			return by(a, deviationOf(a, 1))
		},
		"the mean square": func(score, kl, _ []float64) []float64 {
			x := slices.Clone(score)
			for i := range x {
				x[i] -= 0.05 * kl[i]
			}
			a := loo(x, 3)
			return by(a, meanOf(mapped(a, func(v float64) float64 { return v * v })))
		},
		"the right ones, in other rows": func(score, kl, _ []float64) []float64 {
			x, y := slices.Clone(score), make([]float64, len(score))
			for i := range x {
				x[i] = min(max(x[i], -0.5), 0.5) - 0.05*kl[i]
			}
			for i, a := range loo(x, 3) {
				y[i*5%16] = a
			}
			return y
		},
		"the number of all rows of the group": func(score, _, _ []float64) []float64 {
			return mapped(loo(score, 4), func(v float64) float64 { return min(max(v, -0.5), 0.5) })
		},
	} {
		b := longRows(func(b *dump.Batch, _ []float64) []float64 {
			lp, ref := make([]float64, len(b.Mask)), make([]float64, len(b.Mask))
			for i := range lp {
				lp[i], ref[i] = -1+0.5*math.Sin(float64(i*i)), -1+0.5*math.Sin(float64(7*i*i+1))
			}
			for name, x := range map[string][]float64{"logp_old": lp, "logp_ref": ref} {
				b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
			}
			kl := make([]float64, b.Rows)
			for i, in := range b.Mask {
				if in {
					kl[i/b.Cols] += lp[i] - ref[i]
				}
			}
			return advantages(b.Row("scores"), kl, tokensOf(b, b.Mask))
		})
		found := ""
		for _, changes := range ShownUnder(stage.Find("advantage/group"), b, &convention.Set{}) {
			set := convention.FromProfile(p).With("reward.clip", parsed("reward.clip", "none"), "test").With("kl.place", parsed("kl.place", "loss"), "test")
			for _, c := range changes {
				set = set.With(c.Option, c.To, "search")
			}
			if o := stage.Judge(stage.Find("advantage/group"), b, set); o.Verdict == check.Fail && found == "" {
				for _, e := range Explain(o) {
					if !e.Lead && !e.Hypothesis.Relative {
						found += e.Hypothesis.Title
					}
				}
			}
		}
		require.Contains(t, found, words)
	}
}
