"""Healthy configurations of TRL 1.16.0's GRPO."""

from case import Case

G = {}


def add(name, dtypes="f32 bf16 mixed", **cfg):
    G[name] = (dtypes.split(), cfg)


def args(**a):
    return a


add("dapo", args=args())
add("dapo-kl", args=args(beta=0.04))
add("dapo-vllm", args=args(use_vllm=True))
add("dapo-vllm-kl", args=args(use_vllm=True, beta=0.02))
add(
    "dapo-vllm-token-truncate",
    args=args(use_vllm=True, vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=2.0),
)
add("dapo-vllm-token-mask", args=args(use_vllm=True, vllm_importance_sampling_mode="token_mask", vllm_importance_sampling_clip_max=1.05))
add(
    "dapo-vllm-seq-truncate",
    args=args(use_vllm=True, vllm_importance_sampling_mode="sequence_truncate", vllm_importance_sampling_clip_min=0.5),
)
add("dapo-vllm-uncorrected", args=args(use_vllm=True, vllm_importance_sampling_correction=False))
add("dapo-off-policy", args=args(gradient_accumulation_steps=1, steps_per_generation=4, per_device_train_batch_size=8), prompts=8, steps=6)
add("dapo-iterations", args=args(num_iterations=3, beta=0.05, epsilon_high=0.28), steps=6)
add("dapo-ga", args=args(gradient_accumulation_steps=2, steps_per_generation=4, per_device_train_batch_size=4, use_vllm=True), steps=4)
add("grpo", args=args(loss_type="grpo"))
add("grpo-kl-iterations", args=args(loss_type="grpo", beta=0.04, num_iterations=2), steps=4)
add("grpo-naive-kl", args=args(loss_type="grpo", beta=0.04, num_iterations=2, use_bias_correction_kl=False), steps=4)
add("grpo-ga", args=args(loss_type="grpo", gradient_accumulation_steps=4, steps_per_generation=4, per_device_train_batch_size=4))
add("bnpo", args=args(loss_type="bnpo", beta=0.04))
add(
    "bnpo-ga-iterations",
    args=args(loss_type="bnpo", num_iterations=2, gradient_accumulation_steps=2, steps_per_generation=2, per_device_train_batch_size=8),
    steps=4,
)
add("dr-grpo", args=args(loss_type="dr_grpo", scale_rewards="none", num_iterations=2), steps=4)
add("dr-grpo-kl-vllm", args=args(loss_type="dr_grpo", scale_rewards="none", beta=0.01, use_vllm=True))
add("cispo", args=args(loss_type="cispo", epsilon_high=5.0, use_vllm=True))
add("cispo-iterations", args=args(loss_type="cispo", epsilon_high=1.1, num_iterations=2, beta=0.03), steps=4)
add("sapo", args=args(loss_type="sapo", num_iterations=2), steps=4)
add(
    "sapo-ga-kl",
    args=args(
        loss_type="sapo", num_iterations=2, beta=0.02, gradient_accumulation_steps=2, steps_per_generation=2, per_device_train_batch_size=8
    ),
    steps=4,
)
add("vespo", args=args(loss_type="vespo", use_vllm=True, vllm_importance_sampling_mode="token_truncate"))
add("vespo-iterations", args=args(loss_type="vespo", num_iterations=2), steps=4)
add("luspo", args=args(loss_type="luspo", importance_sampling_level="sequence", num_iterations=2, epsilon=2e-3, epsilon_high=4e-3), steps=4)
add("luspo-token", args=args(loss_type="luspo", beta=0.02))
add("gspo", args=args(loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4, num_iterations=2), steps=4)
add(
    "gspo-kl-vllm",
    args=args(loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4, beta=0.04, use_vllm=True),
)
add("entropy-grpo", args=args(loss_type="grpo", entropy_coef=0.01, beta=0.04))
add("entropy-dapo-ga", args=args(entropy_coef=0.02, gradient_accumulation_steps=2, steps_per_generation=2, per_device_train_batch_size=8))
add(
    "entropy-cispo-ga",
    args=args(
        loss_type="cispo",
        epsilon_high=4.0,
        entropy_coef=0.005,
        gradient_accumulation_steps=2,
        steps_per_generation=2,
        per_device_train_batch_size=8,
    ),
)
add(
    "entropy-vespo",
    args=args(loss_type="vespo", entropy_coef=0.01, gradient_accumulation_steps=2, steps_per_generation=2, per_device_train_batch_size=8),
)
add("top-entropy", args=args(top_entropy_quantile=0.2, beta=0.02, num_iterations=2), steps=4)
add("top-entropy-bonus", args=args(top_entropy_quantile=0.5, entropy_coef=0.01, loss_type="bnpo"))
add("delta", args=args(delta=1.5, num_iterations=2, loss_type="dapo"), steps=4)
add("opsm", args=args(off_policy_mask_threshold=0.01, num_iterations=2, use_vllm=True), steps=4)
add("truncated-masked", args=args(mask_truncated_completions=True, beta=0.04), fill=1.2)
add("truncated-masked-grpo", args=args(mask_truncated_completions=True, loss_type="grpo", num_iterations=2), fill=1.2, steps=4)
add("tools", holes=True, args=args(use_vllm=True, beta=0.04))
add("tools-grpo", holes=True, args=args(loss_type="grpo", num_iterations=2), steps=4)
add(
    "tools-truncated",
    holes=True,
    fill=1.2,
    args=args(mask_truncated_completions=True, use_vllm=True, vllm_importance_sampling_mode="token_truncate"),
)
add("batch-std", args=args(scale_rewards="batch", loss_type="grpo"), reward="offset")
add("two-rewards", rewards=2, args=args(reward_weights=[1.0, 0.5], beta=0.01))
add("gdpo", rewards=2, args=args(reward_weights=[0.7, 0.3], multi_objective_aggregation="normalize_then_sum"))
add("unscorable", nan_reward=True, args=args(num_generations=4))
add("binary", reward="binary", args=args(num_generations=8, per_device_train_batch_size=32, beta=0.04))
add("two-ranks", "f32 bf16", ranks=2, args=args(per_device_train_batch_size=8, beta=0.04))
add(
    "two-ranks-ga",
    "f32 mixed",
    ranks=2,
    prompts=8,
    args=args(per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=4, use_vllm=True),
    steps=4,
)
add("two-ranks-grpo", "f32", ranks=2, args=args(per_device_train_batch_size=8, loss_type="grpo", num_iterations=2), steps=4)
add("hot", args=args(temperature=1.3, use_vllm=True, beta=0.04))
add("cold", args=args(temperature=0.7, use_vllm=True, num_iterations=2), steps=4)
add("pad-eos", pad_is_eos=True, args=args(beta=0.02, use_vllm=True))
add("far-reference", ref_distance=0.15, args=args(beta=0.1, num_iterations=2), steps=4)
add(
    "sixty-four",
    "f32 bf16",
    prompts=8,
    args=args(num_generations=8, per_device_train_batch_size=64, max_completion_length=64, use_vllm=True, beta=0.04),
    steps=3,
)
add(
    "largest",
    "f32 mixed",
    prompts=8,
    args=args(num_generations=8, per_device_train_batch_size=64, max_completion_length=256, use_vllm=True, beta=0.04, loss_type="grpo"),
    steps=2,
)


def cases(seed):
    out = []
    for i, (name, (dtypes, cfg)) in enumerate(G.items()):
        for d in dtypes:
            out.append(Case(f"h-trl-{name}-{d}", "trl_grpo", cfg, d, seed + i, f"TRL GRPO, {name}", family="healthy " + name))
    return out
