package convention

// former returns the releases whose meaning later ones changed, without their values, a base before what is built on it. What a
// release did not have does not apply to it. Values with ! are those that its own functions gave in golden/releases.
func former() []*Profile {
	const grpo = "grpo"
	run := "run: the advantage statements and the loss of GRPOTrainer, cut out of the release"
	core := "run: masked statistics, advantages, KL, policy and value losses and their aggregation, each a function of core_algos"
	losses := "run: estimators of the experience maker, KL, policy and value losses, each a function of the release"
	list := []*Profile{
		{Name: "trl-grpo@0.14", Framework: "TRL", Release: "0.14.0", Algorithm: grpo, Notes: []string{
			"run: the KL, advantage and loss statements of GRPOTrainer.compute_loss, cut out of the release",
			"the loss is the mean over rows of the means over their tokens; its ratio is exp(lp − sg lp), which is 1 and not clipped",
			"log-probs are taken at temperature 1 whatever the sampling temperature is (0.9 by default), and without an attention mask",
			"rewards of several functions are summed without weights",
			"a row has its EOS or fills its width, so that none is empty: agg.empty_rows was not to be seen"}},
		{Name: "trl-grpo@0.16", Framework: "TRL", Release: "0.16.0", Algorithm: grpo, Base: "trl-grpo@0.14", Notes: []string{run,
			"the loss is the mean over the tokens of the micro-batch, and the Trainer divides by the accumulation steps",
			"ratio.old is stopgrad_new where num_iterations is 1, which is the default",
			"scale_rewards false sets adv.scale none"}},
		{Name: "trl-grpo@0.22", Framework: "TRL", Release: "0.22.2", Algorithm: grpo, Base: "trl-grpo@0.16", Notes: []string{run,
			"values are those of loss_type dapo, the default since this release; bnpo, grpo and dr_grpo divide by the accumulation steps",
			"0.22.0 and 0.22.1 divide by the standard deviation where scale_rewards is none and not where it is group: a bug (trl#3992), no meaning",
			"there is no engine weight before 0.23; groups have two rows or more"}},
		{Name: "trl-grpo@0.27", Framework: "TRL", Release: "0.27.2", Algorithm: grpo, Base: "trl-grpo@0.22", Notes: []string{run,
			"with use_vllm the policy term is multiplied by exp(Σ(old − gen)), which above 3 is 0; there is no lower bound",
			"the engine's log-probs are raw from a server before 0.27.1, else processed",
			"use_bias_correction_kl is false by default",
			"a group of one, which evaluation may have, gets 0"}},
		{Name: "trl-grpo@1.0", Framework: "TRL", Release: "1.0.0", Algorithm: grpo, Base: "trl-grpo@0.27", Notes: []string{run,
			"adds the losses luspo and vespo; what sapo, the clipped losses, KL, advantages and engine weights compute is that of trl-grpo@0.27"}},

		{Name: "verl-grpo@0.4", Framework: "verl", Release: "0.4.0", Algorithm: grpo, Notes: []string{core,
			"KL stands in the loss under use_kl_loss, in the reward under use_kl_in_reward; neither is the default",
			"the log-ratio is not bounded; k3 is bounded after exp only",
			"of a row without tokens seq-mean-token-mean makes NaN",
			"a group of one gives r/(1 + 9.5367e-7), since σ = 1 is a float32 tensor"}},
		{Name: "verl-grpo@0.4.1", Framework: "verl", Release: "0.4.1", Algorithm: grpo, Base: "verl-grpo@0.4", Notes: []string{core,
			"the log-ratio is bounded at ±20, and so is the exponent of k3; clip_cov and kl_cov are new"}},
		{Name: "verl-grpo@0.6", Framework: "verl", Release: "0.6.0", Algorithm: grpo, Base: "verl-grpo@0.4.1", Notes: []string{core,
			"masked sums select, so that NaN outside the mask stays there; gspo, engine weights and estimators with a trailing + are new",
			"ratio.old is stopgrad_new where a rollout is one mini-batch and one epoch",
			"the engine weight is off by default; its lower bound, where it is one of mask, is 1/threshold if it is not given",
			"means over rows count rows without tokens; seq-mean-token-sum-norm does not divide by the batch"}},
		{Name: "verl-ppo@0.4", Framework: "verl", Release: "0.4.0", Algorithm: "ppo", Notes: []string{core,
			"GAE runs through observation tokens; the squared error of the value loss has no factor ½",
			"KL stands in the token reward under use_kl_in_reward, in the loss under use_kl_loss; neither is the default",
			"of a row without tokens seq-mean-token-mean makes NaN"}},
		{Name: "verl-ppo@0.4.1", Framework: "verl", Release: "0.4.1", Algorithm: "ppo", Base: "verl-ppo@0.4", Notes: []string{core,
			"the value loss has its ½; the log-ratio is bounded at ±20, and so is the exponent of k3"}},
		{Name: "verl-ppo@0.6", Framework: "verl", Release: "0.6.0", Algorithm: "ppo", Base: "verl-ppo@0.4.1", Notes: []string{core,
			"GAE carries across observation tokens; masked sums select, so that NaN outside the mask stays there",
			"ratio.old is stopgrad_new where a rollout is one mini-batch and one epoch"}},

		{Name: "openrlhf-group@0.6", Framework: "OpenRLHF", Release: "0.6.2", Algorithm: grpo, Notes: []string{losses,
			"group_norm; rloo sets adv.center loo and adv.scale none, reinforce_baseline adv.scale none",
			"the policy loss is the mean over rows of the means over their tokens, and so is the KL loss; KL and log-ratio are not bounded",
			"of a row without tokens the loss makes NaN: agg.empty_rows was not to be seen",
			"0.6.0 and 0.6.1 take log-probs at temperature 1: a bug (OpenRLHF#857), no meaning"}},
		{Name: "openrlhf-group@0.10", Framework: "OpenRLHF", Release: "0.10.2", Algorithm: grpo, Base: "openrlhf-group@0.6", Notes: []string{losses,
			"means are over the tokens of the micro-batch, up to 0.10.2; what KL gives is bounded at ±10 for all kinds, what goes into it is not",
			"is_correction_type icepop sets tis.rule zero_outside, seq-mask-tis drops rows by their geometric mean; the weight is off by default"}},
		{Name: "openrlhf-group@0.10.3", Framework: "OpenRLHF", Release: "0.10.4", Algorithm: grpo, Base: "openrlhf-group@0.10", Notes: []string{losses,
			"sums are divided by the tokens of the whole batch, and the log-ratio is bounded at ±20, from 0.10.3 on; rows without tokens do not count"}},
		{Name: "openrlhf-ppo@0.6", Framework: "OpenRLHF", Release: "0.6.2", Algorithm: "ppo", Notes: []string{losses,
			"policy and value loss are means over rows of the means over their tokens",
			"the mean of whitening sums masked cells too, which are 0 after a response and not in a hole",
			"of a row without tokens the loss makes NaN: agg.empty_rows was not to be seen"}},
		{Name: "openrlhf-ppo@0.10", Framework: "OpenRLHF", Release: "0.10.2", Algorithm: "ppo", Base: "openrlhf-ppo@0.6", Notes: []string{losses,
			"means are over the tokens of the micro-batch, up to 0.10.2; what KL gives is bounded at ±10 for all kinds"}},
		{Name: "openrlhf-ppo@0.10.3", Framework: "OpenRLHF", Release: "0.10.4", Algorithm: "ppo", Base: "openrlhf-ppo@0.10", Notes: []string{losses,
			"sums are divided by the tokens of the whole batch, and the log-ratio is bounded at ±20, from 0.10.3 on; rows without tokens do not count"}},
	}
	for _, p := range list {
		p.Former = true
	}
	return list
}
