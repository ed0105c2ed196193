package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// An estimate of KL that is multiplied by another power of the ratio is named by it, in the estimate and in the gradient.
func TestKLWeightEdits(t *testing.T) {
	const beta = 0.1
	loss := func(d, a float64) (float64, float64) {
		plain, c := -a*math.Exp(d), -a*math.Max(0.8, math.Min(math.Exp(d), 1.28))
		if c > plain {
			return c, 0
		}
		return plain, plain
	}
	estimate := func(x float64) float64 { return math.Exp(x) - x - 1 }
	judge := func(id, grad string, weight func(d float64) float64, slope float64) *stage.Outcome {
		set := clippedLoss(t, "kl.beta", "0.1", "kl.kind", "k3", "kl.place", "loss", "kl.grad", grad, "kl.agg", "same", "kl.is_cap", "none")
		b := estimatedBy(estimate)
		b.Meta.DLogpScale = 1
		lp, old, ref, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref"), b.Row("advantages")
		g := make([]float64, len(lp))
		for i := range lp {
			d, x := lp[i]-old[i], ref[i]-lp[i]
			b.Token("kl")[i] = float64(float32(estimate(x) * weight(d)))
			_, s := loss(d, adv[i/b.Cols])
			g[i] = float64(float32((s + beta*weight(d)*(1-math.Exp(x)+slope*estimate(x))) / float64(len(lp))))
		}
		b.Tensors["dlogp"] = &dump.Tensor{Name: "dlogp", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: g, Type: format.F32}
		return stage.Judge(stage.Find(id), b, set)
	}
	one, ratio, inverse := func(float64) float64 { return 1 }, math.Exp, func(d float64) float64 { return math.Exp(-d) }
	for _, id := range []string{"kl/token", "gradient/dlogp"} {
		require.Equal(t, check.Pass, judge(id, "naive", one, 0).Verdict, id)
		require.Equal(t, check.Pass, judge(id, "is_corrected", ratio, 1).Verdict, id)
		requireName(t, judge(id, "naive", inverse, -1), "KL-GRAD", "the inverse ratio 1/ρ")
	}
	requireName(t, judge("gradient/dlogp", "is_corrected", inverse, -1), "KL-GRAD", "the inverse ratio 1/ρ")
	requireName(t, judge("gradient/dlogp", "naive", ratio, 0), "KL-GRAD", "and that is detached")
	requireName(t, judge("kl/token", "is_corrected", inverse, -1), "RATIO-INVERTED", "the estimate of KL is multiplied by the inverse")
}

// The sum of two estimates of KL, and one that is multiplied by a ratio of other passes, are named by that, whatever the slope is declared to be.
func TestKLPairs(t *testing.T) {
	k2, k3 := func(x float64) float64 { return x * x / 2 }, func(x float64) float64 { return math.Exp(x) - x - 1 }
	judge := func(kind, grad string, of func(lp, old, ref float64) float64) *stage.Outcome {
		set := clippedLoss(t, "kl.beta", "0.1", "kl.kind", kind, "kl.place", "loss", "kl.grad", grad, "kl.agg", "same", "kl.is_cap", "none")
		b := estimatedBy(k3)
		for i, lp := range b.Token("logp_new") {
			b.Token("kl")[i] = float64(float32(of(lp, b.Token("logp_old")[i], b.Token("logp_ref")[i])))
		}
		return stage.Judge(stage.Find("kl/token"), b, set)
	}
	for _, grad := range []string{"naive", "straight_through_k2"} {
		require.Equal(t, check.Pass, judge("k3", grad, func(lp, _, ref float64) float64 { return k3(ref - lp) }).Verdict)
		requireName(t, judge("k3", grad, func(lp, _, ref float64) float64 { return k2(ref-lp) + k3(ref-lp) }), "KL-FORMULA", "the sum of two: k2 = ½x² and k3")
	}
	require.Equal(t, check.Pass, judge("ratio_d", "naive", func(lp, old, ref float64) float64 { return math.Exp(lp-old) * (lp - ref) }).Verdict)
	requireName(t, judge("ratio_d", "naive", func(lp, old, ref float64) float64 { return math.Exp(ref-old) * (lp - ref) }), "KL-GRAD", "(logp_ref − logp_old)")
}

// A policy term without a gradient beside a KL whose ratio is detached with it.
func TestRatioDetachedBesideKL(t *testing.T) {
	const beta = 0.1
	set := clippedLoss(t, "kl.beta", "0.1", "kl.kind", "k3", "kl.place", "loss", "kl.grad", "is_corrected", "kl.agg", "same", "kl.is_cap", "none", "agg.kind", "token", "agg.denominator", "micro", "agg.div_ga", "false")
	b := estimatedBy(func(x float64) float64 { return math.Exp(x) - x - 1 })
	b.Meta.DLogpScale = 1
	lp, old, ref := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref")
	g := make([]float64, len(lp))
	for i := range g {
		g[i] = float64(float32(beta * math.Exp(lp[i]-old[i]) * (1 - math.Exp(ref[i]-lp[i])) / float64(len(lp))))
	}
	b.Tensors["dlogp"] = &dump.Tensor{Name: "dlogp", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: g, Type: format.F32}
	requireName(t, stage.Judge(stage.Find("gradient/dlogp"), b, set), "RATIO-DETACHED", "so is the ratio ρ")
}

// An estimate of the old policy's KL that is multiplied by the ratio of the new one keeps that ratio.
func TestKLOfOldUnderTheRatio(t *testing.T) {
	estimate := func(x float64) float64 { return math.Exp(x) - x - 1 }
	set := clippedLoss(t, "kl.beta", "0.1", "kl.kind", "k3", "kl.place", "loss", "kl.grad", "is_corrected", "kl.agg", "same", "kl.is_cap", "none")
	b := estimatedBy(estimate)
	lp, old, ref := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref")
	for i := range lp {
		b.Token("kl")[i] = float64(float32(estimate(ref[i]-old[i]) * math.Exp(lp[i]-old[i])))
	}
	requireName(t, stage.Judge(stage.Find("kl/token"), b, set), "KL-OF-OLD", "of the old policy")
}

// Advantages that a loss normalises over its micro-batch are told by their moments.
func TestNormalisedAgain(t *testing.T) {
	set := clippedLoss(t)
	b := updated(func(float64, float64) float64 { return 0 })
	lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
	var mean, square float64
	for _, a := range adv {
		mean += a / float64(len(adv))
	}
	for _, a := range adv {
		square += (a - mean) * (a - mean)
	}
	for i := range lp {
		a, r := (adv[i/b.Cols]-mean)/(math.Sqrt(square/float64(len(adv)-1))+1e-8), math.Exp(lp[i]-old[i])
		b.Token("token_loss")[i] = float64(float32(math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))))
	}
	requireName(t, stage.Judge(stage.Find("token_loss/policy"), b, set), "WHITEN-FORM", "the mean of its responses subtracted, over their deviation with n − 1")
}
