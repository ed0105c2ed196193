package convention

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A row says what one object of options sets; facts follow a bar.
func TestDeclare(t *testing.T) {
	for _, c := range []struct{ framework, text, want string }{
		// TRL GRPO: every loss type of the release
		{"trl-grpo", `{"loss_type":"bnpo"}`, "loss.kind=ppo agg.kind=token agg.denominator=micro agg.div_ga=true"},
		{"trl-grpo", `{"loss_type":"dr_grpo","max_completion_length":64}`, "loss.kind=ppo agg.kind=seq_sum_const agg.denominator=micro agg.empty_rows=counted agg.div_batch=true agg.div_ga=true | max_completion_length=64"},
		{"trl-grpo", `{"loss_type":"cispo","epsilon_high":5}`, "loss.kind=cispo clip.high=5 clip.high_is_absolute=true agg.kind=token agg.denominator=global agg.div_ga=false"},
		{"trl-grpo", `{"loss_type":"sapo","sapo_temperature_pos":1.5,"sapo_temperature_neg":2}`, "loss.kind=sapo sapo.tau_pos=1.5 sapo.tau_neg=2 agg.kind=seq_mean_token_mean agg.denominator=micro agg.empty_rows=counted agg.len_eps=0 agg.div_ga=true"},
		{"trl-grpo", `{"loss_type":"vespo","vespo_k_pos":2,"vespo_lambda_pos":3,"vespo_k_neg":3,"vespo_lambda_neg":2}`, "loss.kind=vespo vespo.k_pos=2 vespo.lambda_pos=3 vespo.k_neg=3 vespo.lambda_neg=2 agg.kind=token agg.denominator=global agg.div_ga=false"},
		{"trl-grpo", `{"loss_type":"luspo","importance_sampling_level":"sequence"}`, "loss.kind=luspo ratio.level=seq_mean ratio.len_eps=0 agg.kind=seq_mean_token_sum agg.denominator=micro agg.empty_rows=counted agg.div_ga=true"},
		{"trl-grpo", `{"loss_type":"luspo","use_liger_kernel":true}`, "loss.kind=luspo agg.kind=luspo agg.div_ga=true"},
		// null is None; epsilon alone is both bounds
		{"trl-grpo", `{"epsilon":0.3,"epsilon_high":null,"delta":null}`, "clip.low=0.3 clip.high=0.3 clip.delta=none"},
		{"trl-grpo", `{"epsilon":0.3}`, "clip.low=0.3 clip.high=0.3"},
		{"trl-grpo", `{"epsilon_high":null}`, ""},
		{"trl-grpo", `{"delta":4}`, "clip.delta=4"},
		{"trl-grpo", `{"beta":0}`, "kl.beta=0"},
		{"trl-grpo", `{"beta":0.1,"use_bias_correction_kl":false}`, "kl.beta=0.1 kl.place=loss kl.grad=naive"},
		{"trl-grpo", `{"scale_rewards":true}`, "adv.scale=group_std"},
		{"trl-grpo", `{"scale_rewards":"batch"}`, "adv.scale=batch_std adv.std_of=rewards"},
		{"trl-grpo", `{"scale_rewards":false}`, "adv.scale=none"},
		{"trl-grpo", `{"scale_rewards":"batch","multi_objective_aggregation":"normalize_then_sum"}`, "adv.multi=normalize_then_sum"},
		{"trl-grpo", `{"entropy_coef":0.01,"use_adaptive_entropy":true}`, "| use_adaptive_entropy=true"},
		{"trl-grpo", `{"max_grad_norm":0,"lr_scheduler_type":"linear","optim":"adamw_torch_fused","adam_epsilon":1e-8,"disable_dropout":true}`, "dropout=off optim.kind=adamw optim.schedule=linear optim.eps=1e-8 optim.clip_norm=none"},
		{"trl-grpo", `{"eos_token_id":[2,7],"pad_token_id":null,"reward_weights":null}`, "| eos_token_id=2,7"},
		{"trl-grpo", `{"use_vllm":true,"vllm_importance_sampling_correction":true,"loss_type":"vespo","vllm_importance_sampling_mode":"sequence_mask"}`, "loss.kind=vespo agg.kind=token agg.denominator=global agg.div_ga=false | use_vllm=true vllm_importance_sampling_mode=sequence_mask"},
		{"trl-grpo", `{"align":"unshifted","scalars_scope":"micro_batch","masked_fill":null}`, "align=full_unshifted | scalars_scope=micro_batch"},
		// engine weights
		{"trl-grpo", `{"use_vllm":false,"vllm_importance_sampling_correction":true,"vllm_importance_sampling_mode":"token_mask"}`, "tis.level=none"},
		{"trl-grpo", `{"use_vllm":true,"vllm_importance_sampling_correction":false,"vllm_importance_sampling_mode":"token_mask"}`, "tis.level=none | use_vllm=true"},
		{"trl-grpo", `{"use_vllm":true,"vllm_mode":"colocate","vllm_importance_sampling_correction":true,"vllm_importance_sampling_mode":"sequence_mask","vllm_importance_sampling_clip_min":null,"vllm_importance_sampling_clip_max":3}`,
			"tis.level=seq_sum tis.rule=zero_outside tis.gate=ratio tis.low=none tis.high=3 logp.source=processed | use_vllm=true"},
		{"trl-grpo", `{"use_vllm":true,"vllm_importance_sampling_correction":true,"vllm_importance_sampling_mode":"token_truncate","vllm_importance_sampling_cap":2}`, "tis.level=token tis.rule=clamp tis.gate=ratio tis.high=2 | use_vllm=true"},
		{"trl-grpo", `{"use_vllm":true,"vllm_importance_sampling_correction":true,"vllm_importance_sampling_mode":"token_mask","loss_type":"vespo"}`,
			"loss.kind=vespo agg.kind=token agg.denominator=global agg.div_ga=false tis.level=token tis.rule=zero_outside tis.gate=ratio | use_vllm=true"},

		{"trl-grpo", `{"use_vllm":true,"vllm_importance_sampling_correction":true,"vllm_importance_sampling_mode":"token_mask","vllm_importance_sampling_clip_min":0.5,"vllm_importance_sampling_clip_max":null}`, "tis.level=token tis.rule=zero_outside tis.gate=ratio tis.low=0.5 tis.high=none | use_vllm=true"},
		{"trl-grpo", `{"use_vllm":true,"vllm_importance_sampling_correction":true,"vllm_importance_sampling_mode":"sequence_truncate"}`, "tis.level=seq_sum tis.rule=clamp tis.gate=ratio | use_vllm=true"},
		{"trl-grpo", `{"use_vllm":true,"vllm_importance_sampling_mode":"token_truncate"}`, "tis.level=token tis.rule=clamp tis.gate=ratio | use_vllm=true"}, // the correction is on unless it is switched off
		{"trl-grpo", `{"optim":"paged_adamw_8bit","cast_lm_head_to_fp32":true,"min_p":0.1,"repetition_penalty":1.1,"use_vllm":false,"vllm_mode":"colocate"}`, "logp.dtype=fp32 tis.level=none optim.kind=adam8bit | min_p=0.1 repetition_penalty=1.1"},

		{"trl-rloo", `{"beta":0,"epsilon":0.2,"epsilon_high":0.3,"advantage_eps":0.0001,"use_vllm":true,"vllm_mode":"colocate","optim":"sgd"}`, "adv.eps=1e-4 kl.beta=0 clip.low=0.2 clip.high=0.3 logp.source=processed optim.kind=sgd | use_vllm=true"},
		{"trl-rloo", `{"beta":0.05,"epsilon":0.2,"normalize_advantages":true,"reward_clip_range":[-5,5],"temperature":0.9,"num_generations":4}`,
			"reward.clip=before_baseline reward.clip_range=-5,5 adv.scale=batch_std adv.std_of=centred kl.beta=0.05 kl.place=sequence_reward_before_baseline clip.low=0.2 clip.high=0.2 logp.temperature=0.9 | num_generations=4"},
		{"trl-rloo", `{"normalize_advantages":false,"reward_clip_range":null}`, "reward.clip=none reward.clip_range=none adv.scale=none"},
		{"trl-ppo", `{"kl_coef":0.05,"kl_estimator":"k3","cliprange":0.2,"cliprange_value":0.3,"vf_coef":0.1,"gamma":1.0,"lam":0.95,"whiten_rewards":true,"missing_eos_penalty":1.0,"temperature":0.7,"num_ppo_epochs":4,"response_length":53,"num_mini_batches":2}`,
			`rewards.whiten=shift_mean_false eos.rule=subtract eos.penalty=1 eos.test=eos_id gae.gamma=1 gae.lambda=0.95 kl.kind=k3 kl.beta=0.05 kl.place=token_reward clip.low=0.2 clip.high=0.2
			value.clip=0.3 value.coef=0.1 logp.temperature=0.7 logp.temp_eps=1e-7 optim.epochs=4 | max_completion_length=53 num_iterations=4 num_mini_batches=2`},
		{"trl-ppo", `{"missing_eos_penalty":null,"whiten_rewards":false,"kl_coef":0}`, "rewards.whiten=no eos.penalty=none kl.beta=0"},

		// verl, under short names, under those of the tree, and as overrides
		{"verl", `{"clip_ratio":0.2}`, "clip.low=0.2 clip.high=0.2"},
		// the critic has a reduction of its own
		{"verl", `{"actor_rollout_ref":{"actor":{"loss_agg_mode":"seq-mean-token-sum"}},"critic":{"loss_agg_mode":"token-mean"}}`, "agg.kind=seq_mean_token_sum value.agg=token"},
		{"verl", `{"actor_rollout_ref":{"actor":{"loss_agg_mode":"seq-mean-token-sum"}},"critic":{"loss_agg_mode":"seq-mean-token-sum"}}`, "agg.kind=seq_mean_token_sum value.agg=same"},
		{"verl", `{"clip_ratio":0.3}`, ""}, // 0.2 of clip_ratio_low goes before it
		{"verl", `{"clip_ratio":0.3,"clip_ratio_low":null,"clip_ratio_high":0.28}`, "clip.low=0.3 clip.high=0.28"},
		{"verl", `{"actor_rollout_ref.actor.clip_ratio_low":0.2,"++actor_rollout_ref.actor.clip_ratio_high":0.28,"actor.clip_ratio_c":10}`, "clip.low=0.2 clip.high=0.28 clip.dual=10"},
		{"verl", `{"actor_rollout_ref":{"actor":{"loss_agg_mode":"seq-mean-token-sum-norm","loss_scale_factor":4096,"optim":{"lr":1e-6,"clip_grad":1}},"rollout":{"n":5,"temperature":0.9}}}`,
			"agg.kind=seq_sum_const agg.div_batch=true logp.temperature=0.9 optim.lr=1e-6 optim.clip_norm=1 | loss_scale_factor=4096 num_generations=5"},
		{"verl", `{"loss_agg_mode":"token-mean"}`, "agg.kind=token"},
		{"verl", `{"loss_agg_mode":"token-sum"}`, "agg.kind=token_sum"},
		{"verl", `{"loss_agg_mode":"seq-mean-token-sum"}`, "agg.kind=seq_mean_token_sum"},
		{"verl", `{"loss_agg_mode":"seq-mean-token-mean"}`, "agg.kind=seq_mean_token_mean agg.len_eps=1e-8"},
		{"verl", `{"loss_agg_mode":"token-mean","policy_loss.loss_mode":"sapo","tau_pos":1,"tau_neg":1.05}`, "loss.kind=sapo sapo.tau_pos=1 sapo.tau_neg=1.05 clip.dual=none agg.kind=seq_mean_token_mean agg.len_eps=1e-8 kl.agg=token value.agg=token"},
		{"verl", `{"loss_mode":"gspo","loss_agg_mode":"token-mean","clip_ratio_c":3}`, "ratio.level=seq_mean ratio.log_clamp=none ratio.seq_log_max=10 ratio.len_eps=0 ratio.grad=token loss.kind=gspo clip.dual=none agg.kind=token"},
		{"verl", `{"loss_mode":"dppo_kl","clip_ratio_c":20}`, "loss.kind=dppo_kl clip.dual=none dppo.limit=20"},
		{"verl", `{"loss_mode":"clip_cov","clip_cov_ratio":0.0002,"kl_cov_ratio":0.1,"clip_cov_lb":1,"clip_cov_ub":5}`, "ratio.log_clamp=none loss.kind=clip_cov clip.dual=none cov.lower=1 cov.upper=5 cov.fraction=2e-4"},
		{"verl", `{"loss_mode":"kl_cov","kl_cov_ratio":0.1,"ppo_kl_coef":1}`, "ratio.log_clamp=none loss.kind=kl_cov clip.dual=none cov.fraction=0.1 cov.coef=1"},
		{"verl", `{"loss_mode":"geo_mean","loss_agg_mode":"token-mean"}`, "ratio.log_clamp=none loss.kind=gmpo clip.dual=none agg.kind=token kl.agg=token value.agg=token"},
		{"verl", `{"rollout_n":4}`, "| num_generations=4"}, {"verl", `{"actor.rollout_n":"${oc.select:actor_rollout_ref.rollout.n,1}"}`, ""},
		{"verl", `{"loss_mode":"geo_mean"}`, "ratio.log_clamp=none loss.kind=gmpo clip.dual=none"},
		{"verl", `{"loss_mode":"dro","dro_beta":0.5}`, "loss.kind=dro clip.dual=none dro.beta=0.5"},
		{"verl", `{"loss_mode":"cispo"}`, "loss.kind=cispo clip.high_is_absolute=false clip.dual=none"},
		{"verl", `{"loss_mode":"gpg"}`, "loss.kind=reinforce clip.dual=none"},
		{"verl", `{"adv_estimator":"grpo","norm_adv_by_std_in_grpo":false,"use_kl_in_reward":false,"use_kl_loss":true,"kl_loss_coef":0.001,"kl_loss_type":"low_var_kl"}`,
			"adv.kind=group adv.center=mean adv.scale=none adv.ddof=1 adv.eps=1e-6 adv.singleton=raw kl.kind=k3 kl.beta=1e-3 kl.place=loss kl.grad=naive"},
		{"verl", `{"adv_estimator":"grpo","norm_adv_by_std_in_grpo":true}`, "adv.kind=group adv.center=mean adv.scale=group_std adv.ddof=1 adv.eps=1e-6 adv.singleton=raw"},
		{"verl", `{"adv_estimator":"rloo_vectorized","norm_adv_by_std_in_grpo":true}`, "adv.kind=group adv.center=loo adv.scale=none adv.singleton=zero"},
		{"verl", `{"use_kl_loss":false,"kl_loss_coef":0.001,"kl_loss_type":"k2"}`, "kl.beta=0 kl.place=none"},
		{"verl", `{"use_kl_loss":true,"kl_loss_type":"k3+","kl_loss_coef":0.01}`, "kl.kind=k3 kl.beta=0.01 kl.place=loss kl.grad=straight_through_k2"},
		{"verl", `{"algorithm":{"adv_estimator":"gae","gamma":0.99,"lam":0.95,"use_kl_in_reward":true,"kl_penalty":"kl","kl_ctrl":{"type":"fixed","kl_coef":0.001}},"use_kl_loss":false,"cliprange_value":0.5}`,
			"gae.gamma=0.99 gae.lambda=0.95 adv.kind=gae kl.kind=k1 kl.beta=1e-3 kl.adaptive=none kl.place=token_reward value.clip=0.5"},
		{"verl", `{"rollout_is":"token","rollout_is_threshold":2.0,"rollout_is_batch_normalize":true,"rollout_rs":null,"bypass_mode":false}`, "tis.level=token tis.rule=truncate_upper tis.gate=ratio tis.low=none tis.high=2 tis.normalize=true"},
		{"verl", `{"rollout_is":"sequence","rollout_is_threshold":"0.5_5.0"}`, "tis.level=seq_sum tis.rule=zero_outside tis.gate=ratio tis.low=0.5 tis.high=5"},
		{"verl", `{"rollout_is_threshold":"2.0"}`, "tis.rule=truncate_upper tis.low=none tis.high=2"},
		{"verl", `{"rollout_is":"token","bypass_mode":true}`, "tis.level=none | algorithm.rollout_correction.bypass_mode=true"},
		{"verl", `{"rollout_is":null}`, "tis.level=none"},
		{"verl", `{"adv_estimator":"grpo_vectorized"}`, "adv.kind=group adv.center=mean adv.ddof=1 adv.eps=1e-6"},
		{"verl", `{"adv_estimator":"rloo"}`, "adv.kind=group adv.center=loo adv.scale=none adv.singleton=raw"},
		{"verl", `{"adv_estimator":"reinforce_plus_plus"}`, "adv.kind=rfpp rfpp.mode=return_to_go whiten.scope=global whiten.mask=response whiten.ddof=1 whiten.eps_place=inside_sqrt whiten.eps=1e-8 whiten.shift_mean=true whiten.remask=true"},
		{"verl", `{"adv_estimator":"reinforce_plus_plus_baseline"}`, "adv.kind=rfpp_baseline whiten.scope=global whiten.mask=response whiten.ddof=1 whiten.eps_place=inside_sqrt whiten.eps=1e-8 whiten.shift_mean=true whiten.remask=true"},
		{"verl", `{"adv_estimator":"grpo_passk","norm_adv_by_std_in_grpo":false}`, "adv.kind=passk adv.scale=none"},
		{"verl", `{"adv_estimator":"remax"}`, "adv.kind=remax"},
		{"verl", `{"adv_estimator":"opo"}`, "adv.kind=opo"},
		{"verl", `{"adv_estimator":"gpg"}`, "adv.kind=gpg"},
		{"verl", `{"adv_estimator":"optimal_token_baseline"}`, "adv.kind=optimal_token_baseline"},
		{"verl", `{"adv_estimator":"gdpo","gdpo_reward_weights":[1,2]}`, "| algorithm.adv_estimator=gdpo reward_weights=1,2"},
		{"verl", `{"use_kl_in_reward":true,"kl_penalty":"mse","kl_ctrl.kl_coef":0}`, "kl.kind=k2 kl.beta=0 kl.place=token_reward"},
		{"verl", `{"use_kl_in_reward":true,"kl_penalty":"low_var_kl","kl_ctrl.type":"adaptive","kl_ctrl.target_kl":0.1,"kl_ctrl.horizon":10000}`, "kl.kind=k3 kl.place=token_reward | algorithm.kl_ctrl.type=adaptive kl_horizon=1e4 kl_target=0.1"},
		{"verl", `{"use_kl_in_reward":true,"kl_penalty":"abs"}`, "kl.kind=abs kl.place=token_reward"},
		{"verl", `{"use_kl_loss":true,"kl_loss_type":"kl"}`, "kl.kind=k1 kl.place=loss kl.grad=naive"},
		{"verl", `{"use_kl_loss":true,"kl_loss_type":"k1+"}`, "kl.kind=k1 kl.place=loss kl.grad=straight_through_k2"},
		{"verl", `{"use_kl_loss":true,"kl_loss_type":"mse"}`, "kl.kind=k2 kl.place=loss kl.grad=naive"},
		{"verl", `{"use_kl_loss":true,"kl_loss_type":"k2+"}`, "kl.kind=k2 kl.place=loss kl.grad=straight_through_k2"},
		{"verl", `{"use_kl_loss":true,"kl_loss_type":"abs"}`, "kl.kind=abs kl.place=loss kl.grad=naive"},
		{"verl", `{"use_kl_loss":true,"kl_loss_type":"abs+"}`, "kl.kind=abs kl.place=loss kl.grad=straight_through_k2"},
		{"verl", `{"bypass_mode":true,"loss_mode":"bypass_mode","rollout_correction.loss_type":"ppo_clip"}`, "tis.level=none loss.kind=ppo | algorithm.rollout_correction.bypass_mode=true"},
		{"verl", `{"bypass_mode":true,"loss_mode":"bypass_mode","rollout_correction.loss_type":"reinforce","rollout_rs":"token_k1"}`, "loss.kind=reinforce | algorithm.rollout_correction.bypass_mode=true algorithm.rollout_correction.rollout_rs=token_k1"},
		{"verl", `{"actor.optim.optimizer":"AdamW","optim.lr_scheduler_type":"constant","rollout.logprobs_mode":"raw_logprobs","max_response_length":512,"ppo_micro_batch_size_per_gpu":4}`,
			"logp.source=raw optim.kind=adamw optim.schedule=constant | max_completion_length=512 per_device_train_batch_size=4"},

		// TRL's DPO and SFT, whose loss_type is no policy loss
		{"trl dpo", `{"loss_type":["sigmoid"],"loss_weights":null,"beta":0.1,"label_smoothing":0.2,"f_divergence_type":"reverse_kl","f_alpha_divergence_coef":0.5,"max_length":64}`,
			"dpo.loss=sigmoid dpo.beta=0.1 dpo.divergence=reverse_kl dpo.per_token=false dpo.logp_mean=false dpo.label_smoothing=0"},
		{"trl dpo", `{"loss_type":"ipo","beta":0.3,"f_divergence_type":"js_divergence"}`, "dpo.loss=ipo dpo.beta=0.3 dpo.divergence=js dpo.per_token=true dpo.logp_mean=false"},
		{"trl dpo", `{"loss_type":["robust"],"beta":0.2,"label_smoothing":0.1,"discopop_tau":0.05}`, "dpo.loss=robust dpo.beta=0.2 dpo.per_token=false dpo.logp_mean=false dpo.tau=0.05 dpo.label_smoothing=0.1"},
		{"trl dpo", `{"loss_type":"discopop","discopop_tau":0.1,"label_smoothing":0.1,"f_divergence_type":"forward_kl"}`, "dpo.loss=discopop dpo.divergence=forward_kl dpo.per_token=false dpo.logp_mean=false dpo.tau=0.1 dpo.label_smoothing=0"},
		{"trl dpo", `{"loss_type":["sigmoid","sft"],"loss_weights":[1,0.5],"label_smoothing":0.1}`, "dpo.loss=sigmoid dpo.mix=none dpo.per_token=false dpo.logp_mean=false dpo.nll_weight=0.5 dpo.label_smoothing=0"},
		{"trl dpo", `{"loss_type":["sigmoid","bco_pair","sft"],"loss_weights":[0.8,0.2,1]}`, "dpo.loss=– dpo.mix=0.8*sigmoid+0.2*bco_pair dpo.per_token=– dpo.logp_mean=false dpo.nll_weight=1"},
		{"trl dpo", `{"loss_type":["sigmoid_norm","ipo"],"loss_weights":null,"label_smoothing":0.1}`, "dpo.loss=– dpo.mix=1*sigmoid_norm+1*ipo_norm dpo.per_token=– dpo.logp_mean=false dpo.nll_weight=0 dpo.label_smoothing=0"},
		{"trl dpo", `{"loss_type":["sigmoid","aot"],"label_smoothing":0.1}`, "dpo.loss=– dpo.mix=1*sigmoid+1*aot dpo.per_token=– dpo.logp_mean=false dpo.nll_weight=0 dpo.label_smoothing=0.1"},
		{"trl dpo", `{"loss_type":"sigmoid","f_divergence_type":"alpha_divergence","f_alpha_divergence_coef":0.7}`, "dpo.loss=sigmoid dpo.divergence=alpha dpo.per_token=false dpo.alpha=0.3 dpo.logp_mean=false"},
		{"trl dpo", `{"loss_type":"sigmoid","f_divergence_type":"alpha_divergence","f_alpha_divergence_coef":1.5}`, "dpo.loss=sigmoid dpo.divergence=alpha dpo.per_token=false dpo.alpha=-0.5 dpo.logp_mean=false"},
		{"trl dpo", `{"loss_type":"sigmoid","f_divergence_type":"alpha_divergence","f_alpha_divergence_coef":1}`, "dpo.loss=sigmoid dpo.divergence=reverse_kl dpo.per_token=false dpo.logp_mean=false"},
		{"trl-sft", `{"loss_type":"nll","packing":true,"max_length":128}`, ""},

		// OpenRLHF, flags with and without dashes
		{"openrlhf", `{"--actor.eps_clip":0.2,"--actor.dual_clip":null,"--critic.value_clip":0.5}`, "clip.low=0.2 clip.high=0.2 clip.dual=none value.clip=0.5"},
		{"openrlhf", `{"eps_clip":0.2,"eps_clip_low_high":[0.2,0.27]}`, "clip.low=0.2 clip.high=0.27"},
		{"openrlhf", `{"eps_clip":0.1,"eps_clip_low_high":null}`, "clip.low=0.1 clip.high=0.1"},
		{"openrlhf", `{"algo.advantage.estimator":"group_norm","n_samples_per_prompt":8,"init_kl_coef":0.001,"use_kl_loss":true,"kl_estimator":"k2"}`,
			"adv.kind=group adv.center=mean adv.scale=group_std adv.ddof=1 adv.eps=1e-9 kl.kind=k2 kl.beta=1e-3 kl.place=loss | num_generations=8"},
		{"openrlhf", `{"algo":{"advantage":{"estimator":"gae","gamma":1,"lambd":0.95},"kl":{"init_coef":0.01,"use_loss":false,"target":null,"unbiased_gradient":true}}}`,
			"gae.gamma=1 gae.lambda=0.95 adv.kind=gae kl.beta=0.01 kl.adaptive=none kl.place=token_reward"},
		{"openrlhf", `{"use_kl_loss":true,"unbiased_gradient":true,"algo.kl.init_coef":0}`, "kl.beta=0 kl.place=loss kl.grad=straight_through_k2 kl.is_cap=10"},
		{"openrlhf", `{"advantage_estimator":"rloo","use_kl_loss":false,"gamma":0.9}`, "adv.kind=group adv.center=loo adv.scale=none kl.place=sequence_reward_after"},
		{"openrlhf", `{"advantage_estimator":"reinforce","gamma":0.9}`, "gae.gamma=0.9 gae.hole=zero_step adv.kind=rfpp rfpp.mode=return_to_go whiten.scope=global whiten.mask=response whiten.ddof=0 whiten.eps_place=floor_var whiten.eps=1e-8 whiten.shift_mean=true whiten.remask=false"},
		{"openrlhf", `{"policy_loss_type":"gspo","loss_agg_mode":"token-mean"}`, "ratio.level=seq_mean ratio.log_clamp=none ratio.len_eps=0 loss.kind=gspo agg.kind=seq_mean_token_mean"},
		{"openrlhf", `{"policy_loss_type":"ppo","loss_agg_mode":"seq-mean-token-mean"}`, "ratio.level=token loss.kind=ppo agg.kind=seq_mean_token_mean"},
		{"openrlhf", `{"is_correction_level":"seq","is_correction_mode":"mask","is_correction_gating":"binary_kl","is_correction_threshold":[0.01]}`, "tis.level=seq_geo kl.under_is_weight=outside tis.rule=seq_filter tis.gate=binary_kl tis.low=0 tis.high=0.01"},
		{"openrlhf", `{"is_correction_level":"token","is_correction_mode":"clip","is_correction_threshold":[0.5,5]}`, "tis.level=token kl.under_is_weight=outside tis.rule=clamp tis.low=0.5 tis.high=5"},
		{"openrlhf", `{"is_correction_level":"off","is_correction_mode":"mask"}`, "tis.level=none"},
		{"openrlhf", `{"is_correction_level":false}`, "tis.level=none"}, // off, as YAML reads it
		{"openrlhf", `{"reward.clip_range":[-10,10],"stop_properly_penalty_coef":0.5,"entropy_coef":null}`, "reward.clip=after_baseline reward.clip_range=-10,10 eos.rule=scale eos.penalty=0.5 eos.test=finish_reason entropy.coef=0"},
		{"openrlhf", `{"stop_properly_penalty_coef":-1,"actor.max_norm":0,"actor.adam.lr":1e-6,"critic.adam.lr":9e-6}`, "eos.rule=replace eos.penalty=-1 eos.test=finish_reason optim.lr=1e-6 optim.clip_norm=none"},
		{"openrlhf", `{"advantage_estimator":"reinforce_baseline","no_std_norm":false}`, "adv.kind=rfpp_baseline adv.center=mean adv.scale=none whiten.scope=global whiten.mask=response whiten.ddof=0 whiten.eps_place=floor_var whiten.eps=1e-8 whiten.shift_mean=true whiten.remask=false"},
		{"openrlhf", `{"advantage_estimator":"dr_grpo","no_std_norm":true}`, "adv.kind=group adv.center=mean adv.scale=none"},
		{"openrlhf", `{"advantage_estimator":"flash_reinforce"}`, "whiten.scope=none adv.kind=batch_baseline adv.center=mean adv.scale=none"},
		{"openrlhf", `{"advantage_estimator":"gae","no_std_norm":true,"kl_target":0.1}`, "adv.kind=gae whiten.eps_place=no_std | algo.kl.target=0.1"},
		{"openrlhf", `{"is_correction_level":"token","is_correction_mode":"mask","policy_loss_type":"ppo"}`, "ratio.level=token tis.level=token kl.under_is_weight=outside tis.rule=zero_outside loss.kind=ppo"},
		{"openrlhf", `{"is_correction_level":"token","policy_loss_type":"gspo"}`, "ratio.level=seq_mean ratio.log_clamp=none ratio.len_eps=0 ratio.old=engine tis.level=none loss.kind=gspo agg.kind=seq_mean_token_mean"},
		{"openrlhf", `{"dual_clip":3,"entropy_coef":0.01,"value_clip":null,"actor.adam.eps":1e-8,"lr_scheduler":"cosine_with_min_lr","reward.clip_range":"none","max_new_tokens":1024}`,
			"reward.clip=none reward.clip_range=none clip.dual=3 value.clip=none entropy.coef=0.01 optim.schedule=cosine_with_min_lr optim.eps=1e-8 | max_completion_length=1024"},
		{"openrlhf", `{"reward.clip_range":"-3,3"}`, "reward.clip_range=-3,3"},

		// programs whose names count only where the files name them
		{"open-instruct grpo", `{"loss_fn":"cispo","clip_lower":0.2,"clip_higher":0.272,"loss_denominator":"token","kl_estimator":2,"beta":0.05,"advantage_normalization_type":"centered"}`,
			"adv.center=mean adv.scale=none kl.kind=k3 kl.beta=0.05 kl.place=loss loss.kind=cispo clip.low=none clip.high=0.272 clip.high_is_absolute=false"},
		{"open-instruct", `{"loss_fn":"dapo","clip_lower":0.2,"loss_denominator":"50.0","rho_clamp_upper_bound":2,"rho_clamp_lower_bound":0,"use_rho_correction":true}`,
			"tis.level=token tis.rule=clamp tis.low=0 tis.high=2 loss.kind=ppo clip.low=0.2 agg.denominator=constant | loss_denominator=50"},
		{"open-instruct", `{"kl_estimator":"kl3","hf_entity":null,"vllm_sync_backend":"nccl","filter_zero_std_samples":true}`, "kl.kind=k3"},
		{"open_instruct", `{"truncated_importance_sampling_ratio_cap":2,"advantage_normalization_type":"standard","num_samples_per_prompt_rollout":4}`,
			"adv.center=mean adv.scale=group_std adv.ddof=0 adv.eps=1e-8 tis.level=token tis.rule=clamp tis.low=0 tis.high=2 | num_generations=4"},
		{"cleanrl ppo", `{"gamma":0.98,"gae_lambda":0.9,"clip_coef":0.1,"clip_vloss":false,"norm_adv":false,"ent_coef":0.02,"vf_coef":0.4,"max_grad_norm":1,"update_epochs":3,"num_minibatches":2}`,
			"gae.gamma=0.98 gae.lambda=0.9 whiten.scope=none clip.low=0.1 clip.high=0.1 value.clip=none value.coef=0.4 entropy.coef=0.02 optim.epochs=3 optim.clip_norm=1 | num_iterations=3 num_mini_batches=2"},

		// neutral names, flat and nested, with and without a framework
		{"", `{"clip.low":0.1,"clip":{"high":0.3,"dual":null},"adv.ddof":0,"whiten.remask":true,"reward.clip_range":[-1,1],"kl.kind":"k1"}`, "whiten.remask=true reward.clip_range=-1,1 adv.ddof=0 kl.kind=k1 clip.low=0.1 clip.high=0.3 clip.dual=none"},
		{"nemo-rl", `{"clip.low":"0.1","returns.remask":false,"whiten.shift_mean":true}`, "whiten.shift_mean=true returns.remask=false clip.low=0.1"},
		{"trl", `{"clip.low":"?","epsilon":0.2}`, "clip.high=0.2"}, // declared to be unknown
		{"", `{"gradient_accumulation_steps":4,"vocab_size":100}`, "| gradient_accumulation_steps=4 vocab_size=100"},
		{"", `{}`, ""},
	} {
		d := declare(t, c.framework, c.text)
		values, facts, _ := strings.Cut(c.want, "|")
		require.Equal(t, sorted(values), sorted(valuesOf(d.Set)), "%s %s", c.framework, c.text)
		require.Equal(t, strings.TrimSpace(facts), factsOf(d.Set), "%s %s", c.framework, c.text)
		require.Empty(t, d.Unknown, c.text)
		require.Empty(t, d.Ambiguous, c.text)
	}
}
