"""y2: right runs of TRL 1.16's RLOO (cases rloo…) and of TRL 1.12's PPO (cases ppo…), by the trainers' own statements.  python y2.py CASES"""
from collections import defaultdict
from types import SimpleNamespace as NS
from world_y import *
RL, PP = "trl-1.16.0/trl/trainer/rloo_trainer.py", "trl-1.12.0/trl/experimental/ppo/ppo_trainer.py"
G = dict(torch=torch, math=math, np=np)
functions("trl-1.16.0/trl/trainer/utils.py", ["nanstd", "nanmin", "nanmax"], G)
functions(RL, ["_compute_loss"], G, "RLOOTrainer")
ADV = lines(RL, "unscorable_mask =", "advantages = torch.nan_to_num", after="def _generate_and_score_completions")
GP = dict(torch=torch, math=math, np=np)
functions(PP, ["masked_mean", "masked_var", "masked_whiten", "truncate_response", "exact_div"], GP)
functions("trl-1.12.0/trl/experimental/utils.py", ["first_true_indices"], GP)
GP["INVALID_LOGPROB"] = 1.0
ROLL = lines(PP, "contain_eos_token = torch.any", "advantages = torch.masked_fill(advantages, padding_mask, 0)", after="def train(self)")
LOSS = lines(PP, "vpredclipped = torch.clamp(", "loss = pg_loss + args.vf_coef", after="def train(self)")
MET = lines(PP, "pg_clipfrac = masked_mean(", "approxkl = 0.5", after="loss = pg_loss + args.vf_coef")

R0 = dict(per_device_train_batch_size=8, gradient_accumulation_steps=1, steps_per_generation=None, num_generations=2, max_completion_length=20, temperature=1.0, beta=0.05,
          num_iterations=1, epsilon=0.2, epsilon_high=None, normalize_advantages=False, reward_clip_range=None, mask_truncated_completions=False)


def rloo(cases, name, seed, over, little, text):
    rng, npr, gen = random.Random(seed), np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    o = {**R0, "rewards": ["binary"], "steps": 5, "lr": 6e-3, "eos_bias": 1.5, "world": 1, "hooked": rng.random() < 0.5, "grouped": rng.random() < 0.5, **over}
    if o["steps_per_generation"] is None: o["steps_per_generation"] = o["gradient_accumulation_steps"]
    W, GA, SPG, B, N = o["world"], o["gradient_accumulation_steps"], o["steps_per_generation"], o["per_device_train_batch_size"], o["num_generations"]
    n = B * W * SPG
    assert n % N == 0
    model = policy(seed, o["eos_bias"]); ref = clone(model, 0.05, seed)
    opt = torch.optim.AdamW(model.parameters(), lr=o["lr"], weight_decay=0.0)
    declared = {k: o[k] for k in R0 if o[k] != R0[k] or k in ("beta", "num_generations", "gradient_accumulation_steps", "steps_per_generation", "num_iterations", "temperature", "normalize_advantages", "per_device_train_batch_size")}
    if o.get("reward_weights"): declared["reward_weights"] = o["reward_weights"]
    c = Case(cases, name, "y2", text, meta=dict(framework="trl", version="1.16.0", algorithm="rloo"), options=declared | {"eos_token_id": EOS}, many=not little)
    s = NS(accelerator=NS(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=W), model=NS(training=True), aux_loss_enabled=False, _metrics={"train": defaultdict(list)},
           reward_weights=torch.tensor(o.get("reward_weights") or [1.0] * len(o["rewards"])), epsilon_low=o["epsilon"], epsilon_high=o["epsilon_high"] or o["epsilon"], **{k: o[k] for k in ("beta", "normalize_advantages", "reward_clip_range")})
    def lps(m, ids, attention, keep, compute_entropy=False, **_):
        lp, ent, _ = score(m, ids[:, :-keep], ids[:, -keep:], o["temperature"])
        s.frame, s.lp = sys._getframe(1), lp * attention[:, -keep:]
        return s.lp, ent * attention[:, -keep:], None
    s._get_per_token_logps_and_entropies = lps
    fwd = 0; step = 1
    while step <= o["steps"]:
        if fwd % (SPG * o["num_iterations"]) == 0:
            prompts = prompts_of(rng, n // N).repeat_interleave(N, 0)
            resp, mask, lpg, ended = sample(clone(model), prompts, o["max_completion_length"], o["temperature"], gen)
            cm = mask.int() * (ended.unsqueeze(1).int() if o["mask_truncated_completions"] else 1)
            rf = torch.stack([rule_reward(k, prompts, resp, mask, ended, o["max_completion_length"]) for k in o["rewards"]], 1)
            if o.get("nan_rewards"): rf[torch.rand(rf.shape, generator=gen) < 0.12] = float("nan")
            with torch.no_grad():
                old, rlp = score(model, prompts, resp, o["temperature"])[0] * cm, score(ref, prompts, resp, o["temperature"])[0] * cm
                env = dict(G, self=s, rewards_per_func=rf, num_generations=N, device="cpu", gather=lambda x: x, old_per_token_logps=old, ref_per_token_logps=rlp, completion_mask=cm)
                exec(ADV, env)
            raw = (rf * s.reward_weights).nansum(1); raw[torch.isnan(rf).all(1)] = float("nan")
            d = dict(prompt_ids=prompts, prompt_mask=torch.ones_like(prompts), completion_ids=resp, completion_mask=cm, old_logps=(old * cm).sum(1), advantages=env["advantages"],
                     old=old, ref=rlp, scores=raw, rewards_per_func=rf, group_id=torch.arange(n) // N + fwd * 1000)
            ranks = []
            for r in range(W):
                perm = shuffled(npr, n // W) + r * (n // W)
                ranks.append([{k: v[perm][i * B:(i + 1) * B] for k, v in d.items()} for i in range(SPG)])
        for r in range(W):
            x = ranks[r][fwd % SPG]
            s._metrics["train"].clear()
            loss = G["_compute_loss"](s, model, x)
            (loss / GA / W).backward(retain_graph=True)
            div = 1 if o["hooked"] else GA
            t = dict(response_mask=x["completion_mask"], logp_new=s.lp, logp_old=x["old"], advantages=x["advantages"], scores=x["scores"], loss=loss / div)
            if o["beta"]: t["logp_ref"] = x["ref"]
            if not little or o["grouped"]: t["group_id"] = x["group_id"]
            sc = None
            if not little:
                t |= dict(dlogp=grads(loss / div, lp=s.lp)["lp"], entropy=s.frame.f_locals["entropies"], response_ids=x["completion_ids"], rewards_per_func=x["rewards_per_func"] if len(o["rewards"]) > 1 else None)
                if W == 1: sc = {k: v[-1] for k, v in s._metrics["train"].items()} | dict(loss=(loss / div).item())
            c.dump(step, t, fwd % GA, GA, r, W, sc, scalars_scope="micro_batch")
        fwd += 1
        if fwd % GA == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad(); step += 1
    return c


P0 = dict(per_device_train_batch_size=8, gradient_accumulation_steps=4, num_mini_batches=1, response_length=20, temperature=0.7, stop_token="eos", missing_eos_penalty=None,
          num_ppo_epochs=4, whiten_rewards=False, kl_coef=0.05, kl_estimator="k1", cliprange=0.2, vf_coef=0.1, cliprange_value=0.2, gamma=1.0, lam=0.95)


def ppo(cases, name, seed, over, little, text):
    rng, npr, gen = random.Random(seed), np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    o = {**P0, "reward": "rm", "updates": 2, "lr": 4e-3, "eos_bias": 1.5, "world": 1, "divided": rng.random() < 0.4, **over}
    a = NS(**o); GA, W = a.gradient_accumulation_steps, a.world
    local = a.per_device_train_batch_size * GA
    mini = GP["exact_div"](local, a.num_mini_batches)
    if a.whiten_rewards: assert mini >= 8
    model, val = policy(seed, o["eos_bias"]), critic(seed)
    ref = clone(model, 0.05, seed)
    opt = torch.optim.AdamW([*model.parameters(), *val.parameters()], lr=o["lr"], weight_decay=0.0)
    c = Case(cases, name, "y2", text, meta=dict(framework="trl", version="1.12.0", algorithm="ppo"), options={k: o[k] for k in P0} | {"eos_token_id": EOS, "world_size": W}, many=not little)
    step = 1
    for update in range(a.updates):
        R = []
        for r in range(W):
            prompts = prompts_of(rng, local)
            resp, mask, lpg, ended = sample(clone(model), prompts, a.response_length, a.temperature + 1e-7, gen)
            if resp.shape[1] < a.response_length: resp = F.pad(resp, (0, a.response_length - resp.shape[1]), value=PAD); mask = F.pad(mask, (0, a.response_length - mask.shape[1]))
            with torch.no_grad():
                lp = score(model, prompts, resp, a.temperature, 1e-7)[0]; rl = score(ref, prompts, resp, a.temperature, 1e-7)[0]
                v = values_of(val, prompts, resp)
                sc = rule_reward(o["reward"], prompts, resp, mask, ended, a.response_length)
                post = GP["truncate_response"](EOS, PAD, resp)
                e = dict(GP, self=NS(args=a, processing_class=NS(eos_token_id=EOS)), args=a, responses=resp, postprocessed_responses=post, logprobs=lp, ref_logprobs=rl,
                         scores=sc.clone(), values=v, sequence_lengths=GP["first_true_indices"](post == PAD) - 1, empty_cache=lambda: None)
                exec(ROLL, e)
            R.append(dict(prompts=prompts, raw=sc, **{k: e[k] for k in ("responses", "logprobs", "ref_logprobs", "values", "advantages", "returns", "rewards", "kl", "padding_mask", "padding_mask_p1")},
                          id=torch.arange(local) + 1000 * (update * W + r)))
        micro = 0
        for epoch in range(a.num_ppo_epochs):
            perms = [npr.permutation(local) for _ in range(W)]
            for ms in range(0, local, mini):
                for s0 in range(0, mini, a.per_device_train_batch_size):
                    for r in range(W):
                        ix = torch.as_tensor(perms[r][ms:ms + mini][s0:s0 + a.per_device_train_batch_size])
                        b = {k: x[ix] for k, x in R[r].items()}
                        new, ent, raw = score(model, b["prompts"], b["responses"], a.temperature, 1e-7)
                        lpn = torch.masked_fill(new, b["padding_mask"], 1.0)
                        vp = torch.masked_fill(values_of(val, b["prompts"], b["responses"]), b["padding_mask_p1"], 0)
                        e = dict(GP, args=a, vpred=vp, mb_values=b["values"], mb_return=b["returns"], mb_logprobs=b["logprobs"], mb_advantage=b["advantages"], new_logprobs=lpn,
                                 padding_mask=R[r]["padding_mask"], padding_mask_p1=R[r]["padding_mask_p1"], micro_batch_inds=ix, logits=raw / (a.temperature + 1e-7))
                        exec(LOSS, e)
                        with torch.no_grad(): exec(MET, e)
                        loss = e["loss"]
                        (loss / GA / W).backward(retain_graph=True)
                        div = GA if o["divided"] else 1
                        t = dict(response_mask=~b["padding_mask"], logp_new=lpn, logp_old=b["logprobs"], logp_ref=b["ref_logprobs"], advantages=b["advantages"], scores=b["raw"], loss=loss / div)
                        if little: t["token_rewards"] = b["rewards"]
                        scal = None
                        if not little:
                            g = grads(loss / div, a=lpn, v=vp)
                            t |= dict(values=b["values"], values_new=vp, returns=b["returns"], token_rewards=b["rewards"], kl=b["kl"], dlogp=g["a"], dvalues=g["v"], pg_loss=e["pg_loss"] / div,
                                      value_loss=e["vf_loss"] / div, token_loss=e["pg_loss_max"], response_ids=b["responses"], entropy=e["entropy"])
                            if o.get("ids", True): t["sample_id"] = b["id"]
                            scal = dict(pg_clipfrac=e["pg_clipfrac"], vf_clipfrac=e["vf_clipfrac"])
                        c.dump(step, t, micro, GA, r, W, scal, scalars_scope="micro_batch")
                    micro += 1
                    if micro == GA:
                        opt.step(); opt.zero_grad(); micro = 0; step += 1
    return c


RR = [("default", dict()), ("n4", dict(num_generations=4, beta=0.01)), ("nobeta", dict(beta=0.0, num_generations=8, per_device_train_batch_size=16)), ("norm", dict(normalize_advantages=True, num_generations=4)),
      ("clip", dict(reward_clip_range=[-1.0, 1.0], rewards=["rm"], num_generations=4)), ("iter2", dict(num_iterations=2, num_generations=4, lr=2e-2)), ("ga", dict(gradient_accumulation_steps=2, num_generations=4)),
      ("multi", dict(rewards=["acc_format", "length"], reward_weights=[1.0, 0.5], num_generations=8)), ("spg", dict(steps_per_generation=4, gradient_accumulation_steps=2, num_generations=4)), ("trunc", dict(mask_truncated_completions=True, eos_bias=0.0, num_generations=4)),
      ("none", dict(nan_rewards=True, num_generations=4))]
RC = [dict(temperature=0.9), dict(temperature=0.7), dict(epsilon=0.1), dict(rewards=["acc_format"]), dict(world=2), dict(epsilon_high=0.28), dict(rewards=["signed"]), dict(max_completion_length=10), dict(lr=2e-2)]
RO = [dict(rewards=["constant"]), dict(lr=0.0), dict(max_completion_length=1), dict(rewards=["huge"]), dict(beta=1.0), dict(eos_bias=-6.0)]
PR = [("default", dict()), ("tldr", dict(missing_eos_penalty=1.0, eos_bias=0.0)), ("k3", dict(kl_estimator="k3", kl_coef=0.02)), ("whiten", dict(whiten_rewards=True, kl_coef=0.2)), ("mini2", dict(num_mini_batches=2)),
      ("one", dict(gradient_accumulation_steps=1, per_device_train_batch_size=16, num_ppo_epochs=2)), ("gamma", dict(gamma=0.99, lam=0.9)), ("nokl", dict(kl_coef=0.0, missing_eos_penalty=1.0)), ("long", dict(eos_bias=-6.0, lr=1e-2)), ("tight", dict(cliprange=0.1, cliprange_value=0.05, lr=1e-2))]
PC = [dict(temperature=1.0), dict(num_ppo_epochs=1), dict(num_ppo_epochs=2), dict(vf_coef=0.5), dict(gradient_accumulation_steps=2), dict(reward="acc_format"), dict(lam=1.0), dict(kl_coef=0.1), dict(response_length=12), dict(world=2), dict(missing_eos_penalty=0.5)]
PO = [dict(response_length=2), dict(reward="constant"), dict(lr=0.0), dict(reward="huge"), dict(vf_coef=0.0), dict(lam=0.0)]


def main(cases):
    rng = random.Random(20261202)
    i = 0
    for kind, fn, recipes, changes, odd in (("rloo", rloo, RR, RC, RO), ("ppo", ppo, PR, PC, PO)):
        for name, over in recipes:
            o, notes = dict(over), [kind, name]
            for ch in rng.sample(changes, rng.randrange(1, 3)) + (rng.sample(odd, 1) if i % 3 == 2 else []):
                if any(k in over for k in ch): continue
                o.update(ch); notes.append(",".join(f"{k}={v}" for k, v in ch.items()))
            c = fn(cases, f"y2-{i:02d}_{kind}_{name}", 7200 + i, o, i % 3 == 0, "; ".join(notes))
            print(c.name, c.n, "; ".join(notes), flush=True)
            i += 1


if __name__ == "__main__": main(sys.argv[1])
