package golden

import (
	"math"
	"slices"

	"plumbline/reference/rl"
)

// trlPolicy is TRL's GRPO loss and Liger's copy of it, with what TRL computes in float32.
func trlPolicy(c *call) []answer {
	p, weight, bonus := readTRL(c)
	if !c.ok() {
		return nil
	}
	leaked := *p
	switch {
	case p.opt.Kind == rl.LossSAPO && c.e.Peer == "trl": // torch.where makes a float32 tensor of the two
		leaked.opt.TauNeg = float64(float32(p.opt.TauNeg))
		return p.answers(c, bonus, &leaked, LeakTau)
	case weight != nil:
		leaked.batch.Weight = weight
		return p.answers(c, bonus, &leaked, LeakQuantile)
	}
	return p.answers(c, bonus, nil, "")
}

// readTRL maps TRL's GRPOTrainer and Liger's copy of it. The weights that it returns beside the case are those of a mask of
// high entropies whose quantile is a float32, nil without one.
func readTRL(c *call) (p *policyCase, weight []float64, bonus float64) {
	p = &policyCase{batch: policyBatch(c)}
	loss := c.text("loss_type")
	given := native{{Name: "loss_type", Value: loss}, {Name: "importance_sampling_level", Value: c.text("importance_sampling_level")},
		{Name: "epsilon", Value: c.numOr("epsilon_low", 0.2)}, {Name: "epsilon_high", Value: c.numOr("epsilon_high", 0.2)},
		{Name: "beta", Value: c.numOr("beta", 0)}, {Name: "use_bias_correction_kl", Value: c.flagOr("use_bias_correction_kl", false)},
		{Name: "use_liger_kernel", Value: c.e.Peer == "liger"}}
	delta := c.numOr("delta", math.Inf(1))
	if c.within("delta", delta, delta > 0, "more than 0"); !math.IsInf(delta, 1) {
		given.set("delta", delta)
	}
	if loss == "vespo" {
		given = append(given, native{{Name: "vespo_k_pos", Value: rl.VESPODefaults.KPos}, {Name: "vespo_lambda_pos", Value: rl.VESPODefaults.LambdaPos},
			{Name: "vespo_k_neg", Value: rl.VESPODefaults.KNeg}, {Name: "vespo_lambda_neg", Value: rl.VESPODefaults.LambdaNeg}}...)
	}
	steps, generation := c.numOr("current_gradient_accumulation_steps", 1), c.numOr("steps_per_generation", 1)
	if !c.flagOr("training", true) { // in evaluation a batch is neither split nor accumulated
		steps, generation = 1, 1
	}
	by := c.conventions(trlGRPOProfile, given)
	p.opt = by.PolicyWithKL()
	o := &p.opt
	o.Agg.Outside, o.Agg.Empty, o.Agg.Length = rl.OutsidePropagate, rl.EmptyZero, c.numOr("max_completion_length", 0)
	if by.Divides() {
		o.Agg.Steps = steps
	}
	if o.Agg.Kind == rl.AggToken && by.Word("agg.denominator") == "global" {
		o.Agg.Denominator, o.Agg.Tokens = rl.AggGlobal, max(c.scalar("num_items_in_batch"), 1)*steps/generation
	}
	if o.KLBeta != 0 {
		p.batch.Ref = c.shaped("ref_log_prob", p.batch.Rows, p.batch.Cols)
	}
	c.said(by)
	weight = p.trlWeights(c)
	bonus = p.entropyBonus(c, steps)
	if loss == "vespo" && p.batch.Weight != nil {
		c.undetermined("vespo with weights: the engine's enter its gate")
	}
	return p, weight, bonus
}

// trlWeights reads what multiplies the policy term: importance weights of the engine, or one of two masks. It returns the
// weights that the mask of high entropies has with its quantile in float32, nil for the others.
func (p *policyCase) trlWeights(c *call) (leaked []float64) {
	b := &p.batch
	weights := 0
	engine, corrected := c.flagOr("use_vllm", false), c.flagOr("vllm_importance_sampling_correction", false)
	c.ignore("vllm") // Liger's: that the weights are there
	for _, key := range []string{"importance_sampling_ratio", "vllm_is_ratio"} {
		if c.has(key) && (key == "vllm_is_ratio" || engine && corrected) {
			b.Weight = c.shaped(key, b.Rows, b.Cols)
			weights++
		}
	}
	if engine && corrected && weights == 0 {
		c.malformed("input importance_sampling_ratio is missing")
	}
	if top := c.numOr("top_entropy_quantile", 1); top != 1 {
		c.within("top_entropy_quantile", top, top >= 0 && top <= 1, "0 to 1")
		entropies := c.shaped("entropies", b.Rows, b.Cols)
		if c.ok() {
			b.Weight, leaked = rl.HighEntropyMask(nil, entropies, b.Mask, top), entropyMask32(entropies, b.Mask, top)
		}
		weights++
	}
	if threshold := c.numOr("off_policy_mask_threshold", 0); c.e.Options["off_policy_mask_threshold"] != nil {
		if c.ok() {
			b.Weight = rl.OffPolicyMask(nil, b.LogProbs, b.Old, b.Adv, b.Mask, b.Rows, b.Cols, threshold)
		}
		weights++
	}
	if weights > 1 {
		c.undetermined("more than one of importance weights, top_entropy_quantile and off_policy_mask_threshold")
	}
	return leaked
}

// entropyMask32 is rl.HighEntropyMask with the quantile of entropies rounded to float32, interpolated in float32: a token
// whose entropy is the quantile falls on either side of it.
func entropyMask32(entropy []float64, mask []bool, top float64) []float64 {
	var kept []float32
	for i, h := range entropy {
		if mask[i] {
			kept = append(kept, float32(h))
		}
	}
	dst := make([]float64, len(entropy))
	if len(kept) == 0 {
		return dst
	}
	slices.Sort(kept)
	rank := float32(1-top) * float32(len(kept)-1)
	lo := min(max(int(rank), 0), len(kept)-1)
	hi := min(lo+1, len(kept)-1)
	threshold := float64(kept[lo] + float32((rank-float32(lo))*(kept[hi]-kept[lo])))
	for i, h := range entropy {
		if mask[i] && h >= threshold {
			dst[i] = 1
		}
	}
	return dst
}

// entropyBonus returns −coef times the mean entropy of the tokens, 0 where it is off.
func (p *policyCase) entropyBonus(c *call, steps float64) float64 {
	on, coef := c.flagOr("_entropy_bonus_enabled", false), c.numOr("entropy_coef", 0)
	if c.flagOr("use_adaptive_entropy", false) {
		c.undetermined("use_adaptive_entropy true")
	}
	if !on {
		return 0
	}
	entropies := c.shaped("entropies", p.batch.Rows, p.batch.Cols)
	if c.numOr("top_entropy_quantile", 1) != 1 {
		c.undetermined("entropy bonus with top_entropy_quantile")
	}
	if !c.ok() {
		return 0
	}
	bonus, _, err := rl.EntropyBonus(nil, entropies, p.batch.Mask, p.batch.Rows, p.batch.Cols, coef,
		rl.AggOptions{Steps: steps, Empty: rl.EmptyZero})
	if err != nil {
		c.undetermined("entropy bonus: %v", err)
	}
	return bonus
}
