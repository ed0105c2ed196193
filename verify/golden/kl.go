package golden

import (
	"math"
	"strings"

	"plumbline/reference/rl"
)

// KL judges estimators of KL(π‖ref), their gradients, and OpenRLHF's per-token reward.
var KL = kl.check()

var kl = &section{
	name:  "kl",
	title: "KL estimators and their gradients are those of the frameworks",
	doc: `Recomputes k1 = d, k2 = ½d², k3 = e^{−d} − 1 + d and |d| for d = lp − ref with each framework's clamps and kind of gradient,
and OpenRLHF's reward per token. Compares values and ∂KL/∂lp. At a clamp that float32 reaches and float64 does not, the
gradient may be either side's. verl's kind full must be refused.`,
	source: "Schulman 2020, Approximating KL divergence; options kl.*; reference/rl KL, TokenRewards",
	functions: map[string]recompute{
		"verl kl_penalty":            verlKL,
		"openrlhf compute_approx_kl": openrlhfKL,
		"openrlhf compute_reward":    openrlhfReward,
		"liger k3_loss_fn(ref, logp)": func(c *call) []answer {
			lp, ref := logProbPair(c)
			o := c.estimator(trlGRPOProfile, native{{Name: "use_bias_correction_kl", Value: false}})
			if !c.ok() {
				return nil
			}
			value, grad := rl.KL(nil, nil, lp, ref, nil, o)
			return []answer{plain("kl", value...), plain("dkl_dlogp", grad...)}
		},
	},
	faults: klFaults,
}

// logProbPair reads the log-probs of policy and reference.
func logProbPair(c *call) (lp, ref []float64) {
	v := c.tensor("logp")
	return v.Data, c.shaped("ref_logp", v.Shape...)
}

// estimator is the options of an estimator of KL.
func (c *call) estimator(profile string, given native) rl.KLOptions {
	o := c.conventions(profile, given)
	k := o.KL()
	c.said(o)
	return k
}

// verlKL clamps k3 only; a trailing + puts the gradient of k2 in place of the estimator's own.
func verlKL(c *call) []answer {
	lp, ref := logProbPair(c)
	name, plus := strings.CutSuffix(c.text("kind"), "+")
	if name == "full" {
		return []answer{refused("kl", nil, errNotImplemented), {output: "dkl_dlogp", err: errNotImplemented, maybe: true}}
	}
	o := c.estimator(verlGRPOProfile, native{{Name: "use_kl_loss", Value: true}, {Name: "kl_loss_type", Value: c.text("kind")}})
	if !c.ok() {
		return nil
	}
	value, grad := rl.KL(nil, nil, lp, ref, nil, o)
	if plus && o.Kind != rl.KLK2 {
		straightThrough(value, lp, ref)
	}
	return []answer{plain("kl", value...), plain("dkl_dlogp", grad...)}
}

// straightThrough puts NaN where the gradient's ½d² is infinite: the frameworks add it to the value and take it off again.
func straightThrough(value, lp, ref []float64) {
	for i := range value {
		if math.IsInf(lp[i]-ref[i], 0) {
			value[i] = math.NaN()
		}
	}
}

// openrlhfReward is the per-token reward: a negative coefficient counts as 0, the score is clipped before it is placed.
func openrlhfReward(c *call) []answer {
	_, rows, cols := c.grid("action_mask")
	mask, score, kl := c.mask("action_mask", rows, cols), c.shaped("r", rows), c.shaped("kl", rows, cols)
	beta := c.value("kl_coef")
	lo, hi, clips := c.bounds("reward_clip_range")
	if !c.ok() {
		return nil
	}
	if clips {
		score = rl.ClipRewards(nil, score, lo, hi)
	}
	return []answer{plain("reward", rl.TokenRewards(nil, score, kl, mask, nil, rows, cols,
		rl.RewardOptions{Beta: max(beta, 0), KLEverywhere: true, EmptyLastColumn: true})...)}
}
