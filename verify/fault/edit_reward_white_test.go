package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// shapedBy returns a step of rows of unequal lengths with the token rewards that a program makes of its scores and −β·KL, as trl@1.12 does: the score
// stands one cell behind the response.
func shapedBy(t *testing.T, score func(s []float64) []float64, finish func(b *dump.Batch, r []float64) []float64) *stage.Outcome {
	t.Helper()
	p, _, err := convention.Lookup("trl-ppo@1.12")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"kl.beta": "0.05", "kl.kind": "k1", "rewards.whiten": "shift_mean_false", "eos.rule": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	b := updated(func(float64, float64) float64 { return 0 })
	for i := range b.Mask {
		b.Mask[i] = i%b.Cols < 2+i/b.Cols%3
	}
	lp := b.Token("logp_old")
	ref, kl, r, s := make([]float64, len(lp)), make([]float64, len(lp)), make([]float64, len(lp)), make([]float64, b.Rows)
	for row := range s {
		s[row] = float64(float32(math.Sin(3 * float64(row))))
	}
	for i, in := range b.Mask {
		if in {
			ref[i] = float64(float32(lp[i] + 0.3*math.Cos(5*float64(i))))
			kl[i] = float64(float32(lp[i] - ref[i]))
		}
		r[i] = -0.05 * kl[i]
	}
	for row, x := range score(s) {
		r[lastOf(b, row)+1] += x
	}
	r = finish(b, r)
	for i := range r {
		if r[i] = float64(float32(r[i])); !b.Mask[i] && (i == 0 || !b.Mask[i-1]) {
			r[i] = 0
		}
	}
	for name, x := range map[string][]float64{"logp_ref": ref, "kl": kl, "token_rewards": r} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
	}
	b.Tensors["scores"] = &dump.Tensor{Name: "scores", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: s, Type: format.F32}
	return stage.Judge(stage.Find("reward/token"), b, set)
}

// Token rewards that are whitened over other cells, or of scores that were normalised first, are named by that.
func TestRewardWhiteEdits(t *testing.T) {
	own := func(s []float64) []float64 { return s }
	over := func(extra int, all bool) func(b *dump.Batch, r []float64) []float64 {
		return func(b *dump.Batch, r []float64) []float64 {
			mask := rl.LengthMask(nil, b.Mask, b.Rows, b.Cols, extra)
			var x []float64
			for i := range r {
				if mask[i] || all {
					x = append(x, r[i])
				}
			}
			m, s := meanOf(x), math.Sqrt(math.Pow(deviationOf(x, 1), 2)+1e-8)
			return mapped(r, func(v float64) float64 { return (v-m)/s + m })
		}
	}
	require.Equal(t, check.Pass, shapedBy(t, own, over(1, false)).Verdict)
	requireName(t, shapedBy(t, own, over(0, false)), "WHITEN-PADS", "the tokens of the response, of all rows")
	requireName(t, shapedBy(t, own, over(0, true)), "WHITEN-PADS", "padding included")
	requireName(t, shapedBy(t, own, func(b *dump.Batch, r []float64) []float64 {
		var x []float64
		for i, in := range rl.LengthMask(nil, b.Mask, b.Rows, b.Cols, 1) {
			if in {
				x = append(x, r[i])
			}
		}
		m, n := meanOf(x), float64(len(x))
		by := math.Sqrt((squares(x)+n*m*m)/(n-1) + 1e-8)
		return mapped(r, func(v float64) float64 { return (v-m)/by + m })
	}), "WHITEN-FORM", "the root of their second moment")
	requireName(t, shapedBy(t, func(s []float64) []float64 {
		return mapped(s, func(v float64) float64 { return (v - meanOf(s)) / deviationOf(s, 1) })
	}, over(1, false)), "SCORE-NORMALISED", "of all rows are normalised before")
}

// Token rewards that nobody says are whitened, and that are whitened over padding, are named by that; over the response they are what a search finds.
func TestUndeclaredWhiteningOfRewards(t *testing.T) {
	for _, padded := range []bool{true, false} {
		o := shapedBy(t, func(s []float64) []float64 { return s }, func(b *dump.Batch, r []float64) []float64 {
			var x []float64
			for i := range r {
				if b.Mask[i] || i > 0 && b.Mask[i-1] || padded {
					x = append(x, r[i])
				}
			}
			m, s := meanOf(x), math.Sqrt(math.Pow(deviationOf(x, 1), 2)+1e-8)
			return mapped(r, func(v float64) float64 { return (v-m)/s + m })
		})
		set := o.Case.Set
		for _, name := range []string{"rewards.whiten", "whiten.ddof", "whiten.scope", "whiten.eps"} {
			set = set.With(name, convention.Value{}, "")
		}
		o = stage.Judge(o.Check, o.Case.B, set)
		if padded {
			requireName(t, o, "WHITEN-PADS", "padding included")
			continue
		}
		require.NotEmpty(t, whitenedBeside(o, func(option string) bool { return set.Value(option).Kind() == convention.Unknown }))
		requireNoName(t, stage.Judge(o.Check, o.Case.B.With("token_rewards", mapped(o.Got, math.Cbrt)), set))
	}
}
