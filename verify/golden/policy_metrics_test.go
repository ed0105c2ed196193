package golden_test

import (
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

// notCompared are the outputs that the reference has no number for, with the reason.
var notCompared = map[string]string{
	"clip_ratio_low_min":  "a minimum over processes, of one process's mean of a row statistic; a logging detail of TRL",
	"clip_ratio_high_max": "as clip_ratio_low_min",
	"entropy_coef":        "the option itself",
	"vespo_phi_seq_mean":  "a metric of TRL's weight, which the gradient already shows",
	"is_filter_ratio":     "a metric of OpenRLHF's weights, which the loss already shows",
}

// mean is the masked mean with the given eps.
func mean(t *testing.T, x []float64, mask []bool, eps float64) float64 {
	t.Helper()
	m, err := rl.MaskedMean(x, mask, rl.MeanOptions{Eps: eps, Outside: rl.OutsideIgnore})
	require.NoError(t, err)
	return m
}

// policyMetrics returns what the frameworks log beside the loss, by their names.
func policyMetrics(t *testing.T, e *entry, c *policyCase, r *rl.PolicyResult) map[string]float64 {
	t.Helper()
	b, o := &c.batch, &c.opt
	out := map[string]float64{}
	bind := rl.Clipped(nil, r.Ratio, b.Adv, rl.ClipFracBinding, o.Clip)
	where := func(keep func(i int) bool) []float64 {
		x := make([]float64, len(b.Adv))
		for i := range x {
			if keep(i) {
				x[i] = 1
			}
		}
		return x
	}
	switch e.Peer {
	case "verl":
		out["ppo_kl"] = rl.ApproxKL(b.LogProbs, b.Old, b.Mask, rl.KLK1, 20, 1e-8)
		out["pg_clipfrac"] = mean(t, bind, b.Mask, 1e-8)
		out["pg_clipfrac_lower"] = 0
		switch o.Kind {
		case rl.LossPPO:
			out["pg_clipfrac_lower"] = mean(t, rl.Clipped(nil, r.Ratio, b.Adv, rl.ClipFracLower, o.Clip), b.Mask, 1e-8)
		case rl.LossDPPOTV, rl.LossDPPOKL: // the lower fraction is that of A < 0 with a ratio over the limit
			div := rl.DPPOTV
			if o.Kind == rl.LossDPPOKL {
				div = rl.DPPOKL
			}
			w := rl.DPPOWeight(nil, r.Ratio, b.LogProbs, b.Old, b.Adv, div, o.DPPOLimit, o.Clip)
			out["pg_clipfrac"] = mean(t, where(func(i int) bool { return w[i] == 0 }), b.Mask, 1e-8)
			out["pg_clipfrac_lower"] = mean(t, where(func(i int) bool { return b.Adv[i] < 0 && r.Ratio[i] > o.DPPOLimit }), b.Mask, 1e-8)
		case rl.LossGSPO, rl.LossDRO:
			out["ppo_kl"] = rl.ApproxKL(b.LogProbs, b.Old, b.Mask, rl.KLK1, 0, 1e-8)
		case rl.LossSAPO:
			out["pg_clipfrac"] = 0
		case rl.LossCISPO:
			w := rl.CISPOWeight(nil, r.Ratio, o.Clip)
			out["pg_clipfrac"] = mean(t, where(func(i int) bool { return w[i] != r.Ratio[i] }), b.Mask, 1e-8)
		case rl.LossClipCov:
			out["ppo_kl"] = rl.ApproxKL(b.LogProbs, b.Old, b.Mask, rl.KLK1, 0, 1e-8)
			cov := rl.TokenCovariance(nil, b.LogProbs, b.Adv, b.Mask, o.Cov.MeanEps)
			drop := rl.ClipCovCandidates(nil, cov, r.Ratio, b.Adv, b.Mask, o.Clip, o.Cov)
			out["pg_clipfrac"] = mean(t, where(func(i int) bool { return drop[i] }), b.Mask, 1e-8)
		case rl.LossKLCov: // the mean of |old − lp|
			x := where(func(int) bool { return false })
			rl.KL(x, nil, b.Old, b.LogProbs, nil, rl.KLOptions{Kind: rl.KLAbs})
			out["ppo_kl"] = mean(t, x, b.Mask, 1e-8)
		case rl.LossGMPO: // log-ratio outside the bounds on either side, split by the sign of the advantage
			out["ppo_kl"] = rl.ApproxKL(b.LogProbs, b.Old, b.Mask, rl.KLK1, 0, 1e-8)
			outside := func(i int) bool { d := b.LogProbs[i] - b.Old[i]; return d < -o.GMPO.Low || d > o.GMPO.High }
			out["pg_clipfrac"] = mean(t, where(func(i int) bool { return b.Adv[i] > 0 && outside(i) }), b.Mask, 1e-8)
			out["pg_clipfrac_lower"] = mean(t, where(func(i int) bool { return b.Adv[i] < 0 && outside(i) }), b.Mask, 1e-8)
		}
	case "openrlhf":
		out["clip_ratio"] = mean(t, bind, b.Mask, 0)
		out["ppo_kl"] = rl.ApproxKL(b.LogProbs, b.Old, b.Mask, rl.KLK1, 0, 0)
		if gen, ok := e.In["rollout_log_prob"]; ok {
			out["vllm_kl"] = rl.ApproxKL(b.Old, gen.Data, b.Mask, rl.KLK1, 0, 0)
		}
	case "trl", "liger":
		low, high := bind, bind
		if o.Kind == rl.LossCISPO {
			capped := where(func(i int) bool { return r.Ratio[i] > o.Clip.High && b.Adv[i] > 0 })
			out["cispo_clip_ratio"] = mean(t, capped, b.Mask, 0)
			out["clip_fraction"] = out["cispo_clip_ratio"]
		} else {
			low = where(func(i int) bool { return r.Ratio[i] < 1-o.Clip.Low && b.Adv[i] < 0 })
			high = where(func(i int) bool { return r.Ratio[i] > 1+o.Clip.High && b.Adv[i] > 0 })
			flags := func(x []float64) float64 { return mean(t, x, b.Mask, 0) }
			if o.Ratio.Level == rl.RatioSeqMean { // one flag per row, rows without tokens included
				flags = func(x []float64) float64 { return mean(t, x, nil, 0) }
			}
			out["clip_ratio_low_mean"], out["clip_ratio_high_mean"] = flags(low), flags(high)
			out["clip_ratio_region_mean"] = flags(bind)
			out["clip_fraction"] = mean(t, bind, b.Mask, 0) // Liger: of tokens at every level, and 0 for losses without a clip
			if o.Kind == rl.LossSAPO || o.Kind == rl.LossVESPO {
				out["clip_fraction"] = 0
			}
		}
		if h, ok := e.In["entropies"]; ok {
			out["entropy"] = mean(t, h.Data, b.Mask, 0)
		}
		if o.KLBeta != 0 {
			kl, _ := rl.KL(nil, nil, b.LogProbs, b.Ref, b.Old, o.KL)
			out["kl"] = mean(t, kl, b.Mask, 0)
		}
		out["policy_loss"] = r.Loss // before the entropy bonus
	}
	return out
}
