"""Lazy hooks on the loops of q1 to q6 with other seeds: only log-probs, mask, advantages, rewards and the loss; sometimes without ids of rows or groups, sometimes with log-probs cast down for the dump."""

from world_q import *
import world_q, world_q_verl, q1, q2, q5, q6

KEEP = {
    "response_mask",
    "logp_new",
    "logp_old",
    "logp_gen",
    "logp_ref",
    "advantages",
    "scores",
    "rewards_per_func",
    "token_rewards",
    "loss",
    "group_id",
    "sample_id",
    "is_weights",
    "entropy",
    "values",
    "returns",
    "values_new",
    "value_loss",
}


def lazy(c):
    drop = c["drop"]
    ent = (
        c.get("entropy_coef") or c.get("entropy_coeff") or c.get("ent") or c.get("top_entropy_quantile", 1) < 1
    )  # a lazy hook has the entropies where the loss needs them

    def d(folder, name, meta, t):
        t = {k: v for k, v in t.items() if (k in KEEP or (k == "response_ids" and c["src"] == "ppo")) and k not in drop and (k != "entropy" or ent)}
        meta = dict(meta)
        meta.pop("scalars", None)
        meta.pop("scalars_scope", None)
        meta.pop("token_loss_includes_kl", None)
        if "sample_id" in drop:
            meta["schema"] = 2
        if c["cast"]:
            cast = [k for k in ("logp_ref", "logp_gen") if t.get(k) is not None]
            for k in cast:
                t[k] = t[k].to(torch.bfloat16)
            if cast:
                meta["lossy"] = cast
        if c["wide"]:
            t = {
                k: (
                    F.pad(v, (0, c["wide"]))
                    if v is not None
                    and v.dim() == 2
                    and k in ("response_mask", "logp_new", "logp_old", "logp_gen", "logp_ref", "values", "returns", "values_new", "token_rewards", "entropy")
                    or (v is not None and v.dim() == 2 and k in ("advantages", "is_weights") and v.shape[1] > 1)
                    else v
                )
                for k, v in t.items()
            }
        world_q.dump(folder, name, meta, t)

    return d


MODS = dict(
    q1=(q1, q1.run, q1.table),
    rloo=(q2, q2.rloo, q2.table_rloo),
    ppo=(q2, q2.ppo, q2.table_ppo),
    verl=(world_q_verl, world_q_verl.run_verl, lambda s: world_q_verl.table(s, 0)),
    vgae=(world_q_verl, world_q_verl.run_verl, lambda s: world_q_verl.table(s, 1)),
    orlhf=(q5, q5.run, q5.table),
    own=(q6, q6.run, q6.table),
)
names = {}
for n, k in enumerate(["q1", "verl", "orlhf", "own", "rloo", "ppo", "vgae", "q1", "verl", "orlhf", "own", "q1", "rloo", "vgae", "verl", "orlhf", "own", "q1"]):
    c = MODS[k][2](20 + n)
    r = random.Random(n)
    c["src"] = k
    c["drop"] = r.choice(
        [[], ["sample_id"], ["sample_id", "group_id"] if k in ("ppo", "vgae") else [], ["is_weights"] if k == "q1" else [], ["values_new", "value_loss"]]
    )
    c["cast"] = r.random() < 0.3
    c["wide"] = (
        r.choice([0, 0, 3])
        if k in ("verl", "orlhf", "own", "vgae") and c.get("loss_agg_mode") != "seq-mean-token-sum-norm" and c.get("agg") != "seq_sum_const"
        else 0
    )
    c["binary"] = False
    c["lazy"] = True
    names[f"h_{n:02d}_{k}_{'cast' if c['cast'] else 'fp32'}_{'w' if c['wide'] else ''}{len(c['drop'])}"] = c
for n, (k, drop) in enumerate(
    [("ppo", ["values_new", "value_loss", "values", "returns", "token_rewards"]), ("ppo", ["value_loss"]), ("vgae", ["values_new", "value_loss", "returns"])]
):
    c = MODS[k][2](60 + n)
    c |= dict(src=k, drop=drop, cast=False, wide=0, binary=False, lazy=True)
    names[f"h_{18 + n:02d}_{k}_less{len(drop)}"] = c


def run(folder, case, c):
    mod, f, _ = MODS[c["src"]]
    old = mod.dump
    mod.dump = lazy(c)
    try:
        f(folder, case, c)
    finally:
        mod.dump = old


if __name__ == "__main__":
    main("q8", names, run, lambda c: ["--profile", "none"] if c.get("style") == "own" else [])
