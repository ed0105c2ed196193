"""Dumps of verl 0.9.1's and OpenRLHF 0.11.2's own functions, driven by a small loop over the policy of toy.py.

Advantages, KL, policy loss, value loss and aggregation are the releases' functions, parsed out of their wheels by
golden/gen/rl/peerload.py. Ours are: the model, the sampler, the order of calls (that of verl's ppo_loss and of OpenRLHF's
training_step) and truncated importance weights of verl. A bug is a changed statement in a copy of the release, or a wrong call.
"""
import argparse
import os
import shutil
import sys
import tempfile
import types

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "rl"))
import numpy
import torch

import check_peers, peerload, toy, writer
from check import agree
from peer_cases import CASES, named

torch.set_num_threads(1)
FILES = {"verl": ["verl/trainer/ppo/core_algos.py", "verl/utils/torch_functional.py", "verl/utils/groupwise.py"],
         "openrlhf": ["openrlhf/models/loss.py", "openrlhf/models/utils.py", "openrlhf/trainer/ppo_utils/experience_maker.py"]}
T, PROMPTS, GROUP, LR = 14, 2, 4, 0.02
KIND = {"token": "token-mean", "seq_mean_token_mean": "seq-mean-token-mean"}


def release(case, roots, tmp):
    """A copy of the files of a release with the bug in it, loaded; second, where the bug went."""
    root = roots[case.framework]
    top = os.path.dirname(os.path.dirname(root)) if case.framework == "openrlhf" else root
    for d in os.listdir(top):
        if d.endswith(".dist-info"):
            os.makedirs(os.path.join(tmp, d))
            version = d[: -len(".dist-info")].split("-", 1)[1]
    base = os.path.join(tmp, "x.data", "purelib") if case.framework == "openrlhf" else tmp
    where = []
    for f in FILES[case.framework]:
        text = open(os.path.join(root, f), encoding="utf-8").read()
        for name, old, new in case.patch:
            if name == f:
                if text.count(old) != 1:
                    raise RuntimeError(f"{f}: statement found {text.count(old)} times: {old!r}")
                where.append({"file": f, "line": text[: text.index(old)].count("\n") + 1, "from": " ".join(old.split()), "to": " ".join(new.split())})
                text = text.replace(old, new)
        os.makedirs(os.path.dirname(os.path.join(base, f)), exist_ok=True)
        open(os.path.join(base, f), "w", encoding="utf-8").write(text)
    lib = peerload.verl(base) if case.framework == "verl" else peerload.openrlhf(base)
    return lib, where, version


class Verl:
    def __init__(self, lib, case, o):
        self.c, self.case, self.o = lib.core, case, o
        self.entropy = lib.verl_F.entropy_from_logits
        self.kept = []
        agg = self.c["agg_loss"]

        def kept_agg(*a, **k):
            self.kept.append(k.get("loss_mat", a[0] if a else None))
            return agg(*a, **k)
        self.c["agg_loss"], self.agg = kept_agg, agg

    def kl(self, lp, ref, old):
        name = {"k1": "k1", "k3": "low_var_kl"}[self.o["kl.kind"]]
        if self.o.get("kl.grad") == "straight_through_k2":
            name = "k3+"
        return self.c["kl_penalty"](lp, ref, name)

    def rollout(self, b):
        """Adds token_rewards, advantages, returns, is_weights."""
        o, c, m = self.o, self.c, b["mask"]
        r = torch.zeros(m.shape).scatter(1, last(m), b["scores"].unsqueeze(1))
        if self.case.algorithm == "ppo":
            b["kl_reward"] = self.kl(b["old"], b["ref"], None) * m
            b["token_rewards"] = r - o["kl.beta"] * b["kl_reward"]
            b["adv"], b["returns"] = c["compute_gae_advantage_return"](b["token_rewards"], b["values"], m, o["gae.gamma"], o["gae.lambda"])
        else:
            b["adv"], _ = c["compute_grpo_outcome_advantage"](r, m, b["group"].numpy(), norm_adv_by_std_in_grpo=o["adv.scale"] == "group_std")
        if o.get("tis.level"):
            b["is_weights"] = (b["old"] - b["gen"]).clamp(-20, 20).exp().clamp(max=o["tis.high"])

    def losses(self, b, lp, z, v, facts):
        o, c, call = self.o, self.c, self.case.call
        m = b["mask"].bool()
        loss_mask = b["attention"].bool() if call == "attention_mask" else m
        info = {"dp_size": facts["ranks"], "batch_num_tokens": facts["tokens"], "global_batch_size": facts["rows"], "loss_scale_factor": None}
        scale = 1.0
        if call == "local":
            info, scale = {}, 1 / facts["micro_batches"]
        mode = KIND[o["agg.kind"]]
        cfg = peerload.Cfg(clip_ratio=o["clip.low"], clip_ratio_low=o["clip.low"], clip_ratio_high=o["clip.high"], clip_ratio_c=o["clip.dual"],
                           global_batch_info=info)
        w = b.get("is_weights")
        if call == "tis_gradient":
            w = (lp - b["gen"]).clamp(-20, 20).exp().clamp(max=o["tis.high"])
        self.kept.clear()
        pg, metrics = c["compute_policy_loss_vanilla"](b["old"], lp, b["adv"], b["adv"] if call == "advantages_as_mask" else loss_mask, mode, cfg, w)
        out = {"token_loss": self.kept[0], "pg_loss": pg * scale, "entropy": self.entropy(z), "is_weights": w}
        loss = pg
        ent = self.agg(out["entropy"], loss_mask, mode, **info)
        out["entropy_loss"] = ent * scale
        if o["entropy.coef"]:
            loss = loss - o["entropy.coef"] * ent
        if o["kl.place"] == "loss":
            out["kl"] = self.kl(lp, b["ref"], b["old"])
            kl = self.agg(out["kl"], loss_mask, mode, **info)
            out["kl_loss"] = kl * scale
            loss = loss + o["kl.beta"] * kl
        out["loss"] = loss * scale
        s = {"ppo_kl": metrics["actor/ppo_kl"], "clip_frac": metrics["actor/pg_clipfrac"]}
        if self.case.algorithm == "ppo":
            vf, frac = c["compute_value_loss"](v, b["returns"], b["values"], m, o["value.clip"], mode, **info)
            out["value_loss"], s["value_clip_frac"] = vf * scale, float(frac)
        return out, s


class OpenRLHF:
    def __init__(self, lib, case, o):
        self.lib, self.case, self.o = lib, case, o
        self.entropy = lib.ut["compute_entropy"]
        self.kept = []
        agg = lib.loss["aggregate_loss"]

        def kept_agg(*a, **k):
            self.kept.append(a[0])
            return agg(*a, **k)
        lib.loss["aggregate_loss"], self.agg = kept_agg, agg

    def kl(self, lp, ref, old):
        return self.lib.ut["compute_approx_kl"](lp, ref, old, self.o["kl.kind"], self.o.get("kl.grad") == "straight_through_k2")

    def rollout(self, b):
        o, ns, mk = self.o, types.SimpleNamespace, self.lib.Maker()
        ppo = self.case.algorithm == "ppo"
        est = "gae" if ppo else "rloo" if o["adv.center"] == "loo" else "group_norm"
        mk.advantage_estimator, mk.kl_ctl = est, ns(value=o["kl.beta"])
        mk.strategy = ns(args=ns(rollout=ns(n_samples_per_prompt=GROUP), reward=ns(clip_range=tuple(o["reward.clip_range"])),
                                 algo=ns(advantage=ns(estimator=est, gamma=o.get("gae.gamma", 1.0), lambd=o.get("gae.lambda", 1.0), no_std_norm=False))))
        # place of each row in the order of prompts
        place, seen = [], {}
        for g in b["group"].tolist():
            place.append(g * GROUP + seen.setdefault(g, 0))
            seen[g] += 1
        kl = self.kl(b["old"], b["ref"], None) if ppo else torch.zeros_like(b["old"])
        ex = ns(rewards=b["scores"].clone(), index=place, action_mask=b["mask"], values=b["values"], kl=kl, info={})
        if ppo:
            b["kl_reward"] = kl
            # the same function gives the shaped rewards that compute_advantages_and_returns uses and drops
            b["token_rewards"] = self.lib.ut["compute_reward"](b["scores"], o["kl.beta"], kl, b["mask"], tuple(o["reward.clip_range"]))
        mk.compute_advantages_and_returns([ex])
        b["adv"] = ex.advantages
        if ppo:
            b["returns"] = ex.returns
        if o.get("tis.level"):
            b["is_weights"] = (b["old"] - b["gen"]).exp().clamp(o["tis.low"], o["tis.high"])

    def losses(self, b, lp, z, v, facts):
        o, L, m = self.o, self.lib.loss, b["mask"]
        info = {"dp_size": facts["ranks"], "batch_num_tokens": float(facts["tokens"]), "global_batch_size": float(facts["rows"])}
        scale = 1.0
        if self.case.call == "local":
            info, scale = {}, 1 / facts["micro_batches"]
        gspo = o.get("loss.kind") == "gspo"
        kw = {}
        if o.get("tis.level"):
            kw = {"is_correction_level": "token", "is_correction_mode": "clip", "is_correction_threshold": [o["tis.low"], o["tis.high"]]}
        actor = L["PolicyLoss"](o["clip.low"], o["clip.high"], token_level_loss=o["agg.kind"] == "token" or gspo,
                                policy_loss_type="gspo" if gspo else "ppo", **kw)
        self.kept.clear()
        pg, frac, ppo_kl, _, _ = actor(lp, b["old"], b["adv"], action_mask=m, rollout_log_probs=b["gen"], **info)
        out = {"token_loss": self.kept[0], "pg_loss": pg * scale, "entropy": self.entropy(z), "is_weights": b.get("is_weights")}
        loss = pg
        if o["kl.place"] == "loss":
            out["kl"] = self.kl(lp, b["ref"], b["old"])
            kl = self.agg(out["kl"], m, **info)
            out["kl_loss"] = kl * scale
            loss = loss + kl * o["kl.beta"]
        out["loss"] = loss * scale
        if self.case.algorithm == "ppo":
            critic = L["ValueLoss"](o["value.clip"])
            out["value_loss"] = critic(v, b["values"], b["returns"], action_mask=m, **info) * scale
        return out, {"ppo_kl": float(ppo_kl), "clip_frac": float(frac)}


def last(m):
    return (m * torch.arange(1, m.shape[1] + 1)).argmax(1, keepdim=True)


def run(case, roots, folder):
    o = named(case.options)
    with tempfile.TemporaryDirectory() as tmp:
        lib, where, version = release(case, roots, tmp)
    f = (Verl if case.framework == "verl" else OpenRLHF)(lib, case, o)
    low = torch.bfloat16 if case.bf16 else torch.float32
    policy = toy.Toy(case.seed)
    ref = toy.near(policy, case.seed + 1, case.ref)
    opt = torch.optim.Adam(policy.parameters(), lr=LR)
    micro = 2
    step = 0
    for it in range(2):
        ids, att, mask, group, plen = toy.sample(policy, PROMPTS * case.ranks, GROUP, T, case.seed * 10 + it, case.holes)
        if case.ranks > 1:  # deal the rows out so that every group is on both ranks
            order = torch.argsort(torch.arange(len(ids)) % 2, stable=True)
            ids, att, mask, group, plen = ids[order], att[order], mask[order], group[order], plen[order]
        engine = toy.near(policy, case.seed + 2 + it, case.engine)
        with torch.no_grad():
            _, old, values = policy.response(ids, T)
            _, gen, _ = engine.response(ids, T)
            _, rf, _ = ref.response(ids, T)
            b = {"mask": mask, "attention": att[:, -T:], "group": group, "scores": toy.score(ids, mask),
                 "old": old.to(low), "gen": gen.to(low), "ref": rf.to(low), "values": values.to(low)}
            f.rollout(b)
            b["adv"] = b["adv"].to(low)
        for _ in range(2):
            step += 1
            opt.zero_grad()
            n = len(ids) // case.ranks // micro
            facts = {"ranks": case.ranks, "tokens": int(mask.sum()), "rows": len(ids), "micro_batches": micro}
            for k in range(case.ranks * micro):
                rank, mb = divmod(k, micro)
                rows = slice(k * n, (k + 1) * n)
                part = {key: x[rows] for key, x in b.items()}
                z, lp, v = policy.response(ids[rows], T)
                lp = lp.to(low)
                lp.retain_grad(), v.retain_grad()
                out, s = f.losses(part, lp, z, v, facts)
                total = out["loss"] + out.get("value_loss", 0)
                (total / case.ranks).backward()
                dlogp = lp.grad * case.ranks
                s.update({key: float(out[key].detach()) for key in ("loss", "pg_loss", "kl_loss", "value_loss") if key in out})
                s["entropy"] = float((out["entropy"].detach() * part["mask"]).sum() / part["mask"].sum())
                t = {"input_ids": ids[rows], "attention_mask": att[rows], "prompt_len": plen[rows], "response_ids": ids[rows][:, -T:],
                     "response_mask": part["mask"], "logp_new": lp, "logp_old": part["old"], "logp_gen": part["gen"], "logp_ref": part["ref"],
                     "scores": part["scores"], "advantages": part["adv"], "token_loss": out["token_loss"], "loss": out["loss"],
                     "pg_loss": out["pg_loss"], "entropy": out["entropy"], "dlogp": dlogp, "group_id": part["group"] + it * PROMPTS * case.ranks,
                     "is_weights": out["is_weights"], "kl": out.get("kl", part.get("kl_reward")), "kl_loss": out.get("kl_loss")}
                if o["entropy.coef"]:
                    t["entropy_loss"] = out["entropy_loss"]
                if case.algorithm == "ppo":
                    del t["group_id"]
                    t.update(values=part["values"], values_new=v, token_rewards=part["token_rewards"], returns=part["returns"],
                             value_loss=out["value_loss"], dvalues=v.grad * case.ranks)
                meta = {"framework": case.framework, "version": version, "algorithm": case.algorithm, "align": "response", "step": step, "rank": rank,
                        "world_size": case.ranks, "micro_batch": mb, "micro_batches": micro, "options": o, "scalars": s, "scalars_scope": "micro_batch",
                        "token_loss_includes_kl": False, "compute_dtype": "bfloat16" if case.bf16 else "float32"}
                where_rank = f"_rank_{rank}" if case.ranks > 1 else ""
                writer.write(os.path.join(folder, f"step_{step:04d}{where_rank}_mb_{mb}.safetensors"), t, meta)
            opt.step()
    if case.call:
        where = [{"call": case.call}]
    return where


PROFILES = {("verl", "ppo"): "verl-ppo@0.9", ("verl", "grpo"): "verl-grpo@0.9", ("openrlhf", "ppo"): "openrlhf-ppo@0.11",
            ("openrlhf", "grpo"): "openrlhf-group@0.11"}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--verl", help="folder of the unpacked wheel")
    ap.add_argument("--openrlhf", help="purelib folder of the unpacked wheel")
    ap.add_argument("--only", default="")
    ap.add_argument("--check", action="store_true")
    a = ap.parse_args()
    only = set(filter(None, a.only.split(",")))
    roots = {"verl": a.verl, "openrlhf": a.openrlhf}
    for case in CASES:
        if only and not only & {case.folder, os.path.basename(case.folder), case.framework}:
            continue
        folder = os.path.join(writer.ROOT, case.folder)
        if not a.check:
            writer.fresh(case.folder)
            where = run(case, roots, folder)
        seen = check_peers.judge(folder, case)
        if not a.check:
            e = {"expect": "fault" if case.faults else "clean", "what": case.what, "profile": PROFILES[case.framework, case.algorithm], "seed": case.seed,
                 "options": named(case.options), "inconsistent": list(case.inconsistent), "scalars": list(case.scalars), "conclude": case.conclude}
            if case.faults:
                e.update(faults=list(case.faults), mnemonic=os.path.basename(case.folder).upper().replace("_", "-"), patched=where,
                         visible_in_steps={str(s): sorted(v) for s, v in sorted(seen.items()) if v})
                if case.option:
                    e["same_as_option"] = case.option
            writer.expect({case.folder: e})
        agree(case.folder, case, seen)
    if not a.check:
        writer.manifest({"verl": "0.9.1", "openrlhf": "0.11.2", "torch": torch.__version__.split("+")[0], "numpy": numpy.__version__})
    sys.exit(1 if agree.failed else 0)


if __name__ == "__main__":
    main()
