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

// An estimate of KL whose linear term reads another pass than its exponent, and one that is multiplied by the clipped ratio, are named by that, with and without
// a right ratio before it.
func TestKLMixed(t *testing.T) {
	const beta = 0.1
	k3 := func(x, y float64) float64 { return math.Exp(x) - y - 1 }
	clipped := func(r float64) float64 { return math.Max(0.8, math.Min(r, 1.28)) }
	judge := func(id, grad string, of func(lp, old, ref float64) float64, slope func(lp, old, ref float64) float64) *stage.Outcome {
		set := clippedLoss(t, "kl.beta", "0.1", "kl.kind", "k3", "kl.place", "loss", "kl.grad", grad, "kl.agg", "same", "kl.is_cap", "none")
		b := estimatedBy(func(x float64) float64 { return k3(x, x) })
		b.Meta.DLogpScale = 1
		lp, old, ref, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref"), b.Row("advantages")
		g := make([]float64, len(lp))
		for i := range lp {
			b.Token("kl")[i] = float64(float32(of(lp[i], old[i], ref[i])))
			a, r := adv[i/b.Cols], math.Exp(lp[i]-old[i])
			if -a*r >= -a*clipped(r) {
				g[i] = -a * r
			}
			if slope != nil {
				g[i] = float64(float32((g[i] + beta*slope(lp[i], old[i], ref[i])) / float64(len(lp))))
			}
		}
		if slope != nil {
			b.Tensors["dlogp"] = &dump.Tensor{Name: "dlogp", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: g, Type: format.F32}
		}
		return stage.Judge(stage.Find(id), b, set)
	}
	for _, grad := range []string{"naive", "is_corrected"} {
		ratio := func(lp, old float64) float64 {
			if grad == "naive" {
				return 1
			}
			return math.Exp(lp - old)
		}
		o := judge("kl/token", grad, func(lp, old, ref float64) float64 { return ratio(lp, old) * k3(ref-lp, ref-lp) }, nil)
		require.Equal(t, check.Pass, o.Verdict, o.Lacking())
		requireName(t, judge("kl/token", grad, func(lp, old, ref float64) float64 { return ratio(lp, old) * k3(ref-lp, ref-old) }, nil), "KL-FORMULA", "y = logp_ref − logp_old")
		requireName(t, judge("kl/token", grad, func(lp, old, ref float64) float64 { return ratio(lp, old) * k3(ref-old, ref-lp) }, nil), "KL-FORMULA", "y = logp_ref − logp_new")
		requireName(t, judge("kl/token", grad, func(lp, old, ref float64) float64 { return clipped(math.Exp(lp-old)) * k3(ref-lp, ref-lp) }, nil), "KL-GRAD", "the clipped ratio of the policy term")
		requireName(t, judge("kl/token", grad, func(lp, old, ref float64) float64 {
			return math.Min(1.28, math.Exp(lp-old)) * k3(ref-lp, ref-lp)
		}, nil), "KL-GRAD", "from above only")
		if grad == "naive" {
			value := func(lp, _, ref float64) float64 { return k3(ref-lp, ref-lp) }
			requireName(t, judge("gradient/dlogp", grad, value, func(float64, float64, float64) float64 { return 1 }), "KL-GRAD", "its exponential is detached")
			requireName(t, judge("gradient/dlogp", grad, value, func(lp, _, ref float64) float64 { return -math.Exp(ref - lp) }), "KL-GRAD", "its linear term is detached")
		}
		of := func(lp, old, ref float64) float64 { return clipped(math.Exp(lp-old)) * k3(ref-lp, ref-lp) }
		requireName(t, judge("gradient/dlogp", grad, of, func(lp, old, ref float64) float64 {
			w, slope := clipped(math.Exp(lp-old)), 0.0
			if w == math.Exp(lp-old) {
				slope = w
			}
			return w*(1-math.Exp(ref-lp)) + slope*k3(ref-lp, ref-lp)
		}), "KL-GRAD", "the clipped ratio of the policy term")
		requireName(t, judge("gradient/dlogp", grad, of, func(lp, old, ref float64) float64 {
			return clipped(math.Exp(lp-old)) * (1 - math.Exp(ref-lp))
		}), "KL-GRAD", "term, detached")
	}
}
