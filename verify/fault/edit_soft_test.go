package fault

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// The soft gate with one part wrong, as programs write it, is named by that part, in the loss of a token.
func TestSoftGateOfAnotherForm(t *testing.T) {
	set := clippedLoss(t, "loss.kind", "sapo", "sapo.tau_pos", "1", "sapo.tau_neg", "1.05")
	c := stage.Find("token_loss/policy")
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	gate := func(of func(r, tau, a float64) float64) *dump.Batch {
		return perTokenOf(updated(func(float64, float64) float64 { return 0 }), "token_loss", func(lp, old, a float64) float64 {
			tau := 1.05
			if a > 0 {
				tau = 1
			}
			return -a * of(math.Exp(lp-old), tau, a)
		})
	}
	require.Equal(t, check.Pass, stage.Judge(c, gate(func(r, tau, _ float64) float64 { return sigmoid(tau*(r-1)) * 4 / tau }), set).Verdict)
	for words, of := range map[string]func(r, tau, a float64) float64{
		"the 1 is not subtracted": func(r, tau, _ float64) float64 { return sigmoid(tau*r) * 4 / tau },
		"the log-ratio stands":    func(r, tau, _ float64) float64 { return sigmoid(tau*math.Log(r)) * 4 / tau },
		"tanh z,":                 func(r, tau, _ float64) float64 { return math.Tanh(tau*(r-1)) * 4 / tau },
		"chosen by the ratio": func(r, _, _ float64) float64 {
			tau := 1.05
			if r > 1 {
				tau = 1
			}
			return sigmoid(tau*(r-1)) * 4 / tau
		},
	} {
		requireName(t, stage.Judge(c, gate(of), set), "SAPO-FORM", words)
	}
	// ∂/∂logp of −A·(4/τ)·g(z), z = τ(ρ − 1), is −A·4·ρ·g′(z), over the tokens of the batch.
	sloped := func(slope func(z float64) float64) *dump.Batch {
		b := perTokenOf(updated(func(float64, float64) float64 { return 0 }), "dlogp", func(lp, old, a float64) float64 {
			tau := 1.05
			if a > 0 {
				tau = 1
			}
			r := math.Exp(lp - old)
			return -a * 4 * r * slope(tau*(r-1)) / 48
		})
		b.Meta.DLogpScale = 1
		return b
	}
	g := stage.Find("gradient/dlogp")
	require.Equal(t, check.Pass, stage.Judge(g, sloped(func(z float64) float64 { return sigmoid(z) * (1 - sigmoid(z)) }), set).Verdict)
	requireName(t, stage.Judge(g, sloped(func(z float64) float64 { return 1 - math.Pow(math.Tanh(z), 2) }), set), "SAPO-FORM", "tanh z,")
	requireName(t, stage.Judge(g, sloped(func(float64) float64 { return 1 }), set), "SAPO-FORM", "without a sigmoid")
}

// The geometric mean of a row's clipped ratios with one part wrong.
func TestGeometricMeanOfAnotherForm(t *testing.T) {
	set := clippedLoss(t, "loss.kind", "gmpo", "clip.low", "0.1", "clip.high", "0.15", "agg.len_eps", "0")
	c := stage.Find("token_loss/policy")
	clamp := func(x float64) float64 { return math.Max(-0.1, math.Min(x, 0.15)) }
	rows := func(of func(d, s float64) float64, cols float64) *dump.Batch {
		b := updated(func(float64, float64) float64 { return 0 })
		for i := range b.Mask {
			b.Mask[i] = i%b.Cols < 3+i/b.Cols%4
		}
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
		mean := make([]float64, b.Rows)
		for r := range mean {
			n := 0.0
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if b.Mask[i] {
					mean[r] += of(lp[i]-old[i], math.Copysign(1, adv[r]))
					n++
				}
			}
			if cols > 0 {
				n = cols
			}
			mean[r] /= n
		}
		i := -1
		return perTokenOf(b, "token_loss", func(_, _, a float64) float64 { i++; return -a * math.Exp(mean[i/b.Cols]) })
	}
	right := func(d, s float64) float64 { return s * math.Min(s*d, s*clamp(d)) }
	require.Equal(t, check.Pass, stage.Judge(c, rows(right, 0), set).Verdict)
	requireName(t, stage.Judge(c, rows(func(d, _ float64) float64 { return clamp(d) }, 0), set), "GMPO-FORM", "no minimum")
	requireName(t, stage.Judge(c, rows(func(d, _ float64) float64 { return math.Min(d, clamp(d)) }, 0), set), "GMPO-FORM", "left out of the minimum")
	requireName(t, stage.Judge(c, rows(right, 6), set), "RATIO-MEAN-PADS", "padded width")
	after := byRows(func(d []float64, a float64) []float64 {
		return slices.Repeat([]float64{-a * math.Exp(clamp(meanOf(d)))}, len(d))
	})
	requireName(t, stage.Judge(c, after, set), "GMPO-FORM", "the mean of the log-ratios is clipped")
}

// One advantage for all rows, which a mean over them leaves.
func TestAdvantageOfAllRows(t *testing.T) {
	set := clippedLoss(t)
	b := updated(func(float64, float64) float64 { return 0 })
	var mean float64
	for _, a := range b.Row("advantages") {
		mean += a / float64(b.Rows)
	}
	b = perTokenOf(b, "token_loss", func(lp, old, _ float64) float64 {
		r := math.Exp(lp - old)
		return math.Max(-mean*r, -mean*math.Max(0.8, math.Min(r, 1.28)))
	})
	requireName(t, stage.Judge(stage.Find("token_loss/policy"), b, set), "ADV-BROADCAST", "the mean of those")
}

// One bound of the log-ratios that nobody declares gives no other function of the ratio, though each token alone is within its reach; a gate of bounded
// log-ratios is within it.
func TestReachOfOneBound(t *testing.T) {
	set := clippedLoss(t, "loss.kind", "sapo", "sapo.tau_pos", "1", "sapo.tau_neg", "1.05")
	names := []string{"ratio.log_clamp", "loss.off_policy_max", "loss.top_entropy"}
	judged := func(of func(d float64) float64) *stage.Outcome {
		return stage.Judge(stage.Find("token_loss/policy"), perTokenOf(updated(func(float64, float64) float64 { return 0 }), "token_loss", func(lp, old, a float64) float64 {
			tau := 1.05
			if a > 0 {
				tau = 1
			}
			return -a * 4 / tau / (1 + math.Exp(-tau*of(lp-old)))
		}), set)
	}
	require.True(t, stage.OutOfReach(judged(func(d float64) float64 { return d - 0.1*d*d*d }), names))
	require.False(t, stage.OutOfReach(judged(func(d float64) float64 { return math.Expm1(math.Max(-0.137, math.Min(d, 0.137))) }), names))
}
