"""Healthy configurations of verl 0.9.1."""

from case import Case

G = {}


def add(name, dtypes="f32 bf16 mixed", **cfg):
    G[name] = (dtypes.split(), cfg)


def d(**a):
    return a


add("grpo")
add("grpo-kl", actor=d(use_kl_loss=True))
add("grpo-kl-epochs", actor=d(use_kl_loss=True, kl_loss_coef=0.05, ppo_epochs=2), minis=2, steps=4)
add("grpo-kl-plus", actor=d(use_kl_loss=True, kl_loss_coef=0.05, kl_loss_type="k3+", ppo_epochs=2), steps=4)
add("grpo-k1", actor=d(use_kl_loss=True, kl_loss_coef=0.05, kl_loss_type="kl", ppo_epochs=2), steps=4)
add("grpo-k2", actor=d(use_kl_loss=True, kl_loss_coef=0.05, kl_loss_type="mse", ppo_epochs=2), steps=4)
add("grpo-abs", actor=d(use_kl_loss=True, kl_loss_coef=0.05, kl_loss_type="abs", ppo_epochs=2), steps=4, ref_distance=0.05)
add("grpo-micro", actor=d(use_kl_loss=True), micros=4)
add("grpo-micro-metrics", actor=d(use_kl_loss=True, ppo_epochs=2, entropy_coeff=0.01), micros=2, scalars=True, steps=4)
add("grpo-metrics", actor=d(use_kl_loss=True, ppo_epochs=2), scalars=True, steps=4, entropy=True)
add("grpo-entropy", actor=d(entropy_coeff=0.02))
add("grpo-entropy-kl-ranks", actor=d(entropy_coeff=0.01, use_kl_loss=True, kl_loss_coef=0.02), ranks=2)
add("grpo-ranks-micro", actor=d(use_kl_loss=True, kl_loss_coef=0.02), ranks=2, micros=2, minis=2, steps=4)
add("grpo-clip-higher", actor=d(clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=10.0, ppo_epochs=3), steps=6)
add("grpo-seq-mean-token-sum", actor=d(loss_agg_mode="seq-mean-token-sum", use_kl_loss=True), micros=2)
add("grpo-seq-mean-token-mean", actor=d(loss_agg_mode="seq-mean-token-mean", use_kl_loss=True), micros=2)
add("grpo-sum-norm", actor=d(loss_agg_mode="seq-mean-token-sum-norm", use_kl_loss=True))
add("grpo-sum-norm-constant", actor=d(loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=256), micros=2)
add("grpo-token-sum", actor=d(loss_agg_mode="token-sum"))
add(
    "grpo-seq-metrics",
    actor=d(loss_agg_mode="seq-mean-token-mean", use_kl_loss=True, kl_loss_coef=0.03, ppo_epochs=2, entropy_coeff=0.01),
    scalars=True,
    steps=4,
)
add("drgrpo", algo=d(norm_adv_by_std_in_grpo=False), actor=d(loss_agg_mode="seq-mean-token-sum-norm"))
add("grpo-tis", algo=d(rollout_is="token"), actor=d(use_kl_loss=True))
add("grpo-tis-tight", algo=d(rollout_is="token", rollout_is_threshold=1.005))
add("grpo-tis-sequence", algo=d(rollout_is="sequence"))
add("grpo-icepop", algo=d(rollout_is="token", rollout_is_threshold="0.99_1.01"))
add("grpo-tools", holes=True, actor=d(use_kl_loss=True, kl_loss_coef=0.02))
add("grpo-tools-tis-ranks", holes=True, algo=d(rollout_is="token"), ranks=2)
add("grpo-kl-in-reward", algo=d(use_kl_in_reward=True, kl_coef=0.05), ref_distance=0.03)
add("grpo-temperature", temperature=0.7, actor=d(use_kl_loss=True, kl_loss_coef=0.02), algo=d(rollout_is="token"))
add("grpo-far-reference", ref_distance=0.2, actor=d(use_kl_loss=True, kl_loss_coef=0.1, ppo_epochs=2), steps=4)
add("grpo-binary", reward="binary", group=8)
add("grpo-offset", reward="offset", actor=d(ppo_epochs=2), steps=4)
add("grpo-truncated", fill=1.5, actor=d(use_kl_loss=True))
add("grpo-pad-eos", pad_is_eos=True)
add("grpo-vectorized", algo=d(adv_estimator="grpo_vectorized"))
add("rloo", algo=d(adv_estimator="rloo"), actor=d(use_kl_loss=True))
add("rloo-vectorized", algo=d(adv_estimator="rloo_vectorized"))
add("opo", algo=d(adv_estimator="opo"))
add("gpg-adv", algo=d(adv_estimator="gpg"), policy=d(loss_mode="gpg"))
add("rpp", algo=d(adv_estimator="reinforce_plus_plus"))
add("rpp-tools-gamma", algo=d(adv_estimator="reinforce_plus_plus", gamma=0.99), holes=True)
add("rpp-kl", algo=d(adv_estimator="reinforce_plus_plus", use_kl_in_reward=True, kl_coef=0.05), ref_distance=0.03)
add("rpp-baseline", algo=d(adv_estimator="rpp_baseline"))
add("remax", algo=d(adv_estimator="remax"))
add(
    "gspo",
    policy=d(loss_mode="gspo"),
    actor=d(loss_agg_mode="seq-mean-token-mean", clip_ratio_low=3e-4, clip_ratio_high=4e-4, ppo_epochs=2),
    steps=4,
)
add("sapo", policy=d(loss_mode="sapo"), actor=d(loss_agg_mode="seq-mean-token-mean", ppo_epochs=2), steps=4)
add("cispo", policy=d(loss_mode="cispo"), actor=d(clip_ratio_low=0.9, clip_ratio_high=0.05, ppo_epochs=2), steps=4)
add("geo-mean", policy=d(loss_mode="geo_mean"), actor=d(clip_ratio_low=0.4, clip_ratio_high=0.4, ppo_epochs=2), steps=4)
add("kl-cov", policy=d(loss_mode="kl_cov", kl_cov_ratio=0.02), actor=d(ppo_epochs=2), steps=4)
add("clip-cov", policy=d(loss_mode="clip_cov", clip_cov_ratio=0.05, clip_cov_lb=0.1), actor=d(ppo_epochs=2), steps=4)
add("dro", policy=d(loss_mode="dro", dro_beta=0.2), actor=d(ppo_epochs=2), steps=4)
add("ppo", algo=d(adv_estimator="gae"))
add("ppo-lambda", algo=d(adv_estimator="gae", lam=0.95, gamma=0.99), actor=d(ppo_epochs=2), minis=2, steps=4)
add("ppo-kl-reward", algo=d(adv_estimator="gae", lam=0.95, use_kl_in_reward=True, kl_coef=0.05), ref_distance=0.03)
add(
    "ppo-kl-reward-adaptive",
    algo=d(adv_estimator="gae", lam=0.95, use_kl_in_reward=True, kl_coef=0.05),
    ref_distance=0.03,
    adaptive=(0.1, 200),
)
add("ppo-k3-reward", algo=d(adv_estimator="gae", lam=0.95, use_kl_in_reward=True, kl_coef=0.05, kl_penalty="low_var_kl"), ref_distance=0.03)
add("ppo-kl-loss", algo=d(adv_estimator="gae", lam=0.9), actor=d(use_kl_loss=True, kl_loss_coef=0.05, ppo_epochs=2), steps=4)
add("ppo-tools", holes=True, algo=d(adv_estimator="gae", lam=0.95), micros=2)
add("ppo-ranks-tis", algo=d(adv_estimator="gae", lam=0.97, rollout_is="token"), ranks=2, micros=2)
add("ppo-value-clip", algo=d(adv_estimator="gae", lam=0.95), cliprange_value=0.05, actor=d(ppo_epochs=3, entropy_coeff=0.01), steps=6)
add("ppo-metrics", algo=d(adv_estimator="gae", lam=0.95), actor=d(ppo_epochs=2), scalars=True, steps=4)
add("sixty-four", "f32 bf16", prompts=8, group=8, T=64, actor=d(use_kl_loss=True), micros=2)
add("largest", "f32", prompts=8, group=8, T=256, algo=d(adv_estimator="gae", lam=0.95), steps=2)


def cases(seed):
    return [
        Case(f"h-verl-{name}-{t}", "verl_", cfg, t, seed + i, f"verl, {name}", family="healthy " + name)
        for i, (name, (dtypes, cfg)) in enumerate(G.items())
        for t in dtypes
    ]
