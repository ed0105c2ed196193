package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSlipsInLossesAreSolved takes losses with a slip that no configuration has, of which bounds and coefficients show all the same.
func TestSlipsInLossesAreSolved(t *testing.T) {
	clip := func(x boundToken) float64 { return min(max(x.rho, 0.83), 1.23) }
	for name, c := range map[string]struct {
		of   func(x boundToken) float64
		form []string
	}{
		"inverted": {func(x boundToken) float64 {
			x.rho = 1 / x.rho
			return held(x, 0.17, 0.23, math.Inf(1))
		}, []string{"clip.low=0.17", "clip.high=0.23"}},
		"the larger of both": {func(x boundToken) float64 { return -max(x.rho*x.adv, clip(x)*x.adv) }, []string{"clip.low=0.17", "clip.high=0.23"}},
		"the clipped side":   {func(x boundToken) float64 { return -clip(x) * x.adv }, []string{"clip.low=0.17", "clip.high=0.23"}},
		"the sign":           {func(x boundToken) float64 { return -held(x, 0.17, 0.23, math.Inf(1)) }, []string{"clip.low=0.17", "clip.high=0.23"}},
		"the dual clip of positive": {func(x boundToken) float64 {
			return held(boundToken{adv: x.adv, rho: x.rho}, 0.2, 0.23, math.Inf(1)) - max(x.adv, 0)*(1.35-min(x.rho, 1.23))
		}, []string{"clip.dual=1.35"}},
		"a weight held from below":  {func(x boundToken) float64 { return -max(x.rho, 1.13) * x.adv * x.lp }, []string{"loss.kind=cispo", "clip.low=none", "clip.high=0.13"}},
		"a weight that is inverted": {func(x boundToken) float64 { return -min(1/x.rho, 1.13) * x.adv * x.lp }, []string{"loss.kind=cispo", "clip.low=none", "clip.high=0.13"}},
	} {
		l := boundRun(1, false, false, func(x boundToken) float64 { return c.of(x) + 0.03*x.kl })
		require.Subset(t, formTexts(l), append(c.form, "kl.kind=k3"), name)
		require.InDelta(t, 0.03, l.Coefficients()["kl.beta"], 0, name)
	}
}

// TestBoundsOfOneSideAreSolved takes losses of which one side has no bound.
func TestBoundsOfOneSideAreSolved(t *testing.T) {
	require.Subset(t, formTexts(boundRun(1, false, false, func(x boundToken) float64 { return held(x, 1, 0.23, 1.35) })), []string{"clip.low=none", "clip.high=0.23", "clip.dual=1.35"})
	require.Subset(t, formTexts(boundRun(1, false, false, func(x boundToken) float64 { return held(x, 0.23, math.Inf(1), math.Inf(1)) })), []string{"clip.low=0.23", "clip.high=none"})
}

// TestBoundsBesideAnEntropyBonus takes weights of rows, an entropy bonus and sums that a constant divides, in a run of many files: the coefficient is that
// before the division.
func TestBoundsBesideAnEntropyBonus(t *testing.T) {
	l := &Losses{}
	for seed := range uint64(2) {
		for _, b := range boundBatches(seed, true, false, func(boundToken) float64 { return 0 }) {
			lp, old, gen, adv, h := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_gen"), b.Token("advantages"), make([]float64, len(b.Mask))
			var sum float64
			for i, m := range b.Mask {
				if h[i] = float64(float32(1 + math.Sin(float64(i*i)))); m {
					sum += min(max(math.Exp(old[i]-gen[i]), 0.96), 1.05)*held(boundToken{adv: adv[i], rho: math.Exp(lp[i] - old[i])}, 0.17, 0.23, math.Inf(1)) - 0.02*h[i]
				}
			}
			entropy := *b.Tensors["logp_new"]
			entropy.Data = h
			b.Tensors["entropy"], b.Meta.Step = &entropy, b.Meta.Step+8*int(seed)
			b.Tensors["loss"].Data[0] = float64(float32(sum / 640))
			l.Add(b)
		}
	}
	require.Subset(t, formTexts(l), []string{"clip.low=0.17", "clip.high=0.23", "tis.level=token", "tis.low=0.96", "tis.high=1.05"})
	require.InDelta(t, 0.02, l.Coefficients()["entropy.coef"], 0)
	require.InDelta(t, 640, l.Divisor(), 0)
}
