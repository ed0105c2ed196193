"""Tiny random Llama and Qwen2 models of transformers with a LoRA adapter of PEFT: golden/models/llama and qwen2b."""
import contextlib
import math
import os
import sys

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, modeling_rope_utils

import record


class Wide:
    """The module torch, but its float32 is float64."""

    def __getattr__(self, name):
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


@contextlib.contextmanager
def lifted(model):
    """Within it, what the modelling file of a float64 model computes in float32 (RMSNorm, softmax, the rotary table) is
    computed in float64, by the same statements."""
    files = [sys.modules[type(model).__module__], modeling_rope_utils]
    cast, tables = torch.Tensor.float, {}
    for f in files:
        f.torch = Wide()
    torch.Tensor.float = torch.Tensor.double
    for part in model.modules():
        if hasattr(part, "inv_freq"):
            tables[part] = part.inv_freq
            rotary = part.compute_default_rope_parameters if part.rope_type == "default" else modeling_rope_utils.ROPE_INIT_FUNCTIONS[part.rope_type]
            part.inv_freq = rotary(part.config)[0]
            assert part.inv_freq.dtype == torch.float64
            torch.testing.assert_close(part.inv_freq, tables[part].double(), rtol=1e-6, atol=0)
    try:
        yield
    finally:
        for f in files:
            f.torch = torch
        torch.Tensor.float = cast
        for part, table in tables.items():
            part.inv_freq = table


def inverse_frequencies(config, d):
    """The rotary frequencies by the formulas: default, or llama3 (transformers calls it so; Llama 3.1)."""
    r = config.rope_parameters
    f = float(r["rope_theta"]) ** (-np.arange(0, d, 2) / d)
    if r["rope_type"] == "default":
        return f
    old, wave = r["original_max_position_embeddings"], 2 * math.pi / f
    ramp = np.clip((old / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"]), 0, 1)
    return (1 - ramp) * f / r["factor"] + ramp * f


def forward(config, w, ids, mask, positions):
    """Our own float64 forward of both families in NumPy; w maps names to arrays."""
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    d = getattr(config, "head_dim", None) or config.hidden_size // heads
    b, t = ids.shape
    norm = lambda x, n: x / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps) * w[n + ".weight"]
    linear = lambda x, n: x @ w[n + ".weight"].T + w.get(n + ".bias", 0)
    split = lambda x, n: x.reshape(b, t, n, d).transpose(0, 2, 1, 3)
    angle = positions[:, None, :, None] * inverse_frequencies(config, d)

    def rotate(x):
        lo, hi = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([lo * np.cos(angle) - hi * np.sin(angle), hi * np.cos(angle) + lo * np.sin(angle)], -1)

    seen = (np.tril(np.ones((t, t), bool)) & (mask[:, None, :] > 0)) | np.eye(t, dtype=bool)
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm")
        q, k, v = (split(linear(h, p + "self_attn." + n), m) for n, m in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)))
        q, k, v = rotate(q), np.repeat(rotate(k), heads // kv, 1), np.repeat(v, heads // kv, 1)
        s = np.where(seen[:, None], q @ k.swapaxes(-1, -2) / math.sqrt(d), -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        y = (e / e.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(b, t, heads * d)
        x = x + linear(y, p + "self_attn.o_proj")
        h = norm(x, p + "post_attention_layernorm")
        g = linear(h, p + "mlp.gate_proj")
        x = x + linear(g / (1 + np.exp(-g)) * linear(h, p + "mlp.up_proj"), p + "mlp.down_proj")
    return norm(x, "model.norm") @ w["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"].T


def produce(out, kind, model, lora, rows, length, pads):
    rng, config = record.generator(kind), model.config
    record.fill(model, rng)
    model.tie_weights()
    folder = os.path.join(out, kind)
    model.eval().save_pretrained(os.path.join(folder, "base"))
    # PEFT names of target modules are sorted here: it keeps them in a set, and the order of a set of str is random.
    lora.target_modules = sorted(lora.target_modules)
    m = get_peft_model(model, lora)
    for n, p in m.named_parameters():
        if "lora_" in n:
            p.data = torch.from_numpy((rng.normal(size=tuple(p.shape)) * 0.2).astype(np.float32))
    m.peft_config["default"].base_model_name_or_path = "base"
    m.peft_config["default"].target_modules = sorted(m.peft_config["default"].target_modules)
    m.eval().save_pretrained(os.path.join(folder, "adapter"))
    os.remove(os.path.join(folder, "adapter", "README.md"))

    ids, mask = rng.integers(1, config.vocab_size, size=(rows, length)), np.ones((rows, length), np.int64)
    for i, p in enumerate(pads):
        ids[i, :p], mask[i, :p] = 0, 0
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    t = {n: torch.from_numpy(v) for n, v in dict(ids=ids, attention_mask=mask, position_ids=positions).items()}
    valid = (t["attention_mask"][:, 1:] > 0) & (t["attention_mask"][:, :-1] > 0)

    def logits():
        return m(input_ids=t["ids"], attention_mask=t["attention_mask"], position_ids=t["position_ids"], use_cache=False).logits

    def base():
        with torch.no_grad(), m.disable_adapter():
            return logits()

    def logp(z):
        return torch.log_softmax(z[:, :-1], -1).gather(-1, t["ids"][:, 1:, None])[..., 0]

    def mean(z):
        return torch.where(valid, logp(z), 0.0).sum() / valid.sum()

    short = lambda n: n.replace("base_model.model.", "", 1).replace(".default", "")
    with torch.no_grad():
        t["float32/logits_base"], t["float32/logits_adapter"] = base(), logits()
    m.double()
    with torch.no_grad():
        t["hf_double/logits_base"], t["hf_double/logits_adapter"] = base(), logits()
    with lifted(model):
        z, z0 = logits(), base()
        t.update({"float64/logits_base": z0, "float64/logits_adapter": z, "float64/logp_base": logp(z0), "float64/logp_adapter": logp(z), "float64/mean_logp": mean(z)})
        t.update({"float64/grad/" + short(n): g for n, g in record.gradients(mean(z), m).items()})
        some = [n for n, p in m.named_parameters() if p.requires_grad][::5]
        checks = record.differences(lambda: mean(logits()), m, some, rng)

    weights = {short(n).replace(".base_layer", ""): p.detach().numpy() for n, p in m.state_dict().items() if "lora_" not in n}
    merged = dict(weights)
    for n, part in m.named_modules():
        if hasattr(part, "get_delta_weight"):
            n = short(n) + ".weight"
            theirs = part.get_delta_weight("default").detach()
            if n.startswith("model.layers.0."):  # one layer is enough to read, all are checked
                t["delta_weight/" + n] = theirs
            a, b = part.lora_A["default"].weight.detach().numpy(), part.lora_B["default"].weight.detach().numpy()
            key = next((k for k in (lora.rank_pattern or {}) if n[: -len(".weight")].endswith(k)), None)
            r = lora.rank_pattern[key] if key else lora.r
            assert a.shape[0] == r
            alpha = next((v for k, v in (lora.alpha_pattern or {}).items() if n[: -len(".weight")].endswith(k)), lora.lora_alpha)
            delta = alpha / (math.sqrt(r) if lora.use_rslora else r) * (b @ a)
            assert np.abs(delta - theirs.numpy()).max() < 1e-13, n
            merged[n] = weights[n] + delta
    ours = {"base": forward(config, weights, ids, mask, positions), "adapter": forward(config, merged, ids, mask, positions)}
    seen = mask[..., None] > 0
    about = dict(
        versions=record.versions("torch", "transformers", "peft"),
        spec=dict(kind=kind, model_type=config.model_type, r=lora.r, alpha=lora.lora_alpha, rs=lora.use_rslora, targets=lora.target_modules, rank_pattern=lora.rank_pattern, alpha_pattern=lora.alpha_pattern, B=rows, T=length, pads=pads),
        attention="eager",
        meaning={
            "float32/": "the model as saved, float32", "hf_double/": "model.double(): float32 islands of the modelling file stay",
            "float64/": "model.double() with those islands lifted: torch.float32 is float64 in the modelling file, rotary table included",
            "mean_logp": "mean over t>=1 with attention_mask[t]=attention_mask[t-1]=1 of log p(ids[t]|ids[<t]); grad/ is its gradient",
            "pads": "left pads: mask 0, position 0; logits at pads are not meaningful",
        },
        numpy_check_max_abs={n: float(np.abs(np.where(seen, t["float64/logits_" + n].detach().numpy() - z, 0)).max()) for n, z in ours.items()},
        hf_double_nan_rows=[i for i in range(rows) if not torch.isfinite(t["hf_double/logits_base"][i][t["attention_mask"][i] > 0]).all()],
        gradient_finite_difference=checks,
    )
    assert max(about["numpy_check_max_abs"].values()) < 1e-12, about["numpy_check_max_abs"]
    record.save_golden(folder, t, about)
    record.save_manifest(folder, "golden/gen/models/produce.py", ["torch", "transformers", "peft", "safetensors", "numpy"])


def llama(out):
    config = LlamaConfig(
        vocab_size=59, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, attn_implementation="eager",
        rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    )
    lora = LoraConfig(r=2, lora_alpha=5, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
    produce(out, "llama", LlamaForCausalLM(config), lora, 2, 10, [0, 3])


def qwen2(out):
    config = Qwen2Config(
        vocab_size=51, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0, attn_implementation="eager",
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
    )
    lora = LoraConfig(r=4, lora_alpha=8, use_rslora=True, rank_pattern={"down_proj": 1}, alpha_pattern={"q_proj": 3}, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
    produce(out, "qwen2b", Qwen2ForCausalLM(config), lora, 3, 7, [2, 0, 1])
