"""TRL 1.16 RLOO and TRL 1.12 PPO, by their own lines, right runs."""
import sys; from world_u import *
NAME = "u2"
R = source(SRC + "/trl-1.16.0/trl/trainer/rloo_trainer.py"); U = source(SRC + "/trl-1.16.0/trl/trainer/utils.py"); P12 = source(SRC + "/trl-1.12.0/trl/experimental/ppo/ppo_trainer.py")
ns = dict(torch=torch, math=math)
for f in ("nanmin", "nanmax", "nanstd"): exec(get_def(U, f), ns)
exec(get_def(R, "_compute_loss", "RLOOTrainer"), ns)
ADV = compile(between(R, "unscorable_mask = torch.isnan(rewards_per_func)", "# Slice to keep only the local part of the data"), "adv", "exec")
DEFR = config_defaults(SRC + "/trl-1.16.0/trl/trainer/rloo_config.py", "RLOOConfig"); DEFP = config_defaults(SRC + "/trl-1.12.0/trl/experimental/ppo/ppo_config.py", "PPOConfig")
pn = dict(torch=torch, np=np, nn=nn)
for f in ("masked_mean", "masked_var", "masked_whiten"): exec(get_def(P12, f), pn)
U12 = source(SRC + "/trl-1.12.0/trl/experimental/utils.py")
for f in ("first_true_indices", "truncate_response"):
    exec(get_def(U12 if f"def {f}" in U12 else P12, f), pn)
import re
pn["INVALID_LOGPROB"] = float(re.search(r"INVALID_LOGPROB = ([\d.]+)", P12).group(1))
ROLL = compile(between(P12, "contain_eos_token = torch.any", "empty_cache()\n\n            # Do multiple epochs"), "roll", "exec")
LOSS = compile(between(P12, "new_logprobs = torch.masked_fill(", "accelerator.backward(loss)"), "loss", "exec")

class Acc:
    def __init__(s, n, i): s.num_processes, s.process_index, s.device = n, i, "cpu"
    def gather(s, x): return x.reshape(-1) if x.dim() == 0 else x
    gather_for_metrics = gather
    def reduce(s, x, reduction="sum"): return x
class RLOO:
    _compute_loss = ns["_compute_loss"]
    def __init__(s, model, c, world, rank):
        from collections import defaultdict
        s.model, s.args, s.accelerator, s.aux_loss_enabled, s._metrics = model, c, Acc(world, rank), False, {"train": defaultdict(list)}
        s.epsilon_low, s.epsilon_high = c.epsilon, c.epsilon_high if c.epsilon_high is not None else c.epsilon
    def _get_per_token_logps_and_entropies(s, model, input_ids, attention_mask, T, **k):
        s.frame = sys._getframe(1)
        lp, ent, _, _ = response(model, input_ids[:, :-T], input_ids[:, -T:], s.args.temperature)
        return torch.where(attention_mask[:, -T:] > 0, lp, torch.zeros(())), ent, None

def rloo(cases, i):
    r = random.Random(2000 + i); c = NS(DEFR); torch.manual_seed(100 + i); little = i % 3 == 2
    c.num_generations = G = r.choice([2, 4, 8]); c.max_completion_length = r.choice([12, 20]); c.temperature = r.choice([1.0, 0.8]); c.beta = r.choice([0.0, 0.05, 0.2])
    c.num_iterations = r.choice([1, 2, 3]); ga = r.choice([1, 2]); c.steps_per_generation = spg = r.choice([ga, 2 * ga]); c.epsilon = r.choice([.1, .2]); c.epsilon_high = r.choice([None, .3])
    c.normalize_advantages = r.random() < .4; c.reward_clip_range = r.choice([None, None, (-0.2, 0.6)]); c.mask_truncated_completions = r.random() < .25; c.learning_rate = 3e-3
    nf = r.choice([1, 2, 3]); c.reward_weights = [r.choice([.5, 1., 2.]) for _ in range(nf)] if nf > 1 else None; world = r.choice([1, 1, 2]); unscor = r.random() < .25
    per = max(4, G // (world * spg)) if r.random() < .7 else 8; opt_before = r.random() < .5
    while per * world * spg % G: per += 1
    model = LM(); ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters(): p.add_(torch.randn_like(p) * .02)
    opt = torch.optim.AdamW(model.parameters(), lr=c.learning_rate, weight_decay=0.0); trs = [RLOO(model, c, world, k) for k in range(world)]
    W = torch.tensor(c.reward_weights or [1.0] * nf); c.generation_batch_size = per * world * spg
    opts = {k: v for k, v in c.items() if (isinstance(v, (int, float, str, type(None))) if not little else DEFR.get(k, 0) != v and k != "generation_batch_size")} | dict(gradient_accumulation_steps=ga, reward_weights=W.tolist(), reward_clip_range=c.reward_clip_range and list(c.reward_clip_range), eos_token_id=[EOS])
    run = Run(cases, NAME, f"c{i:02d}_rloo", f"right: TRL 1.16 RLOO beta {c.beta}, norm {c.normalize_advantages}, clip {c.reward_clip_range}, iters {c.num_iterations}, ga {ga}, spg {spg}, {world} ranks")
    every = spg * c.num_iterations; total = min(2 * every, 24) // ga * ga; ngen = 0
    for s in range(total):
        if s % every == 0:
            N = per * world * spg; pr = prompts_of(r, N // G).repeat_interleave(G, 0)
            ids, cm, _, _, tr_ = sample(model, pr, c.max_completion_length, c.temperature); T = int(cm.sum(1).max()); ids, cm = ids[:, :T], cm[:, :T]
            if c.mask_truncated_completions: cm = cm * (~tr_).unsqueeze(1).int()
            rpf = torch.stack([rule(pr, ids, cm, k) for k in r.sample([0, 1, 2, 3, 4], nf)], 1)
            if unscor: rpf[torch.rand(len(rpf)) < .1] = float("nan")
            f = lambda m: trs[0]._get_per_token_logps_and_entropies(m, torch.cat([pr, ids], 1), torch.cat([torch.ones_like(pr), cm], 1), T)[0]
            with torch.no_grad(): old, rl = f(model), f(ref) if c.beta != 0 else None
            d = dict(torch=torch, nanstd=ns["nanstd"], rewards_per_func=rpf, num_generations=G, device="cpu", completion_mask=cm, old_per_token_logps=old, ref_per_token_logps=rl, gather=lambda x: x, self=NS(reward_weights=W, reward_clip_range=c.reward_clip_range, beta=c.beta, normalize_advantages=c.normalize_advantages))
            exec(ADV, d); rewards = (rpf * W).nansum(1); rewards[d["unscorable_mask"]] = float("nan")
            out = dict(prompt_ids=pr, prompt_mask=torch.ones_like(pr), completion_ids=ids, completion_mask=cm, old_logps=(old * cm).sum(1), advantages=d["advantages"], scores=rewards, rewards_per_func=rpf, group_id=torch.arange(N) // G + 1000 * ngen, old=old, ref=rl)
            out = {k: v for k, v in out.items() if v is not None}; ngen += 1; buf = []
            for k in range(world):
                perm = torch.randperm(per * spg); sl = {n: v[k * per * spg:(k + 1) * per * spg][perm] for n, v in out.items()}
                buf.append([{n: v[b * per:(b + 1) * per] for n, v in sl.items()} for b in range(spg)])
        for k in range(world):
            x = buf[k][s % spg]; loss = trs[k]._compute_loss(model, x); v = trs[k].frame.f_locals; lp = v["per_token_logps"]
            scale = 1.0 if opt_before else 1.0 / ga
            t = dict(response_ids=x["completion_ids"], response_mask=x["completion_mask"], logp_new=lp, logp_old=x["old"], logp_ref=x.get("ref"), entropy=v["entropies"], advantages=x["advantages"], scores=x["scores"], group_id=x["group_id"], loss=loss * scale, dlogp=grad(loss, lp) * scale)
            if not (unscor and little): t["rewards_per_func"] = x["rewards_per_func"]
            sc = {n: m[-1] for n, m in dict(trs[k]._metrics["train"], loss=[loss.item() * scale]).items() if n == "loss" or world == 1 and n.startswith(("entropy", "clip_ratio"))}
            meta = dict(framework="trl", version="1.16.0", algorithm="rloo", world_size=world, micro_batches=ga, options=opts)
            if not little: meta |= dict(scalars=sc, scalars_scope="micro_batch")
            run.dump(pick(t, little), s // ga + 1, k, s % ga, **meta)
            (loss / world / ga).backward()
        if s % ga == ga - 1: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()

def ppo(cases, i):
    r = random.Random(2500 + i); c = NS(DEFP); torch.manual_seed(200 + i); little = i % 3 == 2
    c.response_length = T = r.choice([12, 16, 24]); c.temperature = r.choice([.7, 1.0]); c.missing_eos_penalty = r.choice([None, 1.0, .5]); c.num_ppo_epochs = r.choice([1, 2, 4]); c.num_mini_batches = r.choice([1, 2])
    c.whiten_rewards = r.random() < .4; c.kl_coef = r.choice([.05, .2, 0.0]); c.kl_estimator = r.choice(["k1", "k3"]); c.cliprange = r.choice([.1, .2]); c.vf_coef = r.choice([.1, .5]); c.cliprange_value = r.choice([.2, .05])
    c.gamma = r.choice([1.0, .99]); c.lam = r.choice([.95, 1.0, .9]); c.stop_token = r.choice(["eos", "eos", None]); ga = r.choice([1, 2]); world = r.choice([1, 1, 2]); shaped = r.random() < .3
    per = r.choice([4, 8]); nmb = c.num_mini_batches; local_mini = per * ga; local = local_mini * nmb
    c.update(local_batch_size=local, local_mini_batch_size=local_mini, per_device_train_batch_size=per, learning_rate=5e-3)
    model = LM(); ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters(): p.add_(torch.randn_like(p) * .02)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    opts = {k: v for k, v in c.items() if isinstance(v, (int, float, str, type(None))) and (not little or DEFP.get(k, 0) != v)} | dict(gradient_accumulation_steps=ga, eos_token_id=EOS)
    opts |= dict(num_mini_batches=nmb)
    run = Run(cases, NAME, f"c{i:02d}_ppo", f"right: TRL 1.12 PPO epochs {c.num_ppo_epochs}, minibatches {nmb}, ga {ga}, whiten {c.whiten_rewards}, {c.kl_estimator} {c.kl_coef}, penalty {c.missing_eos_penalty}, stop {c.stop_token}, {world} ranks")
    step = 0
    for roll in range(2):
        rolls = []
        for k in range(world):
            with torch.no_grad():
                pr = prompts_of(r, local); resp, _, _, _, _ = sample(model, pr, T, c.temperature, stop=False)
                lp, _, val, _ = response(model, pr, resp, c.temperature, 1e-7); rl = response(ref, pr, resp, c.temperature, 1e-7)[0]
                post = resp
                if c.stop_token == "eos": post = pn["truncate_response"](EOS, PAD, resp)
                seqlen = pn["first_true_indices"](post == PAD) - 1
                scores = rule(pr, post, post != PAD, r.choice([0, 2, 4])); raw_scores = scores.clone()
                d = dict(pn, self=NS(args=c, processing_class=NS(eos_token_id=EOS)), args=c, postprocessed_responses=post, responses=resp, sequence_lengths=seqlen, logprobs=lp.clone(), ref_logprobs=rl.clone(), values=val.clone(), scores=scores, empty_cache=lambda: None)
                exec(ROLL, d); d.update(pr=pr, raw_scores=raw_scores); rolls.append(d)
        sid = torch.arange(local)
        for ep in range(c.num_ppo_epochs):
            inds = [np.random.RandomState(r.randrange(10**6)).permutation(local) for _ in range(world)]
            for m in range(0, local, local_mini):
                step += 1
                for g in range(ga):
                    for k in range(world):
                        d = rolls[k]; idx = inds[k][m:m + local_mini][g * per:(g + 1) * per]; ti = torch.tensor(idx)
                        nl, ent, vt, _ = response(model, d["pr"][ti], d["responses"][ti], c.temperature, 1e-7)
                        nl.retain_grad()
                        e = dict(pn, args=c, new_logprobs=nl, vpred_temp=torch.cat([torch.zeros(len(ti), 1, 1), vt.unsqueeze(-1), torch.zeros(len(ti), 1, 1)], 1), context_length=2, padding_mask=d["padding_mask"], padding_mask_p1=d["padding_mask_p1"], micro_batch_inds=ti,
                                 mb_values=d["values"][ti], mb_return=d["returns"][ti], mb_logprobs=d["logprobs"][ti], mb_advantage=d["advantages"][ti])
                        exec(LOSS, e); loss = e["loss"]; sc_ = 1.0 / ga
                        t = dict(response_mask=~d["padding_mask"][ti], response_ids=d["postprocessed_responses"][ti], logp_new=e["new_logprobs"], logp_old=e["mb_logprobs"], logp_ref=d["ref_logprobs"][ti], advantages=e["mb_advantage"], returns=e["mb_return"], values=e["mb_values"], values_new=e["vpred"],
                                 token_rewards=d["rewards"][ti], scores=(d["scores"] if shaped else d["raw_scores"])[ti], loss=loss * sc_, pg_loss=e["pg_loss"], value_loss=e["vf_loss"], token_loss=e["pg_loss_max"], dlogp=grad(loss, e["new_logprobs"]) * sc_, dvalues=grad(loss, e["vpred"]) * sc_, entropy=ent, kl=d["kl"][ti])
                        if r.random() < 2: t["sample_id"] = ti + 1000 * k + 10000 * roll
                        meta = dict(framework="trl", version="1.12.0", algorithm="ppo", world_size=world, micro_batches=ga, options=opts, token_loss_includes_kl=False)
                        if shaped: meta["scores_shaped"] = True
                        run.dump(pick(t, little, ("sample_id", "values", "values_new", "returns") if i == 5 else ("sample_id",)), step, k, g, **meta)
                        (loss / ga / world).backward()
                opt.step(); opt.zero_grad()

def main(cases):
    for i in range(20): (rloo if i % 2 == 0 else ppo)(cases, i)
main(sys.argv[1])
