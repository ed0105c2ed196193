package rl

import (
	"cmp"
	"math"
	"slices"
)

// CovOptions selects the tokens that ClipCov leaves out and KLCov holds back.
type CovOptions struct {
	Lower, Upper float64 // clip_cov: candidates have a covariance strictly between; verl 1 and 5
	Fraction     float64 // kl_cov: the share of true cells held back, at least one; verl 2e-4
	Coef         float64 // kl_cov: the coefficient of |lp − old|; verl 1
	MeanEps      float64 // clip_cov: added to Σm in the means; verl 1e-8
}

// TokenCovariance stores in dst, for every cell, (A − mean A)·(lp − mean lp) with means over the true cells, Σxm/(Σm + eps).
// All slices have one length; a nil mask takes every cell, a nil dst is allocated. Masked cells hold a number that nobody reads.
//
// Source: Cui et al. 2025, The Entropy Mechanism of RL, Eq. 10.
func TokenCovariance(dst, lp, adv []float64, mask []bool, eps float64) []float64 {
	need(len(lp) == len(adv) && (mask == nil || len(mask) == len(lp)), badLength)
	dst = output(dst, len(lp))
	var n, a, l float64
	for i, x := range lp {
		if mask == nil || mask[i] {
			n++
			a += adv[i]
			l += x
		}
	}
	a, l = a/(n+eps), l/(n+eps)
	for i, x := range lp {
		dst[i] = float64((adv[i] - a) * (x - l))
	}
	return dst
}

// ClipCovCandidates stores in dst which tokens clip_cov may leave out of the loss: masked true, covariance strictly between
// Lower and Upper, and not clipped by the surrogate. verl drops a random share of them; with the share 1 all, so that this
// function alone decides. A nil dst is allocated.
//
// Source: verl 0.9.1 compute_policy_loss_clip_cov, pinned by the golden section policy_loss with the share 1.
func ClipCovCandidates(dst []bool, cov, ratio, adv []float64, mask []bool, clip ClipOptions, o CovOptions) []bool {
	n := len(cov)
	need(len(ratio) == n && len(adv) == n && (mask == nil || len(mask) == n), badLength)
	if dst == nil {
		dst = make([]bool, n)
	}
	need(len(dst) == n, badLength)
	lo, hi := clip.bounds()
	for i, c := range cov {
		clipped := float64(-adv[i]*max(min(ratio[i], hi), lo)) > float64(-adv[i]*ratio[i])
		dst[i] = (mask == nil || mask[i]) && !clipped && o.Lower < c && c < o.Upper
	}
	return dst
}

// KLCovSelect stores in dst which tokens kl_cov holds back: the max(1, ⌊Fraction·n⌋) of the n masked true cells with the
// largest covariance, the earlier cell where two are equal (verl's choice among equals is arbitrary). A nil dst is allocated.
//
// Source: verl 0.9.1 compute_policy_loss_kl_cov, pinned by the golden section policy_loss.
func KLCovSelect(dst []bool, cov []float64, mask []bool, o CovOptions) []bool {
	need(mask == nil || len(mask) == len(cov), badLength)
	if dst == nil {
		dst = make([]bool, len(cov))
	}
	need(len(dst) == len(cov), badLength)
	order := make([]int, 0, len(cov))
	for i := range cov {
		dst[i] = false
		if mask == nil || mask[i] {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(cov[j], cov[i]) })
	k := min(max(1, int(float64(len(order))*o.Fraction)), len(order))
	for _, i := range order[:k] {
		dst[i] = true
	}
	return dst
}

// KLCov stores in loss −A·ρ, plus Coef·|lp − old| where held is true, in dratio the derivative −A with respect to the ratio
// and in dlp Coef·sign(lp − old) of the held cells. All slices have one length; nil results are allocated.
//
// Source: as [KLCovSelect].
func KLCov(loss, dratio, dlp, ratio, lp, old, adv []float64, held []bool, coef float64) (l, dr, dl []float64) {
	n := len(ratio)
	need(len(lp) == n && len(old) == n && len(adv) == n && len(held) == n, badLength)
	loss, dratio, dlp = output(loss, n), output(dratio, n), output(dlp, n)
	for i, r := range ratio {
		a, d := adv[i], lp[i]-old[i]
		loss[i], dratio[i], dlp[i] = float64(-a*r), -a, 0
		if held[i] {
			loss[i] += float64(coef * math.Abs(d))
			switch {
			case d > 0:
				dlp[i] = coef
			case d < 0:
				dlp[i] = -coef
			}
		}
	}
	return loss, dratio, dlp
}
