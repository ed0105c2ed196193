package golden

import (
	"math"

	"plumbline/reference/rl"
)

// metrics returns what the frameworks log beside the loss, by their names. l is r under leak.
func (p *policyCase) metrics(c *call, r, l *rl.PolicyResult, leak Leak) []answer {
	switch c.e.Peer {
	case "verl":
		return p.verlMetrics(r)
	case "openrlhf":
		return p.openrlhfMetrics(c, r)
	}
	return p.trlMetrics(c, r, l, leak)
}

// logged is a metric, which entries need not have.
func logged(output string, x float64) answer {
	a := plain(output, x)
	a.maybe = true
	return a
}

// excused is an output that is not compared.
func excused(output, why string) answer { return answer{output: output, excuse: why} }

// mean is the mean over the mask, with eps added to the number of cells; what no cell has is NaN.
func mean(x []float64, mask []bool, eps float64) float64 {
	m, _ := rl.MaskedMean(x, mask, rl.MeanOptions{Eps: eps, Outside: rl.OutsideIgnore}) // EmptyNaN has no error
	return m
}

// flags returns 1 where keep holds.
func (p *policyCase) flags(keep func(i int) bool) []float64 {
	x := make([]float64, len(p.batch.Adv))
	for i := range x {
		if keep(i) {
			x[i] = 1
		}
	}
	return x
}

// share is the mean over the mask of where keep holds.
func (p *policyCase) share(eps float64, keep func(i int) bool) float64 {
	return mean(p.flags(keep), p.batch.Mask, eps)
}

// verlMetrics: approximate KL of Δ bounded to ±20 where the loss bounds it, clip fractions with 1e-8 in the divisor.
func (p *policyCase) verlMetrics(r *rl.PolicyResult) []answer {
	const eps = 1e-8
	b, o := &p.batch, &p.opt
	approx := rl.ApproxKL(b.LogProbs, b.Old, b.Mask, rl.KLK1, 20, eps)
	free := rl.ApproxKL(b.LogProbs, b.Old, b.Mask, rl.KLK1, 0, eps)
	clipped := mean(rl.Clipped(nil, r.Ratio, b.Adv, rl.ClipFracBinding, o.Clip), b.Mask, eps)
	lower := 0.0
	switch o.Kind {
	case rl.LossPPO:
		lower = mean(rl.Clipped(nil, r.Ratio, b.Adv, rl.ClipFracLower, o.Clip), b.Mask, eps)
	case rl.LossDPPOTV, rl.LossDPPOKL: // the lower fraction is that of tokens in the trust region with a ratio over the limit, whatever A
		div := rl.DPPOTV
		if o.Kind == rl.LossDPPOKL {
			div = rl.DPPOKL
		}
		w := rl.DPPOWeight(nil, r.Ratio, b.LogProbs, b.Old, b.Adv, div, o.DPPOLimit, o.Clip)
		clipped = p.share(eps, func(i int) bool { return w[i] == 0 })
		lower = p.share(eps, func(i int) bool { return w[i] != 0 && r.Ratio[i] > o.DPPOLimit })
	case rl.LossGSPO, rl.LossDRO:
		approx = free
	case rl.LossSAPO:
		clipped = 0
	case rl.LossCISPO:
		w := rl.CISPOWeight(nil, r.Ratio, o.Clip)
		clipped = p.share(eps, func(i int) bool { return w[i] != r.Ratio[i] })
	case rl.LossClipCov:
		approx = free
		cov := rl.TokenCovariance(nil, b.LogProbs, b.Adv, b.Mask, o.Cov.MeanEps)
		drop := rl.ClipCovCandidates(nil, cov, r.Ratio, b.Adv, b.Mask, o.Clip, o.Cov)
		clipped = p.share(eps, func(i int) bool { return drop[i] })
	case rl.LossKLCov: // the mean of |old − lp|
		x := make([]float64, len(b.Adv))
		rl.KL(x, nil, b.Old, b.LogProbs, nil, rl.KLOptions{Kind: rl.KLAbs})
		approx = mean(x, b.Mask, eps)
	case rl.LossGMPO: // log-ratio outside the bounds on either side, split by the sign of the advantage
		approx = free
		outside := func(i int) bool { d := b.LogProbs[i] - b.Old[i]; return d < -o.GMPO.Low || d > o.GMPO.High }
		clipped = p.share(eps, func(i int) bool { return b.Adv[i] > 0 && outside(i) })
		lower = p.share(eps, func(i int) bool { return b.Adv[i] < 0 && outside(i) })
	}
	return []answer{logged("ppo_kl", approx), logged("pg_clipfrac", clipped), logged("pg_clipfrac_lower", lower)}
}

func (p *policyCase) openrlhfMetrics(c *call, r *rl.PolicyResult) []answer {
	b, o := &p.batch, &p.opt
	out := []answer{
		logged("clip_ratio", mean(rl.Clipped(nil, r.Ratio, b.Adv, rl.ClipFracBinding, o.Clip), b.Mask, 0)),
		logged("ppo_kl", rl.ApproxKL(b.LogProbs, b.Old, b.Mask, rl.KLK1, 0, 0)),
		excused("is_filter_ratio", "a metric of weights that the loss shows"),
	}
	if gen := c.e.In["rollout_log_prob"]; gen != nil {
		out = append(out, logged("vllm_kl", rl.ApproxKL(b.Old, gen.Data, b.Mask, rl.KLK1, 0, 0)))
	}
	return out
}

// trlMetrics: TRL takes means of flags over the tokens or, for sequence ratios, over rows, there in float32; the smallest
// and the largest of the means of the rows; Liger one fraction of tokens at every level, 0 for losses without a clip.
func (p *policyCase) trlMetrics(c *call, r, l *rl.PolicyResult, leak Leak) []answer {
	b, o := &p.batch, &p.opt
	out := []answer{
		leaking("policy_loss", []float64{r.Loss}, []float64{l.Loss}, leak), // before the entropy bonus
		logged("entropy_coef", c.numOr("entropy_coef", 0)),
		excused("vespo_phi_seq_mean", "a metric of a weight that the gradient shows"),
	}
	out[0].maybe = true
	if c.has("entropies") {
		if h := c.e.In["entropies"]; len(h.Data) == len(b.Mask) {
			out = append(out, logged("entropy", mean(h.Data, b.Mask, 0)))
		}
	} else {
		out = append(out, excused("entropy", "the entry does not hold the entropies"))
	}
	if o.KLBeta != 0 {
		kl, _ := rl.KL(nil, nil, b.LogProbs, b.Ref, nil, rl.KLOptions{Kind: o.KL.Kind})
		if o.KL.Grad == rl.KLISCorrected { // by the ratio of the loss, at its level
			for i := range kl {
				kl[i] = float64(r.Ratio[i] * kl[i])
			}
		}
		out = append(out, logged("kl", mean(kl, b.Mask, 0)))
	}
	if o.Kind == rl.LossCISPO {
		capped := p.share(0, func(i int) bool { return r.Ratio[i] > o.Clip.High && b.Adv[i] > 0 })
		return append(out, logged("cispo_clip_ratio", capped), logged("clip_fraction", capped))
	}
	ratio := func(i int) float64 {
		if o.Clip.Delta > 0 {
			return min(r.Ratio[i], o.Clip.Delta)
		}
		return r.Ratio[i]
	}
	low := p.flags(func(i int) bool { return ratio(i) < 1-o.Clip.Low && b.Adv[i] < 0 })
	high := p.flags(func(i int) bool { return ratio(i) > 1+o.Clip.High && b.Adv[i] > 0 })
	either := p.flags(func(i int) bool { return low[i]+high[i] > 0 })
	fraction := mean(rl.Clipped(nil, r.Ratio, b.Adv, rl.ClipFracBinding, o.Clip), b.Mask, 0)
	if o.Kind == rl.LossSAPO || o.Kind == rl.LossVESPO {
		fraction = 0
	}
	out = append(out, logged("clip_fraction", fraction))
	rows := o.Ratio.Level == rl.RatioSeqMean
	for _, m := range []struct {
		output string
		x      float64
	}{
		{"clip_ratio_low_mean", p.over(low, rows)}, {"clip_ratio_high_mean", p.over(high, rows)}, {"clip_ratio_region_mean", p.over(either, rows)},
		{"clip_ratio_low_min", p.furthest(low, rows, math.Min)}, {"clip_ratio_high_max", p.furthest(high, rows, math.Max)},
	} {
		a := relative(m.output, []float64{m.x}, u32, LeakFlags)
		if !rows {
			a = plain(m.output, m.x)
		}
		a.maybe = true
		out = append(out, a)
	}
	return out
}

// over is the mean of flags over the tokens, or over all rows, of which each has one flag.
func (p *policyCase) over(x []float64, rows bool) float64 {
	if rows {
		return mean(x, nil, 0)
	}
	return mean(x, p.batch.Mask, 0)
}

// furthest is the smallest or largest of the means over the rows that have tokens, or of the flags of all rows; NaN for
// none.
func (p *policyCase) furthest(x []float64, rows bool, pick func(a, b float64) float64) float64 {
	b := &p.batch
	best := math.NaN()
	for r := range b.Rows {
		lo, hi := r*b.Cols, (r+1)*b.Cols
		m := x[lo]
		if !rows {
			m = mean(x[lo:hi], b.Mask[lo:hi], 0)
		}
		switch {
		case m != m:
		case best != best:
			best = m
		default:
			best = pick(best, m)
		}
	}
	return best
}
