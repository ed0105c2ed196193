"""Healthy loops in plain PyTorch."""

from case import Case

G = {}


def add(name, loop, o=None, dtypes="f32 mixed", **cfg):
    G[name] = (dtypes.split(), dict(cfg, loop=loop, o=o or {}))


add("group-plain", "group")
add("group-k3", "group", dict(beta=0.05), "f32 bf16 mixed", scalars=True)
add("group-k2-rows", "group", dict(beta=0.03, kl="k2", agg="rows"), "f32 bf16 mixed")
add("group-k1-constant", "group", dict(beta=0.02, kl="k1", agg="constant", constant=20.0))
add("group-constant-256", "group", dict(agg="constant", constant=256.0, scale="none"))
add("group-odd-numbers", "group", dict(low=0.07, high=0.13, beta=0.0137, bonus=0.0042, adv_eps=3e-5))
add("group-loo", "group", dict(center="loo", scale="none", bonus=0.003), "f32 bf16 mixed")
add("group-batch-ddof0", "group", dict(scale="batch_std", ddof=0, adv_eps=1e-8, beta=0.04))
add("group-tis", "group", dict(tis=True, tis_cap=1.05, beta=0.01))
add("group-micros", "group", dict(beta=0.04, agg="rows"), micros=4)
add("group-minis", "group", dict(beta=0.04), minis=2, micros=2)
add("group-tools", "group", dict(beta=0.04, bonus=0.01), holes=True)
add("group-cold", "group", dict(beta=0.04), temperature=0.8)
add("oi-centered", "open_instruct", dict(normalization="centered"))
add("oi-standard", "open_instruct", {}, "f32 bf16 mixed")
add("oi-tis", "open_instruct", dict(tis=True), holes=True)
add("oi-micros", "open_instruct", dict(beta=0.01), micros=2, minis=2)
add("cleanrl", "cleanrl", {}, "f32 bf16 mixed")
add("cleanrl-minis", "cleanrl", dict(ent_coef=0.0, lam=0.9), minis=2)
add("cleanrl-wide", "cleanrl", {}, "f32", group=8, T=48)
add("oai", "oai", {}, "f32 bf16 mixed")
add("oai-no-reward-whitening", "oai", dict(whiten_rewards=False), minis=2)


def cases(seed):
    return [
        Case(f"h-loop-{name}-{t}", "loops_", cfg, t, seed + i, f"plain PyTorch, {name}", family="healthy " + name)
        for i, (name, (dtypes, cfg)) in enumerate(G.items())
        for t in dtypes
    ]
