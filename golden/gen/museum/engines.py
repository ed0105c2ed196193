"""What an engine reports and what it samples with: log-probs before the temperature, weights of another adapter."""

import ast
import contextlib
import types

import torch
from scene import BOTH, Scene, case, gradient, meta, ns
from source import base
from trl import PATH, PROFILE, selective
from world import rollout


@case("trl-4873", BOTH)
def untempered(rel, side, seed, dtype):
    """vLLM reports log-probs of the raw logits unless it is told otherwise; what trl vllm-serve tells it stands in its call of LLM."""
    tree = ast.parse(rel.text("trl/scripts/vllm_serve.py"))
    call = next(n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "LLM")
    mode = next((ast.literal_eval(k.value) for k in call.keywords if k.arg == "logprobs_mode"), "raw_logprobs")
    s = Scene(seed, dtype, prompts=6, group=4, T=12, temperature=0.8, raw_logps=mode == "raw_logprobs")
    space = selective(rel, dict(base(), profiling_decorator=lambda f: f, is_peft_model=lambda m: False))
    f = rel.method(PATH, "_get_per_token_logps_and_entropies", space)

    def model(input_ids, attention_mask, **k):
        h, _ = s.old.model.hidden(input_ids, attention_mask)
        return ns(logits=s.old.model.head(h)[:, -s.T - 1 :])

    with torch.no_grad():
        lp = f(ns(temperature=0.8, model_kwarg_keys=()), model, s.ids, s.att, s.T)[0]
    yield dict(s.rows(), logp_old=lp, logp_new=lp, logp_gen=s.gen), meta("trl", rel, "grpo", PROFILE, options={"temperature": 0.8, "top_p": 1.0})


class Adapted(torch.nn.Module):
    """A model whose weights of two rows have an adapter: base + delta where it is merged."""

    def __init__(self, base, trained):
        super().__init__()
        self.inner = base
        self.delta = {k: t - b for (k, b), (_, t) in zip(base.named_parameters(), trained.named_parameters())}
        self.peft_config = {"default": None}

    def merge(self, sign):
        with torch.no_grad():
            for k, p in self.inner.named_parameters():
                p.add_(sign * self.delta[k])


@case("verl-7014")
def sent(rel, side, seed, dtype):
    """The weights that reach the engine: what the release's loop over merged parameters yields, taken up one by one."""
    s = Scene(seed, prompts=8, group=4, T=12)
    module = Adapted(s.old.copy().model, s.old.copy(seed + 5, 0.15).model)
    utils = dict(base(), contextmanager=contextlib.contextmanager, fsdp_merge_unmerge=lambda m, do_merge: m.merge(1 if do_merge else -1), _clean_merged_lora_=lambda m: None)
    utils["PeftModel"] = ()
    utils["backup_base_model_weights"] = lambda m: {k: p.data.clone() for k, p in m.named_parameters()}  # the adapter is no parameter here
    path = "verl/utils/fsdp_utils.py"
    rel.functions(path, utils, {"restore_base_model_weights"})
    rel.functions(path, utils, {"merged_lora_context"})
    context = contextlib.contextmanager(utils["merged_lora_context"])
    engine = "verl/workers/engine/fsdp/transformer_impl.py"
    space = dict(
        base(), merged_lora_context=context, normalize_peft_param_name=lambda p: p, convert_weight_keys=lambda p, m: p, get_device_id=lambda: "cpu", DTensor=(), log_gpu_memory_usage=lambda *a, **k: None,
        logger=None, load_fsdp_model_to_gpu=lambda m: None, offload_fsdp_model_to_cpu=lambda m: None, fsdp_version=lambda m: 1, unfuse_moe_params=lambda p, t: p, collect_lora_params=None,
        replace_lora_wrapper=None,
    )
    self = ns(
        module=module, model_config=ns(lora={"merge": True}, hf_config=ns(model_type="llama")), _uses_fsdp2_cpu_offload_policy=True, _is_offload_param=False, _qat_enabled=False,
    )
    if "_merged_lora_per_tensor_param" in rel.text(engine):
        rel.functions(engine, space, {"_merged_lora_per_tensor_param"}, cls="FSDPEngine")
        self._merged_lora_per_tensor_param = lambda: space["_merged_lora_per_tensor_param"](self)
    rel.functions(engine, space, {"get_per_tensor_param"}, cls="FSDPEngine")
    params, _ = space["get_per_tensor_param"](self)
    received = {k.removeprefix("inner."): p.clone() for k, p in params}
    sampler, trained, before = s.old.copy(), s.old.copy(), s.old.copy()
    with torch.no_grad():
        for k, p in sampler.model.named_parameters():
            p.copy_(received[k])
        for k, p in trained.model.named_parameters():
            p.add_(module.delta[k])
    r = rollout(sampler.model, s.task, seed * 1000)
    T = int(r["live"].sum(1).max())
    ids, att = torch.cat([r["prompt_ids"], r["response"][:, :T]], 1), torch.cat([r["prompt_mask"], r["live"][:, :T]], 1)
    lp = lambda policy: policy.score(ids, att, T)[0].detach()
    t = dict(input_ids=ids, attention_mask=att, response_ids=r["response"][:, :T], response_mask=r["mask"][:, :T], group_id=r["group"], prompt_len=r["plen"])
    yield dict(t, logp_old=lp(trained), logp_new=lp(trained), logp_ref=lp(before), logp_gen=r["gen"][:, :T]), meta("verl", rel, "grpo", "verl-grpo@0.9", options={"temperature": 1.0})


@case("trl-2277")
def nash(rel, side, seed, dtype):
    """The loss of Nash-MD: the policy gradient of a preference less ½, and the KL to the reference, as sums over the tokens of a row."""
    s = Scene(seed)
    f = rel.method("trl/trainer/nash_md_trainer.py", "_compute_losses", base())
    n = len(s.mask)
    a, b = s.normal(n), s.normal(n)
    p = torch.sigmoid(a - b)
    new, ref = s.logps(s.new).requires_grad_(), s.logps(s.ref)
    fill = lambda x: torch.where(s.mask.bool(), x, torch.zeros(()))
    args = (a, b) if side == "affected" else (p,)
    beta = 0.1
    loss = f(ns(beta=beta), fill(new), fill(ref), *args)[0]
    yield dict(response_mask=s.mask, logp_new=new, logp_ref=ref, advantages=p - 0.5, dlogp=gradient(loss, new)), meta(
        "trl", rel, "reinforce", options={"loss.kind": "reinforce", "kl.beta": beta, "kl.kind": "k2", "kl.place": "loss", "agg.kind": "seq_mean_token_sum", "agg.denominator": "micro", "agg.empty_rows": "counted"}
    )


@case("trl-1180")
def logged_kl(rel, side, seed, dtype):
    """PPOTrainer's penalty by (log π − log π_ref)²/2, and what record_step_stats says of it."""
    s = Scene(seed)
    path = "trl/trainer/ppo_trainer.py"
    space = dict(base(), masked_mean=lambda x, m: (x * m).sum() / m.sum(), warnings=None)
    rel.functions(path, space, {"compute_rewards", "_kl_penalty", "record_step_stats"}, cls="PPOTrainer")
    beta = 0.2
    self = ns(kl_ctl=ns(value=beta), config=ns(kl_penalty="mse"))
    self._kl_penalty = lambda *a: space["_kl_penalty"](self, *a)
    new, ref = s.logps(s.old), s.logps(s.ref)
    rewards, penalty, *kls = space["compute_rewards"](self, s.scores, new, ref, s.mask)
    more = dict(kls=kls[0]) if kls else {}
    stats = space["record_step_stats"](
        self, beta, scores=s.scores, logprobs=new, ref_logprobs=ref, non_score_reward=penalty, masks=s.mask, queries=s.ids, responses=s.ids,
        train_stats={"val/error": torch.ones(1), "returns/var": torch.ones(1)}, **more,
    )
    yield dict(s.tokens(), logp_old=new, logp_ref=ref, kl=self._kl_penalty(new, ref), scores=s.scores, token_rewards=rewards), meta(
        "trl", rel, "ppo", "trl-ppo@1.12", options={"kl.kind": "k2", "kl.place": "token_reward", "kl.beta": beta, "score.index": "last_response"}, scalars={"objective/kl": stats["objective/kl"]}
    )
