"""OpenRLHF: log-probs of the actor, policy and value losses, the score of an agent."""

import asyncio
import itertools

import torch
from scene import BOTH, Scene, case, gradient, meta, ns
from source import base

LOSS, UTIL, ACTOR = "openrlhf/models/loss.py", "openrlhf/models/utils.py", "openrlhf/models/actor.py"
PROFILE = "openrlhf-group@0.11"


def losses(rel):
    ut = dict(base(), Optional=None)
    rel.functions(UTIL, ut, {"masked_mean"})
    out = dict(base(), dist=None, Optional=None, masked_mean=ut["masked_mean"])
    rel.functions(LOSS, out, {"aggregate_loss", "PolicyLoss", "ValueLoss"})
    return out


def actor_logps(rel, s, temperature):
    ut = base()
    rel.functions(UTIL, ut, {"log_probs_from_logits", "_logsumexp_by_chunk", "compute_entropy"})
    space = dict(base(), log_probs_from_logits=ut["log_probs_from_logits"], compute_entropy=ut.get("compute_entropy"), dist=ns(ProcessGroup=None), Optional=None, Union=None)
    rel.functions(ACTOR, space, {"forward"}, cls="Actor")
    kept = {}

    def model(ids, attention_mask=None, position_ids=None, **k):
        h, _ = s.old.model.hidden(ids, attention_mask)
        kept["z"] = s.old.model.head(h)
        return {"logits": kept["z"].clone()}

    class Output(dict):
        __getattr__ = dict.get

    self = ns(packing_samples=False, temperature=temperature, model=lambda *a, **k: Output(model(*a, **k)))
    with torch.no_grad():
        if "num_actions" in space["forward"].__code__.co_varnames:
            lp = space["forward"](self, s.ids, s.T, attention_mask=s.att)
        else:
            lp = space["forward"](self, s.ids, action_mask=s.att[:, -s.T :], attention_mask=s.att)
            lp = lp[0] if isinstance(lp, tuple) else lp
    return lp[:, -s.T :], kept["z"][:, -s.T - 1 : -1].float()


def temperature(rel, seed, dtype):
    s = Scene(seed, dtype, prompts=2, group=3, temperature=0.8)
    lp, z = actor_logps(rel, s, 0.8)
    yield dict(s.rows(), logp_new=lp, logp_gen=s.gen, logits=z), meta("openrlhf", rel, "grpo", PROFILE, options={"rollout.temperature": 0.8})


@case("openrlhf-857", BOTH)
def actor(rel, side, seed, dtype):
    return temperature(rel, seed, dtype)


@case("c-openrlhf-logp")
def actor_refactored(rel, side, seed, dtype):
    return temperature(rel, seed, dtype)


def policy(rel, seed, dtype, micros):
    s = Scene(seed, dtype, prompts=4)
    f = losses(rel)
    loss_fn = f["PolicyLoss"](0.2, 0.2)
    adv = s.advantages(1e-9)[:, None].expand(-1, s.T) * s.mask
    order = s.mask.sum(1).argsort()
    n = len(order) // micros
    new_rules = "batch_num_tokens" in rel.text(LOSS)
    tokens = float(s.mask.sum()) / micros
    old, lps = s.logps(s.old), s.logps(s.new)
    for i in range(micros):
        sel = order[i * n : (i + 1) * n]
        new = lps[sel].clone().requires_grad_()
        more = dict(dp_size=1, batch_num_tokens=tokens, global_batch_size=n) if new_rules else {}
        loss = loss_fn(new, old[sel], adv[sel], action_mask=s.mask[sel], **more)[0] / micros  # the accumulation divides
        yield dict(response_mask=s.mask[sel], logp_new=new, logp_old=old[sel], advantages=adv[sel], scores=s.scores[sel], group_id=s.group[sel], loss=loss, dlogp=gradient(loss, new)), meta(
            "openrlhf", rel, "grpo", PROFILE, micro=i, micros=micros,
            options={"agg.denominator": "global", "num_items_in_batch": tokens * micros, "algo.kl.use_loss": False, "kl.beta": 0.0, "tis.level": "none", "algo.advantage.estimator": "group_norm"},
        )


@case("openrlhf-df78645e", BOTH)
def micro_means(rel, side, seed, dtype):
    return policy(rel, seed, dtype, 2)


@case("c-openrlhf-clamp")
def clamped(rel, side, seed, dtype):
    return policy(rel, seed, dtype, 1)


@case("c-openrlhf-value")
def value(rel, side, seed, dtype):
    s = Scene(seed)
    values = s.normal(*s.mask.shape, std=0.5)
    returns, new = values + s.normal(*s.mask.shape), (values + s.normal(*s.mask.shape, std=0.3)).requires_grad_()
    loss = losses(rel)["ValueLoss"](0.2)(new, values, returns, action_mask=s.mask)
    yield dict(s.tokens(), values=values, values_new=new, returns=returns, value_loss=loss, dvalues=gradient(loss, new)), meta(
        "openrlhf", rel, "ppo", "openrlhf-ppo@0.11", options={"critic.value_clip": 0.2, "agg.denominator": "micro"}
    )


@case("openrlhf-1219")
def zero_score(rel, side, seed, dtype):
    """SingleTurnAgentExecutor's output for each row, with a reward server that says score 0 or 1 and a shaped reward."""
    import ast

    s = Scene(seed, prompts=4, reward="binary")
    shaped = s.scores + 0.3
    text = rel.text("openrlhf/utils/agent.py")
    call = next((k for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "scores" and "rewards_info" in ast.unparse(k.value)), None)

    def score(info):
        if call is not None:
            return eval(ast.unparse(call.value), dict(rewards_info=info))
        env = dict(rewards_info=info)
        for n in ast.walk(ast.parse(text)):
            if isinstance(n, ast.Assign) and ast.unparse(n) == "score_value = rewards_info.get('scores')":
                exec(ast.unparse(n), env)
        for n in ast.walk(ast.parse(text)):
            if isinstance(n, ast.If) and ast.unparse(n.test) == "score_value is None":
                exec(ast.unparse(n), env)
        return env["score_value"]
    got = torch.tensor([float(score(dict(scores=float(a), rewards=float(b)))) for a, b in zip(s.scores, shaped)])
    yield dict(s.rows(), scores=got, rewards_per_func=s.scores[:, None]), meta("openrlhf", rel, "grpo", PROFILE, options={"reward_weights": [1.0]})


@case("openrlhf-1250")
def masked_normalize(rel, side, seed, dtype):
    s = Scene(seed, prompts=2, group=4, T=8, fill=3.0)
    f = dict(base())
    rel.functions(UTIL, f, {"masked_mean", "masked_normalize"})
    raise RuntimeError("dead code: no call of masked_normalize in the trainer")
