"""Writes reference/model/testdata: tiny models of transformers in float64, one per option that the golden models leave out.

usage: python variants.py OUT      (requirements.txt)

Each <name>.safetensors holds the weights (weight/<name in the state dict>), ids, attention_mask, position_ids, the
hidden states (state/<i>), the logits and the gradient of the mean log-probability of the next token for every weight
(grad/<name>); with left padding, the tokens that greedy decoding adds and their logits; variants.json the configurations.
"""

import json
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

SEED = 20261121

# The modelling files keep parts in float32: norms, softmax, rotary tables. They look the type up when they run, so that one
# change here lifts all of them.
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)

TOKENS = dict(vocab_size=13, bos_token_id=0, eos_token_id=0, pad_token_id=None)
LLAMA = dict(TOKENS, hidden_size=8, num_hidden_layers=2, intermediate_size=10, max_position_embeddings=64)
GPT = dict(TOKENS, n_embd=8, n_layer=2, n_head=2, n_positions=16, n_inner=12, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)

# name: model, configuration, left padding of each row, right padding of each row
VARIANTS = {
    "llama_biases_llama3": ("Llama", dict(LLAMA, num_attention_heads=4, num_key_value_heads=2, head_dim=6, attention_bias=True, mlp_bias=True,
        tie_word_embeddings=False, rms_norm_eps=1e-3, rope_parameters=dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=32)), [0, 3], [0, 0]),
    "llama_gelu_linear": ("Llama", dict(LLAMA, num_attention_heads=4, num_key_value_heads=1, hidden_act="gelu", tie_word_embeddings=True,
        rms_norm_eps=1e-6, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.5)), [0, 0], [0, 2]),
    "qwen2_window_yarn": ("Qwen2", dict(LLAMA, num_attention_heads=2, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False, use_sliding_window=True,
        sliding_window=3, max_window_layers=1, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="yarn", rope_theta=50.0, factor=4.0,
        beta_fast=1.0, beta_slow=0.3, original_max_position_embeddings=16)), [0, 0], [0, 0]),
    "qwen2_packed": ("Qwen2", dict(LLAMA, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, use_sliding_window=False,
        rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1000.0)), [0, 0], [0, 0]),
    "gptj_tied": ("GPTJ", dict(GPT, rotary_dim=4, activation_function="relu", tie_word_embeddings=True, layer_norm_epsilon=1e-3), [0, 4], [0, 0]),
    "gpt2_inverse_erf": ("GPT2", dict(GPT, scale_attn_by_inverse_layer_idx=True, activation_function="gelu", tie_word_embeddings=False,
        layer_norm_epsilon=1e-3), [0, 0], [0, 3]),
    "gpt2_unscaled": ("GPT2", dict(GPT, scale_attn_weights=False, activation_function="silu"), [3, 0], [0, 0]),
}
NEW = 4
PACKED = [[0, 1, 2, 3, 4, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 0, 1, 2]]
HEADS = dict(Llama="LlamaForCausalLM", Qwen2="Qwen2ForCausalLM", GPTJ="GPTJForCausalLM", GPT2="GPT2LMHeadModel")


def produce(name, kind, config, left, right, g):
    cfg = getattr(transformers, kind + "Config")(attn_implementation="eager", **config)
    model = getattr(transformers, HEADS[kind])(cfg).eval()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=g) * (0.4 if p.ndim > 1 else 0.2) + (1.0 if p.ndim == 1 else 0.0)
    assert all(p.dtype == torch.float64 for p in model.parameters())

    t = 9
    ids = torch.randint(0, cfg.vocab_size, (2, t), generator=g)
    mask = torch.ones(2, t, dtype=torch.int64)
    for i in range(2):
        mask[i, : left[i]] = 0
        mask[i, t - right[i] :] = 0
    if "packed" in name:  # an absent mask lets transformers find the sequences in the positions
        position = torch.tensor(PACKED)
        y = model(input_ids=ids, position_ids=position, use_cache=False, output_hidden_states=True)
        scored = position[:, 1:] > 0
    else:
        position = (mask.cumsum(1) - 1).clamp(min=0)
        y = model(input_ids=ids, attention_mask=mask, position_ids=position, use_cache=False, output_hidden_states=True)
        scored = (mask[:, 1:] > 0) & (mask[:, :-1] > 0)
    logits = y.logits
    logp = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    mean = logp[scored].mean()
    mean.backward()

    out = dict(ids=ids, attention_mask=mask, position_ids=position, logits=logits.detach(), mean_logp=mean.detach())
    for i, h in enumerate(y.hidden_states):
        out[f"state/{i}"] = h.detach()
    for n, p in model.named_parameters():
        out["weight/" + n] = p.detach()
        out["grad/" + n] = p.grad
    if any(left):  # greedy decoding with a cache, where transformers makes the positions itself
        model.generation_config.eos_token_id = None
        y = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True, output_logits=True, use_cache=True)
        out["generated"], out["generated_logits"] = y.sequences[:, t:], torch.stack(y.logits, 1)
    return {k: v.clone().contiguous() for k, v in out.items()}


def main(out):
    g = torch.Generator().manual_seed(SEED)
    for name, (kind, config, left, right) in VARIANTS.items():
        save_file(produce(name, kind, config, left, right, g), os.path.join(out, name + ".safetensors"))
    about = dict(producer="golden/gen/nn/variants.py", seed=SEED, torch=torch.__version__.split("+")[0], transformers=transformers.__version__,
                 variants={n: dict(config, model_type=kind.lower()) for n, (kind, config, _, _) in VARIANTS.items()})
    with open(os.path.join(out, "variants.json"), "w") as f:
        json.dump(about, f, indent=1, sort_keys=True)
        f.write("\n")


main(sys.argv[1])
