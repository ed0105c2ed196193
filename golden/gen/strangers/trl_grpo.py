"""TRL 1.16.0's GRPOTrainer: its own statements for masks, old log-probs, weights, advantages and loss, driven as the Trainer drives them.

The loop (generation every steps_per_generation·num_iterations micro-steps, shuffling, accumulation, ranks one after the other) is
ours; every number between the rollout and the loss is computed by the release's text, with a bug's edits in it.
"""

import math
import types

import torch

from source import Config, Release, base
from world import LM, Policy, Task, rollout
from writer import write

PATH = "trl/trainer/grpo_trainer.py"
ARGS = dict(
    beta=0.0,
    epsilon=0.2,
    epsilon_high=None,
    delta=None,
    loss_type="dapo",
    scale_rewards="group",
    num_iterations=1,
    importance_sampling_level="token",
    multi_objective_aggregation="sum_then_normalize",
    mask_truncated_completions=False,
    use_bias_correction_kl=True,
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
    vespo_k_pos=2.0,
    vespo_lambda_pos=3.0,
    vespo_k_neg=3.0,
    vespo_lambda_neg=2.0,
    off_policy_mask_threshold=None,
    top_entropy_quantile=1.0,
    entropy_coef=0.0,
    vllm_importance_sampling_correction=True,
    vllm_importance_sampling_mode="sequence_mask",
    vllm_importance_sampling_clip_min=None,
    vllm_importance_sampling_clip_max=3.0,
    temperature=1.0,
    top_p=1.0,
    steps_per_generation=1,
    gradient_accumulation_steps=1,
    use_vllm=False,
    max_completion_length=20,
    per_device_train_batch_size=16,
    num_generations=4,
    reward_weights=None,
    learning_rate=4e-3,
)


class Accelerator:
    process_index = 0

    def __init__(self, ranks, ga):
        self.num_processes, self.sync_gradients = ranks, True

    def gather(self, x):
        return x

    def pad_across_processes(self, x, **k):
        return x

    def reduce(self, x, reduction="sum"):
        return x


def run(case, folder):
    a = Config(**{**ARGS, **case.cfg.get("args", {})})
    w = case.cfg
    ranks, steps = w.get("ranks", 1), w.get("steps", 3)
    release = w.get("release", "trl-1.16.0")
    rel = Release(release, case.edits)
    ns = base()
    rel.functions("trl/trainer/utils.py", ns, {"nanstd", "nanmin", "nanmax", "split_tensor_dict", "shuffle_sequence_dict"})
    ns["shuffle_sequence_dict"], ns["split_tensor_dict"] = ns.get("shuffle_sequence_dict"), ns.get("split_tensor_dict")
    ns["profiling_decorator"] = lambda f: f
    masks = rel.block(PATH, "# If mask_truncated_completions is enabled, zero out", "logits_to_keep = completion_ids.size(1)  # we only")
    scores = rel.block(
        PATH, "generate_every = self.args.steps_per_generation * self.num_iterations  # generation frequency", "ref_per_token_logps = None"
    )
    advs = rel.block(
        PATH, "unscorable_mask = torch.isnan(rewards_per_func).all(dim=1)", "advantages = torch.nan_to_num(advantages, nan=0.0)"
    )
    loss_fn = rel.method(PATH, "_compute_loss", ns, keep_locals=True)
    off_mask, gamma, high = (rel.method(PATH, n, ns) for n in ("get_off_policy_mask", "get_gamma_weights", "get_high_entropy_mask"))
    if w.get("adv_release"):
        advs = Release(w["adv_release"]).block(
            PATH,
            "mean_grouped_rewards = rewards.view(-1, self.num_generations).mean(dim=1)",
            "advantages = advantages / (std_rewards + 1e-4)",
        )
    if w.get("logps_release"):
        other = dict(
            base(),
            selective_log_softmax=lambda z, i: z.gather(-1, i.unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1),
            profiling_decorator=lambda f: f,
        )
        their_logps = Release(w["logps_release"]).method(PATH, "_get_per_token_logps", other)
    rel.check()

    task = Task(
        prompts=w.get("prompts", 4),
        group=a.num_generations,
        T=a.max_completion_length,
        holes=w.get("holes", False),
        temperature=a.temperature,
        top_p=w.get("engine_top_p", a.top_p),
        reward=w.get("reward", "float"),
        pad_is_eos=w.get("pad_is_eos", False),
        raw_logps=w.get("raw_logps", False),
    )
    model = LM(case.seed, mean_length=task.T * w.get("fill", 0.6), vocab=w.get("vocab", 40))
    policy = Policy(model, case.dtype)
    ref = policy.copy(case.seed + 1, w["ref_distance"]) if w.get("ref_distance") else policy.copy()
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=a.learning_rate)
    self = types.SimpleNamespace()
    pad = 1 if task.pad_is_eos else 0
    self.__dict__.update(
        vars(a),
        args=a,
        accelerator=Accelerator(ranks, a.gradient_accumulation_steps),
        ref_model=ref,
        model=types.SimpleNamespace(training=True),
        epsilon_low=a.epsilon,
        epsilon_high=a.epsilon_high if a.epsilon_high is not None else a.epsilon,
        eos_token_ids=[1],
        eos_token_id=1,
        pad_token_id=pad,
        _tokenizer=types.SimpleNamespace(pad_token_id=pad, eos_token_id=1),
        aux_loss_enabled=False,
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=a.entropy_coef != 0.0,
        current_gradient_accumulation_steps=a.gradient_accumulation_steps,
    )
    self.get_off_policy_mask = off_mask
    self.get_gamma_weights = torch.no_grad()(gamma)
    self.get_high_entropy_mask = types.MethodType(high, self)
    self.reward_funcs = [None] * w.get("rewards", 1)
    self.reward_weights = torch.tensor(a.reward_weights if a.reward_weights is not None else [1.0] * len(self.reward_funcs))
    a.reward_weights = self.reward_weights.tolist()

    calls = w.get("calls", {})

    def logps(who, ids, att, keep, batch_size=None, compute_entropy=False, **_):
        p = who if isinstance(who, Policy) else policy
        name = "ref" if p is ref else "new" if compute_entropy else "old"
        if w.get("logps_release"):

            def forward(input_ids, attention_mask, logits_to_keep):
                h, _ = p.model.hidden(input_ids, attention_mask)
                return types.SimpleNamespace(logits=p.model.head(h)[:, -logits_to_keep:])

            lp = their_logps(types.SimpleNamespace(temperature=a.temperature), forward, ids, att, keep)
            return lp, p.score(ids, att, keep, a.temperature)[1] if compute_entropy else None, None
        t = calls.get("temperature_" + name, a.temperature)
        if calls.get("no_attention_" + name):
            att = torch.ones_like(att)
        lp, e, _, _ = p.score(ids, att, keep, t)
        if calls.get("bf16_logp_" + name):
            lp = lp.bfloat16().to(lp.dtype)
        return lp, e if compute_entropy else None, None

    self._get_per_token_logps_and_entropies = logps
    self.model = types.SimpleNamespace(training=True)
    self.use_adapter = None

    spg, ga, mu, per = a.steps_per_generation, a.gradient_accumulation_steps, a.num_iterations, a.per_device_train_batch_size
    names = list(vars(a))
    opts = {k: v for k, v in vars(a).items() if isinstance(v, (int, float, str, type(None))) and k != "learning_rate"} | {
        "gradient_accumulation_steps": ga,
        "reward_weights": a.reward_weights,
        "eos_token_id": [1],
    }
    shuffler = torch.Generator().manual_seed(case.seed + 5)
    engine_model = model
    step, micro, generation = 0, 0, 0
    mode = "train"
    while step < steps:
        if micro % (spg * mu) == 0:
            if not (w.get("stale_engine") and generation >= 1):
                import copy

                engine_model = copy.deepcopy(policy.model)
            r = rollout(engine_model, task, case.seed * 1000 + generation)
            width = int(r["live"].sum(1).max())  # TRL pads to the longest completion
            r.update({k: r[k][:, :width] for k in ("response", "live", "mask", "gen")})
            n = len(r["score"])
            per_rank = n // ranks
            rewards_per_func = torch.stack([r["score"], r["second"]], 1)[:, : len(self.reward_funcs)].clone()
            if w.get("nan_reward"):
                rewards_per_func[1::5, 0] = math.nan
            env = dict(
                ns,
                self=self,
                mode=mode,
                device="cpu",
                inputs=[],
                images=None,
                prompts=list(range(per_rank)),
                num_images=None,
                num_tiles=None,
                forward_kwargs={},
                prompt_ids=r["prompt_ids"],
                prompt_mask=r["prompt_mask"],
                completion_ids=r["response"],
                completion_mask=r["live"].clone(),
                completion_ids_list=[x[:k].tolist() for x, k in zip(r["response"], r["live"].sum(1))],
                tool_mask=(r["mask"] + (1 - r["live"])).clone() if w.get("holes") else None,
                batch_size=per,
                sampling_per_token_logps=r["gen"].clone() if a.use_vllm else None,
                rewards_per_func=rewards_per_func,
                num_generations=a.num_generations,
                rewards=(rewards_per_func * self.reward_weights).nansum(1),
                num_items_in_batch=r["live"].sum(),
            )
            with torch.no_grad():
                exec(masks, env)
                exec(scores, env)
            exec(advs, env)
            batch = {k: env[k] for k in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")}
            for k, name in (
                ("old_per_token_logps", "old_per_token_logps"),
                ("ref_per_token_logps", "ref_per_token_logps"),
                ("tool_mask", "tool_mask"),
                ("sampling_per_token_logps", "sampling_per_token_logps"),
                ("vllm_importance_sampling_ratio", "importance_sampling_ratio"),
            ):
                if env.get(k) is not None:
                    batch[name] = env[k]
            batch.update(
                scores=(rewards_per_func * self.reward_weights).nansum(1).masked_fill(rewards_per_func.isnan().all(1), math.nan),
                rewards_per_func=rewards_per_func,
                group_id=r["group"] + generation * 1000,
                prompt_len=r["plen"],
            )
            if w.get("old_rolled"):  # the filter kept other rows than the old log-probs
                batch["old_per_token_logps"] = batch["old_per_token_logps"].roll(1, 0)
            buffers = []
            for k in range(ranks):
                part = {key: v[k * per_rank : (k + 1) * per_rank] for key, v in batch.items()}
                order = torch.randperm(per_rank, generator=shuffler)
                part = {key: v[order] for key, v in part.items()}
                buffers.append(
                    [
                        dict(
                            {key: v[i * per_rank // spg : (i + 1) * per_rank // spg] for key, v in part.items()},
                            num_items_in_batch=env["num_items_in_batch"],
                        )
                        for i in range(spg)
                    ]
                )
            generation += 1
        optimizer.zero_grad()
        gnorm_files = []
        for m in range(ga):
            for k in range(ranks):
                x = dict(buffers[k][micro % spg])
                self._metrics = {
                    mode: {
                        key: []
                        for key in (
                            "kl",
                            "entropy",
                            "policy_loss",
                            "entropy_coef",
                            "cispo_clip_ratio",
                            "vespo/phi_seq_mean",
                            *("clip_ratio/" + s for s in ("low_mean", "high_mean", "region_mean", "low_min", "high_max")),
                        )
                    }
                }
                self.accelerator.process_index = k
                loss = loss_fn(self, policy, x)
                f = self._frame
                lp = f["per_token_logps"]
                (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True, allow_unused=True)
                (loss / ranks).backward()
                v = {**f["inputs"], **f}
                t = dict(
                    input_ids=f["input_ids"],
                    attention_mask=f["attention_mask"],
                    response_ids=v["completion_ids"],
                    response_mask=f["mask"],
                    logp_new=lp,
                    logp_old=f["inputs"].get("old_per_token_logps"),
                    logp_ref=f["inputs"].get("ref_per_token_logps"),
                    kl=f.get("per_token_kl"),
                    logp_gen=f["inputs"].get("sampling_per_token_logps"),
                    is_weights=f["inputs"].get("importance_sampling_ratio"),
                    entropy=f["entropies"],
                    advantages=f["inputs"]["advantages"],
                    scores=x["scores"],
                    rewards_per_func=x["rewards_per_func"],
                    group_id=x["group_id"],
                    loss=loss,
                    token_loss=f["per_token_loss"].expand_as(lp),
                    dlogp=torch.zeros_like(lp) if dlogp is None else dlogp,
                )
                for name in w.get("drop", ()):
                    t.pop(name, None)
                scal = {
                    key: vals[-1]
                    for key, vals in self._metrics[mode].items()
                    if vals and ranks == 1 and key.startswith(("kl", "entropy", "clip_ratio")) and key != "entropy_coef"
                }
                scal["loss"] = loss.item()
                o = dict(opts, num_items_in_batch=float(x["num_items_in_batch"]))
                meta = dict(
                    framework="trl",
                    version=release.split("-")[1],
                    algorithm="grpo",
                    profile="trl-grpo@1.16" if release == "trl-1.16.0" else "trl-grpo@1.9",
                    step=step + 1,
                    rank=k,
                    world_size=ranks,
                    micro_batch=m,
                    micro_batches=ga,
                    options=o,
                    scalars=scal,
                    scalars_scope="micro_batch",
                    token_loss_includes_kl=True,
                )
                if case.dtype == "bf16" and w.get("say_dtype"):
                    meta["compute_dtype"] = "bfloat16"
                write(folder, t, meta)
            micro += 1
        optimizer.step()
        step += 1
