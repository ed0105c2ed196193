package rl

import "math"

// AdaptKL returns the next KL coefficient of the adaptive controller:
//
//	β · (1 + clip(kl/target − 1, −0.2, 0.2) · steps/horizon)
//
// kl is the observed mean KL per sequence; steps is the batch size (OpenAI), its rows (verl) or batch × samples per prompt
// (OpenRLHF). It panics unless target and horizon are positive; a NaN kl gives NaN.
//
// It implements Ziegler et al. 2019 (arXiv 1909.08593) as in OpenAI's AdaptiveKLController.
func AdaptKL(beta, kl, target, horizon, steps float64) float64 {
	need(target > 0 && horizon > 0, badOption)
	e := math.Min(math.Max(kl/target-1, -0.2), 0.2)
	return float64(beta * (1 + float64(e*steps/horizon)))
}
