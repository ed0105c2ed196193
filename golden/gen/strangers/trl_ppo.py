"""TRL 1.12.0's PPOTrainer: the statements of its rollout phase and of its minibatches, driven as train() drives them."""

import types

import torch

from source import Release, base
from world import EOS, LM, PAD, Policy, Task, rollout
from writer import write

PATH = "trl/experimental/ppo/ppo_trainer.py"
ARGS = dict(
    kl_coef=0.05,
    kl_estimator="k1",
    cliprange=0.2,
    cliprange_value=0.2,
    vf_coef=0.1,
    gamma=1.0,
    lam=0.95,
    whiten_rewards=False,
    missing_eos_penalty=None,
    temperature=0.7,
    num_ppo_epochs=2,
    gradient_accumulation_steps=1,
    num_mini_batches=1,
)


def run(case, folder):
    w = case.cfg
    a = types.SimpleNamespace(**{**ARGS, **w.get("args", {})})
    rel = Release("trl-1.12.0", case.edits)
    ns = dict(base(), INVALID_LOGPROB=1.0)
    rel.functions(PATH, ns, {"masked_mean", "masked_var", "masked_whiten", "truncate_response"})
    rel.functions("trl/experimental/utils.py", ns, {"first_true_indices"})
    roll = rel.block(PATH, "contain_eos_token = torch.any(", "advantages = torch.masked_fill(advantages, padding_mask, 0)")
    new = rel.block(PATH, "new_logprobs = torch.masked_fill(", "accelerator.backward(loss)")
    rel.check()
    calls, steps = w.get("calls", {}), w.get("steps", 4)
    task = Task(
        prompts=w.get("prompts", 16), group=1, T=w.get("T", 20), temperature=a.temperature + 1e-7, reward=w.get("reward", "float"), prompt=6
    )
    policy, value = Policy(LM(case.seed, mean_length=task.T * w.get("fill", 0.6)), case.dtype), Policy(LM(case.seed + 2), case.dtype)
    ref = policy.copy(case.seed + 1, w["ref_distance"]) if w.get("ref_distance") else policy.copy()
    optimizer = torch.optim.Adam([*policy.model.parameters(), *value.model.parameters()], lr=w.get("lr", 3e-3))
    o = {k: v for k, v in vars(a).items()} | {"agg.div_ga": True, "eos_token_id": [EOS], "pad_token_id": PAD}
    step = generation = 0
    ga = a.gradient_accumulation_steps
    while step < steps:
        r = rollout(policy.model, task, case.seed * 1000 + generation)
        width = int(r["live"].sum(1).max())
        q, resp = r["prompt_ids"], r["response"][:, :width]
        ids, att = torch.cat([q, resp], 1), torch.cat([q, resp], 1) != PAD
        with torch.no_grad():
            lp = policy.score(ids, att, width, calls.get("temperature_old", a.temperature + 1e-7))[0]
            reflp = ref.score(ids, att, width, calls.get("temperature_ref", a.temperature + 1e-7))[0]
            vals = value.raw(ids, att, width)[1]
        post = ns["truncate_response"](EOS, PAD, resp)
        env = dict(
            ns,
            self=types.SimpleNamespace(args=a, processing_class=types.SimpleNamespace(eos_token_id=EOS)),
            args=a,
            postprocessed_responses=post,
            responses=resp,
            scores=r["score"].clone().to(vals.dtype),
            sequence_lengths=ns["first_true_indices"](post == PAD) - 1,
            logprobs=lp,
            ref_logprobs=reflp,
            values=vals,
            empty_cache=lambda: None,
        )
        with torch.no_grad():
            exec(roll, env)
        order_of = torch.Generator().manual_seed(case.seed + generation)
        rows = len(resp)
        for _ in range(a.num_ppo_epochs):
            order = torch.randperm(rows, generator=order_of)
            for mini in order.view(a.num_mini_batches, -1):
                if step >= steps:
                    break
                optimizer.zero_grad()
                for k, i in enumerate(mini.view(ga, -1)):
                    x, am = ids[i], att[i]
                    nlp, ent, _, _ = policy.score(x, am, width, calls.get("temperature_new", a.temperature + 1e-7))
                    _, _, full = value.raw(x, am, width)
                    e = dict(
                        env,
                        accelerator=types.SimpleNamespace(backward=lambda loss: None),
                        context_length=q.shape[1],
                        new_logprobs=nlp,
                        micro_batch_inds=i,
                        vpred_temp=full.unsqueeze(-1),
                        mb_advantage=env["advantages"][i],
                        mb_responses=resp[i],
                        mb_logprobs=env["logprobs"][i],
                        mb_return=env["returns"][i],
                        mb_values=env["values"][i],
                    )
                    exec(new, e)
                    loss, nl, vp = e["loss"], e["new_logprobs"], e["vpred"]
                    loss = loss / ga
                    dlogp, dvalues = torch.autograd.grad(loss, [nl, vp], retain_graph=True, materialize_grads=True)
                    loss.backward()
                    t = dict(
                        input_ids=x,
                        attention_mask=am,
                        response_ids=resp[i],
                        response_mask=~env["padding_mask"][i],
                        logp_new=nl,
                        logp_old=e["mb_logprobs"],
                        logp_ref=env["ref_logprobs"][i],
                        kl=env["kl"][i],
                        logp_gen=r["gen"][i][:, :width] if w.get("gen") else None,
                        values=e["mb_values"],
                        values_new=vp,
                        returns=e["mb_return"],
                        advantages=e["mb_advantage"],
                        scores=r["score"][i],
                        token_rewards=env["rewards"][i],
                        token_loss=e["pg_loss_max"],
                        loss=loss,
                        pg_loss=e["pg_loss"],
                        value_loss=e["vf_loss"],
                        dlogp=dlogp,
                        dvalues=dvalues,
                        entropy=ent,
                        prompt_len=r["plen"][i],
                        group_id=r["group"][i] + 1000 * generation,
                    )
                    with torch.no_grad():
                        scal = (
                            {
                                "approx_kl": float(0.5 * (e["logprobs_diff"] ** 2).mean()),
                                "clip_frac": float(ns["masked_mean"]((e["pg_losses2"] > e["pg_losses"]).float(), ~env["padding_mask"][i])),
                            }
                            if w.get("scalars")
                            else {}
                        )
                    write(
                        folder,
                        t,
                        dict(
                            framework="trl",
                            version="1.12.0",
                            algorithm="ppo",
                            profile="trl-ppo@1.12",
                            step=step + 1,
                            rank=0,
                            world_size=1,
                            micro_batch=k,
                            micro_batches=ga,
                            options=o,
                            scalars=scal,
                            scalars_scope="micro_batch",
                            masked_fill=1.0,
                        ),
                    )
                optimizer.step()
                step += 1
        generation += 1
