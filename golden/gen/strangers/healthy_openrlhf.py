"""Healthy configurations of OpenRLHF 0.11.2."""

from case import Case

G = {}


def add(name, dtypes="f32 bf16 mixed", args=None, **cfg):
    G[name] = (dtypes.split(), dict(cfg, args=args or {}))


E, U, C, B = "algo.advantage.estimator", "algo.kl.use_loss", "algo.kl.init_coef", "algo.kl.estimator"
add("ppo", args={"algo.advantage.lambd": 0.95})
add("ppo-epochs", args={"train.max_epochs": 2, "algo.advantage.lambd": 0.95, "algo.advantage.gamma": 0.99}, minis=2, steps=4)
add("ppo-tools", args={"algo.advantage.lambd": 0.95}, holes=True)
add("ppo-value-clip", args={"critic.value_clip": 0.05, "train.max_epochs": 3}, steps=3)
add("ppo-value-clip-none", args={"critic.value_clip": None, "train.max_epochs": 2}, steps=4)
add("ppo-far", args={C: 0.1}, ref_distance=0.05)
add("ppo-k3", args={C: 0.05, B: "k3"}, ref_distance=0.03)
add("ppo-no-std-norm", args={"algo.advantage.no_std_norm": True})
add("ppo-gas-ranks", args={"algo.advantage.lambd": 0.95}, gas=2, ranks=2)
add("ppo-kl-loss", args={U: True, B: "k2", C: 0.02, "train.max_epochs": 2}, steps=4)
add("ppo-dual", args={"actor.dual_clip": 3.0, "train.max_epochs": 2}, steps=4)
add("reinforce", args={E: "reinforce"})
add("reinforce-gamma-tools", args={E: "reinforce", "algo.advantage.gamma": 0.98}, holes=True)
add("reinforce-baseline", args={E: "reinforce_baseline", C: 0.001}, ref_distance=0.03)
add("rloo", args={E: "rloo", U: True, B: "k3", C: 0.02, "train.max_epochs": 2}, steps=4)
add("rloo-reward-kl", args={E: "rloo", C: 0.02}, ref_distance=0.03)
add("dr-grpo", args={E: "dr_grpo", U: True, B: "k3"})
add("group-norm", args={E: "group_norm", U: True, B: "k3"})
add("group-norm-no-kl", args={E: "group_norm", U: True, C: 0.0})
add(
    "group-norm-epochs",
    args={E: "group_norm", U: True, B: "k3", C: 0.05, "actor.eps_clip_low_high": [0.2, 0.28], "train.max_epochs": 2},
    minis=2,
    steps=4,
)
add(
    "group-norm-unbiased",
    args={E: "group_norm", U: True, B: "k3", C: 0.05, "algo.kl.unbiased_gradient": True, "train.max_epochs": 2},
    steps=4,
)
add("group-norm-gas", args={E: "group_norm", U: True, B: "k3"}, gas=4)
add("group-norm-entropy", args={E: "group_norm", U: True, B: "k3", "actor.entropy_coef": 0.01})
add("group-norm-entropy-zero", args={E: "group_norm", U: True, B: "k2", "actor.entropy_coef": 0.0}, scalars=True)
add("group-norm-seq", args={E: "group_norm", U: True, B: "k3", "actor.loss_agg_mode": "seq-mean-token-mean"}, gas=2)
add(
    "group-norm-gspo",
    args={
        E: "group_norm",
        U: True,
        B: "k3",
        "actor.policy_loss_type": "gspo",
        "actor.eps_clip_low_high": [3e-4, 4e-4],
        "train.max_epochs": 2,
    },
    steps=4,
)
add(
    "group-norm-tis",
    args={
        E: "group_norm",
        U: True,
        B: "k3",
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_mode": "clip",
        "algo.advantage.is_correction_threshold": [0.5, 2.0],
    },
)
add(
    "group-norm-icepop",
    args={
        E: "group_norm",
        U: True,
        B: "k3",
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_threshold": [0.98, 1.02],
    },
)
add(
    "group-norm-seq-mask",
    args={
        E: "group_norm",
        U: True,
        B: "k3",
        "algo.advantage.is_correction_level": "seq",
        "algo.advantage.is_correction_threshold": [0.999, 1.002],
    },
)
add("group-norm-tools-ranks", args={E: "group_norm", U: True, B: "k3"}, holes=True, ranks=2)
add("group-norm-temperature", args={E: "group_norm", U: True, B: "k3", "rollout.temperature": 0.8})
add("group-norm-binary", args={E: "group_norm", U: True, B: "k3"}, reward="binary", group=8)
add("group-norm-offset", args={E: "group_norm", U: True, B: "k1"}, reward="offset")
add("group-norm-metrics", args={E: "group_norm", U: True, B: "k3", "train.max_epochs": 2}, scalars=True, steps=4)
add("sixty-four", "f32 mixed", args={E: "group_norm", U: True, B: "k3", "rollout.max_new_tokens": 64}, prompts=8, group=8, T=64)


def cases(seed):
    return [
        Case(f"h-orlhf-{name}-{t}", "openrlhf_", cfg, t, seed + i, f"OpenRLHF, {name}", family="healthy " + name)
        for i, (name, (dtypes, cfg)) in enumerate(G.items())
        for t in dtypes
    ]
