package rl

import "math"

// ClipFracKind is which tokens count as clipped. It is the option metric.clip_frac.
type ClipFracKind int

const (
	ClipFracBinding ClipFracKind = iota // the clipped term is the larger one: TRL PPO, verl, OpenRLHF, NeMo-RL
	ClipFracOutside                     // ρ outside the bounds, whatever the sign of A: CleanRL
	ClipFracLower                       // the dual clip is on: verl's pg_clipfrac_lower
)

var clipFracKinds = enumeration[ClipFracKind]("metric.clip_frac", "binding", "outside", "lower")

func (k ClipFracKind) String() string { return clipFracKinds.text(k) }

// ParseClipFracKind reads a value of metric.clip_frac.
func ParseClipFracKind(s string) (ClipFracKind, error) { return clipFracKinds.parse(s) }

// Clipped stores in dst, 1 or 0, whether a token counts as clipped:
//
//	binding  −A·clip(ρ) > −A·ρ, before any dual clip
//	outside  ρ < 1 − Low or ρ > 1 + High
//	lower    A < 0 and max(−A·ρ, −A·clip(ρ)) > −A·Dual
//
// A clip fraction is the [MaskedMean] of dst; TRL's low and high fractions are those of binding where A < 0 and A > 0. All
// slices have one length; a nil dst is allocated.
//
// Source: verl 0.9.1, OpenRLHF 0.11.2, TRL 1.16.0, pinned by the golden section policy_loss; CleanRL 020cf0e5 ppo.py.
func Clipped(dst, ratio, adv []float64, kind ClipFracKind, o ClipOptions) []float64 {
	need(len(ratio) == len(adv), badLength)
	need(clipFracKinds.has(kind), badOption)
	dst = output(dst, len(ratio))
	lo, hi := o.bounds()
	for i, r := range ratio {
		a := adv[i]
		u, c := float64(-a*r), float64(-a*max(min(r, hi), lo))
		var on bool
		switch kind {
		case ClipFracBinding:
			on = c > u
		case ClipFracOutside:
			on = r < lo || r > hi
		case ClipFracLower:
			on = a < 0 && max(u, c) > float64(-a*o.Dual)
		}
		dst[i] = 0
		if on {
			dst[i] = 1
		}
	}
	return dst
}

// ApproxKL returns the mean over the true cells of an estimate of KL(old‖π), with x = old − lp clamped to ±logClamp nats
// (0 means none), Σ k·m/(Σm + eps):
//
//	k1  x                  verl and OpenRLHF ppo_kl, CleanRL old_approx_kl
//	k2  ½x²                OAI and TRL PPO approxkl
//	k3  e^{−x} − 1 + x     CleanRL approx_kl
//
// NaN for an empty mask. A nil mask takes every cell: TRL PPO averages over padding, too. Other kinds panic.
func ApproxKL(lp, old []float64, mask []bool, kind KLKind, logClamp, eps float64) float64 {
	need(len(lp) == len(old) && (mask == nil || len(mask) == len(lp)), badLength)
	need(kind == KLK1 || kind == KLK2 || kind == KLK3, badOption)
	o := KLOptions{Kind: kind, ClampIn: logClamp, ClampAll: true}
	var sum, n float64
	for i, x := range old {
		if mask == nil || mask[i] {
			k, _, _ := o.at(x-lp[i], 1)
			sum += k
			n++
		}
	}
	if n == 0 {
		return math.NaN()
	}
	return sum / (n + eps)
}

// ExplainedVariance returns 1 − Var(R − V)/Var(R) over the true cells, variances with ddof 0 about the masked means. It is
// NaN where Var(R) is 0 or the mask is empty, as in CleanRL 020cf0e5 ppo.py and verl's vf_explained_var.
func ExplainedVariance(values, returns []float64, mask []bool) float64 {
	need(len(values) == len(returns) && (mask == nil || len(mask) == len(values)), badLength)
	var n, mr, me float64
	for i, r := range returns {
		if mask == nil || mask[i] {
			n++
			mr += r
			me += r - values[i]
		}
	}
	mr, me = mr/n, me/n
	var vr, ve float64
	for i, r := range returns {
		if mask == nil || mask[i] {
			d, e := r-mr, r-values[i]-me
			vr += float64(d * d)
			ve += float64(e * e)
		}
	}
	if !(vr > 0) {
		return math.NaN()
	}
	return 1 - ve/vr
}
