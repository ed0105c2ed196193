package fault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A recursion over rewards that were whitened first is named by what is wrong in the recursion or in the whitening, where the dump holds the rewards as
// they were before.
func TestRecursionOverWhitenedRewards(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "gae.hole": "carry", "whiten.scope": "none", "rewards.whiten": "shift_mean_false", "rewards.whiten_scope": "local_batch",
		"whiten.mask": "response", "whiten.ddof": "1", "whiten.eps": "1e-8", "whiten.eps_place": "inside_sqrt"} {
		set = set.With(name, parsed(name, x), "test")
	}
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	white := func(over []float64, lost float64) func(x float64) float64 {
		m, s := meanOf(over), deviationOf(over, 1)
		return func(x float64) float64 { return (x-m)/s + (1-lost)*m }
	}
	judge := func(by func(tokens, all []float64) func(x float64) float64, step float64) *stage.Outcome {
		b := rolledOut(true, overHoles(passedBy, passedBy))
		r, v, adv, ret := b.Token("token_rewards"), b.Token("values"), b.Token("advantages"), b.Token("returns")
		var tokens []float64
		for i, in := range b.Mask {
			if r[i] = float64(float32(2*r[i] + 1)); in {
				tokens = append(tokens, r[i])
			} else {
				r[i] = 0
			}
		}
		of := by(tokens, r)
		for row := range b.Rows {
			var next, last float64
			for i := (row+1)*b.Cols - 1; i >= row*b.Cols; i-- {
				if b.Mask[i] {
					last = of(r[i]) + step*next - v[i] + testGamma*testLambda*last
					next, adv[i], ret[i] = v[i], float64(float32(last)), float64(float32(last+v[i]))
				}
			}
		}
		return stage.Judge(stage.Find("gae/advantage"), b, set)
	}
	right := func(tokens, _ []float64) func(float64) float64 { return white(tokens, 0) }
	require.Equal(t, check.Pass, judge(right, testGamma).Verdict)
	requireName(t, judge(right, 1), "GAE-NO-GAMMA", "before the next value")
	requireName(t, judge(right, testGamma*testGamma), "GAE-RECURSION", "discounted by γ²")
	requireName(t, judge(func(_, all []float64) func(float64) float64 { return white(all, 0) }, testGamma), "WHITEN-PADS", "padding included, of all rows")
	requireName(t, judge(func(tokens, _ []float64) func(float64) float64 { return white(tokens, 1) }, testGamma), "WHITEN-REWARDS", "lose their mean")
	requireName(t, judge(func(_, _ []float64) func(float64) float64 { return func(x float64) float64 { return x } }, testGamma), "WHITEN-REWARDS-MISSING", "not whitened")
	requireName(t, judge(func(tokens, _ []float64) func(float64) float64 {
		m, s := meanOf(tokens), deviationOf(tokens, 1)
		return func(x float64) float64 { return (x-m)/(s*s) + m }
	}, testGamma), "WHITEN-REWARDS", "their variance")
}
