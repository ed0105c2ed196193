"""Odd but right settings: agents with observations in the middle, ragged ranks, uneven micro-batches, bfloat16 and float64 throughout, tiny groups, constant rewards, huge advantages,
responses of one token, truncated rows only, no learning rate, many epochs, several rollouts, lazily filled dumps."""
import sys; from world_u import *
import u1
NAME = "u6"
def trl(cases, i, what, r, little, **over):
    """TRL 1.16 GRPO by u1's trainer (its own lines), one odd setting"""
    c = NS(u1.DEF); c.loss_type = r.choice(["grpo", "dapo", "bnpo", "dr_grpo"]); c.num_generations = G = over.pop("G", 4); c.max_completion_length = T0 = over.pop("T", 16); c.beta = r.choice([0.0, .04]); c.num_iterations = 2; c.steps_per_generation = 1
    c.learning_rate = over.pop("lr", 5e-3); world, ga = over.pop("world", 1), over.pop("ga", 1); per = over.pop("per", 8); rolls = over.pop("rolls", 2); reward = over.pop("reward", None); fixed = over.pop("eos_bias", .3); tools = over.pop("tools", 0); padcols = over.pop("padcols", 0); reff = over.pop("ref_far", .02); c.update(over)
    c.steps_per_generation = ga; model = LM(eos_bias=fixed); ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters(): p.add_(torch.randn_like(p) * reff)
    opt = torch.optim.AdamW(model.parameters(), lr=c.learning_rate, weight_decay=0.0); trs = [u1.Trainer(model, c, world, k, ga) for k in range(world)]
    opts = {k: v for k, v in c.items() if isinstance(v, (int, float, str, type(None))) and (not little or u1.DEF.get(k, 0) != v)} | dict(gradient_accumulation_steps=ga, reward_weights=[1.0], eos_token_id=[EOS])
    run = Run(cases, NAME, f"c{i:02d}_{what}", f"right: TRL 1.16 GRPO, {what}: {c.loss_type}, G {G}, T {T0}, iters {c.num_iterations}, ga {ga}, {world} ranks")
    step = 0
    for roll in range(rolls):
        N = per * world * ga; pr = prompts_of(r, N // G).repeat_interleave(G, 0); ids, cm, own, gen, trunc = sample(model, pr, T0, c.temperature, obs=tools, min_new=0 if T0 == 1 else 1); T = int(cm.sum(1).max()) + padcols
        ids, cm, own = [torch.nn.functional.pad(x, (0, max(0, T - x.shape[1])))[:, :T] for x in (ids, cm, own)]
        tm = torch.where(cm > 0, own, torch.ones_like(own)) if tools else None
        if c.mask_truncated_completions:
            cm = cm * (~trunc).unsqueeze(1).int()
            if tm is not None: tm = tm * (~trunc).unsqueeze(1).int()
        num = (cm if tm is None else cm * tm).sum(); sc = (reward or (lambda a, b, m: rule(a, b, m, 0)))(pr, ids, own); rpf = sc.unsqueeze(1)
        d = dict(torch=torch, nanstd=u1.ns["nanstd"], rewards_per_func=rpf, num_generations=G, device="cpu", self=NS(multi_objective_aggregation="sum_then_normalize", scale_rewards=c.scale_rewards, reward_funcs=[0], reward_weights=torch.ones(1))); exec(u1.ADV, d)
        f = lambda m: trs[0]._get_per_token_logps_and_entropies(m, torch.cat([pr, ids], 1), torch.cat([torch.ones_like(pr), cm], 1), T)[0]
        with torch.no_grad(): old = f(model) if ga % (ga * c.num_iterations) != 0 else None; rl = f(ref) if c.beta else None
        out = dict(prompt_ids=pr, prompt_mask=torch.ones_like(pr), completion_ids=ids, completion_mask=cm, advantages=d["advantages"], old_per_token_logps=old, ref_per_token_logps=rl, tool_mask=tm, scores=sc, group_id=torch.arange(N) // G + 1000 * roll, rewards_per_func=rpf); out = {k: v for k, v in out.items() if v is not None}; buf = []
        for k in range(world):
            perm = torch.randperm(per * ga); sl = {n: v[k * per * ga:(k + 1) * per * ga][perm] for n, v in out.items()}; buf.append([{n: v[b * per:(b + 1) * per] for n, v in sl.items()} | dict(num_items_in_batch=num) for b in range(ga)])
        for it in range(c.num_iterations):
            step += 1
            for g in range(ga):
                for k in range(world):
                    x = buf[k][g]; loss = trs[k]._compute_loss(model, x); v = dict(trs[k].frame.f_locals); lp = v["per_token_logps"]
                    t = dict(response_ids=x["completion_ids"], response_mask=v["mask"], logp_new=lp, logp_old=x.get("old_per_token_logps"), logp_ref=x.get("ref_per_token_logps"), kl=v.get("per_token_kl"), entropy=v["entropies"], input_ids=v["input_ids"], attention_mask=v["attention_mask"], advantages=x["advantages"], scores=x["scores"], rewards_per_func=x["rewards_per_func"], group_id=x["group_id"], loss=loss, token_loss=v["per_token_loss"].expand_as(lp), dlogp=grad(loss, lp))
                    s_ = {n: m[-1] for n, m in dict(trs[k]._metrics["train"], loss=[loss.item()]).items() if n == "loss" or world == 1 and n.startswith(("kl", "entropy", "clip_ratio"))}
                    meta = dict(framework="trl", version="1.16.0", algorithm="grpo", world_size=world, micro_batches=ga, options=opts | dict(num_items_in_batch=int(num)), token_loss_includes_kl=True)
                    if not little: meta |= dict(scalars=s_, scalars_scope="micro_batch")
                    run.dump(pick(t, little), step, k, g, **meta); (loss / world).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()

def own(cases, i, what, r, little, dtype=torch.float32, all64=False, sizes=((8,),), G=4, T=16, epochs=2, rolls=2, tools=0, values=False, lr=5e-3, meta=None, only=None, lossy=False, shifted=False, declare=True, opts_extra=None, scale=1.0, seg=False):
    """a loop of one's own: group advantages (or GAE with a value head), clip, token mean over all ranks; sizes[rank] are the rows of its micro-batches"""
    model = LM().to(dtype); opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    world, micro = len(sizes), len(sizes[0]); N = sum(map(sum, sizes)); gam, lam, vcoef = .99, .95, .5
    o = {"adv.kind": "gae" if values else "group", "loss.kind": "ppo", "clip.low": .2, "clip.high": .28, "clip.dual": "none", "agg.kind": "token", "agg.denominator": "global", "kl.place": "none", "ratio.old": "stored", "tis.level": "none", "optim.epochs": epochs, "num_mini_batches": 1, "optim.lr": lr}
    o |= {"gae.gamma": gam, "gae.lambda": lam, "gae.hole": "carry", "gae.value_mask": "response", "whiten.scope": "global", "whiten.mask": "response", "whiten.ddof": 0, "whiten.eps": 1e-8, "whiten.eps_place": "add_std", "whiten.remask": True, "whiten.shift_mean": "true", "returns.before_whiten": True, "returns.remask": "true" if False else "false", "value.clip": "none", "value.coef": vcoef, "value.factor": .5, "value.mask": "response", "value.agg": "same", "score.index": "last_response"} if values else {"adv.center": "mean", "adv.scale": "group_std", "adv.ddof": 1, "adv.eps": 1e-6, "adv.zero_std": "divide_eps"}
    if opts_extra: o |= opts_extra
    run = Run(cases, NAME, f"c{i:02d}_{what}", f"right: a loop of one's own, {what}: sizes {sizes}, G {G}, T {T}, {dtype}, epochs {epochs}, lr {lr}")
    step = 0
    for roll in range(rolls):
        pr = prompts_of(r, N // G).repeat_interleave(G, 0); ids, am, ow, gen, trunc = sample(copy.deepcopy(model).float(), pr, T, obs=tools); mask = ow
        with torch.no_grad(): old, _, val, _ = response(model, pr, ids)
        sc = rule(pr, ids, ow, 0).to(torch.float64 if all64 else torch.float32) * scale; g = sc.view(-1, G); tr = None
        if values:
            tr = torch.zeros(N, T); li = (ow * torch.arange(1, T + 1)).argmax(1); tr[torch.arange(N), li] = sc; nv = torch.zeros(N); last = torch.zeros(N); A = torch.zeros(N, T)
            for t in reversed(range(T)):
                m_ = mask[:, t].float(); dl = tr[:, t] + gam * nv - val[:, t]; l2 = dl + gam * lam * last; nv = val[:, t] * m_ + nv * (1 - m_); last = l2 * m_ + last * (1 - m_); A[:, t] = last
            ret = A + val; mm = A[mask.bool()]; adv = (A - mm.mean()) / (mm.std(unbiased=False) + 1e-8) * mask
        else: adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)).reshape(-1); ret = None
        adv = adv.to(dtype)
        for ep in range(epochs):
            step += 1; tot = mask.sum(); at = 0
            for k in range(world):
                for b in range(micro):
                    ti = torch.arange(at, at + sizes[k][b]); at += sizes[k][b]; mk = mask[ti].to(dtype)
                    lp, ent, vn, lg = response(model, pr[ti], ids[ti]); a = adv[ti] if values else adv[ti].unsqueeze(1)
                    ratio = (lp - old[ti]).exp(); tl = -torch.min(ratio * a, ratio.clamp(.8, 1.28) * a); loss = pg = (tl * mk).sum() / tot * world; vl = None
                    if values: vl = .5 * ((vn - ret[ti]) ** 2 * mk).sum() / tot * world; loss = loss + vcoef * vl
                    t = dict(response_mask=mask[ti].bool(), response_ids=ids[ti], logp_new=lp, logp_old=old[ti], advantages=adv[ti], scores=sc[ti], group_id=ti // G + 1000 * roll, sample_id=ti + 1000 * roll, token_loss=tl, loss=loss, dlogp=grad(loss, lp), entropy=ent if ent.dtype != torch.float16 else None)
                    if values: t.update(values=val[ti], values_new=vn, returns=ret[ti], token_rewards=tr[ti], value_loss=vl, pg_loss=pg, dvalues=grad(loss, vn))
                    mt = dict(meta or dict(framework="torch", version="2.15.0", algorithm="ppo" if values else "grpo")) | dict(world_size=world, micro_batches=micro, options=o if declare else {})
                    if dtype == torch.bfloat16: mt["compute_dtype"] = "bfloat16"
                    if dtype == torch.float64: mt["compute_dtype"] = "float64"
                    if lossy:
                        for n in ("entropy", "token_loss"): t[n] = t[n].bfloat16()
                        mt["lossy"] = ["entropy", "token_loss"]
                    if shifted:
                        P = pr.shape[1]; wide = lambda x: torch.cat([torch.zeros(len(x), P - 1, dtype=x.dtype), x], 1)
                        t = {n: (wide(x) if n in ("response_mask", "logp_new", "logp_old", "token_loss", "dlogp", "entropy") else x) for n, x in t.items()}; t.pop("response_ids"); t["input_ids"] = torch.cat([pr[ti], ids[ti]], 1); t["attention_mask"] = torch.cat([torch.ones_like(pr[ti]), am[ti]], 1); mt["align"] = "shifted"
                    t = {n: x for n, x in t.items() if x is not None}
                    if only: t = {n: t[n] for n in only}
                    run.dump(t if only else pick(t, little), step, k, b, **mt); (loss / world).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()

FIVE = ("response_mask", "logp_new", "logp_old", "advantages", "loss")
def main(cases):
    L = [("agent_values", own, dict(tools=.2, values=True, T=24)), ("ragged_ranks", own, dict(sizes=((6,), (10,)))), ("uneven_micro", own, dict(sizes=((3, 9, 4),))), ("bf16", own, dict(dtype=torch.bfloat16)), ("tiny_groups", trl, dict(G=2, per=4)),
         ("constant_rewards", trl, dict(reward=lambda a, b, m: torch.ones(len(a)) * .7)), ("huge_advantages", trl, dict(scale_rewards="none", reward=lambda a, b, m: rule(a, b, m, 0) * 1e4)), ("one_token", trl, dict(T=1, eos_bias=1.0)), ("truncated_only", trl, dict(mask_truncated_completions=True, eos_bias=-3.0, T=12)), ("zero_lr", trl, dict(lr=0.0)),
         ("many_epochs", trl, dict(num_iterations=8, lr=8e-3)), ("several_rollouts", trl, dict(rolls=6, num_iterations=1)), ("five_tensors", own, dict(only=FIVE)), ("five_nothing_declared", own, dict(only=FIVE, declare=False, meta=dict(framework="mine", algorithm="grpo"))), ("float64", own, dict(dtype=torch.float64)),
         ("agent_tools_ranks", trl, dict(tools=.2, world=2, ga=2, T=24)), ("pad_to_multiple", trl, dict(padcols=9)), ("far_reference", trl, dict(beta=.2, ref_far=.4)), ("lossy", own, dict(lossy=True)), ("shifted", own, dict(shifted=True)), ("ragged_agent_micro", own, dict(sizes=((2, 6), (5, 3), (1, 7)), tools=.2)), ("values_ragged", own, dict(values=True, sizes=((3, 5), (2, 6)), epochs=3)), ("float64_all", own, dict(dtype=torch.float64, all64=True))]
    for i, (what, f, kw) in enumerate(L):
        torch.manual_seed(600 + i); f(cases, i, what, random.Random(6000 + i), i % 3 == 2, **kw)
if __name__ == "__main__": main(sys.argv[1])
