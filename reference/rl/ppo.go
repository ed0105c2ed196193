package rl

import "math"

// ClipOptions are the bounds of a clipped surrogate. With Low = High = +Inf nothing is clipped; the zero value clips to 1.
type ClipOptions struct {
	Low  float64 // clip.low: the lower bound is 1 − Low
	High float64 // clip.high: the upper bound is 1 + High

	HighAbsolute bool    // clip.high_is_absolute: the upper bound is High itself (CISPO of TRL and Liger)
	Dual         float64 // clip.dual, c > 1: for A < 0 the loss is at most −A·c; 0 means none. verl 3, NeMo-RL's recipe 10
	Delta        float64 // clip.delta: bounds ρ of the unclipped term from above, for every sign of A; 0 means none. TRL
}

// NoClip clips nothing: the plain importance-sampled loss.
var NoClip = ClipOptions{Low: math.Inf(1), High: math.Inf(1)}

// bounds returns the interval that the ratio is clipped to.
func (o *ClipOptions) bounds() (lo, hi float64) {
	if o.HighAbsolute {
		return 1 - o.Low, o.High
	}
	return 1 - o.Low, 1 + o.High
}

// PPO stores in loss the clipped surrogate of every cell and in dratio its derivative with respect to the ratio:
//
//	ℓ = max(−A·min(ρ, δ), −A·clip(ρ, 1 − Low, 1 + High));   for A < 0 with a dual clip c: min(ℓ, −A·c)
//
// All slices have one length; nil loss and dratio are allocated.
//
// The derivative is that of torch 2.15: a clamp passes nothing on its bound, and where the two operands of a maximum or
// minimum are equal each passes half. Inside the bounds the halves add up to −A; at ρ exactly on a bound −A/2 is left.
// A NaN ratio or advantage gives a NaN derivative.
//
// Source: Schulman et al. 2017, Eq. 7; dual clip Ye et al. 2020, Eq. 5. The golden section policy_loss pins verl 0.9.1,
// OpenRLHF 0.11.2, TRL 1.16.0 and Liger 0.8.5.
func PPO(loss, dratio, ratio, adv []float64, o ClipOptions) (l, d []float64) {
	need(len(ratio) == len(adv), badLength)
	loss, dratio = output(loss, len(ratio)), output(dratio, len(ratio))
	for i, r := range ratio {
		loss[i], dratio[i] = o.ppo(r, adv[i])
	}
	return loss, dratio
}

// ppo is one cell of [PPO].
func (o *ClipOptions) ppo(ratio, adv float64) (loss, dratio float64) {
	lo, hi := o.bounds()
	r, dr := ratio, -adv
	if o.Delta > 0 && !(ratio < o.Delta) {
		r, dr = min(ratio, o.Delta), 0
	}
	c, dc := max(min(ratio, hi), lo), -adv
	if !(lo < ratio && ratio < hi) {
		dc = 0
	}
	loss, dratio = greater(float64(-adv*r), dr, float64(-adv*c), dc)
	if o.Dual > 0 && adv < 0 {
		loss, dratio = greater(-loss, -dratio, float64(adv*o.Dual), 0)
		loss, dratio = -loss, -dratio
	}
	return loss, dratio
}

// greater returns the larger of a and b and its derivative, half of each where they are equal, NaN where either is NaN.
func greater(a, da, b, db float64) (x, dx float64) {
	switch {
	case a > b:
		return a, da
	case b > a:
		return b, db
	case a == b:
		return a, float64(da/2) + float64(db/2)
	}
	nan := float64(a) + float64(b)
	return nan, nan
}
