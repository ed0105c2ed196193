"""w2: TRL 1.16.0 RLOO (its own _compute_loss and the block that makes advantages) and TRL 1.12.0's experimental PPO (its own statements of the
rollout from the EOS penalty to the whitened advantages, and of the micro-batch's losses), executed from the released files."""
import sys
from world_w import *
from w1 import Accel, UT
RF = f"{SRC}/trl-1.16.0/trl/trainer/rloo_trainer.py"
PF = f"{SRC}/trl-1.12.0/trl/experimental/ppo/ppo_trainer.py"
NS = dict(torch=torch, math=math)
for n in ("nanstd", "nanmin", "nanmax"): get_func(UT, n, NS)
RLOSS = get_func(RF, "_compute_loss", dict(NS), "RLOOTrainer", keep_locals=True)
_, RT = tree(RF)
RG = find_def(RT, "_generate_and_score_completions", "RLOOTrainer")


def between(body, start, end):
    s = [ast.unparse(n) for n in body]
    a = next(i for i, x in enumerate(s) if x.startswith(start)); b = next(i for i, x in enumerate(s) if x.startswith(end))
    return body[a:b + 1]


RADV = between(RG.body, "unscorable_mask = ", "advantages = torch.nan_to_num")
_, PT = tree(PF)
PNS = dict(torch=torch, INVALID_LOGPROB=1.0)
exec_nodes([find_def(PT, n) for n in ("masked_mean", "masked_var", "masked_whiten", "truncate_response")], PNS, PF)
exec_nodes([find_def(ast.parse(open(f"{SRC}/trl-1.12.0/trl/{p}").read()), "first_true_indices") for p in [next(os.path.relpath(os.path.join(d, f), f"{SRC}/trl-1.12.0/trl")
    for d, _, fs in os.walk(f"{SRC}/trl-1.12.0/trl") for f in fs if f.endswith(".py") and "def first_true_indices" in open(os.path.join(d, f)).read())]], PNS, PF)
TRAIN = find_def(PT, "train", "PPOTrainer")
ROLL = next(n for n in ast.walk(TRAIN) if isinstance(n, ast.With) and any(ast.unparse(b).startswith("contain_eos_token") for b in n.body))
ROLL = between(ROLL.body, "contain_eos_token = ", "advantages = torch.masked_fill(advantages")
MICRO = next(n for n in ast.walk(TRAIN) if isinstance(n, ast.With) and any(ast.unparse(b).startswith("vpredclipped") for b in n.body)).body
M1, M2 = between(MICRO, "new_logprobs = torch.masked_fill", "new_logprobs = torch.masked_fill"), between(MICRO, "vpred = torch.masked_fill", "loss = pg_loss")
M3 = [n for n in MICRO if isinstance(n, ast.With)][-1].body[:4]  # clipfrac, prob_dist, entropy, approxkl


class Rloo:
    _compute_loss = RLOSS
    def __init__(self, c, model, world):
        from collections import defaultdict
        for k, x in c.items(): setattr(self, k, x)
        self.model, self.accelerator, self.aux_loss_enabled = model, Accel(world), False
        self.epsilon_low, self.epsilon_high = c["epsilon"], c["epsilon"] if c["epsilon_high"] is None else c["epsilon_high"]
        self._metrics = dict(train=defaultdict(list))
    def _get_per_token_logps_and_entropies(self, model, ids, am, keep, compute_entropy=False, **_):
        lp, ent, _, _ = score(model, ids[:, :-keep], ids[:, -keep:], self.temperature)
        return lp, ent.detach(), None


def rloo(cases, name, c, rng, little, world, rows, n, ga, spg, Tm, lr, funcs, weights, nan, kind, gens, drop, seed, gid_on=True):
    c = dict(dict(beta=0.05, epsilon=0.2, epsilon_high=None, normalize_advantages=False, reward_clip_range=None, num_iterations=1, temperature=1.0, mask_truncated_completions=False), **c)
    note = "TRL 1.16 RLOO, " + ", ".join(f"{k}={x}" for k, x in c.items()) + f", ga {ga}, spg {spg}, world {world}, funcs {funcs}"
    case = Case(cases, "w2", name, note, (), little)
    g = torch.Generator().manual_seed(seed); torch.manual_seed(seed)
    model = LM(V=28, kind=kind, eos_bias=rng.choice([0.2, 1.0])); ref = copy.deepcopy(model)
    with torch.no_grad():
        for p in ref.parameters(): p.add_(0.03 * torch.randn(p.shape, generator=g))
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    tr = Rloo(c, model, world); tr.reward_weights = torch.tensor(weights or [1.0] * len(funcs))
    every = spg * c["num_iterations"]; micro, no = 0, 0
    total = gens * every; total += -total % ga
    while micro < total:
        if micro % every == 0:
            G, N = rows * spg, rows * spg * world
            p, gid = prompts_for(N // n, n, 3, 28, g)
            resp, mask, _ = generate(engine_of(model), p, Tm, g, c["temperature"])
            cm = mask.int(); Tn = int(cm.sum(1).max()); resp, cm = resp[:, :Tn], cm[:, :Tn]; full = cm.bool()
            if c["mask_truncated_completions"]: cm = cm * (((resp == EOS) & full).any(1)).unsqueeze(1).int()
            rpf = torch.stack([reward(f, resp, full, g) for f in funcs], 1)
            if nan: rpf = nan(rpf)
            with torch.no_grad(): old = score(model, p, resp, c["temperature"])[0]; rf = score(ref, p, resp, c["temperature"])[0]
            ns = dict(NS, self=tr, rewards_per_func=rpf, device="cpu", num_generations=n, old_per_token_logps=old, ref_per_token_logps=rf, completion_mask=cm, gather=lambda x: x)
            exec_nodes(RADV, ns, RF)
            raw = (rpf * tr.reward_weights).nansum(1); raw[torch.isnan(rpf).all(1)] = float("nan")
            d = dict(prompt_ids=p, prompt_mask=torch.ones_like(p), completion_ids=resp, completion_mask=cm, advantages=ns["advantages"], scores=raw, rewards_per_func=rpf, group_id=gid + no * 1000000,
                     old_logps=(old * cm).sum(1), old_per_token_logps=old, ref_per_token_logps=rf, sample_id=torch.arange(N) + no * N)
            bufs = []
            for r in range(world):
                perm = torch.randperm(G, generator=g) + r * G
                bufs.append([{k: x[perm[i * rows:(i + 1) * rows]] for k, x in d.items()} for i in range(spg)])
            no += 1
        step, mb = micro // ga + 1, micro % ga
        for r in range(world):
            x = bufs[r][micro % spg]; loss = tr._compute_loss(model, x); s = tr.seen; lp = s["per_token_logps"]
            dl, = grads(loss, lp); (loss / ga / world).backward()
            t = dict(response_ids=x["completion_ids"], response_mask=x["completion_mask"], logp_new=lp, logp_old=x["old_per_token_logps"], logp_ref=x["ref_per_token_logps"] if c["beta"] else None,
                     entropy=s["entropies"], advantages=x["advantages"], scores=x["scores"], rewards_per_func=x["rewards_per_func"] if len(funcs) > 1 else None, group_id=x["group_id"], loss=loss, dlogp=dl,
                     input_ids=s["input_ids"], attention_mask=s["attention_mask"], sample_id=x["sample_id"] if seed % 2 else None)
            o = dict(c, gradient_accumulation_steps=ga, steps_per_generation=spg, num_generations=n, max_completion_length=Tm, per_device_train_batch_size=rows, reward_weights=tr.reward_weights.tolist(), eos_token_id=[EOS])
            m = {k: v[-1] for k, v in tr._metrics["train"].items() if k.startswith(("entropy", "clip_ratio"))} if world == 1 else {}
            case.put(dict(framework="trl", version="1.16.0", algorithm="rloo", step=step, rank=r, world_size=world, micro_batch=mb, micro_batches=ga, options=o, scalars=fin(dict(m, loss=loss)), scalars_scope="micro_batch"), t, drop)
        micro += 1
        if micro % ga == 0: nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()


def ppo(cases, name, c, rng, little, rows, mbs, ga, Tm, lr, rkind, kind, rollouts, drop, seed, profile_by_flag=False):
    """rows of a rollout, in mbs mini-batches of ga micro-batches each."""
    c = dict(dict(kl_coef=0.05, kl_estimator="k1", missing_eos_penalty=None, whiten_rewards=False, gamma=1.0, lam=0.95, cliprange=0.2, cliprange_value=0.2, vf_coef=0.1, temperature=0.7, num_ppo_epochs=4), **c)
    note = "TRL 1.12 PPO, " + ", ".join(f"{k}={x}" for k, x in c.items()) + f", {rows} rows, {mbs} mini-batches of {ga} micro-batches, reward {rkind}"
    case = Case(cases, "w2", name, note, ["--profile", "trl-ppo@1.12"] if profile_by_flag else [], little)
    g = torch.Generator().manual_seed(seed); torch.manual_seed(seed); rs = random.Random(seed)
    model = LM(V=26, kind=kind, value=True, eos_bias=rng.choice([0.5, 1.3])); ref = copy.deepcopy(model)
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    args = types.SimpleNamespace(**c); TE = 1e-7
    step = 0
    for ro in range(rollouts):
        p = torch.randint(2, 26, (rows, 3), generator=g)
        with torch.no_grad():
            # responses of full length: what follows EOS is sampled too, as generate() is asked for response_length with eos off; then cut
            ids = p; lps = []
            for t in range(Tm):
                lg = model(ids)[0][:, -1] / (c["temperature"] + TE); ids = torch.cat([ids, torch.multinomial(lg.softmax(-1), 1, generator=g)], 1)
            responses = ids[:, 3:]
            logprobs, _, values, _ = score(model, p, responses, c["temperature"], TE)
            ref_logprobs = score(ref, p, responses, c["temperature"], TE)[0]
            post = PNS["truncate_response"](EOS, PAD, responses)
            sl = PNS["first_true_indices"](post == PAD) - 1
            m0 = torch.arange(Tm)[None] <= sl[:, None]
            scores = reward(rkind, post, m0, g)
            raw = scores.clone()
            ns = dict(PNS, self=types.SimpleNamespace(args=args, processing_class=types.SimpleNamespace(eos_token_id=EOS)), args=args, postprocessed_responses=post, responses=responses, scores=scores, sequence_lengths=sl,
                      logprobs=logprobs, ref_logprobs=ref_logprobs, values=values)
            exec_nodes(ROLL, ns, PF)
        B = rows // mbs; b = B // ga
        for ep in range(c["num_ppo_epochs"]):
            perm = torch.tensor(rs.sample(range(rows), rows))
            for k in range(mbs):
                step += 1
                for j in range(ga):
                    ix = perm[k * B + j * b:k * B + (j + 1) * b]
                    lp, ent, vp, lg = score(model, p[ix], responses[ix], c["temperature"], TE)
                    ms = dict(ns, micro_batch_inds=ix, mb_advantage=ns["advantages"][ix], mb_logprobs=ns["logprobs"][ix], mb_return=ns["returns"][ix], mb_values=ns["values"][ix], new_logprobs=lp,
                              vpred_temp=None, vpred=vp, logits=lg / (c["temperature"] + TE))
                    exec_nodes(M1, ms, PF)
                    body = [n for n in M2]
                    exec_nodes(body, ms, PF)
                    with torch.no_grad(): exec_nodes(M3, ms, PF)
                    loss = ms["loss"]; dl, dv = grads(loss, ms["new_logprobs"], ms["vpred"])
                    (loss / ga).backward()
                    t = dict(response_ids=post[ix], response_mask=~ns["padding_mask"][ix], logp_new=ms["new_logprobs"], logp_old=ms["mb_logprobs"], logp_ref=ns["ref_logprobs"][ix], values=ms["mb_values"], values_new=ms["vpred"],
                             returns=ms["mb_return"], advantages=ms["mb_advantage"], token_rewards=ns["rewards"][ix], scores=raw[ix], kl=ns["kl"][ix], token_loss=ms["pg_loss_max"], loss=loss, pg_loss=ms["pg_loss"],
                             value_loss=ms["vf_loss"], dlogp=dl, dvalues=dv, entropy=ms["entropy"], sample_id=ix + ro * rows)
                    if little: t["values"] = None
                    case.put(dict(framework="trl", version="1.12.0", algorithm="ppo", step=step, micro_batch=j, micro_batches=ga, options=dict(c, num_mini_batches=mbs, gradient_accumulation_steps=ga, response_length=Tm, eos_token_id=EOS),
                                  scalars=fin({"val/ratio": ms["ratio"].mean()}) if False else {}, scalars_scope="micro_batch", masked_fill=1.0), t, drop)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()


def main(cases):
    for i in range(20):
        r = random.Random(8200 + i); little = i % 3 == 2
        if i % 2 == 0:
            c = pick(r, beta=[0.05, 0.0, 0.4], epsilon=[0.2, 0.1, 0.05], epsilon_high=[None, 0.3], normalize_advantages=[False, True], reward_clip_range=[None, None, (-0.5, 0.6)], num_iterations=[1, 2, 3], temperature=[1.0, 0.7, 1.3],
                     mask_truncated_completions=[False, False, True])
            if c["reward_clip_range"]: c["reward_clip_range"] = list(c["reward_clip_range"])
            ga = r.choice([1, 2, 3]); spg = ga * r.choice([1, 2])
            rows, n = r.choice([(8, 4), (6, 2), (9, 3), (16, 4)])
            funcs, weights = r.choice([(("share",), None), (("noisy",), None), (("sign", "length"), [0.5, 0.25])])
            nan = None
            if i == 8:
                funcs, weights = ("share", "sign"), [1.0, 1.0]
                def nan(x): x = x.clone(); x[1::4, 0] = float("nan"); return x
            rloo(cases, f"{i:02d}_rloo", c, r, little, 2 if i in (6, 14) else 1, rows, n, ga, spg, r.choice([10, 18]), r.choice([3e-3, 2e-2]), funcs, weights, nan, r.choice(["gru", "attn"]), 2, r.choice([(), ("dlogp",), ("entropy",)]), i)
        else:
            c = pick(r, kl_coef=[0.05, 0.0, 0.3], kl_estimator=["k1", "k3"], missing_eos_penalty=[None, 1.0, 2.5], whiten_rewards=[False, True], gamma=[1.0, 0.98], lam=[0.95, 1.0, 0.8], cliprange=[0.2, 0.1], cliprange_value=[0.2, 0.05, 10.0],
                     vf_coef=[0.1, 0.5, 1.0], temperature=[0.7, 1.0], num_ppo_epochs=[1, 2, 4])
            mbs = r.choice([1, 2, 3]); ga = r.choice([1, 2])
            ppo(cases, f"{i:02d}_ppo", c, r, little, mbs * ga * r.choice([4, 6, 8]), mbs, ga, r.choice([10, 16, 24]), r.choice([2e-3, 1e-2]), r.choice(["share", "noisy", "sign", "length", "huge"]), r.choice(["gru", "attn"]), 2,
                r.choice([(), ("dlogp", "dvalues"), ("kl",), ("scores",), ("token_loss",)]), i, profile_by_flag=i % 4 == 1)


if __name__ == "__main__": main(sys.argv[1])
