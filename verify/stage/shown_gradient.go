package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// gradientForms proposes what the gradient of a policy loss shows where the losses of its tokens were not dumped: the bounds that ratios stop at, and
// a KL term, and before these the gate of SAPO, score functions and the surrogates of rows.
func gradientForms(b *dump.Batch) (lists [][]assign) {
	if b.Token("token_loss") != nil {
		return nil
	}
	lists = slices.Concat(sapoGates(b), scoreForms(b), rowForms(b), gradientWeights(b))
	if clips := gradientClips(b, nil, nil); len(clips) > 0 {
		lists = append(lists, clips)
	}
	for _, kl := range klSlopes(b) {
		lists = append(lists, append(kl.list, gradientClips(b, &kl, nil)...))
	}
	return lists
}

// rareGradients proposes the KL of OpenRLHF's unbiased_gradient, whose weight has a cap that only ratios above it show. Where the KL is 0 it is any
// other, so that it is searched after all others.
func rareGradients(b *dump.Batch) [][]assign {
	if b.Token("logp_ref") == nil {
		return nil
	}
	list := []assign{word("kl.place", "loss"), word("kl.grad", "straight_through_k2"), word("kl.is_cap", "10")}
	if b.Token("token_loss") == nil {
		list = append(list, gradientClips(b, nil, nil)...)
	}
	return [][]assign{list}
}

// RareGradients returns what no profile has by itself of the KL under a gradient, as [Shown] does: its own slip leaves no numbers that show it.
func RareGradients(b *dump.Batch, set *convention.Set) [][]Change {
	return openOf(rareGradients(b), set)
}

// gradientClips proposes the bounds of a clipped surrogate of tokens, whose gradient is −w·A·ρ, and 0 beyond its bounds: for A > 0 above 1 + high,
// for A < 0 below 1 − low and above the dual clip, beside the slope of a KL term if one is given. What is below a quarter of it counts as 0, since a
// KL term may stand beside it; w is the median of a row, which shares its weight under every aggregation. Advantages are times weights if some are given.
func gradientClips(b *dump.Batch, kl *klSlope, weights []float64) (list []assign) {
	lp, old, g := b.Token("logp_new"), b.Token("logp_old"), b.Token("dlogp")
	adv := NewCase(b, &convention.Set{}, 0).Optional("advantages").X
	if lp == nil || old == nil || g == nil || adv == nil {
		return nil
	}
	if weights != nil {
		adv = slices.Clone(adv)
		for i, w := range weights {
			adv[i] *= w
		}
	}
	type side struct{ kept, cut float64 }
	if kl == nil {
		kl = &klSlope{slope: make([]float64, len(g))}
	}
	high, low, dual := side{0, math.Inf(1)}, side{math.Inf(1), 0}, side{0, math.Inf(1)}
	for r := range b.Rows {
		var q []float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if x := g[i] / (kl.slope[i] - adv[i]*math.Exp(lp[i]-old[i])); b.Mask[i] && x > 0 && !math.IsInf(x, 0) {
				q = append(q, x)
			}
		}
		w := middle(q, 2)
		if kl.w != nil {
			w = kl.w[r]
		}
		for i := r * b.Cols; i < (r+1)*b.Cols && !math.IsNaN(w); i++ {
			if !b.Mask[i] || adv[i] == 0 {
				continue
			}
			rho := math.Exp(lp[i] - old[i])
			x := (kl.slope[i] - g[i]/w) / (adv[i] * rho)
			kept, cut := x > 0.5 && x < 2, math.Abs(x) < 0.25
			s, up := &high, true
			switch {
			case adv[i] < 0 && rho > 1:
				s = &dual
			case adv[i] < 0:
				s, up = &low, false
			}
			switch {
			case kept && up:
				s.kept = max(s.kept, rho)
			case kept:
				s.kept = min(s.kept, rho)
			case cut && up:
				s.cut = min(s.cut, rho)
			case cut:
				s.cut = max(s.cut, rho)
			}
		}
	}
	between := func(option string, lo, hi float64) {
		if lo < hi && lo >= 0 && !math.IsInf(lo, 0) && !math.IsInf(hi, 0) {
			list = append(list, amount(option, shortest(lo, hi, (lo+hi)/2)))
		}
	}
	between("clip.high", max(high.kept-1, 0), high.cut-1)
	if low.cut > 0 && !math.IsInf(low.kept, 0) {
		between("clip.low", 1-low.kept, 1-low.cut)
	}
	between("clip.dual", max(dual.kept, 1), dual.cut)
	if len(list) > 0 && math.IsInf(dual.cut, 1) {
		list = append(list, word("clip.dual", "none"))
	}
	return list
}
