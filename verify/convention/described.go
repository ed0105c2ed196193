package convention

// described returns the profiles without their values, a base before what is built on it.
func described() []*Profile {
	const (
		ppo   = "ppo"
		grpo  = "grpo"
		rloo  = "rloo"
		ours  = "plumbline"
		trl19 = "1.10.0.dev0 f2cd57710"
		verl8 = "0.8.0.dev b178a3cd5"
	)
	read := "read, not run"
	defaults := "where a setting has a default, that default was read, not run; what was run is that the value gives the release's numbers"
	return []*Profile{
		{Name: "oai@2019", Framework: "lm-human-preferences", Release: "cbfd210", Algorithm: ppo, Notes: []string{read,
			"responses have the fixed length 24: there is no mask, means are over all cells",
			"kl.beta is the class default; the sentiment recipes start at 0.15 and adapt (target 6, horizon 1e4, n_steps the batch size)",
			"rewards are whitened before GAE, advantages after it, both inside the loss of a minibatch",
			"logp.temperature is 0.5 in one recipe"}},
		{Name: "nplus@2023", Framework: "lm-human-preference-details", Release: "07b81691", Algorithm: ppo, Base: "oai@2019", Notes: []string{read,
			"optim.kind is a flag, AdamTensorFlowStyle or torch's; the log-softmax is PyTorch's"}},
		{Name: "trl-ppo@1.9", Framework: "TRL", Release: trl19, Algorithm: ppo, Notes: []string{read,
			"the score stands at the token after the response if there is one, which is the first pad, else at the last token",
			"gae.hole none: V is 0 beyond the value mask, and V of the first pad is used",
			"eos.rule is off until missing_eos_penalty is set; it tests eos_token_id even where a custom stop token cut the row",
			"approxkl_avg, entropy_avg and val/ratio are means over padding too"}},
		{Name: "trl-ppo@1.12", Framework: "TRL", Release: "1.12.0", Algorithm: ppo, Base: "trl-ppo@1.9", Notes: []string{
			"run: masked statistics, and the rollout and minibatch statements of PPOTrainer.train; the rest is as read in trl-ppo@1.9", defaults,
			"the last release with a PPOTrainer",
			"the Bessel factor of whitening is float32: about 2e-8 relative",
			"both kl estimators, k1 and k3, were run"}},
		{Name: "verl-ppo@0.8", Framework: "verl", Release: verl8, Algorithm: ppo, Notes: []string{read,
			"KL stands in the token reward under use_kl_in_reward, in the loss under use_kl_loss; kl.beta is the coefficient of either",
			"agg.denominator: micro on the dp_actor path, global on the engine path; on the former agg.div_ga is true",
			"the clip fraction is taken before the dual clip",
			"dropout is on in update passes, off where log-probs are recorded",
			"seq-mean-token-sum-norm does not divide by the batch; k3+ raises"}},
		{Name: "verl-ppo@0.9", Framework: "verl", Release: "0.9.1", Algorithm: ppo, Base: "verl-ppo@0.8", Notes: []string{
			"run: masked statistics, GAE, KL, aggregation, policy and value losses, entropy; the rest is as read in verl-ppo@0.8", defaults,
			"whitened GAE raises on one token; the masked mean is biased by 1e-8/n",
			"seq-mean-token-sum-norm divides by the batch; k3+ works (gradient of k2); REINFORCE++ carries across holes",
			"dual clip was run with c = 1.5, 3 and 10; that 3 is the default and always on was read"}},
		{Name: "openrlhf-ppo@0.11", Framework: "OpenRLHF", Release: "0.11.2", Algorithm: ppo, Notes: []string{
			"run: masked statistics, GAE and whitening of the experience maker, KL, rewards, aggregation, policy and value losses, log-probs; the rest was read in 0.11.0 3c3be623", defaults,
			"k3 bounds its exponent at 10 before exp, which the commit read does not; k1 and k2 are bounded at the output only, where an input bound of 10 would change nothing",
			"KL and whitening statistics are float32",
			"compute_reward puts the score of an empty row in the last column",
			"eos.rule is scale under ProRL's stop_properly_penalty_coef"}},
		{Name: "nemo-ppo@7ea279a", Framework: "NeMo-RL", Release: "7ea279ab", Algorithm: ppo, Notes: []string{read + "; ppo_math_1B.yaml",
			"whitening is optional: its other options hold if whiten.scope is set to global",
			"agg.len_eps: 1e-8 is also added to the number of tokens or rows divided by",
			"value loss: 0.5·scale"}},
		{Name: "cleanrl@020cf0e", Framework: "CleanRL", Release: "020cf0e5", Algorithm: ppo, Notes: []string{read,
			"steps of an environment: rewards stand where they fall, the recursion is cut by the done flags of the environment, and the last value is V(next_obs)",
			"value.clip is the policy's ε"}},
		{Name: "tinier-ppo@d3ec1cf", Framework: "tinier-ppo-tutorial", Release: "d3ec1cf", Algorithm: ppo, Notes: []string{read}},
		{Name: "ppo-gsm8k@1", Framework: ours, Release: "1", Algorithm: ppo, Notes: []string{"ours: system C"}},

		{Name: "trl-grpo@1.9", Framework: "TRL", Release: trl19, Algorithm: grpo, Notes: []string{read,
			"values are those of loss_type dapo; the other loss types divide by the accumulation steps in train mode (agg.div_ga)",
			"ratio.old is stopgrad_new when generation and optimisation are aligned",
			"kl.grad is is_corrected under use_bias_correction_kl; scale_rewards batch and none set adv.scale",
			"masks are multiplied in before the KL term: off-policy sequence mask, entropy quantile, engine weight"}},
		{Name: "liger-grpo@ead96b6", Framework: "Liger-Kernel", Release: "ead96b61", Algorithm: grpo, Base: "trl-grpo@1.9", Notes: []string{read,
			"TRL's loss, fused; the cap of cispo is absolute",
			"luspo at token level differs from TRL's: it averages over all cells, masked ones included (seen in 0.8.5)"}},
		{Name: "trl-grpo@1.16", Framework: "TRL", Release: "1.16.0", Algorithm: grpo, Base: "trl-grpo@1.9", Notes: []string{
			"run: the advantage statements and _compute_loss of GRPOTrainer, and whole trainings with dumps; the rest is as read in trl-grpo@1.9", defaults,
			"use_bias_correction_kl is true by default: KL is (eˣ − x − 1)·r with gradient −r·x; kl.grad is naive when it is false",
			"at importance_sampling_level sequence, r is broadcast onto the KL term too",
			"dapo divides by num_items·accumulation/steps_per_generation, num_items over the generation batch, and by nothing more; grpo, bnpo and dr_grpo divide by the accumulation steps (agg.div_ga true)",
			"adv.singleton: a completion that is the only scorable one of its group gets 0, as do those that none could score",
			"nanstd and the temperatures of sapo are float32"}},
		{Name: "trl-rloo@1.9", Framework: "TRL", Release: trl19, Algorithm: rloo, Notes: []string{read,
			"kl.beta and dropout are the framework's general default",
			"the ratio is exp(Σlp − Σold), not normalised by length, and the loss a mean over sequences",
			"leave-one-out is over scorable completions; what a single one gets was not read"}},
		{Name: "trl-rloo@1.16", Framework: "TRL", Release: "1.16.0", Algorithm: rloo, Base: "trl-rloo@1.9", Notes: []string{
			"run: the advantage statements and _compute_loss of RLOOTrainer; the rest is as read in trl-rloo@1.9", defaults,
			"agg.div_ga: the transformers Trainer divides what compute_loss returns, a mean over the rows of a micro-batch, and a dump may have it before or after",
			"adv.std_of, ddof, eps and zero_std are those of normalize_advantages, which sets adv.scale batch_std",
			"a single scorable completion gets 0"}},
		{Name: "verl-grpo@0.8", Framework: "verl", Release: verl8, Algorithm: grpo, Notes: []string{read,
			"kl.beta is the framework's general default",
			"norm_adv_by_std_in_grpo false, Dr.GRPO, sets adv.scale none; rloo: adv.singleton raw, rloo_vectorized: zero",
			"a trailing + of the estimator sets kl.grad straight_through_k2",
			"advantages are multiplied by the response mask"}},
		{Name: "verl-grpo@0.9", Framework: "verl", Release: "0.9.1", Algorithm: grpo, Base: "verl-grpo@0.8", Notes: []string{
			"run: masked statistics, all group estimators, KL, aggregation, policy losses, entropy; the rest is as read in verl-grpo@0.8", defaults,
			"a group of one gives r/(1 + 9.5367e-7), since σ = 1 is a float32 tensor; grpo_vectorized is float32 throughout",
			"seq-mean-token-sum-norm divides by the batch; k3+ works (gradient of k2)"}},
		{Name: "openrlhf-group@0.11", Framework: "OpenRLHF", Release: "0.11.2", Algorithm: grpo, Notes: []string{
			"run: estimators of the experience maker, KL, rewards, aggregation, policy losses; the rest was read in 0.11.0 3c3be623", defaults,
			"group_norm; rloo sets adv.center loo and adv.scale none, dr_grpo and reinforce_baseline adv.scale none",
			"a group of one silently gives NaN when run; in the commit read, the configuration refuses it",
			"k3 bounds its exponent at 10 before exp",
			"the KL loss is a mean over tokens under policy_loss_type gspo too, whose policy loss is a mean over sequences",
			"unbiased_gradient sets kl.grad straight_through_k2"}},
		{Name: "open-instruct@e6c3044", Framework: "open-instruct", Release: "e6c3044a", Algorithm: grpo, Notes: []string{read,
			"adv.scale group_std under standard; adv.ddof and adv.eps are for that",
			"estimators are counted from zero: 2 is k3",
			"agg.denominator is token, or a constant"}},
		{Name: "nemo-grpo@7ea279a", Framework: "NeMo-RL", Release: "7ea279ab", Algorithm: grpo, Notes: []string{read + "; grpo_math_1B.yaml",
			"σ of the others comes from E[x²] − μ², times n/(n−1) with n = G − 1",
			"adv.zero_std is skip since #1519, kl.grad score_function since #2506"}},
		{Name: "nanogpt-grpo@1da2900", Framework: "nanogpt-grpo", Release: "1da2900", Algorithm: grpo, Notes: []string{read,
			"sampled at temperature 0.8, scored at 1",
			"equal groups keep the rounding of their mean over ε, with a warning"}},
		{Name: "grpo-mlm@1", Framework: ours, Release: "1", Algorithm: grpo, Notes: []string{"ours: system B",
			"sampled at temperature 0.8, scored at 1",
			"adv_scope group sets adv.scale group_std; agg.div_ga: by the micro-steps that were used"}},

		{Name: "recrl@0ce4bed", Framework: "recrl", Release: "0ce4bed", Algorithm: "shielded", Notes: []string{read,
			"the original of system A: sequence probabilities, prompt and padding included; KL is against the old policy"}},
		{Name: "shielded@1", Framework: ours, Release: "1", Algorithm: "shielded", Notes: []string{"ours: system A",
			"KL is against the same weights with the adapter off",
			"a response is one advantage for all its tokens; equal rewards give exactly 0"}},
	}
}
