"""x2: verl 0.9.1 by its own functions: core_algos.py, rollout_corr_helper.py, groupwise.py and losses.py (ppo_loss, value_loss) run as
they stand in the release, with stubs for the packages around them; apply_kl_penalty and compute_advantage are ray_trainer's, the
partition into dynamic micro-batches seqlen_balancing's. Two data-parallel ranks are run one after the other, gradients are averaged.
Bugs are one edit in one of these texts or in the driver below.

    python x2.py CASES
"""
import heapq, itertools, math, sys
from collections import defaultdict
from enum import Enum
from typing import Any, Callable, Optional
import numpy as np
from world_x import *

VERL = f"{SRC}/verl-0.9.1/verl"


def without_imports(path):
    text, out, skip = open(path).read(), [], False
    for line in text.splitlines():
        if skip or line.startswith(("import verl", "from verl", "from omegaconf", "from tensordict", "from __future__")):
            skip = (skip or line.rstrip().endswith("(")) and not line.startswith(")")
            continue
        out.append(line)
    return "\n".join(out) + "\n"


TEXTS = dict(
    functional=functions(f"{VERL}/utils/torch_functional.py", ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value", "entropy_from_logits"]),
    groupwise=without_imports(f"{VERL}/utils/groupwise.py"),
    core=without_imports(f"{VERL}/trainer/ppo/core_algos.py"),
    corr=without_imports(f"{VERL}/trainer/ppo/rollout_corr_helper.py"),
    losses=functions(f"{VERL}/workers/utils/losses.py", ["ppo_loss", "value_loss"]),
    ray=functions(f"{VERL}/trainer/ppo/ray_trainer.py", ["apply_kl_penalty", "compute_advantage"]),
    balance=functions(f"{VERL}/utils/seqlen_balancing.py", ["calculate_workload", "karmarkar_karp", "get_seqlen_balanced_partitions", "ceildiv"]),
    program=trainer_text(__file__),
)


class Cfg(dict):
    __getattr__ = dict.__getitem__


class AlgoConfig(Cfg):
    pass


class ActorConfig(Cfg):
    pass


class Batch(dict):
    @property
    def batch_size(self):
        return [len(next(iter(self.values())))]


class DataProto:
    def __init__(self, tensors, non_tensors=None):
        self.batch, self.non_tensor_batch = Batch(tensors), dict(non_tensors or {})

    @staticmethod
    def from_dict(tensors):
        return DataProto(tensors)

    def union(self, other):
        self.batch.update(other.batch)
        return self


class TD(dict):
    def select(self, *names):
        return TD({k: self[k] for k in names})

    def to_padded_tensor(self):
        return self


class Metric:
    def __init__(self, value=None, aggregation=None):
        self.value = value

    @staticmethod
    def from_dict(d, aggregation=None):
        return d


# >>> trainer
RANKS = 2


class Driver:
    def __init__(self, cfg):
        self.cfg, o = cfg, cfg["options"]
        self.o = o
        self.algo = AlgoConfig(gamma=o.get("gamma", 1.0), lam=o.get("lam", 1.0), norm_adv_by_std_in_grpo=o.get("norm_adv_by_std_in_grpo", True))
        self.actor_cfg = ActorConfig(clip_ratio=o["clip_ratio"], clip_ratio_low=o["clip_ratio_low"], clip_ratio_high=o["clip_ratio_high"], clip_ratio_c=o["clip_ratio_c"], loss_agg_mode=o["loss_agg_mode"],
                                     loss_scale_factor=o.get("loss_scale_factor"), entropy_coeff=o["entropy_coeff"], use_kl_loss=o["use_kl_loss"], kl_loss_coef=o.get("kl_loss_coef", 0.0),
                                     kl_loss_type=o.get("kl_loss_type", "low_var_kl"), policy_loss=Cfg(loss_mode=o["loss_mode"]), global_batch_info={})
        self.critic_cfg = Cfg(cliprange_value=o.get("cliprange_value", 0.5), loss_agg_mode=o["loss_agg_mode"], loss_scale_factor=None)
        self.actor, self.ref = LM(cfg["seed"], eos=cfg["eos"]), LM(cfg["seed"], eos=cfg["eos"])
        g = torch.Generator().manual_seed(cfg["seed"])
        with torch.no_grad():
            for p in self.actor.parameters():
                p.add_(cfg["drift"] * torch.randn(p.shape, generator=g))
        self.opt = torch.optim.AdamW(self.actor.parameters(), lr=cfg["lr"])
        self.critic = LM(cfg["seed"] + 1, value=True) if o["adv_estimator"] == "gae" else None
        self.critic_opt = torch.optim.AdamW(self.critic.parameters(), lr=cfg["critic_lr"]) if self.critic else None
        self.kl_ctrl = get_kl_controller(Cfg(type="fixed", kl_coef=o.get("kl_coef", 0.0)))
        self.P, self.step = 4, 0

    def log_probs(self, model, ids, mask, grad=False):
        with torch.set_grad_enabled(grad):
            raw = resp_logits(model, ids, self.P)
            logits = raw / self.o["temperature"]
            logp = gather_logp(logits, ids[:, self.P :]) * mask
            entropy = entropy_from_logits(logits) * mask
        return logp, entropy, raw.detach()

    def values(self, ids, mask, grad=False):
        with torch.set_grad_enabled(grad):
            return self.critic(ids)[1][:, self.P - 1 : -1] * mask

    def rollout(self, it):
        cfg, n = self.cfg, self.o["rollout_n"]
        base = make_prompts(cfg["prompts"], self.P, 10 * cfg["seed"] + it)
        prompts = base.repeat_interleave(n, 0)
        uid = np.array([f"{it}-{i}" for i in range(len(base))], dtype=object).repeat(n)
        engine = engine_of(self.actor, it, cfg["noise"])
        resp, mask, gen = sample(engine, prompts, cfg["T"], self.o["temperature"], 77 * cfg["seed"] + it)
        ids = torch.cat([prompts, resp], 1)
        mask_long = mask.long()
        batch = dict(input_ids=ids, responses=resp, response_mask=mask_long, rollout_log_probs=gen, sample_id=torch.arange(len(ids)) + 10000 * it)
        batch["old_log_probs"] = self.log_probs(self.actor, ids, mask)[0]
        batch["ref_log_prob"] = self.log_probs(self.ref, ids, mask)[0]
        if self.critic:
            batch["values"] = self.values(ids, mask)
        lens = mask_long.sum(1)
        reward = torch.tensor([sum(f(p, r[:k]) for f in cfg["rewards"]) for p, r, k in zip(prompts.tolist(), resp.tolist(), lens.tolist())])
        scores = torch.zeros_like(mask)
        scores[torch.arange(len(ids)), lens - 1] = reward
        batch["token_level_scores"] = scores
        data = DataProto(batch, dict(uid=uid))
        if cfg.get("balance"):
            parts = get_seqlen_balanced_partitions(lens.tolist(), RANKS, equal_size=True)
            order = torch.tensor([i for p in parts for i in p])
            data = DataProto({k: x[order] for k, x in data.batch.items()}, {k: x[order.numpy()] for k, x in data.non_tensor_batch.items()})
        if self.o["use_kl_in_reward"]:
            data, _ = apply_kl_penalty(data, self.kl_ctrl, kl_penalty=self.o["kl_penalty"])
        else:
            data.batch["token_level_rewards"] = data.batch["token_level_scores"]
        if self.o.get("rollout_is"):
            data, _ = compute_rollout_correction_and_add_to_batch(data, self.o)
        data = compute_advantage(data, self.o["adv_estimator"], gamma=self.algo.gamma, lam=self.algo.lam, norm_adv_by_std_in_grpo=self.algo.norm_adv_by_std_in_grpo, config=self.algo)
        return data

    def micro_batches(self, minis, lens):
        """Rows of a mini-batch, for each rank in parts; all ranks have as many (same_micro_num_in_dp)."""
        if not self.o["use_dynamic_bsz"]:
            return [rows.split(self.o["ppo_micro_batch_size_per_gpu"]) for rows in minis]
        n = max(ceildiv(int(lens[rows].sum()), self.cfg["max_token_len"]) for rows in minis)
        parts = [get_seqlen_balanced_partitions(calculate_workload(lens[rows]).tolist(), n, equal_size=False) for rows in minis]
        return [[rows[torch.tensor(p)] for p in part] for rows, part in zip(minis, parts)]

    def update(self, data, out):
        b, o = data.batch, self.o
        B = len(b["input_ids"])
        group = torch.tensor([int(u.split("-")[0]) * 1000 + int(u.split("-")[1]) for u in data.non_tensor_batch["uid"]])
        shards = [torch.arange(B)[r * B // RANKS : (r + 1) * B // RANKS] for r in range(RANKS)]
        minis = [s.split(o["ppo_mini_batch_size"] // RANKS) for s in shards]
        for epoch in range(o["ppo_epochs"]):
            for k in range(len(minis[0])):
                mini_rows = torch.cat([minis[r][k] for r in range(RANKS)])
                batch_num_tokens = b["response_mask"][mini_rows].sum()
                global_batch_size = len(mini_rows)
                self.step += 1
                of_rank = self.micro_batches([minis[r][k] for r in range(RANKS)], b["response_mask"].sum(1) + self.P)
                for r, micros in enumerate(of_rank):
                    for m, rows in enumerate(micros):
                        self.micro(out, data, rows, r, m, len(micros), batch_num_tokens, global_batch_size, group)
                for model, opt in ((self.actor, self.opt), (self.critic, self.critic_opt)):
                    if model:
                        for p in model.parameters():
                            if p.grad is not None:
                                p.grad /= RANKS
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                        opt.step()
                        opt.zero_grad()

    def micro(self, out, data, rows, rank, m, micros, batch_num_tokens, global_batch_size, group):
        part = TD({k: x[rows] for k, x in data.batch.items()})
        part.update(dp_size=RANKS, batch_num_tokens=batch_num_tokens, global_batch_size=global_batch_size)
        maskf = part["response_mask"].float()
        logp, entropy, raw = self.log_probs(self.actor, part["input_ids"], (data.batch["input_ids"][rows][:, self.P :] != PAD).float(), grad=True)
        HELD.clear()
        loss, seen = ppo_loss(self.actor_cfg, dict(log_probs=logp, entropy=entropy if self.o["entropy_coeff"] else None), part)
        (dlogp,) = torch.autograd.grad(loss, logp, retain_graph=True)
        t = dict(response_mask=part["response_mask"], response_ids=part["responses"], input_ids=part["input_ids"], attention_mask=(part["input_ids"] != PAD).long(), prompt_len=torch.full((len(rows),), self.P), logp_new=logp, logp_old=part["old_log_probs"], logp_gen=part["rollout_log_probs"],
                 logp_ref=part["ref_log_prob"], advantages=part["advantages"], scores=part["token_level_scores"].sum(-1), token_rewards=part["token_level_rewards"], group_id=group[rows],
                 sample_id=part["sample_id"], is_weights=part.get("rollout_is_weights"), token_loss=HELD.get("token_loss"), loss=loss, pg_loss=HELD.get("pg_loss"), dlogp=dlogp,
                 kl=seen.get("kld"), kl_loss=seen.get("kl_loss"), entropy_loss=seen.get("entropy_loss"), entropy=entropy if self.o["entropy_coeff"] else None,
                 logits=raw if self.cfg.get("logits") else None)
        loss.backward()
        if self.critic:
            v = self.values(part["input_ids"], maskf, grad=True)
            vloss, _ = value_loss(self.critic_cfg, dict(values=v), part)
            (dv,) = torch.autograd.grad(vloss, v, retain_graph=True)
            vloss.backward()
            t.update(values=part["values"], values_new=v, returns=part["returns"], value_loss=vloss, dvalues=dv)
        t = {k: x for k, x in t.items() if k not in self.cfg.get("leave_out", ())}
        options = dict({k: x for k, x in self.o.items() if x is not None}, num_items_in_batch=int(batch_num_tokens), num_mini_batches=self.cfg["prompts"] * self.o["rollout_n"] // self.o["ppo_mini_batch_size"],
                       eos_token_id=EOS, **{"agg.denominator": "global"})
        meta = dict(schema=2, framework="verl", version="0.9.1", algorithm=self.cfg["algorithm"], run=self.cfg["run"], step=self.step, rank=rank, world_size=RANKS, micro_batch=m, micro_batches=micros,
                    options=options, token_loss_includes_kl=False)
        write(out, f"step_{self.step:06d}_rank_{rank}_mb_{m}", t, meta)

    def train(self, out):
        for it in range(self.cfg["rollouts"]):
            data = self.rollout(it)
            self.update(data, out)
# <<< trainer


def execute(texts, cfg, out):
    import types
    F_ns = dict(torch=torch)
    exec(texts["functional"], F_ns)
    verl_F = types.SimpleNamespace(**{k: v for k, v in F_ns.items() if not k.startswith("__")})
    held = {}
    ns = dict(globals(), verl_F=verl_F, masked_mean=verl_F.masked_mean, masked_sum=verl_F.masked_sum, entropy_from_logits=verl_F.entropy_from_logits, get_device_name=lambda: "cpu", DictConfig=Cfg,
              deprecated=lambda *a, **k: (lambda f: f), CriticConfig=Cfg, TensorDict=TD, RolloutCorrectionConfig=Cfg, PolicyLossConfig=Cfg, copy=copy, heapq=heapq, chain=itertools.chain, HELD=held,
              tu=None, no_padding_2_padding=lambda x, data: x, AggregationType=types.SimpleNamespace(SUM=0, MEAN=1))
    ns["__name__"] = "verl_text"
    fut = "from __future__ import annotations\n"
    exec(compile(fut + texts["groupwise"], "groupwise", "exec"), ns)
    exec(compile(fut + texts["core"], "core_algos", "exec"), ns)
    agg = ns["agg_loss"]

    def agg_loss(loss_mat, *a, **k):  # the hook: the first call of a loss is that of the policy term
        x = agg(loss_mat, *a, **k)
        if "token_loss" not in held:
            held.update(token_loss=loss_mat.detach().clone(), pg_loss=x.detach().clone())
        return x

    core = types.SimpleNamespace(**ns)
    ns["agg_loss"], ns["core_algos"] = agg_loss, core
    exec(compile(fut + texts["corr"], "corr", "exec"), ns)
    losses = texts["losses"].replace("    return policy_loss, metrics", "    return policy_loss, {k: v.detach().clone() for k, v in locals().items() if k in ('kld', 'kl_loss', 'entropy_loss')}")  # the hook
    exec(compile(fut + losses, "losses", "exec"), ns)
    exec(compile(fut + texts["ray"], "ray_trainer", "exec"), ns)
    exec(compile(fut + texts["balance"], "balance", "exec"), ns)
    exec(compile(texts["program"], "program", "exec"), ns)
    torch.manual_seed(cfg["seed"])
    ns["Driver"](cfg).train(out)


BASE = dict(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0, loss_agg_mode="token-mean", entropy_coeff=0.0, use_kl_loss=False, use_kl_in_reward=False, loss_mode="vanilla",
            temperature=1.0, rollout_n=4, ppo_epochs=1, use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=4)
HEALTHY = [
    ("ppo-critic", dict(about="PPO: GAE 0.99/0.95, critic with value clipping, k1 in the rewards, two epochs of two mini-batches, two ranks", seed=4, lr=0.006, critic_lr=0.01, noise=0.02, drift=0.03,
                        run="x2-ppo", algorithm="ppo", prompts=8, T=22, eos=1.0, rollouts=2, rewards=[reward_even, reward_short],
                        options=dict(BASE, adv_estimator="gae", gamma=0.99, lam=0.95, use_kl_in_reward=True, kl_penalty="kl", kl_coef=0.05, cliprange_value=0.15, rollout_n=4, ppo_mini_batch_size=16, ppo_epochs=2))),
    ("grpo-gspo", dict(about="GRPO with the gspo loss, k3 in the loss, token weights of the engine cut at 1.3, balanced ranks, dynamic micro-batches", seed=9, lr=0.006, noise=0.12, drift=0.03, run="x2-gspo",
                       algorithm="grpo", prompts=8, T=28, eos=0.9, rollouts=3, balance=True, max_token_len=110, rewards=[reward_even, reward_key],
                       options=dict(BASE, adv_estimator="grpo", norm_adv_by_std_in_grpo=True, loss_mode="gspo", loss_agg_mode="seq-mean-token-mean", clip_ratio_low=0.03, clip_ratio_high=0.04, use_kl_loss=True,
                                    kl_loss_coef=0.02, kl_loss_type="low_var_kl", rollout_is="token", rollout_is_threshold=1.3, use_dynamic_bsz=True, ppo_mini_batch_size=16))),
    ("opo-cispo", dict(about="OPO with the cispo loss, seq-mean-token-sum-norm over 24, k3 in the rewards, entropy bonus, normalised weights of sequences, temperature 0.8; logits are dumped", seed=12, lr=0.008,
                       noise=0.06, drift=0.04, run="x2-opo", algorithm="grpo", prompts=6, T=20, eos=0.7, rollouts=2, logits=True, rewards=[reward_key, reward_short], leave_out=("input_ids", "attention_mask", "prompt_len"),
                       options=dict(BASE, adv_estimator="opo", loss_mode="cispo", loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=24, clip_ratio_low=0.25, clip_ratio_high=0.3, use_kl_in_reward=True,
                                    kl_penalty="low_var_kl", kl_coef=0.03, entropy_coeff=0.004, rollout_is="sequence", rollout_is_threshold=2.0, rollout_is_batch_normalize=True, temperature=0.8,
                                    ppo_mini_batch_size=12, ppo_micro_batch_size_per_gpu=3))),
]
A, B, C = "ppo-critic", "grpo-gspo", "opo-cispo"
BUGS = [
    ("returns_after_whiten", A, "        returns = advantages + values\n        advantages = verl_F.masked_whiten(advantages, response_mask)\n", "        advantages = verl_F.masked_whiten(advantages, response_mask)\n        returns = advantages + values\n",
     "The returns are of whitened advantages", False),
    ("delta_discounted_by_lambda", A, "delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]", "delta = token_level_rewards[:, t] + gamma * lam * nextvalues - values[:, t]", "δ discounts the next value by γλ", False),
    ("kl_penalty_rolled", A, "    kld = kld * response_mask\n", "    kld = torch.roll(kld, -1, dims=-1) * response_mask\n", "The KL penalty stands a token early", False),
    ("value_clip_around_target", A, "vpredclipped = verl_F.clip_by_value(vpreds, values - cliprange_value, values + cliprange_value)", "vpredclipped = verl_F.clip_by_value(vpreds, returns - cliprange_value, returns + cliprange_value)",
     "Values are clipped around the returns, not around the old values", False),
    ("dual_clip_other_sign", A, "    pg_losses = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)\n\n    # Apply", "    pg_losses = torch.where(advantages > 0, clip_pg_losses2, clip_pg_losses1)\n\n    # Apply",
     "The dual clip bounds the tokens of positive advantage", False),
    ("tokens_of_first_rank", A, 'batch_num_tokens = b["response_mask"][mini_rows].sum()', 'batch_num_tokens = b["response_mask"][minis[0][k]].sum()', "The tokens of the mini-batch are counted on rank 0 alone", False),
    ("old_refreshed_each_epoch", A, "        for epoch in range(o[\"ppo_epochs\"]):\n", "        for epoch in range(o[\"ppo_epochs\"]):\n            b[\"old_log_probs\"] = self.log_probs(self.actor, b[\"input_ids\"], b[\"response_mask\"].float())[0]\n",
     "The old log-probs are computed anew in every epoch, so the second starts from ratio 1", False),
    ("score_a_token_early", A, "scores[torch.arange(len(ids)), lens - 1] = reward", "scores[torch.arange(len(ids)), (lens - 2).clamp(min=0)] = reward", "The score stands on the token before the last", False),
    ("whiten_biased", A, "    variance = masked_mean(centered_values**2, mask)\n", "    variance = masked_mean(centered_values.abs(), mask) ** 2\n", "Advantages are whitened by the mean absolute deviation", False),
    ("gae_decay_lambda_only", A, "lastgaelam_ = delta + gamma * lam * lastgaelam", "lastgaelam_ = delta + lam * lastgaelam", "The trace of GAE decays by λ, not by γλ (another λ gives the same)", True),
    ("group_mean_of_row_before", B, "                scores[i] = (scores[i] - id2mean[index[i]]) / (id2std[index[i]] + epsilon)", "                scores[i] = (scores[i] - id2mean[index[i - 1]]) / (id2std[index[i]] + epsilon)",
     "The baseline is that of the row before's group", False),
    ("gspo_not_detached", B, "log_seq_importance_ratio = log_prob - log_prob.detach() + negative_approx_kl_seq.detach().unsqueeze(-1)", "log_seq_importance_ratio = log_prob - log_prob.detach() + negative_approx_kl_seq.unsqueeze(-1)",
     "The sequence's ratio keeps its gradient beside the token's own", False),
    ("gspo_clip_token_ratio", B, "    pg_losses2 = -advantages * torch.clamp(seq_importance_ratio, 1 - clip_ratio_low, 1 + clip_ratio_high)\n", "    pg_losses2 = -advantages * torch.clamp(torch.exp(negative_approx_kl), 1 - clip_ratio_low, 1 + clip_ratio_high)\n",
     "The clipped branch has the ratio of the token, the other that of the sequence", False),
    ("is_ratio_squared", B, "log_ratio: torch.Tensor = old_log_prob - rollout_log_prob\n    metrics", "log_ratio: torch.Tensor = 2 * (old_log_prob - rollout_log_prob)\n    metrics", "The engine's weight is squared before it is cut", False),
    ("is_floor_for_cap", B, "rollout_is_weights = raw_rollout_is_weights.clamp(max=rollout_is_threshold_upper)", "rollout_is_weights = raw_rollout_is_weights.clamp(min=1.0 / rollout_is_threshold_upper)", "Weights are bounded from below at 1/C, not from above at C", False),
    ("advantages_not_reindexed", B, "        part.update(dp_size=RANKS", '        part["advantages"] = data.batch["advantages"][int(rows.min()) : int(rows.min()) + len(rows)]\n        part.update(dp_size=RANKS', "Advantages of a dynamic micro-batch are a slice of the batch from its first row on, the rows are those of the partition", False),
    ("uids_unbalanced", B, "{k: x[order.numpy()] for k, x in data.non_tensor_batch.items()}", "dict(data.non_tensor_batch)", "The ids of the prompts stay where they were when rows are balanced over the ranks", False),
    ("group_std_population", B, "id2std[idx] = torch.std(scores_tensor)\n            else:\n                raise ValueError(f\"no score in prompt index: {idx}\")\n        for i in range(bsz):\n            if norm", "id2std[idx] = torch.std(scores_tensor, unbiased=False)\n            else:\n                raise ValueError(f\"no score in prompt index: {idx}\")\n        for i in range(bsz):\n            if norm",
     "σ of the group with n in place of n − 1", True),
    ("opo_weights_inverse", C, "id2bsl[idx] = (len_tensor * score_tensor).sum() / len_tensor.sum()", "id2bsl[idx] = (score_tensor / len_tensor).sum() / (1 / len_tensor).sum()", "OPO's baseline weights the rewards by 1/length", False),
    ("cispo_attached", C, "    clipped_ratio_sg = clipped_ratio.detach()\n", "    clipped_ratio_sg = clipped_ratio\n", "The clipped ratio keeps its gradient", False),
    ("entropy_temperature_twice", C, "entropy = entropy_from_logits(logits) * mask", 'entropy = entropy_from_logits(logits / self.o["temperature"]) * mask', "Entropies are of logits that are divided by the temperature twice", False),
    ("bonus_counts_rank_rows", C, "loss_mat=entropy, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info", "loss_mat=entropy, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **{**config.global_batch_info, 'dp_size': 1}",
     "The entropy bonus lacks the factor of the data-parallel ranks that all other terms have", False),
    ("same_shard_twice", C, "shards = [torch.arange(B)[r * B // RANKS : (r + 1) * B // RANKS] for r in range(RANKS)]", "shards = [torch.arange(B)[: B // RANKS] for r in range(RANKS)]", "Both ranks train on the first shard", False),
    ("is_normalised_over_rectangle", C, "seq_weights = verl_F.masked_mean(rollout_is_weights, response_mask, axis=-1)  # (batch_size,)", "seq_weights = rollout_is_weights.mean(-1)  # (batch_size,)", "The mean that normalises the weights is over the padded rectangle", False),
]

if __name__ == "__main__":
    run_all(sys.argv[1], "x2", TEXTS, HEALTHY, BUGS, execute, sys.argv[2:])
