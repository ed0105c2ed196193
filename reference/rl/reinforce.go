package rl

import "math"

// Reinforce stores in loss the score-function loss of every cell, ℓ = −w·A·lp, and in dlp its derivative −w·A with respect
// to lp: the weight w and the advantage A are constants. All slices have one length; nil loss and dlp are allocated, a nil
// weight is 1.
//
// It is the loss of REINFORCE and verl's gpg (w = 1 or an engine-mismatch weight, [ISWeights]), of CISPO ([CISPOWeight]),
// of DPPO ([DPPOWeight]) and of VESPO ([VESPOWeight]).
//
// Source: Williams 1992; verl 0.9.1 compute_policy_loss_reinforce and _gpg, pinned by the golden section policy_loss.
func Reinforce(loss, dlp, lp, adv, weight []float64) (l, d []float64) {
	need(len(lp) == len(adv) && (weight == nil || len(weight) == len(lp)), badLength)
	loss, dlp = output(loss, len(lp)), output(dlp, len(lp))
	for i, x := range lp {
		g := -adv[i]
		if weight != nil {
			g = float64(weight[i] * g)
		}
		loss[i], dlp[i] = float64(g*x), g
	}
	return loss, dlp
}

// CISPOWeight stores in dst the detached weight of CISPO, the ratio clipped to [1 − Low, 1 + High], or with HighAbsolute to
// [1 − Low, High]:
//
//	verl           Low, High               1 ± ε
//	TRL, Liger     Low = +Inf, HighAbsolute    ε_high is the cap itself
//	open-instruct  Low = +Inf              1 + ε_high
//
// A nil dst is allocated; dst may alias ratio.
//
// Source: MiniMax-M1, arXiv 2506.13585, Eq. 4 and 5.
func CISPOWeight(dst, ratio []float64, o ClipOptions) []float64 {
	dst = output(dst, len(ratio))
	lo, hi := o.bounds()
	for i, r := range ratio {
		dst[i] = max(min(r, hi), lo)
	}
	return dst
}

// DPPODivergence is the divergence that DPPO bounds.
type DPPODivergence int

const (
	DPPOTV DPPODivergence = iota // p − q, total variation of one token against the rest
	DPPOKL                       // KL of the two-point distributions (q, 1−q) and (p, 1−p)
)

// DPPOWeight stores in dst the detached weight of DPPO, min(ρ, limit) where the update keeps inside the trust region, else 0.
// With p = e^lp and q = e^old:
//
//	tv  keeps A > 0 with p − q ≤ High, and A ≤ 0 with p − q ≥ −Low
//	kl  keeps A > 0 with D ≤ High or p ≤ q, and A ≤ 0 with D ≤ Low or p ≥ q,
//	    D = q(old − lp) + (1 − q)·ln((1 − q + 1e-8)/(1 − p + 1e-8))
//
// All slices have one length; a nil dst is allocated. limit is verl's clip_ratio_c, 3.
//
// Source: verl 0.9.1 compute_policy_loss_dppo_tv and _dppo_kl, pinned by the golden section policy_loss.
func DPPOWeight(dst, ratio, lp, old, adv []float64, div DPPODivergence, limit float64, o ClipOptions) []float64 {
	n := len(ratio)
	need(len(lp) == n && len(old) == n && len(adv) == n, badLength)
	need(div == DPPOTV || div == DPPOKL, badOption)
	dst = output(dst, n)
	for i, r := range ratio {
		p, q := math.Exp(lp[i]), math.Exp(old[i])
		var keep bool
		switch {
		case div == DPPOTV && adv[i] > 0:
			keep = p-q <= o.High
		case div == DPPOTV:
			keep = p-q >= -o.Low
		default:
			d := float64(q*(old[i]-lp[i])) + float64((1-q)*math.Log((1-q+1e-8)/(1-p+1e-8)))
			if adv[i] > 0 {
				keep = d <= o.High || p <= q
			} else {
				keep = d <= o.Low || p >= q
			}
		}
		dst[i] = 0
		if keep {
			dst[i] = min(r, limit)
		}
	}
	return dst
}

// VESPOOptions are the shapes of VESPO's gamma weight for A ≥ 0 and for A < 0; TRL has k 2 and 3, λ 3 and 2.
type VESPOOptions struct {
	KPos, LambdaPos, KNeg, LambdaNeg float64
}

// VESPODefaults are TRL's and Liger's defaults.
var VESPODefaults = VESPOOptions{KPos: 2, LambdaPos: 3, KNeg: 3, LambdaNeg: 2}

// VESPOWeight stores in dst, rows×cols, the detached weight of VESPO, with W the importance weight of the whole row:
//
//	φ = W^k·exp(λ(1 − W)),   ln W = clamp(Σ clamp(lp − old, ±20)·m + Σ clamp(ln w, ln 1e-8, 20)·m, ln 1e-8, 20)
//
// k and λ by the sign of the cell's advantage, w the engine-mismatch weights of the tokens ([ISWeights]); nil: 1. A nil mask takes
// every cell, a nil dst is allocated.
//
// Source: TRL 1.16.0 get_gamma_weights and Liger 0.8.5, pinned by the golden section policy_loss; TRL sums ln w over the row without
// the mask, outside of which its weights are 1.
func VESPOWeight(dst, lp, old, adv, weight []float64, mask []bool, rows, cols int, o VESPOOptions) []float64 {
	checkGrid(rows, cols, mask, lp, old, adv)
	need(weight == nil || len(weight) == rows*cols, badLength)
	dst = output(dst, rows*cols)
	for r := range rows {
		var s float64
		for i := r * cols; i < (r+1)*cols; i++ {
			if mask == nil || mask[i] {
				s += max(min(lp[i]-old[i], 20), -20)
				if weight != nil {
					s += max(min(math.Log(weight[i]), 20), math.Log(1e-8))
				}
			}
		}
		s = max(min(s, 20), math.Log(1e-8))
		w := math.Exp(s)
		for i := r * cols; i < (r+1)*cols; i++ {
			k, lambda := o.KPos, o.LambdaPos
			if adv[i] < 0 {
				k, lambda = o.KNeg, o.LambdaNeg
			}
			dst[i] = math.Exp(lambda + float64(k*s) - float64(lambda*w))
		}
	}
	return dst
}

// DRO stores in loss the direct reward optimisation loss of every cell and in dlp its derivative with respect to lp:
//
//	ℓ = −A·lp + ½β(lp − old)²,   ∂ℓ/∂lp = −A + β(lp − old)
//
// All slices have one length; nil loss and dlp are allocated.
//
// Source: Richemond et al. 2024 (DRO); verl 0.9.1 compute_policy_loss_dro, pinned by the golden section policy_loss.
func DRO(loss, dlp, lp, old, adv []float64, beta float64) (l, d []float64) {
	need(len(lp) == len(old) && len(lp) == len(adv), badLength)
	loss, dlp = output(loss, len(lp)), output(dlp, len(lp))
	for i, x := range lp {
		k := x - old[i]
		loss[i] = float64(0.5*beta*k*k) - float64(x*adv[i])
		dlp[i] = float64(beta*k) - adv[i]
	}
	return loss, dlp
}
