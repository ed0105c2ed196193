"""Golden vectors for the five functions of the PPO tutorial: predefined inputs and what plumbline's float64 reference makes of them.

    pytest test_ppo_golden.py                             # tests ppo_trainer.py in this folder, or PPO_MODULE=another.module

A failure names the mistake that gives exactly the number that was returned, or else what to look at. Cells outside the mask hold
large numbers: whatever they hold must not matter.
"""
import importlib
import json
import math
import os
import types

import pytest
import torch

GOLDEN = json.loads("""{
"policy":{
 "log_probs_new":[[-1.875,-2.125,-1.9375,-1.5625], [-1.0625,-3.1875,5,5], [-3.6875,-0.875,-2.125,5]],
 "log_probs_old":[[-2.375,-1.625,-2.0625,-1.5], [-1.4375,-2.8125,-2,-2], [-2.9375,-0.9375,-2.375,-2]],
 "advantages":[[1.5,-0.75,0.5,-1.25], [-1,0.875,40,40], [2,-0.5,-1.75,40]],
 "response_mask":[[1,1,1,1], [1,1,0,0], [1,1,1,0]],
 "clip_ratio":0.2,
 "want":{"loss":0.232873777612, "clip_frac":0.666666665926, "approx_kl":0.0416666666204, "grad":[[0,0,-0.0629526917671,0.130474036357], [0.161665712556,-0.0668197909193,0,0], [-0.104970344937,0.0591385809853,0.249671608523,0]]}},
"value":{
 "values_new":[[-0.0625,0.5,0.0625,0.625], [0.3125,-0.125,30,30], [-1.4375,0.3125,1,30]],
 "values_old":[[-0.5625,1,-0.0625,0.6875], [-0.0625,0.25,-20,-20], [-0.6875,0.25,0.75,-20]],
 "returns":[[0.0625,0.75,0.5,-1.3125], [0.75,0.25,12,12], [-0.625,-1.4375,1.125,12]],
 "response_mask":[[1,1,1,1], [1,1,0,0], [1,1,1,0]],
 "clip_range_value":0.2,
 "want":{"loss":0.469861110589, "clip_frac":0.333333332963, "grad":[[-0,-0.0277777777469,-0.0486111110571,0.215277777539], [-0,-0.0416666666204,0,0], [-0.0902777776775,0.194444444228,-0,0]]}},
"entropy":{
 "logits_new":[[[-0.125,0.875,1.5,0.875,1.6875],[-0.4375,1.1875,-0.25,1.75,1.5],[-1.625,-1.4375,-1.125,1.875,-0.25],[0.5,-0.8125,0,-0.4375,-0.625]], [[0.3125,0.3125,1.625,0.75,1.6875],[1.4375,1.9375,0.6875,-1.375,1.4375],[1.875,1.625,0.25,0.875,-1.125],[1.3125,0.3125,-0.875,-1.75,1.4375]], [[1.9375,-1.625,1.1875,-0.375,-1.375],[-0.8125,1.0625,1.5,-1.8125,0.4375],[-1.8125,0.875,-0.6875,1.5,1.9375],[0,2,-0.75,-1.6875,0.375]]],
 "response_mask":[[1,1,1,1], [1,1,0,0], [1,1,1,0]],
 "want":{"loss":-1.24568013038, "grad":[[[-0.00885185884389,-0.00694059449612,0.00702495667652,-0.00694059449612,0.0157080911596],[-0.0085966290671,-0.00402983238992,-0.00928347422374,0.0170018509219,0.00490808475886],[-0.00811943741446,-0.00917987309523,-0.0111485816257,0.0457963025913,-0.0173484104559],[0.0229707558014,-0.0089608274447,0.000932085179222,-0.00674266865112,-0.00819934488483]], [[-0.00970315450563,-0.00970315450563,0.012243200856,-0.00831778464838,0.0154808928037],[-0.00191424058254,0.0187507923825,-0.0103188460065,-0.00460346521094,-0.00191424058254],[0,0,0,0,0],[0,0,0,0,0]], [[0.0334098336968,-0.00591515870325,-0.00827682220312,-0.0122410363715,-0.00697681641891],[-0.00953202382517,0.00109233690002,0.0245496152751,-0.00540970814682,-0.0107002202032],[-0.00413819846059,-0.0113673977932,-0.00840820846318,0.000244685548049,0.0236691191689],[0,0,0,0,0]]]}},
"gae":{
 "final_rewards":[1, 0.125, -0.5],
 "kl_penalties":[[-0.25,-0.125,0.0625,0.1875,-0.125], [-0.1875,0.375,9,9,9], [0,0.5,0.4375,0.0625,9]],
 "values":[[0.1875,0.25,0.4375,0.375,0.3125], [0.4375,0.9375,30,30,30], [0.25,0.125,0.5625,-0.125,30]],
 "response_mask":[[1,1,1,1,1], [1,1,0,0,0], [1,1,1,1,0]],
 "gamma":0.9,
 "lam":0.8,
 "want":{"advantages":[[1.11399840347,0.841735537945,0.498881221653,0.834331378554,1.52372854003], [0.0687109436962,-1.18643229133,0,0,0], [-0.882238419292,-1.1309417483,-1.51165159109,-0.170121979567,0]], "returns":[[0.69763408,0.559214,0.4937,0.67875,1.125], [0.17625,-0.25,0,0,0], [-0.713016,-1.02155,-0.865,-0.5625,0]]}},
"update":{
 "w":[[-0.375,0.9375,0.0625,0.125,-1], [-0.1875,0.1875,-0.9375,0.25,0.25], [-0.875,0.25,-0.0625,0.375,-0.3125], [0.4375,0.5,-0.9375,-0.875,0.375], [0.9375,-0.5,-0.0625,0.1875,-0.375]],
 "u":[-0.25, -0.375, -0.25, 0.1875, -0.375],
 "prompt_ids":[[3,2], [2,4], [4,3], [2,2]],
 "response_ids":[[2,3,1], [4,1,0], [1,0,0], [3,3,2]],
 "response_mask":[[1,1,1], [1,1,0], [1,0,0], [1,1,1]],
 "logprobs":[[-1.890625,-0.703125,-1.265625], [-2.609375,-2.171875,0], [-0.890625,0,0], [-1.328125,-2.203125,-3.140625]],
 "ref_logprobs":[[-2.015625,-0.453125,-1.765625], [-2.546875,-1.921875,0], [-1.078125,0,0], [-1.578125,-1.890625,-3.390625]],
 "values":[[-0.75,-0.125,0.125], [0.125,-0.5,0], [-0.125,0,0], [-0.1875,-0.1875,0.6875]],
 "rewards":[1, 0.125, 0, 0.125],
 "clip_ratio":0.2,
 "clip_range_value":0.2,
 "vf_coeff":0.1,
 "entropy_coeff":0.01,
 "kl_coeff":0.05,
 "gamma":0.99,
 "lam":0.95,
 "want":{"loss":{"entropy":-1.47499485418, "policy":0.245916402786, "value":0.216520295186}, "w":[[0,0,0,0,0], [0,0,0,0,0], [0.00166691875241,0.00588263585212,0.00415178140304,-0.0148400152035,0.00313867919594], [-0.0525484238973,-0.109684545204,0.226325064915,-0.0146441597783,-0.0494479360352], [-0.0555225644015,-0.0417957210574,-0.0208174858179,-0.0266043862627,0.14474015754]], "u":[0, 0, -0.0130008852171, -0.00164062502734, -0.0124399218128], "grad_norm":0.310171400761, "mistakes":{"logits and values are sliced one token late: [prompt_len : prompt_len + resp_len]":{"loss":{"entropy":-1.50671728462, "policy":0.686409554188, "value":0.245452606618}, "w":[[0,0,0,0,0], [0.00695274849363,-0.0325356901546,0.00301474293182,0.0112840993646,0.0112840993646], [-0.0564098891671,-0.173255914641,0.524788018396,-0.196261873024,-0.0988603415635], [0.00360094605731,0.00388036020603,0.000663960790356,-0.0114864127204,0.00334114566671], [-0.0678787440397,-0.0163044687444,-0.0251671323515,-0.032252340285,0.141602685421]], "u":[0, -0.0267968748391, 0, 0, -0.00603367184483]}, "the entropy loss is missing":{"loss":{"entropy":-1.47499485418, "policy":0.245916402786, "value":0.216520295186}, "w":[[0,0,0,0,0], [0,0,0,0,0], [0.0018654317693,0.00574593436631,0.0042038153853,-0.0150891162349,0.00327393471396], [-0.0528271785752,-0.110075624176,0.226747586604,-0.0142182422272,-0.0496265416252], [-0.0561656493468,-0.0415847593986,-0.0206621876947,-0.0265307741644,0.144943370605]], "u":[0, 0, -0.0130008852171, -0.00164062502734, -0.0124399218128]}, "the entropy loss is subtracted: it is minus the entropy already":{"loss":{"entropy":-1.47499485418, "policy":0.245916402786, "value":0.216520295186}, "w":[[0,0,0,0,0], [0,0,0,0,0], [0.00206394478619,0.00560923288051,0.00425584936756,-0.0153382172662,0.00340919023197], [-0.0531059332531,-0.110466703148,0.227170108293,-0.0137923246761,-0.0498051472152], [-0.0568087342921,-0.0413737977397,-0.0205068895716,-0.0264571620661,0.14514658367]], "u":[0, 0, -0.0130008852171, -0.00164062502734, -0.0124399218128]}}}}}""")
RTOL, ATOL = 2e-5, 2e-6  # the inputs are exact in float32


@pytest.fixture(scope="module")
def ppo():
    return importlib.import_module(os.environ.get("PPO_MODULE", "ppo_trainer"))


def inputs(name):
    """The inputs of one function as tensors, and the results that are wanted."""
    g = dict(GOLDEN[name])
    want = g.pop("want")
    return types.SimpleNamespace(**{k: torch.tensor(x) if isinstance(x, list) else x for k, x in g.items()}), want


def mean(x, m):
    return (x * m).sum() / m.sum()


def same(got, want):
    got, want = torch.as_tensor(got).detach().double(), torch.as_tensor(want, dtype=torch.float64)
    return got.shape == want.shape and torch.allclose(got, want, rtol=RTOL, atol=ATOL)


def demand(what, got, want, mistakes, otherwise):
    """Fail unless got is want; say which of the mistakes gives got."""
    if same(got, want):
        return
    found = [f"this is what you get if {name}" for name, wrong in mistakes.items() if same(got, wrong)]
    got, want = torch.as_tensor(got).detach().double(), torch.as_tensor(want, dtype=torch.float64)
    where = "" if got.shape == want.shape == () else f", shape {list(got.shape)}, want {list(want.shape)}"
    if got.shape == want.shape and got.dim():
        at = tuple(((got - want).abs().nan_to_num(torch.inf) == (got - want).abs().nan_to_num(torch.inf).max()).nonzero()[0].tolist())
        got, want, where = got[at], want[at], f" at {list(at)}"
    pytest.fail(f"{what}: {(found or [otherwise])[0]} (got {got.tolist()}{where}, want {want.tolist()})")


def gradient(loss, x, what):
    if not (torch.is_tensor(loss) and loss.requires_grad):
        pytest.fail(f"{what} has no gradient: a .detach(), .item() or no_grad() stands in the way")
    return torch.autograd.grad(loss, x, allow_unused=True)[0]


def test_compute_policy_loss(ppo):
    i, want = inputs("policy")
    new, m = i.log_probs_new.requires_grad_(), i.response_mask
    loss, clip_frac, approx_kl = ppo.compute_policy_loss(new, i.log_probs_old, i.advantages, m, i.clip_ratio)
    with torch.no_grad():
        d, A, eps = new - i.log_probs_old, i.advantages, i.clip_ratio
        r = d.exp()
        a, b = r * A, r.clamp(1 - eps, 1 + eps) * A
        low = torch.min(a, b)
        mistakes = {"the sign is missing: the loss is minus the mean": mean(low, m),
                    "the larger of the two surrogates is taken, not the smaller": -mean(torch.max(a, b), m),
                    "the mask is ignored: the mean is over all cells": -low.mean(),
                    "the mean is over all cells of what the mask leaves": -(low * m).mean(),
                    "rows are averaged first: it is one mean over all tokens of the batch": -((low * m).sum(1) / m.sum(1)).mean(),
                    "nothing is clipped": -mean(a, m),
                    "the ratio is always clipped, without the minimum": -mean(b, m),
                    "the ratio is upside down, exp(old - new)": -mean(torch.min((-d).exp() * A, (-d).exp().clamp(1 - eps, 1 + eps) * A), m),
                    "the difference of log-probs is not exponentiated": -mean(torch.min(d * A, d.clamp(1 - eps, 1 + eps) * A), m)}
    demand("the policy loss", loss, want["loss"], mistakes, "compare ratio, surr1 and surr2 cell by cell")
    demand("the gradient of the policy loss", gradient(loss, new, "the policy loss"), want["grad"], {},
           "a token whose clipped surrogate is the smaller one gives no gradient, all others give -A*ratio/n; is something detached?")
    demand("clip_frac", clip_frac, want["clip_frac"], {"it is the share of tokens that are not clipped": 1 - want["clip_frac"],
           "the mask is ignored": ((r - 1).abs() > eps).float().mean()}, "it is the share of masked tokens with |ratio - 1| > clip_ratio")
    allowed = [want["approx_kl"], -want["approx_kl"], float(mean((r - 1 - d) / 2, m)), float(mean(r - 1 - d, m))]  # the hints of the exercise allow them
    if not any(same(approx_kl, x) for x in allowed):
        pytest.fail(f"approx_kl is {float(approx_kl)}, want the masked mean of log_probs_old - log_probs_new, {want['approx_kl']}")


def test_compute_value_loss(ppo):
    i, want = inputs("value")
    new, m = i.values_new.requires_grad_(), i.response_mask
    loss, clip_frac = ppo.compute_value_loss(new, i.values_old, i.returns, m, i.clip_range_value)
    with torch.no_grad():
        c, old = i.clip_range_value, i.values_old
        a, b = (new - i.returns) ** 2, (old + (new - old).clamp(-c, c) - i.returns) ** 2
        high = torch.max(a, b)
        mistakes = {"the factor 0.5 is missing": mean(high, m),
                    "the smaller of the two squares is taken, not the larger": 0.5 * mean(torch.min(a, b), m),
                    "the mask is ignored": 0.5 * high.mean(),
                    "nothing is clipped": 0.5 * mean(a, m),
                    "only the clipped value is used": 0.5 * mean(b, m),
                    "the value itself is clipped, not its change": 0.5 * mean(torch.max(a, (new.clamp(-c, c) - i.returns) ** 2), m),
                    "values are clipped around the returns": 0.5 * mean(torch.max(a, (i.returns + (new - i.returns).clamp(-c, c) - i.returns) ** 2), m),
                    "values_old and values_new are exchanged": 0.5 * mean(torch.max((old - i.returns) ** 2, (new + (old - new).clamp(-c, c) - i.returns) ** 2), m)}
    demand("the value loss", loss, want["loss"], mistakes, "compare the clipped values and both squares cell by cell")
    demand("the gradient of the value loss", gradient(loss, new, "the value loss"), want["grad"], {},
           "where the clipped square is the larger one there is no gradient, elsewhere it is (V - R)/n; is something detached?")
    moved = float(mean(((new - old).abs() > c).float(), m))  # the other form that the hints of the exercise allow
    if not (same(clip_frac, want["clip_frac"]) or same(clip_frac, moved)):
        pytest.fail(f"vf_clip_frac is {float(clip_frac)}, want the share of masked tokens whose clipped square is the larger one, {want['clip_frac']}")


def test_compute_entropy_loss(ppo):
    i, want = inputs("entropy")
    logits, m = i.logits_new.requires_grad_(), i.response_mask
    loss = ppo.compute_entropy_loss(logits, m)
    with torch.no_grad():
        lp = logits.log_softmax(-1)
        h = -(lp.exp() * lp).sum(-1)
        mistakes = {"the sign is missing: the loss is minus the entropy": mean(h, m), "the mask is ignored": -h.mean(),
                    "logarithms are to base 2": -mean(h / math.log(2), m), "the entropies are summed, not averaged": -(h * m).sum(),
                    "the softmax is over tokens, not over the vocabulary": -mean(-(logits.softmax(1) * logits.log_softmax(1)).sum(-1), m),
                    "log-probs are averaged over the vocabulary without the probabilities": mean(lp.mean(-1), m)}
    demand("the entropy loss", loss, want["loss"], mistakes, "H = -sum p log p over the vocabulary, then the masked mean, then the minus")
    demand("the gradient of the entropy loss", gradient(loss, logits, "the entropy loss"), want["grad"], {}, "are the probabilities detached?")


def gae(i, r, cut=True, lam=None):
    """Advantages before whitening, for the mistakes below."""
    m, A, last = i.response_mask.float(), torch.zeros_like(i.values), torch.zeros(len(r))
    for t in reversed(range(r.shape[1])):
        end = t + 1 == r.shape[1]
        keep = 0.0 if end else m[:, t + 1] if cut else 1.0
        last = r[:, t] + i.gamma * (0.0 if end else i.values[:, t + 1]) * keep - i.values[:, t] + i.gamma * (i.lam if lam is None else lam) * last * keep
        A[:, t] = last
    return A


def whiten(x, m, ddof=0):
    mu = mean(x, m)
    return (x - mu) / (((x - mu) ** 2 * m).sum() / (m.sum() - ddof) + 1e-8).sqrt()


def test_compute_gae_advantages(ppo):
    i, want = inputs("gae")
    m = i.response_mask
    advantages, returns = ppo.compute_gae_advantages(i.final_rewards, i.kl_penalties, i.values, m, i.gamma, i.lam)
    if advantages.requires_grad or returns.requires_grad:
        pytest.fail("advantages and returns are targets: compute them under torch.no_grad()")
    at = torch.nn.functional.one_hot(m.sum(1) - 1, m.shape[1])
    r = i.final_rewards[:, None] * at - i.kl_penalties
    plus, column = i.final_rewards[:, None] * at + i.kl_penalties, -i.kl_penalties.clone()
    column[:, -1] += i.final_rewards
    A = gae(i, r)
    mistakes = {"the KL penalty is added to the reward, not subtracted": gae(i, plus), "the final reward is in the last column, not at the last token of the mask": gae(i, column),
                "the recursion runs through padding: V and A of the next token need its mask": gae(i, r, cut=False),
                "lambda is missing in the recursion": gae(i, r, lam=1.0), "only the TD error is there: the sum over later tokens is missing": gae(i, r, lam=0.0),
                "the final reward is missing": gae(i, -i.kl_penalties), "the KL penalty is missing": gae(i, i.final_rewards[:, None] * at)}
    only = lambda x: (x.double() * m).tolist()
    demand("returns (on the mask)", only(returns), want["returns"], {**{k: only(x + i.values) for k, x in mistakes.items()},
           "the advantages are whitened before returns = advantages + values": only(whiten(A, m) + i.values), "values are not added: returns are the advantages": only(A)},
           "returns = advantages + values, before whitening; redo the last two tokens of a row by hand")
    demand("advantages (on the mask)", only(advantages), want["advantages"], {**{k: only(whiten(x, m)) for k, x in mistakes.items()},
           "they are not whitened": only(A), "the variance is divided by n - 1, not n": only(whiten(A, m, 1)),
           "padding counts in mean and variance": only(whiten(A, torch.ones_like(m))), "the mean is not subtracted": only(whiten(A, m) + mean(A, m) / ((A - mean(A, m)) ** 2 * m).sum().div(m.sum()).sqrt()),
           "each row is whitened alone": only(torch.stack([whiten(a, b) for a, b in zip(A, m)]))},
           "returns are right, so look at the whitening: mean and variance (over n) of all tokens of the mask of the whole batch")


class Lookup(torch.nn.Module):
    """An actor with a value head whose logits and values after a token depend on that token only."""

    def __init__(self, w, u):
        super().__init__()
        self.w, self.u = torch.nn.Parameter(w.clone()), torch.nn.Parameter(u.clone())

    def forward(self, input_ids, attention_mask=None, **_):
        return self.w[input_ids], self.u[input_ids]


class Steps:
    """An optimizer and scheduler that only write down."""

    def __init__(self, model=None):
        self.model, self.count, self.param_groups = model, 0, []

    def step(self, *_, **__):
        self.count += 1
        if self.model:
            self.w, self.u = (p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in (self.model.w, self.model.u))

    def zero_grad(self, set_to_none=True):
        self.model.zero_grad(set_to_none=set_to_none)


def epoch(ppo, max_grad_norm):
    i, want = inputs("update")
    model = Lookup(i.w, i.u)
    buffer = {"prompt_input_ids": i.prompt_ids, "prompt_attention_mask": torch.ones_like(i.prompt_ids), "response_input_ids": i.response_ids,
              "response_attention_mask": i.response_mask, "logprobs": i.logprobs, "ref_logprobs": i.ref_logprobs, "values": i.values, "rewards": i.rewards}
    keys = ("clip_ratio", "clip_range_value", "vf_coeff", "entropy_coeff", "kl_coeff", "gamma", "lam")
    cfg = types.SimpleNamespace(ppo=types.SimpleNamespace(mini_batch_size=1, gradient_accumulation_steps=len(i.rewards), max_grad_norm=max_grad_norm,
                                                          **{k: getattr(i, k) for k in keys}))
    optimizer, scheduler = Steps(model), Steps()
    metrics = ppo.run_ppo_update_epoch(model, optimizer, scheduler, buffer, cfg, torch.device("cpu"))
    return i, want, optimizer, scheduler, metrics


def test_run_ppo_update_epoch(ppo):
    i, want, optimizer, scheduler, metrics = epoch(ppo, 1e9)
    n = len(i.rewards)
    if (optimizer.count, scheduler.count) != (1, 1):
        pytest.fail(f"{n} mini-batches with gradient_accumulation_steps {n}: the optimizer stepped {optimizer.count} times and the scheduler {scheduler.count} times, want once each")
    for key in ("policy", "value", "entropy"):
        got = float(metrics.get("loss/" + key, want["loss"][key]))
        if key == "entropy":
            got = -abs(got)  # some log the entropy under this name, not minus the entropy
        if not same(got, want["loss"][key]):
            others = [k for k, x in want["mistakes"].items() if same(got, x["loss"][key])]
            pytest.fail(f"loss/{key} is {got}, want {want['loss'][key]}: " + (others[0] if others else "is what goes into the loss sliced as [prompt_len - 1 : prompt_len + resp_len - 1]?"))
    w, u = torch.tensor(want["w"]), torch.tensor(want["u"])
    demand("the gradient of the value head at the step", optimizer.u, want["u"], {"the loss is not divided by gradient_accumulation_steps": n * u,
           "vf_coeff is not applied": u / i.vf_coeff, "the value loss is missing": 0 * u, **{k: torch.tensor(x["u"]) for k, x in want["mistakes"].items()}},
           "are the values sliced as [prompt_len - 1 : prompt_len + resp_len - 1], and is the loss policy + vf_coeff * value + entropy_coeff * entropy?")
    demand("the gradient of the logits at the step", optimizer.w, want["w"], {"the loss is not divided by gradient_accumulation_steps": n * w,
           **{k: torch.tensor(x["w"]) for k, x in want["mistakes"].items()}},
           "are the logits sliced as [prompt_len - 1 : prompt_len + resp_len - 1], and is the loss policy + vf_coeff * value + entropy_coeff * entropy?")


def test_gradient_clipping(ppo):
    i, want, optimizer, _, metrics = epoch(ppo, want_norm := 0.01)
    norm = float(torch.cat([optimizer.w.flatten(), optimizer.u.flatten()]).norm())
    if not math.isclose(norm, want_norm, rel_tol=1e-3):
        pytest.fail(f"the norm of the gradient at the step is {norm}, want max_grad_norm {want_norm}: clip all parameters as one vector, after the last backward()")
    if "params/grad_norm" in metrics and not math.isclose(float(metrics["params/grad_norm"]), want["grad_norm"], rel_tol=1e-4):
        pytest.fail(f"params/grad_norm is {metrics['params/grad_norm']}, want {want['grad_norm']}: the norm before clipping is logged")
