"""Candidates of bugs in the current releases, each run: python findings.py WHEELS [NAME ...]. docs/findings.md says what came of them.

TRL 1.16.0, verl 0.9.1 and Liger 0.8.5 are cut out of their wheels; PEFT 0.21.2 and transformers 5.23 are imported.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "strangers")]
import torch

torch.set_num_threads(1)
import preference
import source
import trl
import verl_museum
from run import Release
from scene import Scene, ns
from source import base

GRPO = "trl/trainer/grpo_trainer.py"


def kept_mass():
    """trl#6789: engine log-probs renormalised over top-p, trainer's over the vocabulary."""
    g = torch.Generator().manual_seed(1)
    logp = (2 * torch.randn(4000, 1, 32, generator=g)).log_softmax(-1)
    p, order = logp.exp().sort(-1, descending=True)
    keep = torch.zeros_like(p).scatter(-1, order, ((p.cumsum(-1) - p) < 0.8).to(p.dtype))
    mass = (logp.exp() * keep).sum(-1)
    ids = torch.multinomial((logp.exp() * keep)[:, 0], 1, generator=g)
    old = logp.gather(-1, ids[..., None])[..., 0]
    env = dict(base(), mask=torch.ones(4000, 1), old_per_token_logps=old, sampling_per_token_logps=old - mass.log(), self=ns(vllm_importance_sampling_mode="token_truncate"))
    exec(Release("trl-1.16.0").block(GRPO, "per_token_logps_diff = (old_per_token_logps - sampling_per_token_logps) * mask", "vllm_importance_sampling_ratio = torch.exp(logps_diff)"), env)
    return f"mean ratio {env['vllm_importance_sampling_ratio'].mean():.4f}, right 1, mean mass kept by top-p 0.8 {mass.mean():.4f}"


def loss_of(s, adv, **options):
    return trl.compute_loss(Release("trl-1.16.0"), s, options, "_compute_loss", inputs=dict(advantages=adv, num_items_in_batch=s.mask.sum()))


def entropy_count():
    """trl#3744: tokens of low entropy leave the numerator, not the count."""
    s = Scene(1, prompts=4)
    keep = source.base
    high = Release("trl-1.16.0").method(GRPO, "get_high_entropy_mask", base())
    import types

    method = types.MethodType(high, ns(accelerator=ns(gather=lambda x: x, pad_across_processes=lambda x, **k: x)))
    loss, f, _, _, _ = loss_of(s, s.advantages(), loss_type="dapo", top_entropy_quantile=0.4, get_high_entropy_mask=method)
    terms, kept = (f["per_token_loss"] * s.mask).sum(), (f["entropy_mask"] * s.mask).sum()
    return f"loss {loss:.6f}; over all {int(s.mask.sum())} tokens {terms / s.mask.sum():.6f}, over the {int(kept)} kept {terms / kept:.6f}"


def token_mean():
    """trl#2995: at ratio 1 and beta 0 the loss is not 0."""
    s = Scene(1)
    s.new = s.old
    return ", ".join(f"{k} {loss_of(s, s.advantages(), loss_type=k)[0].item():.2e}" for k in ("grpo", "bnpo", "dapo")) + "; 0 is right for the mean of rows' means only"


def metric_after_cut():
    """trl#5231: the metric of the importance ratios is taken of those that were cut."""
    rel = Release("trl-1.16.0")
    g = torch.Generator().manual_seed(1)
    raw = torch.randn(64, 8, generator=g).exp()
    env = dict(base(), vllm_importance_sampling_ratio=raw, mask=torch.ones(64, 8).bool(), sequence_level_is=False, device="cpu", self=ns(vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_min=None, vllm_importance_sampling_clip_max=2.0))
    exec(rel.block(GRPO, "vllm_importance_sampling_ratio = torch.clamp(", "                    )"), env)
    exec(rel.block(GRPO, "flat_is_ratio = vllm_importance_sampling_ratio[mask]", "flat_is_ratio"), env)
    return f"logged maximum {env['flat_is_ratio'].max():.4f}, mean {env['flat_is_ratio'].mean():.4f}; before the cut {raw.max():.4f}, {raw.mean():.4f}"


def orpo_prompt():
    """trl#2502: ORPO's NLL has the prompt in its labels."""
    path = "trl/experimental/orpo/orpo_trainer.py"
    ids, att = torch.arange(10, 22).view(2, 6), torch.tensor([[1, 1, 1, 1, 1, 0]] * 2)
    env = dict(base(), self=ns(is_encoder_decoder=False), concatenated_batch=dict(concatenated_input_ids=ids, concatenated_attention_mask=att))
    exec(Release("trl-1.16.0").block(path, 'labels = concatenated_batch["concatenated_input_ids"].clone()', "labels = torch.where(attention_mask == 1, labels, -100)"), env)
    return f"labels of prompt (3) and response (2): {env['labels'][0].tolist()}"


def masked_nan():
    """verl#6361: NaN of a masked reference log-prob stays in the token rewards."""
    rel = Release("verl-0.9.1")
    s = Scene(1)
    f, tf = verl_museum.core(rel)
    space = dict(base(), core_algos=ns(kl_penalty=f["kl_penalty"], AdaptiveKLController=None), masked_mean=tf["masked_mean"], DataProto=None)
    rel.functions("verl/trainer/ppo/ray_trainer.py", space, {"apply_kl_penalty"})

    class Batch(dict):
        batch_size = [len(s.mask)]

    ref = s.logps(s.ref)
    row, col = (s.mask == 0).nonzero()[0].tolist()
    ref[row, col] = float("nan")
    data = ns(batch=Batch(response_mask=s.mask, token_level_scores=verl_museum.token_rewards(s), old_log_probs=s.logps(s.old), ref_log_prob=ref))
    data, metrics = space["apply_kl_penalty"](data, ns(value=0.1, update=lambda **k: None), "low_var_kl")
    adv, _ = f["compute_grpo_outcome_advantage"](data.batch["token_level_rewards"], s.mask, s.group.numpy())
    bad = (adv.isnan() & s.mask.bool()).any(1).sum()
    return f"one masked NaN: {int(data.batch['token_level_rewards'].isnan().sum())} token reward is NaN, the logged KL is {metrics['actor/reward_kl_penalty']:.4g}, GRPO's advantages are NaN in {int(bad)} rows"


def local_count():
    """verl#7321: without a global count the token mean is that of the micro-batch."""
    s = Scene(1, prompts=4)
    f, _ = verl_museum.core(Release("verl-0.9.1"))
    x = s.normal(*s.mask.shape)
    order, n = s.mask.sum(1).argsort(), len(s.mask) // 2
    parts = (order[:n], order[n:])
    whole = f["agg_loss"](x, s.mask, "token-mean")
    local = sum(f["agg_loss"](x[i], s.mask[i], "token-mean") / 2 for i in parts)
    told = sum(f["agg_loss"](x[i], s.mask[i], "token-mean", batch_num_tokens=s.mask.sum()) for i in parts)
    return f"one batch {whole:.6f}; two micro-batches without the count {local:.6f}, with it {told:.6f}"


def liger_grpo():
    """Liger-Kernel#1082: its GRPO is not TRL's."""
    s = Scene(1, prompts=4)
    adv, ref, old = s.advantages(), s.logps(s.ref), s.logps(s.old)
    space = preference.liger(Release("liger-kernel-0.8.5"), "fused_linear_ppo.py", "grpo_loss.py")
    with torch.no_grad():
        h = s.new.model.hidden(s.ids, s.att)[0][:, -s.T - 1 : -1].contiguous()
    head, out = s.new.model.head, []
    for kind in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"):
        high = 1.02 if kind == "cispo" else 0.2  # the cap of cispo is absolute
        f = space["LigerFusedLinearGRPOLoss"](beta=0.04, compiled=False, use_ref_model=True, loss_type=kind, max_completion_length=s.T, epsilon_high=high)
        got = f(h, head.weight.detach(), s.r["response"], s.mask, adv, bias=head.bias.detach(), ref_per_token_logps=ref, old_per_token_logps=old)[0].item()
        args = dict(loss_type=kind, beta=0.04, max_completion_length=s.T, epsilon_high=high, get_gamma_weights=Release("trl-1.16.0").method(GRPO, "get_gamma_weights", base()))
        want = loss_of(s, adv, **args)[0].item()
        out.append(f"{kind} {got:.6f}/{want:.6f}")
    return "Liger/TRL: " + ", ".join(out)


def two_doras():
    """peft#3608: two DoRA adapters on one module, merged and not."""
    import copy

    import peft

    out = []
    for dora in (False, True):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(24, 16))
        model = peft.get_peft_model(net, peft.LoraConfig(r=4, target_modules=["0"], use_dora=dora, init_lora_weights=False), adapter_name="a")
        model.add_adapter("b", peft.LoraConfig(r=4, target_modules=["0"], use_dora=dora, init_lora_weights=False))
        model.base_model.set_adapter(["a", "b"])
        x = torch.randn(8, 24)
        with torch.no_grad():
            apart = model(x)
            merged = copy.deepcopy(model).merge_and_unload(adapter_names=["a", "b"])(x)
        out.append(f"{'DoRA' if dora else 'LoRA'} {((merged - apart).norm() / apart.norm()).item():.2e}")
    return f"peft {peft.__version__}: relative difference of merged and unmerged: " + ", ".join(out)


def lora_merger():
    """verl#7285: what verl's model merger makes of the state of a model with an adapter."""
    import json
    import tempfile
    import types
    import warnings

    import peft
    from safetensors.torch import load_file

    rel, path = Release("verl-0.9.1"), "verl/model_merger/base_model_merger.py"
    space = dict(base(), os=os, warnings=warnings, Optional=None)
    save, meta = (rel.method(path, name, space) for name in ("save_lora_adapter", "_load_lora_train_meta"))
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(24, 16))
    whole = {k: v.clone() for k, v in net.state_dict().items()}
    model = peft.get_peft_model(net, peft.LoraConfig(r=4, lora_alpha=32, target_modules=["0"], init_lora_weights=False))
    out = []
    for told in (True, False):
        with tempfile.TemporaryDirectory() as d, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if told:
                json.dump(dict(r=4, lora_alpha=32, task_type="CAUSAL_LM"), open(os.path.join(d, "lora_train_meta.json"), "w"))
            state = {k: v.clone() for k, v in model.state_dict().items()}
            self = ns(config=ns(local_dir=d, target_dir=d))
            self._load_lora_train_meta = types.MethodType(meta, self)
            folder = save(self, state)
            alpha = json.load(open(os.path.join(folder, "adapter_config.json")))["lora_alpha"]
            same = sum(torch.equal(state[k], v) for k, v in whole.items())
            adapter = load_file(os.path.join(folder, "adapter_model.safetensors"))
        out.append(f"{same} of {len(whole)} tensors are the base's, {len(adapter)} in lora_adapter with alpha {alpha} {'with' if told else 'without'} lora_train_meta.json")
    return "; ".join(out) + "; trained with alpha 32"


def trainer_accumulation():
    """transformers#37766: a model that takes no loss kwargs, batches of 4 and of 2 × 2."""
    import tempfile

    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1))

        def forward(self, x, labels):
            return {"loss": (self.w * x)[labels != -100].mean()}

    data = [dict(x=torch.full((4,), float(i + 1)), labels=torch.tensor([1] * n + [-100] * (4 - n))) for i, n in enumerate((1, 1, 4, 4))]
    out = []
    for size in (4, 2):
        with tempfile.TemporaryDirectory() as d:
            model = Model()
            args = transformers.TrainingArguments(d, per_device_train_batch_size=size, gradient_accumulation_steps=4 // size, max_steps=1, optim="sgd", learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=0.0, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True)
            trainer = transformers.Trainer(model=model, args=args, train_dataset=data)
            trainer._get_train_sampler = lambda *a, **k: torch.utils.data.SequentialSampler(data)
            trainer.train()
            out.append(1 - model.w.item())
    return f"transformers {transformers.__version__}: gradient of 1 × 4 rows {out[0]:.6f}, of 2 × 2 rows {out[1]:.6f}"


FINDINGS = {f.__name__: f for f in (kept_mass, entropy_count, orpo_prompt, token_mean, metric_after_cut, masked_nan, local_count, liger_grpo, two_doras, lora_merger, trainer_accumulation)}


def main():
    wheels, names = sys.argv[1], sys.argv[2:] or FINDINGS
    source.unpacked(wheels)
    for name in names:
        print(f"{name}: {FINDINGS[name]()}", flush=True)


if __name__ == "__main__":
    main()
