"""Group estimators and policy losses of verl 0.9.1, by its own functions, in a loop of one's own: two data-parallel ranks, micro-batches, the
global batch of the mini-batch in every denominator, a KL term in the loss or in the reward."""

import types
from collections import defaultdict

import frames
import numpy as np
import plumbline
import torch
import torch.nn.functional as F
import world

CORE, TF = "verl/trainer/ppo/core_algos.py", "verl/utils/torch_functional.py"
LOSSES = "vanilla gspo geo_mean cispo gpg clip_cov kl_cov sapo".split()


def knobs(k):
    k.draw(
        estimator=["grpo", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "opo", "gpg", "dr"],
        loss_mode=["vanilla", "vanilla", "vanilla", "gspo", "geo_mean", "cispo", "gpg", "clip_cov", "kl_cov", "sapo"],
        agg=lambda k: "token-mean" if k.loss_mode == "geo_mean" else k.r.choice(["token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]),
        prompts=[4, 8],
        gens=[4, 8],
        tokens=[8, 32, 80, 160, 256],
        most=[4, 8],
        ranks=lambda k: 1 if k.loss_mode == "geo_mean" else k.r.choice([1, 1, 2]),
        micro=lambda k: 1 if k.loss_mode == "geo_mean" else k.r.choice([1, 2]),
        minis=[1, 2],
        epochs=[1, 2],
        kl=["none", "loss", "loss"],
        kl_type=["low_var_kl", "kl", "mse", "k3+", "abs"],
        kl_coef=[0.001, 0.02],
        entropy=[0.0, 0.0, 0.005],
        eps=[0.2, 0.1],
        low=[None, 0.15],
        high=[None, 0.28],
        dual=[3.0, 1.5],
        temperature=[1.0, 0.7],
        tis=lambda k: k.r.choice([None, None, 2.0]) if k.loss_mode not in ("geo_mean",) else None,
        holes=[0.0, 0.0, 0.6],
        rewards=["binary", "graded"],
        flat=[False, True],
        dtype=["f32", "amp", "f32"],
        lr=[2e-3, 8e-3],
        gamma=lambda k: k.r.choice([1.0, 0.99]) if k.estimator == "reinforce_plus_plus" else 1.0,
    )
    if k.loss_mode in ("gspo", "geo_mean", "sapo") and "eps" not in k.fixed and k.loss_mode != "sapo":
        k.update(eps=0.02, low=0.01, high=0.03)


class Config(types.SimpleNamespace):
    def get(self, name, default=None):
        return getattr(self, name, default)


def core(k):
    tf = frames.functions(frames.text("verl-0.9.1", TF, k.edits(TF)), ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"], {"torch": torch})
    env = dict(torch=torch, np=np, defaultdict=defaultdict, verl_F=tf, ActorConfig=Config, AlgoConfig=type("AlgoConfig", (), {}))
    names = ["agg_loss", "kl_penalty", "kl_penalty_forward", *(f"compute_policy_loss_{n}" for n in LOSSES)]
    names += [f"compute_{n}_outcome_advantage" for n in "grpo rloo opo gpg reinforce_plus_plus reinforce_plus_plus_baseline".split()]
    return frames.functions(frames.text("verl-0.9.1", CORE, k.edits(CORE)), names, env)


def forward(model, rows, k):
    with torch.autocast("cpu", torch.bfloat16, enabled=k.dtype == "amp"):
        logits = model(rows["full"], rows["fatt"])
    logits = logits[:, -k.tokens - 1 : -1].float().div(k.temperature)
    logp = F.log_softmax(logits, -1)
    return logp.gather(-1, rows["seq"].unsqueeze(-1)).squeeze(-1), torch.logsumexp(logits, -1) - (logp.exp() * logits).sum(-1)


def main(out, k):
    verl = core(k)
    actor = world.policy(k.seed, k.tokens)
    ref = world.moved(actor, k.seed + 2, 0.03)
    opt = torch.optim.AdamW(actor.parameters(), lr=k.lr)
    config = Config(
        clip_ratio=k.eps, clip_ratio_low=k.low, clip_ratio_high=k.high, clip_ratio_c=k.dual, loss_agg_mode=k.agg, entropy_coeff=k.entropy,
        use_kl_loss=k.kl == "loss", kl_loss_coef=k.kl_coef, kl_loss_type=k.kl_type, loss_scale_factor=None, tau_pos=1.0, tau_neg=1.05, global_batch_info={},
        policy_loss=Config(loss_mode=k.loss_mode, clip_cov_ratio=0.02, clip_cov_lb=0.1, clip_cov_ub=5.0, kl_cov_ratio=0.02, ppo_kl_coef=0.1),
    )
    step = 0
    for i in range(2):
        b = world.rollout(k, actor, i, k.temperature)
        b["response_mask"] = world.holes(b["mask"], k.holes, k.seed + i)
        m = b["response_mask"].float()
        score = world.judge_rewards(b["seq"], b["mask"], b["done"], k.rewards)
        if k.flat:
            score[: k.gens] = score[0]
        last = (torch.arange(k.tokens) * m).argmax(1)
        token_level = torch.zeros_like(m).scatter_(1, last[:, None], score[:, None])
        with torch.no_grad():
            b["old"], _ = forward(actor, b, k)
            b["ref"], _ = forward(ref, b, k)
        uid = np.array([f"p{int(g)}" for g in b["group"]], dtype=object)
        if k.estimator == "dr":
            adv, ret = verl.compute_grpo_outcome_advantage(token_level.clone(), m, uid, norm_adv_by_std_in_grpo=False)
        elif k.estimator == "reinforce_plus_plus":
            adv, ret = verl.compute_reinforce_plus_plus_outcome_advantage(token_level, m, config=types.SimpleNamespace(gamma=k.gamma))
        else:
            adv, ret = getattr(verl, f"compute_{k.estimator}_outcome_advantage")(token_level.clone(), m, index=uid)
        b.update(adv=adv, score=score, token_rewards=token_level)
        if k.tis:
            b["w"] = torch.exp((b["old"] - b["gen"]).clamp(-20, 20)).clamp(max=k.tis) * m
        n = len(score)
        size = n // k.minis
        for _ in range(k.epochs):
            for mini in range(k.minis):
                step += 1
                opt.zero_grad()
                tokens_all = m[mini * size : (mini + 1) * size].sum()
                for r in range(k.ranks):
                    for part in range(k.micro):
                        width = size // k.ranks // k.micro
                        at = mini * size + r * (size // k.ranks) + part * width
                        x = {a: v[at : at + width] for a, v in b.items()}
                        mask = x["response_mask"]
                        config.global_batch_info = dict(dp_size=k.ranks, batch_num_tokens=tokens_all, global_batch_size=size, loss_scale_factor=None)
                        new, ent = forward(actor, x, k)
                        loss_fn = getattr(verl, f"compute_policy_loss_{k.loss_mode}")
                        torch.manual_seed(step)
                        if k.loss_mode == "gpg":
                            pg, metrics = loss_fn(x["old"], new, x["adv"], mask.float(), k.agg, config)
                        else:
                            pg, metrics = loss_fn(old_log_prob=x["old"], log_prob=new, advantages=x["adv"], response_mask=mask.float(), loss_agg_mode=k.agg, config=config, rollout_is_weights=x.get("w"))
                        loss = pg
                        entropy_loss = verl.agg_loss(loss_mat=ent, loss_mask=mask, loss_agg_mode=k.agg, **config.global_batch_info)
                        loss = loss - k.entropy * entropy_loss
                        kld = kl_loss = None
                        if k.kl == "loss":
                            kld = verl.kl_penalty(logprob=new, ref_logprob=x["ref"], kl_penalty=k.kl_type)
                            kl_loss = verl.agg_loss(loss_mat=kld, loss_mask=mask, loss_agg_mode=k.agg, **config.global_batch_info)
                            loss = loss + k.kl_coef * kl_loss
                        dlogp = torch.autograd.grad(loss, new, retain_graph=True)[0]
                        (loss / k.ranks).backward()
                        metrics = dict(metrics, **{"actor/pg_loss": pg.item(), "actor/entropy_loss": entropy_loss.item()})
                        if kl_loss is not None:
                            metrics["actor/kl_loss"] = kl_loss.item()
                        o = {a: v for a, v in vars(config).items() if isinstance(v, (int, float, str, type(None)))} | vars(config.policy_loss)
                        plumbline.dump(
                            out, step=step, rank=r, world_size=k.ranks, micro_batch=part, micro_batches=k.micro, framework="verl", version="0.9.1",
                            algorithm="grpo", run="run", strict=True, scalars={a: float(v) for a, v in metrics.items()},
                            options=o | {"num_items_in_batch": float(tokens_all), "agg.denominator": "global", "num_mini_batches": k.minis, "ppo_epochs": k.epochs, "use_kl_in_reward": False},
                            metadata=dict(scalars_scope="micro_batch", token_loss_includes_kl=False),
                            response_mask=mask, response_ids=x["seq"], input_ids=x["full"], attention_mask=x["fatt"], logp_new=new, logp_old=x["old"],
                            logp_gen=x["gen"], logp_ref=x["ref"] if k.kl == "loss" else None, kl=kld, advantages=x["adv"], token_rewards=x["token_rewards"],
                            scores=x["score"], group_id=x["group"], sample_id=None, entropy=ent, is_weights=x.get("w"), loss=loss, pg_loss=pg,
                            kl_loss=kl_loss, entropy_loss=entropy_loss, dlogp=dlogp,
                        )
                torch.nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
                opt.step()
    name = {"dr": "grpo"}.get(k.estimator, k.estimator)
    a = "actor_rollout_ref.actor."
    lines = [
        f"algorithm.adv_estimator={name}", f"algorithm.norm_adv_by_std_in_grpo={k.estimator != 'dr'}", f"algorithm.gamma={k.gamma}", "algorithm.use_kl_in_reward=False",
        f"{a}use_kl_loss={k.kl == 'loss'}", f"{a}kl_loss_coef={k.kl_coef}", f"{a}kl_loss_type={k.kl_type}", f"{a}loss_agg_mode={k.agg}", f"{a}clip_ratio={k.eps}",
        f"{a}clip_ratio_c={k.dual}", f"{a}entropy_coeff={k.entropy}", f"{a}ppo_epochs={k.epochs}", f"{a}policy_loss.loss_mode={k.loss_mode}", f"{a}optim.lr={k.lr}",
        f"actor_rollout_ref.rollout.n={k.gens}", f"actor_rollout_ref.rollout.temperature={k.temperature}",
    ] + [f"{a}clip_ratio_{s}={v}" for s, v in (("low", k.low), ("high", k.high)) if v is not None]
    if k.tis:
        lines += ["algorithm.rollout_correction.rollout_is=token", f"algorithm.rollout_correction.rollout_is_threshold={k.tis}"]
    with open(out + "/run.sh", "w") as f:
        f.write("python3 -m verl.trainer.main_ppo \\\n    " + " \\\n    ".join(lines) + "\n")
    return ["--profile", "verl-grpo@0.9", "--config", "CASE/run.sh"]


V = dict(loss_mode="vanilla", agg="token-mean")
BUGS = [
    ("dual-for-positive", "the dual clip bounds rows of positive advantage too", dict(V, dual=1.5, epochs=2, lr=8e-3, eps=0.2, high=0.28, estimator="grpo"),
     [(CORE, "pg_losses = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)\n\n    # Apply rollout correction weights if provided\n    if rollout_is_weights is not None:\n        pg_losses = pg_losses * rollout_is_weights\n\n    pg_loss = agg_loss(\n        loss_mat=pg_losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info\n    )\n\n    pg_metrics = {\n        \"actor/pg_clipfrac\": pg_clipfrac.detach().item(),\n        \"actor/ppo_kl\": ppo_kl.detach().item(),\n        \"actor/pg_clipfrac_lower\"", "pg_losses = torch.max(clip_pg_losses2, -advantages * 1.02)\n\n    pg_loss = agg_loss(\n        loss_mat=pg_losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info\n    )\n\n    pg_metrics = {\n        \"actor/pg_clipfrac\": pg_clipfrac.detach().item(),\n        \"actor/ppo_kl\": ppo_kl.detach().item(),\n        \"actor/pg_clipfrac_lower\"")]),
    ("tokens-of-the-micro-batch", "the tokens of the micro-batch stand for those of the global batch", dict(V, micro=2, holes=0.6),
     [("self", "batch_num_tokens=tokens_all,", "batch_num_tokens=mask.sum(),")]),
    ("no-dp-size", "the loss is not multiplied by the number of ranks before their gradients are averaged", dict(V, ranks=2),
     [("self", "global_batch_info = dict(dp_size=k.ranks,", "global_batch_info = dict(dp_size=1,")]),
    ("loo-divides-by-all", "the leave-one-out baseline divides by the whole group", dict(estimator="rloo", rewards="graded", flat=False),
     [("self", 'adv, ret = getattr(verl, f"compute_{k.estimator}_outcome_advantage")(token_level.clone(), m, index=uid)', 'adv, ret = getattr(verl, f"compute_{k.estimator}_outcome_advantage")(token_level.clone(), m, index=uid); adv = adv * (k.gens - 1) / k.gens')]),
    ("reward-on-last-column", "the score is put on the last column, masked in the sum of all rows that end earlier", dict(estimator="reinforce_plus_plus", gamma=0.99, tokens=32),
     [("self", "last = (torch.arange(k.tokens) * m).argmax(1)", "last = m.sum(1).long() - 2 + (m.sum(1) < 2).long()")]),
    ("opo-unweighted", "the optimal baseline weights by the square of the length", dict(estimator="opo", rewards="graded", flat=False),
     [(CORE, "id2bsl[idx] = (len_tensor * score_tensor).sum() / len_tensor.sum()", "id2bsl[idx] = (len_tensor**2 * score_tensor).sum() / (len_tensor**2).sum()")]),
    ("gspo-ratio-not-stopped", "GSPO's sequence ratio keeps its own gradient beside that of the token", dict(loss_mode="gspo", agg="seq-mean-token-mean"),
     [(CORE, "log_seq_importance_ratio = log_prob - log_prob.detach() + negative_approx_kl_seq.detach().unsqueeze(-1)", "log_seq_importance_ratio = log_prob - log_prob.detach() + negative_approx_kl_seq.unsqueeze(-1)")]),
    ("kl-coef-twice", "the KL term is multiplied by its coefficient twice", dict(kl="loss", kl_coef=0.02, kl_type="low_var_kl"),
     [("self", "loss = loss + k.kl_coef * kl_loss", "loss = loss + k.kl_coef * (k.kl_coef * kl_loss)")]),
    ("k2-not-halved", "k2 is the squared difference without the half", dict(kl="loss", kl_coef=0.02, kl_type="mse"),
     [(CORE, 'if kl_penalty in ("mse", "k2"):\n        return 0.5 * (logprob', 'if kl_penalty in ("mse", "k2"):\n        return 1.0 * (logprob')]),
    ("whiten-with-padding", "REINFORCE++ whitens over all cells, padding too", dict(estimator="reinforce_plus_plus", tokens=80),
     [(CORE, "advantages = verl_F.masked_whiten(returns, response_mask)\n        advantages = advantages * response_mask", "advantages = verl_F.masked_whiten(returns, torch.ones_like(response_mask))\n        advantages = advantages * response_mask")]),
    ("entropy-sum", "the entropy bonus is a sum per row where the loss is a mean per token", dict(V, entropy=0.005),
     [("self", "entropy_loss = verl.agg_loss(loss_mat=ent, loss_mask=mask, loss_agg_mode=k.agg, **config.global_batch_info)", 'entropy_loss = verl.agg_loss(loss_mat=ent, loss_mask=mask, loss_agg_mode="seq-mean-token-sum", **config.global_batch_info)')]),
]
