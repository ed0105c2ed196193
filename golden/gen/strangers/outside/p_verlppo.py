"""PPO with a critic by verl 0.9.1's own functions: KL in the reward, GAE over holes, whitened advantages, dual clip, the clipped value loss."""

import types
from collections import defaultdict

import frames
import numpy as np
import plumbline
import torch
import torch.nn.functional as F
import world

CORE, TF = "verl/trainer/ppo/core_algos.py", "verl/utils/torch_functional.py"


def knobs(k):
    k.draw(
        prompts=[16, 32], gens=[1], tokens=[12, 48, 100, 200], most=[4, 8], gamma=[1.0, 0.99], lam=[1.0, 0.95], minis=[1, 2], epochs=[1, 2], micro=[1, 2],
        penalty=["kl", "low_var_kl", "mse", None], beta=[0.001, 0.05], eps=[0.2, 0.1], vclip=[0.5, 0.2], dual=[3.0, 2.0], agg=["token-mean", "token-mean", "seq-mean-token-mean"],
        entropy=[0.0, 0.01], holes=[0.0, 0.7], rewards=["graded", "big", "binary"], dtype=["f32", "amp", "bf16"], lr=[2e-3, 6e-3], temperature=[1.0, 0.8],
    )


class Config(types.SimpleNamespace):
    def get(self, name, default=None):
        return getattr(self, name, default)


def forward(model, x, k):
    with torch.autocast("cpu", torch.bfloat16, enabled=k.dtype == "amp"):
        y = model(x["full"], x["fatt"])
    return y[:, -k.tokens - 1 : -1].float()


def logp_of(logits, ids, k):
    lp = F.log_softmax(logits / k.temperature, -1)
    return lp.gather(-1, ids.unsqueeze(-1)).squeeze(-1), -(lp.exp() * lp).sum(-1)


def main(out, k):
    tf = frames.functions(frames.text("verl-0.9.1", TF, k.edits(TF)), ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"], {"torch": torch})
    env = dict(torch=torch, np=np, defaultdict=defaultdict, verl_F=tf, ActorConfig=Config, AlgoConfig=type("AlgoConfig", (), {}))
    verl = frames.functions(
        frames.text("verl-0.9.1", CORE, k.edits(CORE)),
        ["agg_loss", "kl_penalty", "kl_penalty_forward", "compute_gae_advantage_return", "compute_policy_loss_vanilla", "compute_value_loss"], env,
    )
    actor = world.policy(k.seed, k.tokens)
    ref = world.moved(actor, k.seed + 2, 0.03)
    torch.manual_seed(k.seed + 9)
    critic = world.Net(out=1, spread=0.5)
    if k.dtype == "bf16":
        actor, ref, critic = (n.to(torch.bfloat16) for n in (actor, ref, critic))
    opt = torch.optim.AdamW([*actor.parameters(), *critic.parameters()], lr=k.lr)
    config = Config(clip_ratio=k.eps, clip_ratio_low=None, clip_ratio_high=None, clip_ratio_c=k.dual, loss_agg_mode=k.agg, entropy_coeff=k.entropy, use_kl_loss=False, global_batch_info={})
    step = 0
    for i in range(2):
        b = world.rollout(k, actor, i, k.temperature)
        b["response_mask"] = world.holes(b["mask"], k.holes, k.seed + i)
        m = b["response_mask"].float()
        score = world.judge_rewards(b["seq"], b["mask"], b["done"], k.rewards)
        last = (torch.arange(k.tokens) * m).argmax(1)
        token_level_scores = torch.zeros_like(m).scatter_(1, last[:, None], score[:, None])
        with torch.no_grad():
            b["old"], _ = logp_of(forward(actor, b, k), b["seq"], k)
            b["ref"], _ = logp_of(forward(ref, b, k), b["seq"], k)
            b["values"] = forward(critic, b, k).squeeze(-1) * m
        rewards = token_level_scores
        if k.penalty:
            kld = verl.kl_penalty(b["old"], b["ref"], k.penalty) * m
            rewards = token_level_scores - k.beta * kld
            b["kl"] = kld
        adv, ret = verl.compute_gae_advantage_return(rewards, b["values"], m, k.gamma, k.lam)
        b.update(adv=adv, ret=ret, token_rewards=rewards, score=score)
        size = len(score) // k.minis
        for _ in range(k.epochs):
            for mini in range(k.minis):
                step += 1
                opt.zero_grad()
                ntok = m[mini * size : (mini + 1) * size].sum()
                for part in range(k.micro):
                    at, width = mini * size + part * (size // k.micro), size // k.micro
                    x = {a: v[at : at + width] for a, v in b.items()}
                    mask = x["response_mask"].float()
                    info = dict(dp_size=1, batch_num_tokens=ntok, global_batch_size=size, loss_scale_factor=None)
                    config.global_batch_info = info
                    new, ent = logp_of(forward(actor, x, k), x["seq"], k)
                    vpreds = forward(critic, x, k).squeeze(-1)
                    pg, metrics = verl.compute_policy_loss_vanilla(x["old"], new, x["adv"], mask, k.agg, config)
                    entropy_loss = verl.agg_loss(loss_mat=ent, loss_mask=mask, loss_agg_mode=k.agg, **info)
                    loss = pg - k.entropy * entropy_loss
                    vf, clipfrac = verl.compute_value_loss(vpreds, x["ret"], x["values"], mask, k.vclip, k.agg, **info)
                    dlogp = torch.autograd.grad(loss, new, retain_graph=True)[0]
                    dvalues = torch.autograd.grad(vf, vpreds, retain_graph=True)[0]
                    (loss + vf).backward()
                    plumbline.dump(
                        out, step=step, micro_batch=part, micro_batches=k.micro, framework="verl", version="0.9.1", algorithm="ppo", run="run", strict=True,
                        scalars={a: float(v) for a, v in metrics.items()} | {"actor/pg_loss": pg.item(), "critic/vf_loss": vf.item(), "critic/vf_clipfrac": float(clipfrac)},
                        options={a: v for a, v in vars(config).items() if isinstance(v, (int, float, str, type(None)))}
                        | {"cliprange_value": k.vclip, "num_items_in_batch": float(ntok), "agg.denominator": "global", "num_mini_batches": k.minis, "ppo_epochs": k.epochs, "use_kl_in_reward": bool(k.penalty)},
                        metadata=dict(scalars_scope="micro_batch"),
                        response_mask=x["response_mask"], response_ids=x["seq"], input_ids=x["full"], attention_mask=x["fatt"], logp_new=new, logp_old=x["old"],
                        logp_gen=x["gen"], logp_ref=x["ref"] if k.penalty else None, kl=x.get("kl"), values=x["values"], values_new=vpreds, token_rewards=x["token_rewards"],
                        scores=x["score"], advantages=x["adv"], returns=x["ret"], entropy=ent, loss=loss, pg_loss=pg, value_loss=vf, entropy_loss=entropy_loss,
                        dlogp=dlogp, dvalues=dvalues,
                    )
                opt.step()
    a = "actor_rollout_ref.actor."
    lines = [
        "algorithm.adv_estimator=gae", f"algorithm.gamma={k.gamma}", f"algorithm.lam={k.lam}", f"algorithm.use_kl_in_reward={bool(k.penalty)}",
        f"algorithm.kl_penalty={k.penalty or 'kl'}", "algorithm.kl_ctrl.type=fixed", f"algorithm.kl_ctrl.kl_coef={k.beta}", f"{a}clip_ratio={k.eps}", f"{a}clip_ratio_c={k.dual}",
        f"{a}loss_agg_mode={k.agg}", f"{a}entropy_coeff={k.entropy}", f"{a}ppo_epochs={k.epochs}", f"critic.cliprange_value={k.vclip}", f"actor_rollout_ref.rollout.temperature={k.temperature}",
        f"critic.ppo_epochs={k.epochs}", f"{a}use_kl_loss=False", f"{a}optim.lr={k.lr}",
    ]
    with open(out + "/run.sh", "w") as f:
        f.write("python3 -m verl.trainer.main_ppo \\\n    " + " \\\n    ".join(lines) + "\n")
    return ["--profile", "verl-ppo@0.9", "--config", "CASE/run.sh"]


BUGS = [
    ("gae-without-carry", "values of masked cells enter the recursion of GAE", dict(holes=0.7, tokens=48),
     [(CORE, "nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues", "nextvalues = values[:, t]")]),
    ("lambda-forgotten", "the trace is discounted by gamma alone", dict(gamma=0.99, lam=0.95),
     [(CORE, "lastgaelam_ = delta + gamma * lam * lastgaelam", "lastgaelam_ = delta + gamma * lastgaelam")]),
    ("kl-added", "the KL penalty is added to the reward", dict(penalty="kl", beta=0.05),
     [("self", "rewards = token_level_scores - k.beta * kld", "rewards = token_level_scores + k.beta * kld")]),
    ("returns-whitened", "the value target is made of the whitened advantages", dict(),
     [(CORE, "returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)", "advantages = verl_F.masked_whiten(advantages, response_mask)\n        returns = advantages + values")]),
    ("value-clip-around-returns", "the value is clipped around the target, not around the old value", dict(vclip=0.2, epochs=2),
     [(CORE, "verl_F.clip_by_value(vpreds, values - cliprange_value, values + cliprange_value)", "verl_F.clip_by_value(vpreds, returns - cliprange_value, returns + cliprange_value)")]),
    ("value-no-half", "the value loss lacks its factor of a half", dict(),
     [(CORE, "vf_loss = 0.5 * agg_loss(", "vf_loss = agg_loss(")]),
    ("whiten-biased-mask", "the variance of whitening is a mean over all cells", dict(holes=0.7),
     [(TF, "variance = masked_mean(centered_values**2, mask)", "variance = (centered_values**2 * mask).mean()")]),
    ("reward-one-early", "the score stands one token before the last", dict(gamma=0.99, lam=0.95),
     [("self", "scatter_(1, last[:, None], score[:, None])", "scatter_(1, (last[:, None] - 1).clamp(min=0), score[:, None])")]),
    ("values-shifted", "the values are those after the token, not before it", dict(),
     [("self", 'b["values"] = forward(critic, b, k).squeeze(-1) * m', 'b["values"] = critic(b["full"], b["fatt"])[:, -k.tokens:].float().squeeze(-1) * m')]),
    ("clipfrac-of-value", "the logged clip share is the share of cells where the clipped loss is the smaller", dict(epochs=2, lr=6e-3),
     [(CORE, "vf_clipfrac = verl_F.masked_mean(torch.gt(vf_losses2, vf_losses1).float(), response_mask)", "vf_clipfrac = verl_F.masked_mean(torch.gt(vf_losses1, vf_losses2).float(), response_mask)")]),
]
