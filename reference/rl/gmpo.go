package rl

import "math"

// GMPOOptions are the bounds of the geometric-mean surrogate.
type GMPOOptions struct {
	Low, High float64 // the token's log-ratio is clipped to [−Low, High] nats; verl's clip_ratio, TRL's experimental gmpo exp(±ε)
	LogClamp  float64 // bounds the log-ratio first; 0 means none; verl 20
	LenEps    float64 // added to the length of a row; verl 1e-8
}

// GMPO stores in loss, of length rows, the geometric-mean surrogate of every row and in dlp, rows×cols, the derivative of
// row r's loss with respect to its log-probs:
//
//	ℓ_r = −Ā·exp(Σ_t c_t·m / (n + LenEps)),   c = s·min(s·d, s·clip(d, −Low, High)),   s = sign A,   d = lp − old
//
// with Ā the mean of A over the row, Σ A·m/(n + LenEps), and n its true cells. Where A = 0, c is 0. The loss of a batch is
// the plain mean over all rows. Nil results are allocated, a nil mask takes every cell. At equality in the minimum each
// operand passes half, and a clamp nothing on its bound, as in [PPO].
//
// Source: Zhao et al. 2025 (GMPO), Eq. 4; verl 0.9.1 compute_policy_loss_geo_mean, pinned by the golden section policy_loss.
func GMPO(loss, dlp, lp, old, adv []float64, mask []bool, rows, cols int, o GMPOOptions) (l, d []float64) {
	checkGrid(rows, cols, mask, lp, old, adv)
	loss, dlp = output(loss, rows), output(dlp, rows*cols)
	for r := range rows {
		lo, hi := r*cols, (r+1)*cols
		var n, sum, a float64
		for i := lo; i < hi; i++ {
			if mask != nil && !mask[i] {
				dlp[i] = 0
				continue
			}
			c, dc := o.token(lp[i]-old[i], adv[i])
			n++
			a += adv[i]
			sum += c
			dlp[i] = dc
		}
		n += o.LenEps
		if n == 0 {
			n = 1 // a row without tokens: 0 below
		}
		loss[r] = float64(-a / n * math.Exp(sum/n))
		for i := lo; i < hi; i++ {
			if mask == nil || mask[i] {
				dlp[i] = float64(dlp[i] * loss[r] / n)
			}
		}
	}
	return loss, dlp
}

// token returns c and its derivative with respect to d.
func (o *GMPOOptions) token(d, a float64) (c, dc float64) {
	var s float64
	switch {
	case a > 0:
		s = 1
	case a < 0:
		s = -1
	}
	pass := 1.0
	if o.LogClamp > 0 {
		if !(-o.LogClamp < d && d < o.LogClamp) {
			pass = 0
		}
		d = max(min(d, o.LogClamp), -o.LogClamp)
	}
	k, dk := max(min(d, o.High), -o.Low), 1.0
	if !(-o.Low < d && d < o.High) {
		dk = 0
	}
	x, dx := greater(-s*d, -s, -s*k, -s*dk) // −min(s·d, s·k)
	return -s * x, -s * dx * pass
}
