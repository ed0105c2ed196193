package stage

import (
	"maps"
	"math"
	"slices"

	"plumbline/verify/tol"
)

// AgainstSign reports whether token losses break the law of their sign, which no loss.kind and no number of a configuration changes. Where
// the ratios of a row are all 1, whatever level they are taken at, no clip bound acts, and with the advantage A and the weight w ≥ 0 of the
// engine a policy loss is
//
//	0             of tokens and rows that are left out
//	−c·A·w        of losses of the ratio (PPO, GSPO, GMPO, SAPO, LUSPO, clip_cov, kl_cov), c > 0
//	−c·A·w·logp   of losses of the log-probability (REINFORCE, CISPO, VESPO, DPPO, DRO), c > 0 the same for a sign of A
//
// It is broken where a loss has the sign of A, and its quotients by −A·w·logp, logp < 0, are not one number: 50 % apart, more than what
// roundings to bfloat16 make of three factors, and than what a weight does that was not dumped. The fault is ADV-SIGN where all such losses are A·w, else "".
func AgainstSign(c *Case) (fault string, broken bool) {
	const least = 8 // cells that break it
	b := c.B
	lp, adv, loss := b.Token("logp_new"), c.Optional("advantages").X, b.Token("token_loss")
	if lp == nil || adv == nil || loss == nil || !c.withoutKL() && (b.Tensors["kl"] != nil || b.Tensors["logp_ref"] != nil) {
		return "", false
	}
	weight := c.Optional("is_weights").X
	old, gen := b.Token("logp_old"), b.Token("logp_gen")
	n, exact := 0, true
	lo, hi := [2]float64{math.Inf(1), math.Inf(1)}, [2]float64{}
	for r := range b.Rows {
		from, to := r*b.Cols, (r+1)*b.Cols
		one, apart := true, 0.0
		for i := from; i < to; i++ {
			if b.Mask[i] {
				one = one && (old == nil || lp[i] == old[i])
				if gen != nil {
					apart += math.Abs(gen[i] - lp[i])
				}
			}
		}
		if weight == nil && apart > 0.2 { // a weight that was not dumped, of whatever level, is within e^±0.2 elsewhere
			continue
		}
		for i := from; i < to && one; i++ {
			w := 1.0
			if weight != nil {
				w = weight[i]
			}
			if !b.Mask[i] || !(loss[i]*adv[i] > 0) || !(lp[i] < 0) || !(w > 0) {
				continue
			}
			n++
			exact = exact && math.Abs(loss[i]-adv[i]*w) <= 1e-3*math.Abs(adv[i]*w)
			side, q := 0, math.Abs(loss[i]/(adv[i]*w*lp[i]))
			if adv[i] < 0 {
				side = 1
			}
			lo[side], hi[side] = min(lo[side], q), max(hi[side], q)
		}
	}
	if n < least || !(hi[0] > 1.5*lo[0] || hi[1] > 1.5*lo[1]) {
		return "", false
	}
	if exact {
		fault = "ADV-SIGN"
	}
	return fault, true
}

// GradientAgainstSign reports whether the gradient of a policy loss breaks the law of its sign. Where the ratios of a row are all 1, every loss of
// [AgainstSign] has, with c > 0 of the row,
//
//	∂loss/∂logp = −c·A·w
//
// and nothing beside it is one number times A. It is broken where the gradient of every such row, of either sign of A or with an A that varies, is
// +c·A·w for all its tokens, to 1e-3: a row whose quotients differ, as a KL term or a weight that was not dumped makes them, says nothing.
func GradientAgainstSign(c *Case) bool {
	const least = 16 // cells that break it
	b := c.B
	lp, adv, g := b.Token("logp_new"), c.Optional("advantages").X, b.Token("dlogp")
	if len(lp) != len(b.Mask) || len(adv) != len(b.Mask) || len(g) != len(b.Mask) || Grid(g) > tol.U32 {
		return false
	}
	weight, old := c.Optional("is_weights").X, b.Token("logp_old")
	cells, sides := 0, map[bool]bool{}
	for r := range b.Rows {
		var quotients []float64
		one, up := true, map[bool]bool{}
		lo, hi := math.Inf(1), 0.0 // of the sizes of its advantages
		for i := range b.TokensOf(r) {
			one = one && (old == nil || lp[i] == old[i])
			if a := adv[i] * weightOr1(weight, i); a != 0 && g[i] != 0 {
				quotients = append(quotients, g[i]/a)
				up[adv[i] > 0] = true
				lo, hi = min(lo, math.Abs(a)), max(hi, math.Abs(a))
			}
		}
		if !one || len(quotients) < 2 || math.Abs(slices.Max(quotients)-slices.Min(quotients)) > 1e-3*math.Abs(quotients[0]) {
			continue
		}
		if quotients[0] < 0 {
			return false
		}
		cells += len(quotients)
		if maps.Copy(sides, up); hi > 1.1*lo { // what is a multiple of advantages that vary within a row is no other term of one sign
			sides[true], sides[false] = true, true
		}
	}
	return cells >= least && len(sides) == 2
}

// weightOr1 is a weight of the engine, 1 where none was dumped.
func weightOr1(weight []float64, i int) float64 {
	if i < len(weight) {
		return weight[i]
	}
	return 1
}
