"""Healthy configurations of TRL 1.12.0's PPO."""

from case import Case

G = {}


def add(name, dtypes="f32 mixed", args=None, **cfg):
    G[name] = (dtypes.split(), dict(cfg, args=args or {}))


add("ppo", "f32 bf16 mixed")
add("ppo-k3", "f32 bf16 mixed", {"kl_estimator": "k3", "kl_coef": 0.1}, ref_distance=0.03)
add("ppo-whiten-rewards", args={"whiten_rewards": True}, ref_distance=0.03)
add("ppo-eos-penalty", args={"missing_eos_penalty": 1.0}, fill=1.3)
add("ppo-gamma", args={"gamma": 0.98, "lam": 0.9})
add("ppo-minis", args={"num_mini_batches": 2, "num_ppo_epochs": 2})
add("ppo-accumulation", args={"gradient_accumulation_steps": 2})
add("ppo-metrics", scalars=True)
add("ppo-clip-value", args={"cliprange_value": 0.02, "cliprange": 0.1, "num_ppo_epochs": 4})
add("ppo-engine", gen=True)
add("ppo-hot", args={"temperature": 1.0})
add("ppo-large", "f32", prompts=32, T=64, steps=2)


def cases(seed):
    return [
        Case(f"h-trlppo-{name}-{t}", "trl_ppo", cfg, t, seed + i, f"TRL PPO, {name}", family="healthy " + name)
        for i, (name, (dtypes, cfg)) in enumerate(G.items())
        for t in dtypes
    ]
