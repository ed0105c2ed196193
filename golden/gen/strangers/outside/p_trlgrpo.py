"""GRPO as TRL 1.16.0 computes it: its own _compute_loss and advantage statements around a loop of one's own (two ranks in one process)."""

import contextlib
import copy
import math
import types
from collections import defaultdict

import frames
import plumbline
import torch
import torch.nn.functional as F
import world

GRPO, UTILS = "trl/trainer/grpo_trainer.py", "trl/trainer/utils.py"
DECLARE = ["--profile", "trl-grpo@1.16"]


def knobs(k):
    k.draw(
        loss_type=["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "dapo", "grpo"],
        level=["token", "token", "token", "sequence"],
        prompts=[4, 6, 8],
        gens=[4, 8],
        tokens=[8, 24, 60, 120, 256],
        most=[5, 12],
        world=[1, 1, 2],
        acc=[1, 2],
        iters=[1, 2],
        spg=lambda k: k.acc * k.r.choice([1, 2]),
        beta=[0.0, 0.0, 0.04, 0.001],
        bias_correction=[True, False],
        temperature=[1.0, 0.9, 0.7],
        eps=[0.2, 0.1],
        eps_high=lambda k: 5.0 if k.loss_type == "cispo" else k.r.choice([None, 0.28]),
        delta=lambda k: k.r.choice([None, None, 1.5]) if k.loss_type in ("grpo", "dapo") else None,
        scale=["group", "batch", "none", "group"],
        rewards=["binary", "graded", "two"],
        truncated=[False, True],
        vllm=lambda k: k.r.choice([None, "token_truncate", "sequence_mask", "token_mask"]),
        tools=[0.0, 0.0, 0.7],
        entropy=[0.0, 0.0, 0.01],
        quantile=lambda k: k.r.choice([1.0, 1.0, 0.8]) if k.world == 1 else 1.0,
        dtype=["f32", "amp", "f32", "bf16"],
        lr=[3e-3, 1e-2],
        flat=[False, True],
    )
    if k.loss_type == "luspo" and "level" not in k.fixed:
        k["level"] = "sequence"


class Rank:
    """What the trainer asks its accelerator for, where all ranks live in one process: every rank's tensors are already there."""

    def __init__(self, n, index, others):
        self.num_processes, self.process_index, self.others, self.sync_gradients = n, index, others, True

    def gather(self, x):
        return x

    def reduce(self, x, reduction="sum"):
        return x

    def pad_across_processes(self, x, dim=0, pad_index=0):
        return x

    gather_for_metrics = gather


def main(out, k):
    src = frames.text("trl-1.16.0", GRPO, k.edits(GRPO))
    util = frames.functions(frames.text("trl-1.16.0", UTILS), ["nanstd", "nanmin", "nanmax"], {"torch": torch})
    env = dict(vars(util), torch=torch, math=math)
    own = frames.functions(
        src, ["_compute_loss", "get_high_entropy_mask", "get_off_policy_mask", "get_gamma_weights"], env, "GRPOTrainer"
    )
    advantage = frames.statements(
        src, "_generate_and_score_completions", "unscorable_mask =", "advantages = torch.nan_to_num", "GRPOTrainer"
    )
    dtype = torch.bfloat16 if k.dtype == "bf16" else torch.float32
    model = world.policy(k.seed, k.tokens)
    ref = world.moved(model, k.seed + 1, 0.03).to(dtype)
    model = model.to(dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=k.lr)
    args = types.SimpleNamespace(
        use_bias_correction_kl=k.bias_correction,
        delta=k.delta,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=k.spg,
        entropy_target=None,
    )

    def amp():
        return torch.autocast("cpu", torch.bfloat16) if k.dtype == "amp" else contextlib.nullcontext()

    def logps(net, ids, att, keep):
        with amp():
            logits = net(ids, att)[:, :-1][:, -keep:].float()
        logits = logits / k.temperature
        lp = F.log_softmax(logits, -1)
        ent = -(lp.exp() * lp).sum(-1)
        got = lp.gather(-1, ids[:, -keep:, None]).squeeze(-1)
        return got, ent

    step = 0
    for rollout in range(2):
        n = k.prompts * k.gens
        ids, att = world.prompts(k.seed * 31 + rollout, k.prompts, k.most)
        ids, att = ids.repeat_interleave(k.gens, 0), att.repeat_interleave(k.gens, 0)
        engine = model
        seq, mask, done, gen = world.generate(engine, ids, att, k.tokens, k.temperature, k.seed * 7 + rollout)
        per_func = world.judge_rewards(seq, mask, done, k.rewards)
        per_func = per_func if per_func.dim() == 2 else per_func[:, None]
        if k.flat:
            per_func[: k.gens] = per_func[0]
        completion_mask = mask.int()
        if k.truncated:
            completion_mask = completion_mask * done.unsqueeze(1).int()
        tool = world.holes(mask, k.tools, k.seed + rollout).int() if k.tools else None
        loss_mask = completion_mask if tool is None else completion_mask * tool
        full, fatt = torch.cat([ids, seq], 1), torch.cat([att, completion_mask], 1)
        num_items = loss_mask.sum()
        weights = torch.tensor([1.0, 0.5])[: per_func.shape[1]]
        me = types.SimpleNamespace(
            reward_weights=weights,
            multi_objective_aggregation="sum_then_normalize",
            scale_rewards=k.scale,
            reward_funcs=[0] * per_func.shape[1],
        )
        v = dict(
            rewards_per_func=per_func, num_generations=k.gens, self=me, device="cpu", torch=torch, nanstd=util.nanstd
        )
        exec(advantage, v)
        advantages = v["advantages"]
        scores = (per_func * weights).sum(1)
        with torch.no_grad():
            old = logps(model, full, fatt, k.tokens)[0] if k.acc % (k.spg * k.iters) != 0 or k.vllm else None
            base = logps(ref, full, fatt, k.tokens)[0] if k.beta else None
        rows = dict(
            prompt_ids=ids,
            prompt_mask=att,
            completion_ids=seq,
            completion_mask=completion_mask,
            advantages=advantages,
            scores=scores,
            group=torch.arange(n) // k.gens + 1000 * rollout,
            funcs=per_func,
        )
        if k.vllm:
            diff = (old - gen) * loss_mask
            w = torch.exp(diff.sum(-1, keepdim=True) if k.vllm.startswith("sequence") else diff)
            w = w.clamp(max=3.0) if k.vllm.endswith("truncate") else w.masked_fill(w > 3.0, 0.0)
            rows.update(sampling_per_token_logps=gen, importance_sampling_ratio=w)
        rows.update(
            {
                a: b
                for a, b in dict(old_per_token_logps=old, ref_per_token_logps=base, tool_mask=tool).items()
                if b is not None
            }
        )
        order = [
            torch.arange(r * n // k.world, (r + 1) * n // k.world)[torch.randperm(n // k.world, generator=torch.Generator().manual_seed(k.seed + r))]
            for r in range(k.world)
        ]
        size = n // k.world // k.spg
        for _ in range(k.iters):
            for first in range(0, k.spg, k.acc):
                step += 1
                opt.zero_grad()
                for r in range(k.world):
                    for m in range(k.acc):
                        take = order[r][(first + m) * size : (first + m + 1) * size]
                        inputs = {a: b[take] for a, b in rows.items()}
                        inputs["num_items_in_batch"] = num_items
                        seen = {}

                        def forward(_, __, input_ids, attention_mask, keep, seen=seen, **kw):
                            seen["lp"], seen["ent"] = logps(model, input_ids, attention_mask, keep)
                            return seen["lp"], seen["ent"], None

                        T = type(
                            "GRPOTrainer",
                            (),
                            {
                                **{f: getattr(own, f) for f in ("_compute_loss", "get_high_entropy_mask")},
                                "get_off_policy_mask": staticmethod(own.get_off_policy_mask),
                                "get_gamma_weights": staticmethod(own.get_gamma_weights),
                                "_get_per_token_logps_and_entropies": forward,
                            },
                        )
                        t = T()
                        vars(t).update(
                            args=args,
                            model=model,
                            beta=k.beta,
                            loss_type=k.loss_type,
                            importance_sampling_level=k.level,
                            epsilon_low=k.eps,
                            epsilon_high=k.eps_high or k.eps,
                            top_entropy_quantile=k.quantile,
                            off_policy_mask_threshold=None,
                            use_vllm=bool(k.vllm),
                            vllm_importance_sampling_correction=bool(k.vllm),
                            max_completion_length=k.tokens,
                            accelerator=Rank(k.world, r, None),
                            current_gradient_accumulation_steps=k.acc,
                            aux_loss_enabled=False,
                            _entropy_bonus_enabled=k.entropy != 0,
                            entropy_coef=k.entropy,
                            use_adaptive_entropy=False,
                            _metrics=dict(train=defaultdict(list)),
                        )
                        loss = t._compute_loss(model, inputs)
                        (dlogp,) = torch.autograd.grad(loss, seen["lp"], retain_graph=True)
                        (loss / k.world).backward()
                        logged = {
                            a: b[-1]
                            for a, b in t._metrics["train"].items()
                            if k.world == 1 and a.startswith(("kl", "entropy", "clip_ratio")) and a != "entropy_coef" and math.isfinite(b[-1])
                        }
                        plumbline.dump(
                            out,
                            step=step,
                            rank=r,
                            world_size=k.world,
                            micro_batch=m,
                            micro_batches=k.acc,
                            framework="trl",
                            version="1.16.0",
                            algorithm="grpo",
                            run="run",
                            strict=True,
                            options=dict(
                                beta=k.beta,
                                epsilon=k.eps,
                                epsilon_high=k.eps_high,
                                delta=k.delta,
                                loss_type=k.loss_type,
                                importance_sampling_level=k.level,
                                num_generations=k.gens,
                                num_iterations=k.iters,
                                steps_per_generation=k.spg,
                                gradient_accumulation_steps=k.acc,
                                scale_rewards=k.scale,
                                max_completion_length=k.tokens,
                                mask_truncated_completions=k.truncated,
                                temperature=k.temperature,
                                use_bias_correction_kl=k.bias_correction,
                                top_entropy_quantile=k.quantile,
                                entropy_coef=k.entropy,
                                use_vllm=bool(k.vllm),
                                vllm_importance_sampling_correction=bool(k.vllm),
                                vllm_importance_sampling_mode=k.vllm or "sequence_mask",
                                vllm_importance_sampling_clip_max=3.0,
                                learning_rate=k.lr,
                                num_items_in_batch=int(num_items),
                                reward_weights=weights.tolist(),
                                sapo_temperature_pos=1.0,
                                sapo_temperature_neg=1.05,
                                eos_token_id=world.EOS,
                            ),
                            scalars=dict(logged, loss=loss.item()),
                            metadata=dict(scalars_scope="micro_batch", token_loss_includes_kl=True),
                            response_mask=(inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool(),
                            response_ids=inputs["completion_ids"],
                            input_ids=torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
                            attention_mask=torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
                            logp_new=seen["lp"],
                            logp_old=inputs.get("old_per_token_logps"),
                            logp_ref=inputs.get("ref_per_token_logps"),
                            logp_gen=inputs.get("sampling_per_token_logps"),
                            is_weights=None
                            if not k.vllm
                            else inputs["importance_sampling_ratio"].expand_as(seen["lp"]).contiguous(),
                            entropy=seen["ent"],
                            advantages=inputs["advantages"],
                            scores=inputs["scores"],
                            rewards_per_func=inputs["funcs"],
                            group_id=inputs["group"],
                            loss=loss,
                            dlogp=dlogp,
                        )
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
    return DECLARE


BUGS = [
    ("std-of-the-batch", "the standard deviation is taken over the whole batch although scale_rewards is group", dict(scale="group", rewards="graded"),
     [(GRPO, 'if self.scale_rewards in ["group", "none"]:', 'if self.scale_rewards in ["none"]:'), (GRPO, 'elif self.scale_rewards == "batch":', 'elif self.scale_rewards in ["batch", "group"]:')]),
    ("ref-minus-sign", "k3 with the difference of reference and policy the wrong way round in the exponent", dict(beta=0.04),
     [(GRPO, "torch.exp(ref_per_token_logps - per_token_logps) - (ref", "torch.exp(per_token_logps - ref_per_token_logps) - (ref")]),
    ("max-for-min", "the pessimistic bound takes the larger of the two surrogates", dict(loss_type="dapo", level="token", iters=2, lr=1e-2),
     [(GRPO, "per_token_loss = -torch.min(per_token_loss1, per_token_loss2)", "per_token_loss = -torch.max(per_token_loss1, per_token_loss2)")]),
    ("temperature-only-sampling", "the trainer scores the tokens without dividing the logits by the temperature", dict(temperature=0.7, vllm="token_truncate"),
     [("self", "logits = logits / k.temperature\n", "logits = logits / 1.0\n")]),
    ("tool-tokens-in-loss", "tokens that a tool wrote are trained on", dict(tools=0.7),
     [(GRPO, 'mask = completion_mask if "tool_mask" not in inputs else completion_mask * inputs["tool_mask"]', "mask = completion_mask")]),
    ("seq-ratio-by-width", "GSPO's mean log-ratio divides by the padded width, not by the length", dict(level="sequence", loss_type="grpo", iters=2, tokens=60, lr=1e-2),
     [(GRPO, "log_importance_weights = (log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)", "log_importance_weights = (log_ratio * mask).mean(-1)")]),
    ("cispo-no-detach", "the clipped weight of CISPO is not detached", dict(loss_type="cispo", level="token"),
     [(GRPO, "clamped_ratios = torch.clamp(coef_1, max=self.epsilon_high).detach()", "clamped_ratios = torch.clamp(coef_1, max=self.epsilon_high)")]),
    ("norm-by-generation-batch", "the loss is divided by the tokens of the generation batch without rescaling to one accumulation window", dict(loss_type="dapo", spg=4, acc=2),
     [(GRPO, "normalizer = normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation", "pass")]),
    ("advantages-in-old-order", "rows are shuffled but the advantages are not", dict(scale="group", rewards="graded", world=1, flat=False),
     [("self", 'inputs["num_items_in_batch"] = num_items\n', 'inputs["num_items_in_batch"] = num_items; inputs["advantages"] = advantages[(first + m) * size : (first + m + 1) * size]\n')]),
    ("entropy-sign", "the entropy bonus is added to the loss as a penalty", dict(entropy=0.01),
     [(GRPO, "loss = loss - apply_coef * entropy_loss", "loss = loss + apply_coef * entropy_loss")]),
]
