"""Healthy configurations of the second family: legal numbers that nobody's defaults have."""

from case import Case

G = {}


def add(name, loop, o=None, dtypes="f32 mixed", **cfg):
    G[name] = (dtypes.split(), dict(cfg, loop=loop, o=o or {}))


add("tokens", "tokens", {}, "f32 bf16 mixed", epochs=2, minis=2, profile="cleanrl@020cf0e")
add("tokens-plain", "tokens", dict(normalise=False, vclip=None, ent=0.0), epochs=2)
add("tokens-logs", "tokens", dict(gamma=0.995, lam=1.0, ent=0.011), scalars=True, epochs=4, lr=6e-3)
add("tokens-wide", "tokens", dict(clip=0.05), "f32 bf16", T=96, prompts=8, steps=2, epochs=2, profile="cleanrl@020cf0e")
add("nano", "nano", {}, "f32 bf16 mixed")
add("nano-passes", "nano", {}, "f32 mixed", micros=4, ordered=True)
add("nano-hot", "nano", {}, "f32 mixed", temperature=1.3)
add("nano-shifted", "nano", {}, "f32 bf16", align="shifted")
add("odd-ppo", "mixed", dict(beta=3e-4, place="loss"), "f32 bf16 mixed", epochs=2)
add("odd-length-200", "mixed", dict(agg="length", length=200.0, scale="none"), epochs=2)
add("odd-k2", "mixed", dict(kl="k2", beta=0.07, place="loss", agg="rows", eps=3e-4), "f32 bf16 mixed", epochs=2)
add("odd-abs", "mixed", dict(kl="abs", beta=0.011, place="loss", agg="sums"), epochs=2)
add("odd-k1-before", "mixed", dict(kl="k1", beta=0.013, place="before", center="loo", scale="none", agg="sums"), "f32 bf16 mixed", epochs=2)
add("odd-bound", "mixed", dict(beta=0.02, place="loss", bound=5.0, ent=0.0007), epochs=2, micros=2)
add("odd-dual", "mixed", dict(dual=2.2, low=0.11, high=0.31), "f32 bf16 mixed", epochs=3, minis=2, lr=8e-3)
add("odd-batch", "mixed", dict(scale="batch", ddof=0, eps=1e-8, agg="rows"), epochs=2, reward="binary")
add("odd-cispo", "mixed", dict(kind="cispo", low=0.9, high=0.37), "f32 bf16 mixed", epochs=3)
add("odd-sequence", "mixed", dict(kind="sequence", low=3e-3, high=4e-3, agg="rows"), "f32 bf16 mixed", epochs=3)
add("odd-soft", "mixed", dict(kind="soft", tau=(0.9, 1.2)), "f32 bf16 mixed", epochs=3)
add("odd-passes", "mixed", dict(agg="pass", beta=0.02, place="loss"), micros=4, epochs=2)
add("odd-tools", "mixed", dict(beta=0.02, place="loss", ent=0.002), "f32 bf16 mixed", tools=True, epochs=2)
add("odd-cold", "mixed", dict(beta=0.02, place="loss"), "f32 bf16 mixed", temperature=0.6, epochs=2)
add("odd-logs", "mixed", dict(beta=0.02, place="loss", low=0.06, high=0.09), scalars=True, epochs=4, lr=6e-3)
add("odd-unshifted", "mixed", dict(beta=0.02, place="loss"), align="unshifted", epochs=2)
add("odd-shifted-tools", "mixed", dict(agg="rows", ent=0.004), align="shifted", tools=True, epochs=2)
add("odd-offset", "mixed", dict(scale="group", eps=1e-3), reward="offset", samples=8, prompts=3, epochs=2)
add("lag-cap", "mixed", dict(tis="token", rule="cap", high_w=1.7), "f32 bf16 mixed", lag=1, lr=1e-3, steps=5)
add("lag-clamp", "mixed", dict(tis="token", rule="clamp", low_w=0.6, high_w=1.4, beta=0.02, place="loss"), lag=1, lr=1e-3, steps=5)
add("lag-drop", "mixed", dict(tis="token", rule="drop", low_w=0.8, high_w=1.25), "f32 mixed", lag=2, lr=1e-3, steps=5)
add("lag-sequence", "mixed", dict(tis="sequence", rule="cap", high_w=1.02), lag=1, lr=1e-3, steps=5)
add("packed", "packed", {}, "f32 bf16 mixed", epochs=2)
add("packed-rows", "packed", dict(agg="rows", beta=0.05), "f32 mixed", epochs=2)
add("packed-micros", "packed", {}, "f32 bf16", micros=2, epochs=2)
add("ranks", "ranks", {}, "f32 bf16 mixed", ranks=2, epochs=2)
add("ranks-minis", "ranks", {}, "f32 mixed", ranks=2, minis=2, epochs=2, prompts=8)
add("ranks-tools", "ranks", dict(gamma=0.98), "f32 bf16 mixed", ranks=2, tools=True, epochs=2)
add("ranks-k3", "ranks", dict(kl="k3", beta=0.2, whiten=False, ent=0.0), ranks=2, micros=2, epochs=2)
add("ranks-logs", "ranks", dict(vclip=0.01), scalars=True, ranks=2, epochs=3)
add("ranks-large", "ranks", {}, "f32", ranks=2, prompts=16, T=64, P=9, mean_length=40.0, steps=2)


def cases(seed):
    return [
        Case(f"h-two-{name}-{t}", "second", cfg, t, seed + i, f"second family, {name}", family="healthy " + name)
        for i, (name, (dtypes, cfg)) in enumerate(G.items())
        for t in dtypes
    ]
