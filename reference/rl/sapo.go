package rl

import "math"

// SAPO stores in loss the soft-gated surrogate of every cell and in dratio its derivative with respect to the ratio:
//
//	ℓ = −A·(4/τ)·σ(τ(ρ − 1)),   ∂ℓ/∂ρ = −A·4σ(1 − σ),   τ = tauPos for A > 0, else tauNeg
//
// All slices have one length; nil loss and dratio are allocated. TRL, Liger and verl have the temperatures 1.0 and 1.05;
// TRL 1.16.0 rounds them to float32, so pass float64(float32(1.05)) to reproduce it.
//
// Source: Gao et al. 2025, Soft Adaptive Policy Optimization; the golden section policy_loss pins verl 0.9.1, TRL 1.16.0
// and Liger 0.8.5.
func SAPO(loss, dratio, ratio, adv []float64, tauPos, tauNeg float64) (l, d []float64) {
	need(len(ratio) == len(adv), badLength)
	need(tauPos > 0 && tauNeg > 0, badOption)
	loss, dratio = output(loss, len(ratio)), output(dratio, len(ratio))
	for i, r := range ratio {
		a, tau := adv[i], tauNeg
		if a > 0 {
			tau = tauPos
		}
		x := float64(tau * (r - 1))
		s, s1 := logistic(x), logistic(-x) // s1 = 1 − σ without cancellation
		loss[i] = -a * 4 / tau * s
		dratio[i] = -a * 4 * s * s1
	}
	return loss, dratio
}

// logistic returns 1/(1 + e^{−x}) without overflow.
func logistic(x float64) float64 {
	if x >= 0 {
		return 1 / (1 + math.Exp(-x))
	}
	e := math.Exp(x)
	return e / (1 + e)
}
