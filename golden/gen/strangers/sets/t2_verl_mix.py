"""t2: verl 0.9.1 by its own functions: core_algos.py (estimators, policy losses, value loss, KL, agg_loss), workers/utils/losses.py (ppo_loss, value_loss),
rollout_corr_helper.py, ray_trainer.apply_kl_penalty and torch_functional's masked statistics, around tiny actor and critic models."""
import re, types, math
from collections import defaultdict
from enum import Enum
from typing import Any, Callable, Optional
import numpy as np
from world_t import *

P = "verl-0.9.1/verl/"
def whole(path, first, cut=()):
    """The text of a module from its first statement after the imports on."""
    t = open(os.path.join(SRC, P + path)).read(); t = t[t.index(first):]
    for a, b in cut: i = t.index(a); t = t[:i] + t[t.index(b, i):]
    return t
VERL = [source_of(P + "utils/torch_functional.py", "masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"),
        whole("trainer/ppo/core_algos.py", "PolicyLossFn = Callable", cut=[('@deprecated("verl.trainer.ppo.core_algos.compute_policy_loss_vanilla")', '@register_policy_loss("vanilla")')]),
        whole("trainer/ppo/rollout_corr_helper.py", "SAFETY_BOUND"),
        source_of(P + "trainer/ppo/ray_trainer.py", "apply_kl_penalty"),
        source_of(P + "workers/utils/losses.py", "ppo_loss", "value_loss")]

class Cfg(dict):
    def __getattr__(self, k):
        try: return self[k]
        except KeyError: raise AttributeError(k)
    def __setattr__(self, k, v): self[k] = v
class ActorConfig(Cfg): pass
class AlgoConfig(Cfg): pass
class TD(dict):
    def select(self, *f): return TD({k: self[k] for k in f})
    def to_padded_tensor(self): return self
class Batch(dict):
    batch_size = property(lambda s: s["response_mask"].shape)
class Proto:
    @staticmethod
    def from_dict(tensors): return types.SimpleNamespace(batch=tensors)
class Metric:
    def __init__(self, value, aggregation=None): self.value = value
    @staticmethod
    def from_dict(d, aggregation=None): return {k: Metric(v) for k, v in d.items()}

# <trainer>
def forward(model, ids, keep, responses, temperature):
    logits = model.logits(ids, keep)
    ls = torch.log_softmax(logits / temperature, -1)
    return ls.gather(-1, responses.unsqueeze(-1)).squeeze(-1), -(ls.exp() * ls).sum(-1), ls, logits

def train(cfg, writer):
    gen = torch.Generator().manual_seed(cfg.seed); torch.manual_seed(cfg.seed)
    actor, critic = LM(cfg.seed, tool_bias=cfg.tool_bias), LM(cfg.seed + 1, value=True)
    ref = copy.deepcopy(actor)
    with torch.no_grad():
        for p in ref.parameters(): p.add_(torch.randn(p.shape, generator=gen) * cfg.ref_noise)
    opt, vopt = torch.optim.AdamW(actor.parameters(), lr=cfg.lr, weight_decay=0.01), torch.optim.AdamW(critic.parameters(), lr=1e-2, weight_decay=0.01)
    kl_ctrl = get_kl_controller(Cfg(type="fixed", kl_coef=cfg.kl_coef)); step, G, T, R = 0, cfg.n, cfg.T, cfg.ranks
    for rollout in range(cfg.rollouts):
        engine = engine_of(actor, noise=cfg.noise, gen=gen)
        prompts = make_prompts(cfg.rows // G, 6, gen).repeat_interleave(G, 0)
        responses, rollout_lp, response_mask, att = sample(engine, prompts, T, cfg.temperature, gen, cfg.observe)
        ids = torch.cat([prompts, responses], 1); uid = np.array([f"r{rollout}p{i // G}" for i in range(cfg.rows)])
        score = r_parity(prompts, responses, response_mask) + 0.5 * r_length(prompts, responses, response_mask) + r_end(prompts, responses, response_mask)
        last = (response_mask * torch.arange(1, T + 1)).argmax(1)
        batch = Batch(responses=responses, response_mask=response_mask, rollout_log_probs=rollout_lp, input_ids=ids)
        batch["token_level_scores"] = torch.zeros(cfg.rows, T).scatter(1, last[:, None], score[:, None])
        with torch.no_grad():
            batch["old_log_probs"], _, ls, _ = forward(actor, ids, T, responses, cfg.temperature)
            batch["sum_pi_squared"] = (2 * ls).exp().sum(-1)
            batch["ref_log_prob"] = forward(ref, ids, T, responses, temperature=cfg.temperature)[0]
            batch["values"] = critic.both(ids, T)[1]
        data = types.SimpleNamespace(batch=batch, non_tensor_batch=dict(uid=uid), union=None)
        data.union = lambda w: (batch.update(w.batch), data)[1]
        if cfg.rollout_is: data, _ = compute_rollout_correction_and_add_to_batch(data, cfg.rollout_correction)
        if cfg.use_kl_in_reward: data, _ = apply_kl_penalty(data, kl_ctrl, kl_penalty=cfg.kl_penalty)
        else: batch["token_level_rewards"] = batch["token_level_scores"]
        if cfg.adv_estimator == "gae":
            batch["advantages"], batch["returns"] = compute_gae_advantage_return(batch["token_level_rewards"], batch["values"], batch["response_mask"], cfg.gamma, cfg.lam)
        else:
            batch["advantages"], batch["returns"] = get_adv_estimator_fn(cfg.adv_estimator)(
                token_level_rewards=batch["token_level_rewards"], response_mask=batch["response_mask"], index=uid, config=AlgoConfig(cfg),
                **(dict(old_log_probs=batch["old_log_probs"], sum_pi_squared=batch["sum_pi_squared"], rollout_is_weights=batch.get("rollout_is_weights")) if "optimal" in cfg.adv_estimator else {}))
        if not cfg.rollout_is: batch.pop("rollout_is_weights", None)
        batch.update(uid=torch.arange(cfg.rows) // G + 1000 * rollout, sample_id=torch.arange(cfg.rows) + 1000 * rollout)
        per_rank, mini_rows = cfg.rows // R, cfg.mini // R
        shards = [{k: x[r * per_rank:(r + 1) * per_rank] for k, x in batch.items()} for r in range(R)]
        for epoch in range(cfg.epochs):
            if epoch:
                order = torch.randperm(per_rank, generator=gen)
                shards = [{k: x[order] for k, x in s.items()} for s in shards]
            for i in range(0, per_rank, mini_rows):
                minis = [{k: x[i:i + mini_rows] for k, x in s.items()} for s in shards]
                tokens = sum(int(m["response_mask"].sum()) for m in minis)
                step += 1; opt.zero_grad(); vopt.zero_grad()
                for r, m in enumerate(minis):
                    for k in range(0, mini_rows, cfg.micro):
                        d = TD({n: x[k:k + cfg.micro] for n, x in m.items()})
                        d.update(dp_size=R, batch_num_tokens=tokens, global_batch_size=cfg.mini)
                        lp, entropy, _, logits = forward(actor, d["input_ids"], T, d["responses"], cfg.temperature)
                        FRAMES.clear()
                        loss, metrics = watched(ppo_loss, cfg.actor, dict(log_probs=lp, entropy=entropy if cfg.actor.entropy_coeff else None), d)
                        vloss = None
                        if cfg.adv_estimator == "gae":
                            v = critic.both(d["input_ids"], T)[1]
                            vloss, _ = watched(value_loss, cfg.critic, dict(values=v), d)
                        dump(cfg, writer, step, r, k // cfg.micro, d, lp, entropy, logits, loss, metrics, vloss, v if vloss is not None else None, tokens)
                        (loss / R).backward()
                        if vloss is not None: (vloss / R).backward()
                for o, net in ((opt, actor), (vopt, critic)): torch.nn.utils.clip_grad_norm_([p for p in net.parameters() if p.grad is not None], 1.0); o.step()
# </trainer>

# <hook>
def dump(cfg, writer, step, rank, micro, d, lp, entropy, logits, loss, metrics, vloss, v, tokens):
    g = torch.autograd.grad(loss, lp, retain_graph=True)[0]
    f = FRAMES.get("ppo_loss", {})
    t = dict(response_ids=d["responses"], response_mask=d["response_mask"], logp_new=lp, logp_old=d["old_log_probs"], logp_gen=d["rollout_log_probs"],
             logp_ref=d["ref_log_prob"] if cfg.use_kl_in_reward or cfg.actor.use_kl_loss else None, advantages=d["advantages"], token_rewards=d["token_level_rewards"],
             scores=d["token_level_scores"].sum(-1), group_id=d["uid"], sample_id=d["sample_id"], entropy=entropy, is_weights=d.get("rollout_is_weights"),
             kl=f.get("kld"), kl_loss=f.get("kl_loss"), token_loss=f.get("pg_losses"), loss=loss, dlogp=g,
             sum_pi_squared=d["sum_pi_squared"] if "optimal" in cfg.adv_estimator else None, logits=logits)
    if vloss is not None:
        t.update(values=d["values"], returns=d["returns"], values_new=v, value_loss=vloss, dvalues=torch.autograd.grad(vloss, v, retain_graph=True)[0])
    t = {k: x for k, x in t.items() if x is not None and k not in cfg.left_out}
    a = cfg.actor
    o = dict(clip_ratio=a.clip_ratio, clip_ratio_low=a.clip_ratio_low, clip_ratio_high=a.clip_ratio_high, clip_ratio_c=a.clip_ratio_c, loss_agg_mode=a.loss_agg_mode, entropy_coeff=a.entropy_coeff,
             use_kl_loss=a.use_kl_loss, kl_loss_coef=a.kl_loss_coef, kl_loss_type=a.kl_loss_type, loss_mode=a.policy_loss.loss_mode, num_items_in_batch=tokens,
             loss_scale_factor=a.loss_scale_factor, use_kl_in_reward=cfg.use_kl_in_reward, num_mini_batches=cfg.rows // cfg.mini, eos_token_id=EOS, **cfg.options) | {"agg.denominator": "global"}
    if vloss is not None: o["cliprange_value"] = cfg.critic.cliprange_value
    scalars = {k: float(m.value) for k, m in metrics.items() if isinstance(m, Metric) and k in ("actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower")} if cfg.ranks == 1 else {}
    writer(dict(schema=2, framework="verl", version="0.9.1", algorithm="ppo" if vloss is not None else "grpo", run=f"t2-{cfg.name}", step=step, rank=rank, world_size=cfg.ranks,
                micro_batch=micro, micro_batches=cfg.mini // cfg.ranks // cfg.micro, options=o, scalars=scalars, scalars_scope="micro_batch", token_loss_includes_kl=False), t)
# </hook>

FRAMES = {}
def watched(f, *args):
    """Runs a function of verl's and keeps the variables that the hook reads: kld, kl_loss and pg_losses at their functions' return."""
    def look(frame, event, arg):
        if event != "return": return
        if frame.f_code.co_name == "ppo_loss": FRAMES.setdefault("ppo_loss", {}).update({k: frame.f_locals[k] for k in ("kld", "kl_loss") if k in frame.f_locals})
        if frame.f_code.co_name.startswith("compute_policy_loss") and "pg_losses" in frame.f_locals: FRAMES.setdefault("ppo_loss", {})["pg_losses"] = frame.f_locals["pg_losses"]
    sys.setprofile(look)
    try: return f(*args)
    finally: sys.setprofile(None)

OBS = lambda ids, t: 3 + (ids.sum(1) + t) % 37
def actor(**k): return ActorConfig(dict(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0, loss_agg_mode="token-mean", entropy_coeff=0.0, use_kl_loss=False, kl_loss_coef=0.001,
        kl_loss_type="low_var_kl", loss_scale_factor=None, policy_loss=Cfg(loss_mode="vanilla"), global_batch_info={}, tau_pos=1.0, tau_neg=1.05) | k)
BASE = dict(rollouts=3, rows=32, mini=16, micro=8, epochs=1, ranks=1, n=4, T=20, lr=1e-2, temperature=1.0, observe=None, tool_bias=-1.0, noise=0.0, ref_noise=0.0, kl_coef=0.05, kl_penalty="kl",
            use_kl_in_reward=False, rollout_is=False, gamma=1.0, lam=1.0, left_out=(), norm_adv_by_std_in_grpo=True)
CONFIGS = dict(
    ppo_critic_tools_2rank=Cfg(BASE | dict(seed=21, ranks=2, adv_estimator="gae", gamma=0.98, lam=0.9, use_kl_in_reward=True, epochs=2, rollouts=2, observe=OBS, tool_bias=1.0, temperature=0.8, ref_noise=0.02,
        left_out=("logits", "sum_pi_squared", "token_loss"), critic=Cfg(cliprange_value=0.2, loss_agg_mode="token-mean", loss_scale_factor=None),
        actor=actor(clip_ratio_high=0.28, entropy_coeff=0.01),
        options={"algorithm.gamma": 0.98, "algorithm.lam": 0.9, "algorithm.adv_estimator": "gae", "algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.05, "algorithm.kl_penalty": "kl",
                 "actor_rollout_ref.rollout.temperature": 0.8, "actor_rollout_ref.actor.ppo_epochs": 2})),
    rloo_gspo_icepop_klloss=Cfg(BASE | dict(seed=22, adv_estimator="rloo", micro=4, noise=0.02, ref_noise=0.0, temperature=0.9, rollout_is=True,
        rollout_correction=Cfg(rollout_is="token", rollout_is_threshold="0.88_1.15"), left_out=("logits",),
        actor=actor(clip_ratio_low=0.02, clip_ratio_high=0.03, loss_agg_mode="seq-mean-token-mean", use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="low_var_kl+", policy_loss=Cfg(loss_mode="gspo")),
        options={"algorithm.adv_estimator": "rloo", "actor_rollout_ref.rollout.temperature": 0.9, "tis.level": "token", "tis.rule": "zero_outside", "tis.low": 0.88, "tis.high": 1.15})),
    otb_cispo_sumnorm=Cfg(BASE | dict(seed=23, adv_estimator="optimal_token_baseline", epochs=2, rollouts=2, observe=OBS, tool_bias=0.8, noise=0.015, rollout_is=True,
        rollout_correction=Cfg(rollout_is="token", rollout_is_threshold=1.1), left_out=("dlogp", "token_loss", "entropy"), micro=16, temperature=1.2,
        actor=actor(loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=24, clip_ratio_high=0.28, policy_loss=Cfg(loss_mode="cispo")),
        options={"algorithm.adv_estimator": "optimal_token_baseline", "tis.level": "token", "tis.high": 1.1, "actor_rollout_ref.rollout.temperature": 1.2})))
for n, c in CONFIGS.items(): c["name"] = n

A, B, C = CONFIGS
BUGS = [
 ("nextvalue_of_hole", A, False, "GAE: the next value is taken at observation tokens, too, where λ's sum skips them", "nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues\n            lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam\n\n            advantages_reversed.append(lastgaelam)\n        advantages = torch.stack(advantages_reversed[::-1], dim=1)\n\n        returns = advantages + values", "nextvalues = values[:, t]\n            lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam\n\n            advantages_reversed.append(lastgaelam)\n        advantages = torch.stack(advantages_reversed[::-1], dim=1)\n\n        returns = advantages + values"),
 ("whiten_by_variance", A, False, "masked_whiten divides by the variance", "torch.rsqrt(var + 1e-8)", "torch.reciprocal(var + 1e-8)"),
 ("bessel_inverted", A, False, "masked_var: Bessel's factor is (n-1)/n", "bessel_correction = mask_sum / (mask_sum - 1)", "bessel_correction = (mask_sum - 1) / mask_sum"),
 ("kl_reward_row_mean", A, False, "apply_kl_penalty: every token gets the mean KL of its row", "token_level_rewards = token_level_scores - beta * kld", "token_level_rewards = token_level_scores - beta * response_mask * masked_mean(kld, response_mask, axis=-1).unsqueeze(-1)"),
 ("value_clip_around_returns", A, False, "value loss: predictions are clipped around the returns", "clip_by_value(vpreds, values - cliprange_value, values + cliprange_value)", "clip_by_value(vpreds, returns - cliprange_value, returns + cliprange_value)"),
 ("clipped_value_error_vs_old", A, False, "value loss: the clipped prediction is compared with the old values", "vf_losses2 = (vpredclipped - returns) ** 2", "vf_losses2 = (vpredclipped - values) ** 2"),
 ("entropy_of_raw_logits", A, True, "entropies are of the logits before the temperature (legal elsewhere)", "return ls.gather(-1, responses.unsqueeze(-1)).squeeze(-1), -(ls.exp() * ls).sum(-1), ls, logits", "return ls.gather(-1, responses.unsqueeze(-1)).squeeze(-1), -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1), ls, logits"),
 ("tokens_of_own_rank_times_dp", A, False, "batch_num_tokens is that of the rank, and dp_size multiplies still", "d.update(dp_size=R, batch_num_tokens=tokens, ", 'd.update(dp_size=R, batch_num_tokens=int(m["response_mask"].sum()), '),
 ("advantages_not_reordered", A, False, "in the second epoch the rows are in a new order, the advantages are not", "shards = [{k: x[order] for k, x in s.items()} for s in shards]", 'shards = [{k: x if k == "advantages" else x[order] for k, x in s.items()} for s in shards]'),
 ("whiten_per_prompt_block", A, False, "advantages of GAE are whitened over the first rank's rows only (mean, variance of half the batch for all)", "advantages = verl_F.masked_whiten(advantages, response_mask)\n    return advantages, returns\n\n\n# NOTE(sgm)", "h = len(advantages) // 2; advantages = (advantages - verl_F.masked_mean(advantages[:h], response_mask[:h])) * torch.rsqrt(verl_F.masked_var(advantages[:h], response_mask[:h]) + 1e-8)\n    return advantages, returns\n\n\n# NOTE(sgm)"),
 ("rloo_mean_alone_scaled", B, False, "RLOO: n/(n-1) multiplies the mean and not the score", "scores[i] = scores[i] * response_num / (response_num - 1) - id2mean", "scores[i] = scores[i] - id2mean"),
 ("gspo_mean_length", B, False, "gspo: the log-ratio's sum is divided by the mean length of the batch", "seq_lengths = torch.sum(response_mask, dim=-1).clamp(min=1)\n    negative_approx_kl_seq", "seq_lengths = torch.sum(response_mask, dim=-1).float().mean().clamp(min=1)\n    negative_approx_kl_seq"),
 ("straight_through_value_kept", B, False, "k3+: the value of k2 is not taken out again (k2 + k3)", "return backward_score - backward_score.detach() + forward_score.detach()", "return backward_score + forward_score.detach()"),
 ("straight_through_exchanged", B, False, "k3+: the value is k2 and the gradient k3's", "return backward_score - backward_score.detach() + forward_score.detach()", "return forward_score - forward_score.detach() + backward_score.detach()"),
 ("icepop_never_drops", B, True, "IcePop: >= low or <= high is always true; plain weights without bounds (legal: a wide range)", "token_kept_mask = (raw_rollout_is_weights >= rollout_is_threshold_lower) & (", "token_kept_mask = (raw_rollout_is_weights >= rollout_is_threshold_lower) | ("),
 ("weights_of_first_micro", B, False, "the importance weights of every micro-batch are those of the mini-batch's first", "d = TD({n: x[k:k + cfg.micro] for n, x in m.items()})", 'd = TD({n: x[:cfg.micro] if n == "rollout_is_weights" else x[k:k + cfg.micro] for n, x in m.items()})'),
 ("ref_without_temperature", B, False, "the reference's log-probs are not divided by the temperature", "forward(ref, ids, T, responses, temperature=cfg.temperature)[0]", "forward(ref, ids, T, responses, temperature=1.0)[0]"),
 ("otb_without_two", C, False, "optimal baseline: w is 1 - π + Σπ²", "w_per_timestep = 1 - 2 * pi_t + sum_pi_squared\n\n        # Step 2: Apply rollout importance sampling correction (if enabled)\n        if rollout_is_weights is not None:\n            # Scale W by ρ̄² to minimize MSE under truncated IS\n            w_per_timestep = w_per_timestep * (rollout_is_weights**2)\n\n        # Step 3: Compute cumulative path-variance proxy: W_t = Σ_{j=1}^t w_j\n        # This measures accumulated variance from the start of the trajectory up to timestep t\n        w_cumulative = (w_per_timestep * response_mask)", None),
 ("otb_weight_not_squared", C, False, "optimal baseline: W is scaled by ρ and not by ρ²", None, None),
 ("otb_denominator_unmasked", C, False, "optimal baseline: rows that have ended still count in the sum of the weights", None, None),
 ("otb_tail_off_by_one", C, False, "optimal baseline: the zero tail begins one token late", None, None),
 ("cispo_probability", C, False, "cispo: π in place of log π", "pg_losses = -clipped_ratio_sg * advantages * log_prob", "pg_losses = -clipped_ratio_sg * advantages * torch.exp(log_prob)"),
 ("norm_by_longest", C, False, "seq-mean-token-sum-norm: divided by the longest row's tokens of the micro-batch", "loss /= loss_scale_factor", "loss /= loss_mask.sum(-1).max()"),
 ("sum_pi_of_raw_logits", C, False, "Σπ² is that of the distribution without temperature", 'batch["sum_pi_squared"] = (2 * ls).exp().sum(-1)', 'batch["sum_pi_squared"] = (2 * (ls * cfg.temperature).log_softmax(-1)).exp().sum(-1)'),
]
def tir(core):  # compute_tir_optimal_token_baseline repeats these lines; the edits are of the plain estimator
    i = core.index("@register_adv_est(AdvantageEstimator.TIR_OPTIMAL_TOKEN_BASELINE)"); return core[:i] + core[core.index("def compute_rewards(", i):]
OTB = {"otb_without_two": ("w_per_timestep = 1 - 2 * pi_t + sum_pi_squared", "w_per_timestep = 1 - pi_t + sum_pi_squared"),
       "otb_weight_not_squared": ("w_per_timestep = w_per_timestep * (rollout_is_weights**2)", "w_per_timestep = w_per_timestep * rollout_is_weights"),
       "otb_denominator_unmasked": ("denominator = (w_cumulative_group * mask_group).sum(dim=0) + epsilon", "denominator = w_cumulative_group.sum(dim=0) + epsilon"),
       "otb_tail_off_by_one": ("baselines[max_length_traj_idx, second_max_length:] = 0.0", "baselines[max_length_traj_idx, second_max_length + 1:] = 0.0")}
BUGS = [b if b[0] not in OTB else (*b[:4], *OTB[b[0]]) for b in BUGS]
VERL[1] = tir(VERL[1])

def run(config, edit, writer):
    cfg = copy.copy(CONFIGS[config]); cfg["actor"] = copy.deepcopy(cfg["actor"]); FRAMES.clear()
    ns = globals() | dict(DictConfig=Cfg, deprecated=lambda *a: (lambda f: f), RolloutCorrectionConfig=Cfg, PolicyLossConfig=Cfg, TensorDict=TD, CriticConfig=Cfg, no_padding_2_padding=lambda x, d: x,
                          AggregationType=types.SimpleNamespace(SUM="sum", MEAN="mean"), as_torch_index=None, group_mean_std=None,
                          DataProto=Proto)
    ns["core_algos"] = types.SimpleNamespace(); ns["verl_F"] = types.SimpleNamespace()
    for i, s in enumerate(plant([*VERL, own_source(__file__, "trainer")], edit)):
        exec(compile(s, "verl", "exec"), ns)
        if i == 0: ns["verl_F"].__dict__.update({k: ns[k] for k in ("masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value")})
        if i == 1: ns["core_algos"].__dict__.update({k: ns[k] for k in ("kl_penalty", "AdaptiveKLController")})
    ns["train"](cfg, writer)

if __name__ == "__main__":
    main("t2_verl_mix", __file__, {A: ("verl 0.9.1 PPO with critic, KL in the reward, tools, 2 ranks", []), B: ("verl 0.9.1 RLOO, gspo, IcePop weights, k3+ in the loss", []),
                                   C: ("verl 0.9.1 optimal token baseline, cispo, seq-mean-token-sum-norm", [])}, BUGS, run)
