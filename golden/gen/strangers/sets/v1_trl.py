"""TRL by its own source: PPOTrainer.train of 1.12.0 (experimental) run whole on stand-ins for transformers and accelerate,
and RLOOTrainer of 1.16.0 (its advantage statements, buffering and _compute_loss).   python v1_trl.py CASES [case…]"""
import gc, math, sys, time
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace as NS
import numpy as np, torch
from torch import nn
import torch.nn.functional as F
from world_v import Attn, Bug, Dumper, Gru, LM, Out, SRC, before, between, main, pick, read

V, EOS, PAD = 40, 38, 39
PPO = read(f"{SRC}/trl-1.12.0/trl/experimental/ppo/ppo_trainer.py")
PPO_UTILS = pick(read(f"{SRC}/trl-1.12.0/trl/experimental/utils.py"), "first_true_indices", "get_reward")
PPO_LOGP = pick(read(f"{SRC}/trl-1.12.0/trl/trainer/utils.py"), "selective_log_softmax", "pad")
PPO_TEXT = pick(PPO, "generate", "batch_generation", "truncate_response", "forward", "masked_mean", "masked_var", "masked_whiten",
                "PolicyAndValueWrapper") + "\n\n" + pick(PPO, "train", cls="PPOTrainer")
RLOO = read(f"{SRC}/trl-1.16.0/trl/trainer/rloo_trainer.py")
RLOO_UTILS = pick(read(f"{SRC}/trl-1.16.0/trl/trainer/utils.py"), "nanstd", "nanmin", "nanmax", "pad", "selective_log_softmax", "entropy_from_logits",
                  "split_tensor_dict", "shuffle_sequence_dict")


def indent(text, by):
    return "".join(" " * by + l if l.strip() else l for l in text.splitlines(keepends=True))


def rloo_text():
    body = between(RLOO, "# Convert lists of token IDs to padded tensors", "attention_mask = torch.cat([prompt_mask, completion_mask], dim=1)  # (B, P+C)")
    body += "logits_to_keep, batch_size, num_images, num_tiles, forward_kwargs = completion_ids.size(1), 8, None, None, {}\n"
    body += between(RLOO, "with torch.no_grad(), disable_gradient_checkpointing", "ref_per_token_logps = None")
    body += between(RLOO, "rewards_per_func = self._calculate_rewards(inputs", "is_std_zero = torch.isclose")
    return ("class Rloo:\n" + indent("def _generate_and_score_completions(self, inputs):\n    device, mode = 'cpu', 'train'\n"
            "    prompts, prompt_ids_list, completion_ids_list, completions = self.roll(inputs)\n" + indent(body, 4) +
            "    return self.label(locals())\n", 4) + "\n" + indent(pick(RLOO, "_prepare_inputs", "_compute_loss", "_get_per_token_logps_and_entropies", cls="RLOOTrainer"), 4))


# ------------------------------------------------------------------ what transformers would give
class Policy(LM):
    is_gradient_checkpointing, stops = False, False

    @torch.no_grad()
    def generate(self, input_ids, attention_mask, generation_config, **_):
        ids, attn, done, scores = input_ids, attention_mask.long(), torch.zeros(len(input_ids), dtype=torch.bool), []
        for _ in range(generation_config.max_new_tokens):
            x = self(ids, attention_mask=attn).logits[:, -1] / generation_config.temperature
            t = torch.multinomial(x.softmax(-1), 1).squeeze(1)
            t = torch.where(done, torch.full_like(t, PAD), t)
            attn = torch.cat([attn, (~done).long()[:, None]], 1)
            ids, done = torch.cat([ids, t[:, None]], 1), done | ((t == EOS) & self.stops)
            scores.append(x)
        return Out(sequences=ids, scores=tuple(scores))


class Body(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, attention_mask=None, position_ids=None, **_):
        return Out(hidden_states=(self.inner(input_ids, attention_mask=attention_mask, position_ids=position_ids),))


class Value(nn.Module):
    base_model_prefix = "model"

    def __init__(self, inner, width):
        super().__init__()
        self.model, self.score = Body(inner), nn.Linear(width, 1)


class Rule(nn.Module):
    """A reward model that is a rule over the tokens so far, at every position."""
    base_model_prefix = "model"

    def __init__(self, kind):
        super().__init__()
        self.kind, self.score = kind, nn.Identity()
        self.model = lambda input_ids, attention_mask, **_: Out(hidden_states=(self.rule(input_ids, attention_mask),))

    def rule(self, ids, mask):
        m = mask.float()
        again = F.pad((ids[:, 1:] == ids[:, :-1]).float(), (1, 0))
        good = (ids % 4 == 1).float() if self.kind == "quarter" else ((ids > 8) & (ids < 20)).float()
        x = 0.3 * (good * m).cumsum(1) - 0.4 * (again * m).cumsum(1) + 0.8 * (ids == EOS).float()
        return (x - 0.05 * m.cumsum(1)).unsqueeze(-1)


def body(kind):
    return Attn(V, 24, 2, 1, 64) if kind == "attn" else Gru(V, 28)


def width(kind):
    return 24 if kind == "attn" else 28


# ------------------------------------------------------------------ PPO
class Accel:
    device = torch.device("cpu")

    def __init__(self, ga):
        self.ga, self.n = ga, 0

    def print(self, *a):
        pass

    def unwrap_model(self, m):
        return m

    def gather_for_metrics(self, x):
        return x

    @contextmanager
    def accumulate(self, model):
        self.n += 1
        self.sync = self.n % self.ga == 0
        yield

    def backward(self, loss):
        (loss / self.ga).backward()


class Optim:
    def __init__(self, inner, accel):
        self.inner, self.accel = inner, accel

    def step(self):
        if self.accel.sync:
            self.inner.step()

    def zero_grad(self):
        if self.accel.sync:
            self.inner.zero_grad()


def ppo(folder, c, plant):
    text = plant("ppo", PPO_TEXT)
    text = before(text, "accelerator.backward(loss)", "hook(locals())")
    text = before(text, "# Completions not passing that filter", "raw_scores = scores.clone()")
    text = before(text, "logits /= args.temperature", "own_logits = logits.detach().clone()")
    space = dict(torch=torch, nn=nn, np=np, math=math, gc=gc, time=time, F=F, defaultdict=defaultdict, INVALID_LOGPROB=1.0, empty_cache=lambda: None,
                 GenerationConfig=lambda **k: NS(**k), unwrap_model_for_generation=lambda m, a, **k: nullcontext(m), ModelOutput=Out)
    exec(compile(PPO_UTILS + "\n\n" + PPO_LOGP, "utils", "exec"), space)
    exec(compile("GenerationConfig_ = GenerationConfig\n" + text.replace(": GenerationConfig", ""), "ppo", "exec"), space)
    n, P = c["rows"], c["prompt"]
    policy = Policy(body(c["net"]), width(c["net"]), V, never=(PAD,), sharp=c["sharp"])
    policy.stops = c["stops"]
    ref = Policy(body(c["net"]), width(c["net"]), V, never=(PAD,))
    ref.load_state_dict(policy.state_dict())
    value = Value(body(c["net"]), width(c["net"]))
    model = space["PolicyAndValueWrapper"](policy, value)
    accel = Accel(c["ga"])
    gen = torch.Generator().manual_seed(c["seed"] + 5)
    data = []
    for _ in range(c["rollouts"]):
        ids = torch.randint(0, EOS, (n, P), generator=gen)
        ids[torch.arange(P) < torch.randint(0, P // 2, (n, 1), generator=gen)] = PAD
        data.append(dict(input_ids=ids))
    args = NS(num_ppo_epochs=c["epochs"], num_mini_batches=c["minis"], gradient_accumulation_steps=c["ga"], response_length=c["length"], temperature=c["temperature"],
              num_total_batches=c["rollouts"], total_episodes=n * c["rollouts"], logging_steps=None, eval_steps=None, save_steps=None, batch_size=n, local_batch_size=n,
              local_mini_batch_size=n // c["minis"], per_device_train_batch_size=n // c["minis"] // c["ga"], local_rollout_forward_batch_size=c["chunk"],
              ds3_gather_for_generation=True, missing_eos_penalty=c["missing_eos_penalty"], kl_estimator=c["kl_estimator"], kl_coef=c["kl_coef"],
              whiten_rewards=c["whiten_rewards"], gamma=c["gamma"], lam=c["lam"], cliprange_value=c["cliprange_value"], cliprange=c["cliprange"], vf_coef=c["vf_coef"],
              num_sample_generations=0)
    names = ("num_ppo_epochs num_mini_batches gradient_accumulation_steps response_length temperature missing_eos_penalty kl_estimator kl_coef whiten_rewards gamma lam "
             "cliprange_value cliprange vf_coef per_device_train_batch_size").split()
    dump = Dumper(folder, run=f"ppo-{c['seed']}", framework="trl", version="1.12.0", algorithm="ppo", align="response",
                  options={**{k: getattr(args, k) for k in names}, "stop_token": "eos", "eos_token_id": EOS, "agg.div_ga": True})
    dump.keep = c["keep"]
    count = [0]

    def hook(v):
        i, ga = v["micro_batch_inds"], c["ga"]
        mask, loss = ~v["padding_mask"][i], v["loss"]
        dlogp, dvalues = torch.autograd.grad(loss, [v["new_logprobs"], v["vpred"]], retain_graph=True, allow_unused=True)
        t = dict(response_mask=mask, response_ids=v["mb_responses"], input_ids=v["mb_query_responses"], attention_mask=v["mb_query_responses"] != PAD,
                 logp_new=v["new_logprobs"], logp_old=v["mb_logprobs"], logp_ref=v["ref_logprobs"][i], values=v["values"][i], values_new=v["vpred"], returns=v["mb_return"],
                 advantages=v["mb_advantage"], token_rewards=v["rewards"][i], kl=v["kl"][i], scores=v["raw_scores" if c["raw"] else "scores"][i], token_loss=v["pg_loss_max"],
                 pg_loss=v["pg_loss"] / ga, value_loss=v["vf_loss"] / ga, loss=loss / ga, dlogp=dlogp / ga, dvalues=dvalues / ga, logits=v["own_logits"],
                 sample_id=torch.as_tensor(i) + v["update"] * n)
        micro, step = count[0] % ga, count[0] // ga + 1
        scalars = {} if not c["scalars"] else dict(zip(("objective/scores", "lr"), (v["scores"].mean(), c["lr"])))
        dump(step, t, micro, ga, scalars=scalars, scores_shaped=not c["raw"], masked_fill=1)
        count[0] += 1

    inner = torch.optim.AdamW(model.parameters(), lr=c["lr"])
    me = NS(args=args, accelerator=accel, optimizer=Optim(inner, accel), model=model, ref_model=ref, reward_model=Rule(c["rule"]), dataloader=data,
            processing_class=NS(pad_token_id=PAD, eos_token_id=EOS), state=NS(), control=NS(should_save=False), is_deepspeed_enabled=False, stop_token_id=EOS,
            callback_handler=NS(on_train_begin=lambda a, s, c: c, on_step_end=lambda a, s, c: c, on_train_end=lambda a, s, c: c), log=lambda m: None,
            lr_scheduler=NS(step=lambda: None, get_last_lr=lambda: [c["lr"]]), train_dataset_len=n, sample_generations_freq=10 ** 9)
    space["hook"] = hook
    space["train"](me)


# ------------------------------------------------------------------ RLOO
class Fused(Policy):
    """A model that gives log-probs and entropies of the labels, as transformers' fused head does."""
    temperature = 1.0

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None, fused_lm_head=False, **_):
        out = super().forward(input_ids, attention_mask)
        if labels is not None:
            x = out.logits[:, :-1] / self.temperature
            told, at = F.log_softmax(x, -1), labels[:, 1:]
            lp = told.gather(-1, at.clamp(min=0).unsqueeze(-1)).squeeze(-1).masked_fill(at == -100, 0.0)
            out.log_probs, out.entropy = F.pad(lp, (1, 0)), F.pad(-(told.exp() * told).sum(-1).masked_fill(at == -100, 0.0), (1, 0))
        return out


def rloo(folder, c, plant):
    text = plant("rloo", rloo_text())
    text = before(text, "return loss", "self.hook(locals())")
    ident = lambda x: x
    space = dict(torch=torch, np=np, math=math, F=F, is_triton_available=lambda: False, gather=ident, profiling_decorator=ident, Sequence=list, Any=object,
                 disable_gradient_checkpointing=lambda *a: nullcontext(), use_adapter=None, split_pixel_values_by_grid=ident, unsplit_pixel_values_by_grid=ident)
    exec(compile("from __future__ import annotations\n" + plant("rloo_utils", RLOO_UTILS), "utils", "exec"), space)
    exec(compile("from __future__ import annotations\n" + text, "rloo", "exec"), space)
    me = space["Rloo"]()
    G, P, n = c["generations"], c["prompt"], c["rows"]
    model = Fused(body(c["net"]), width(c["net"]), V, never=(PAD,), sharp=c["sharp"])
    model.stops, model.temperature = True, c["temperature"]
    ref = Fused(body(c["net"]), width(c["net"]), V, never=(PAD,))
    ref.load_state_dict(model.state_dict())
    ref.temperature = c["temperature"]
    gen = torch.Generator().manual_seed(c["seed"] + 9)
    me.model, me.ref_model, me.beta, me.num_generations, me.num_iterations = model, ref, c["beta"], G, c["iterations"]
    me.accelerator = NS(device="cpu", process_index=0, autocast=nullcontext, gather=ident, gather_for_metrics=ident, reduce=lambda x, reduction: x)
    spg = c["steps_per_generation"]
    me.args = NS(per_device_train_batch_size=n // spg, steps_per_generation=spg, gradient_checkpointing_kwargs=None)
    me._tokenizer, me.pad_to_multiple_of, me.eos_token_ids = NS(pad_token_id=PAD), None, [EOS]
    me.mask_truncated_completions, me.reward_weights, me.reward_clip_range = c["mask_truncated"], torch.tensor(c["weights"]), c["clip_range"]
    me.normalize_advantages, me.epsilon_low, me.epsilon_high, me.aux_loss_enabled = c["normalize"], c["epsilon"], c["epsilon_high"], False
    me._metrics, me._step, me._buffered_inputs = dict(train=defaultdict(list)), 0, None
    seen = [0]

    def roll(_):
        prompts = torch.randint(0, EOS, (n // G, P), generator=gen)
        long = torch.randint(P // 2, P + 1, (n // G,), generator=gen)
        lists = [prompts[i, P - long[i]:].tolist() for i in range(n // G) for _ in range(G)]
        ids = torch.full((n, P), PAD)
        for i, l in enumerate(lists):
            ids[i, P - len(l):] = torch.tensor(l)
        out = model.generate(ids.masked_fill(ids == PAD, 0), ids != PAD, NS(max_new_tokens=c["length"], temperature=c["temperature"])).sequences[:, P:]
        done = [o[:o.index(EOS) + 1] if EOS in o else o for o in out.tolist()]
        return [None] * n, lists, done, done

    def rewards(inputs, prompts, completions, ids):
        a = [sum(t % 5 == 2 for t in o) / 4 + (0.5 if o[-1] == EOS else 0.0) for o in ids]
        b = [float(len(set(o))) / len(o) * 2 - 1 for o in ids]
        return torch.tensor([a, b]).T.contiguous()

    def label(v):
        seen[0] += 1
        out = {k: v[k] for k in "prompt_ids prompt_mask completion_ids completion_mask old_logps advantages".split()}
        out.update(old_per_token_logps=v["old_per_token_logps"], rewards_per_func=v["rewards_per_func"], group_id=torch.arange(n) // G + 1000 * seen[0],
                   sample_id=torch.arange(n) + n * seen[0], scores=(v["rewards_per_func"] * me.reward_weights).nansum(1))
        if v["ref_per_token_logps"] is not None:
            out["ref_per_token_logps"] = v["ref_per_token_logps"]
        return out

    o = dict(num_generations=G, beta=c["beta"], epsilon=c["epsilon"], epsilon_high=c["epsilon_high"], num_iterations=c["iterations"], steps_per_generation=spg,
             temperature=c["temperature"], normalize_advantages=c["normalize"], mask_truncated_completions=c["mask_truncated"], reward_weights=c["weights"],
             reward_clip_range=c["clip_range"], gradient_accumulation_steps=c["ga"], max_completion_length=c["length"], eos_token_id=EOS)
    dump = Dumper(folder, run=f"rloo-{c['seed']}", framework="trl", version="1.16.0", algorithm="rloo", options=o)
    dump.keep = c["keep"]

    def hook(v):
        x, lp = v["inputs"], v["per_token_logps"]
        (dlogp,) = torch.autograd.grad(v["loss"], lp, retain_graph=True)
        t = dict(response_ids=v["completion_ids"], response_mask=v["completion_mask"], input_ids=v["input_ids"], attention_mask=v["attention_mask"], logp_new=lp,
                 logp_old=x["old_per_token_logps"], logp_ref=x.get("ref_per_token_logps"), advantages=v["advantages"], loss=v["loss"], dlogp=dlogp, entropy=v["entropies"],
                 **{k: x[k] for k in ("scores", "rewards_per_func", "group_id", "sample_id")})
        m = {k: y[-1] for k, y in me._metrics["train"].items() if k in ("entropy", "clip_ratio/region_mean")} | dict(loss=v["loss"])
        dump(me._step // c["ga"] + 1, t, me._step % c["ga"], c["ga"], scalars=m)

    me.roll, me._calculate_rewards, me.label, me.hook = roll, rewards, label, hook
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"])
    for _ in range(c["rollouts"] * spg * c["iterations"]):
        loss = me._compute_loss(model, me._prepare_inputs(None))
        (loss / c["ga"]).backward()
        me._step += 1
        if me._step % c["ga"] == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()


def run(folder, c, plant):
    (ppo if c["kind"] == "ppo" else rloo)(folder, c, plant)


BASES = dict(
    # k1, penalty of responses without EOS, junk after EOS is generated and cut off; two epochs of two mini-batches; everything dumped
    stop=dict(kind="ppo", net="gru", seed=11, sharp=1.6, rows=24, prompt=6, length=18, stops=False, rollouts=2, epochs=2, minis=2, ga=1, chunk=12, lr=6e-3, temperature=0.7,
              missing_eos_penalty=1.0, kl_estimator="k1", kl_coef=0.05, whiten_rewards=False, gamma=1.0, lam=0.95, cliprange_value=0.2, cliprange=0.2, vf_coef=0.1,
              rule="quarter", raw=True, scalars=True, keep=None),
    # k3, whitened rewards, γ < 1, accumulation over two micro-batches; the scores after the penalty; no ids, no logits
    white=dict(kind="ppo", net="attn", seed=12, sharp=1.3, rows=32, prompt=5, length=16, stops=True, rollouts=3, epochs=1, minis=2, ga=2, chunk=32, lr=8e-3, temperature=0.9,
               missing_eos_penalty=0.5, kl_estimator="k3", kl_coef=0.15, whiten_rewards=True, gamma=0.98, lam=0.9, cliprange_value=0.15, cliprange=0.1, vf_coef=0.3,
               rule="band", raw=False, scalars=False, keep="response_mask logp_new logp_old logp_ref values values_new returns advantages token_rewards scores loss pg_loss "
               "value_loss dlogp dvalues sample_id".split()),
    # RLOO with KL in the reward, two reward functions, truncated completions masked, two iterations over a generation batch of two steps
    loo=dict(kind="rloo", net="gru", seed=13, sharp=1.5, rows=24, generations=4, prompt=6, length=20, rollouts=2, iterations=2, steps_per_generation=2, ga=1, lr=1e-2,
             temperature=0.9, beta=0.08, epsilon=0.2, epsilon_high=0.25, weights=[1.0, 0.4], clip_range=None, normalize=False, mask_truncated=True, keep=None),
)
BUGS = [
    Bug("returns_rows", "stop", False, "mb_return = returns[micro_batch_start:micro_batch_end]: returns are not taken at the shuffled rows as all else is", "ppo",
        "mb_return = returns[micro_batch_inds]", "mb_return = returns[micro_batch_start:micro_batch_end]"),
    Bug("pg_mask_rows", "stop", False, "pg_loss is the mean under padding_mask[micro_batch_start:micro_batch_end], the mask of other rows", "ppo",
        "pg_loss = masked_mean(pg_loss_max, ~padding_mask[micro_batch_inds])", "pg_loss = masked_mean(pg_loss_max, ~padding_mask[micro_batch_start:micro_batch_end])"),
    Bug("fill_ref_zero", "stop", False, "ref_logprobs are filled with 0 and logprobs with 1 in the padding: KL of 1 there flows back over GAE", "ppo",
        "ref_logprobs = torch.masked_fill(ref_logprobs, padding_mask, INVALID_LOGPROB)", "ref_logprobs = torch.masked_fill(ref_logprobs, padding_mask, 0.0)"),
    Bug("score_all_rows", "stop", False, "rewards[:, actual_end] += scores: the index broadcasts, the score of a row goes to every row at its column", "ppo",
        "rewards[actual_start, actual_end] += scores", "rewards[:, actual_end] += scores"),
    Bug("ref_unscaled", "stop", False, "ref_logits are not divided by the temperature, those of the policy are", "ppo",
        "ref_logits /= args.temperature + 1e-7", "ref_logits /= 1.0 + 1e-7"),
    Bug("eos_last_column", "stop", False, "contain_eos_token looks at the last column alone: responses that end early are penalised as if they had no EOS", "ppo",
        "contain_eos_token = torch.any(postprocessed_responses == self.processing_class.eos_token_id, dim=-1)",
        "contain_eos_token = postprocessed_responses[:, -1] == self.processing_class.eos_token_id"),
    Bug("mask_after_eos", "stop", True, "sequence_length is taken of the response before it is truncated: the mask runs on after EOS (as with no stop token)", "ppo",
        "sequence_length = first_true_indices(postprocessed_response == processing_class.pad_token_id) - 1",
        "sequence_length = first_true_indices(response == processing_class.pad_token_id) - 1"),
    Bug("var_uncentred", "white", False, "masked_var: centered_values = values, the second moment in place of the variance (rewards and advantages)", "ppo",
        "centered_values = values - mean", "centered_values = values"),
    Bug("bessel_inverted", "stop", False, "bessel_correction = (mask_sum - 1) / mask_sum: n/(n-1) upside down", "ppo",
        "bessel_correction = mask_sum / (mask_sum - 1)", "bessel_correction = (mask_sum - 1) / mask_sum"),
    Bug("k3_other_way", "white", False, "k3 with the log-ratio the other way: exp(lp-ref) - 1 - (lp-ref)", "ppo",
        "(logr.exp() - 1) - logr", "((-logr).exp() - 1) + logr"),
    Bug("whiten_score_cell", "white", False, "rewards are whitened with the statistics of ~padding_mask, which leaves the cells with the scores out", "ppo",
        "rewards = masked_whiten(rewards, mask=~padding_mask_p1, shift_mean=False)", "rewards = masked_whiten(rewards, mask=~padding_mask, shift_mean=False)"),
    Bug("lam_in_delta", "white", False, "delta = r + λ·V' - V: λ in the place of γ (γ is 0.98, λ 0.9), the recursion is right", "ppo",
        "delta = rewards[:, t] + args.gamma * nextvalues - values[:, t]", "delta = rewards[:, t] + args.lam * nextvalues - values[:, t]"),
    Bug("vf_min", "white", False, "vf_loss takes torch.min of clipped and unclipped squares", "ppo",
        "vf_loss_max = torch.max(vf_losses1, vf_losses2)", "vf_loss_max = torch.min(vf_losses1, vf_losses2)"),
    Bug("ref_ratio", "stop", False, "the ratio is that to the reference: logprobs_diff = new_logprobs - ref_logprobs[micro_batch_inds]", "ppo",
        "logprobs_diff = new_logprobs - mb_logprobs", "logprobs_diff = new_logprobs - ref_logprobs[micro_batch_inds]"),
    Bug("value_response_mask", "white", True, "vf_loss is the mean over the response alone, not one cell more", "ppo",
        "vf_loss = 0.5 * masked_mean(vf_loss_max, ~padding_mask_p1[micro_batch_inds])", "vf_loss = 0.5 * masked_mean(vf_loss_max, ~padding_mask[micro_batch_inds])"),
    Bug("score_on_eos", "white", True, "the score is put on the last token of the response, not on the cell after it", "ppo",
        "actual_end = torch.where(sequence_lengths_p1 < rewards.size(1), sequence_lengths_p1, sequence_lengths)", "actual_end = sequence_lengths"),
    Bug("loo_count", "loo", False, "the leave-one-out baseline divides the sum of the others by all of the group (scorable_counts)", "rloo",
        "(grouped_sum - grouped_rewards) / (scorable_counts - 1)", "(grouped_sum - grouped_rewards) / scorable_counts"),
    Bug("group_view", "loo", False, "rewards.view(num_generations, -1): groups of 6 rows that mix prompts in place of 4 of one", "rloo",
        "grouped_rewards = rewards.view(-1, num_generations)", "grouped_rewards = rewards.view(num_generations, -1)"),
    Bug("kl_token_mean", "loo", False, "KL in the reward is the mean over the tokens of a response, not their sum", "rloo",
        "kl = (per_token_kl * completion_mask).sum(-1)", "kl = (per_token_kl * completion_mask).sum(-1) / completion_mask.sum(-1).clamp(min=1)"),
    Bug("clamp_log", "loo", False, "the log-ratio is clamped, not the ratio: coef_2 = exp(clamp(log_ratio, -ε, ε))", "rloo",
        "coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)", "coef_2 = torch.exp(torch.clamp(log_ratio, -self.epsilon_low, self.epsilon_high))"),
    Bug("shuffle_rows", "loo", False, "shuffle_sequence_dict leaves vectors as they were: advantages and old_logps of other rows than the tokens", "rloo_utils",
        "if isinstance(v, torch.Tensor) and v.ndim == 0:\n            return v", "if isinstance(v, torch.Tensor) and v.ndim <= 1:\n            return v"),
    Bug("weights_mean", "loo", False, "the rewards of all functions are weighted by the mean of reward_weights", "rloo",
        "rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)", "rewards = (rewards_per_func * self.reward_weights.to(device).mean()).nansum(dim=1)"),
    Bug("truncated_inverted", "loo", False, "is_truncated is true where the last token is EOS: the finished completions are masked, the cut ones are kept", "rloo",
        "ids[-1] not in eos_and_pad", "ids[-1] in eos_and_pad"),
    Bug("std_of_rewards", "loo", False, "normalize_advantages divides by nanstd(rewards), before the baseline and with KL in them, not by that of the advantages", "rloo",
        "(nanstd(advantages) + 1e-4)", "(nanstd(rewards) + 1e-4)", normalize=True),
]

if __name__ == "__main__":
    main("v1_trl", run, BASES, BUGS, sys.argv)
