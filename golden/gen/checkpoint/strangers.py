"""Folders of many architectures and PEFT options, as transformers and PEFT save them, of tiny models.

    python golden/gen/checkpoint/strangers.py OUT [NAME ...]

Each folder of OUT is a base, an adapter, a merged model or a checkpoint of a trainer; strangers.json says which belong together
(base, merged) and how the folder was made. B of every adapter is filled with random numbers, as training would leave it.
"""
import json
import os
import sys

import torch
from peft import AdaLoraConfig, LoraConfig, get_peft_model
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

VOCAB, H, INNER, LAYERS = 64, 16, 32, 2
IDS = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
common = {"num_hidden_layers": LAYERS, "hidden_size": H, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": INNER,
          "vocab_size": VOCAB, "max_position_embeddings": 32, **IDS}
FAMILIES = {
    "llama": common, "mistral": common, "qwen2": common, "qwen3": {**common, "head_dim": 8}, "gemma": {**common, "head_dim": 8},
    "gemma2": {**common, "head_dim": 8}, "gemma3_text": {**common, "head_dim": 8}, "phi": {**common, "partial_rotary_factor": 0.5},
    "phi3": common, "olmo": common, "olmo2": common, "mixtral": {**common, "num_local_experts": 4},
    "opt": {"num_hidden_layers": LAYERS, "hidden_size": H, "num_attention_heads": 2, "ffn_dim": INNER, "vocab_size": VOCAB, "word_embed_proj_dim": H,
            "max_position_embeddings": 32, **IDS},
    "bloom": {"n_layer": LAYERS, "hidden_size": H, "n_head": 2, "vocab_size": VOCAB, **IDS},
    "falcon": {"num_hidden_layers": LAYERS, "hidden_size": H, "num_attention_heads": 2, "vocab_size": VOCAB, **IDS},
    "gpt_neox": {**{k: v for k, v in common.items() if k != "num_key_value_heads"}},
    "mamba": {"num_hidden_layers": LAYERS, "hidden_size": H, "vocab_size": VOCAB, "state_size": 4, **IDS},
    "t5": {"num_layers": LAYERS, "d_model": H, "d_kv": 8, "d_ff": INNER, "num_heads": 2, "vocab_size": VOCAB, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0},
    "gpt2": {"n_layer": LAYERS, "n_embd": H, "n_head": 2, "vocab_size": VOCAB, "n_positions": 32, **IDS},
}
about = {}
OUT = sys.argv[1]
ONLY = sys.argv[2:]


def tokenizer():
    vocab = {"<pad>": 0, "<eos>": 1, **{chr(33 + i): i + 2 for i in range(VOCAB - 2)}}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<pad>", padding_side="left")


def fresh(kind, **over):
    torch.manual_seed(7)
    c = AutoConfig.for_model(kind, **{**FAMILIES[kind], **over})
    for k in ("initializer_range", "init_std"):
        if hasattr(c, k):
            setattr(c, k, 0.2)
    return (AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM).from_config(c).float()


def train(model):
    torch.manual_seed(8)
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.data.add_(torch.randn_like(p) * 0.05)


def put(name, save, **facts):
    if ONLY and not any(name.startswith(o) for o in ONLY):
        return
    path = os.path.join(OUT, name)
    os.makedirs(path, exist_ok=True)
    save(path)
    about[name] = facts


def base(kind, **over):
    name = f"base_{kind}" + "".join(f"_{k}" for k in over)
    path = os.path.join(OUT, name)
    if name not in about:
        def save(p):
            m = fresh(kind, **over)
            m.save_pretrained(p)
            tokenizer().save_pretrained(p)
        global ONLY
        keep, ONLY = ONLY, []
        put(name, save)
        ONLY = keep
    return path


def load(path, dtype=torch.float32):
    cls = AutoModelForSeq2SeqLM if "t5" in path else AutoModelForCausalLM
    return cls.from_pretrained(path, dtype=dtype)


def merged(name, path, make, dtype=torch.float32, save_dtype=None, **facts):
    """An adapter made by make on the base at path, saved, and merged into the base in dtype."""
    m = make(load(path))
    train(m)
    put(name, m.save_pretrained, base=path, **facts)
    from peft import PeftModel
    if ONLY and not any(name.startswith(o) for o in ONLY):
        return

    def save(p):
        w = PeftModel.from_pretrained(load(path, dtype), os.path.join(OUT, name)).merge_and_unload()
        if save_dtype is not None:
            w = w.to(save_dtype)
        w.save_pretrained(p)
        tokenizer().save_pretrained(p)
    if facts.get("merge", True):
        keep = ONLY[:]
        ONLY.clear()
        put(name + "_merged", save, base=path, adapter=os.path.join(OUT, name))
        ONLY.extend(keep)


LINEARS = {"phi": ["q_proj", "dense", "fc1"], "phi3": ["qkv_proj", "down_proj"], "opt": ["q_proj", "fc1"], "bloom": ["query_key_value"], "falcon": ["query_key_value"],
           "gpt_neox": ["query_key_value"], "mamba": ["in_proj", "out_proj"], "t5": ["q", "wo"], "gpt2": ["c_attn", "c_proj"], "mixtral": ["q_proj", "v_proj"]}


def lora(kind="llama", config=LoraConfig, **over):
    task = "SEQ_2_SEQ_LM" if kind == "t5" else "CAUSAL_LM"
    o = {"r": 4, "lora_alpha": 8, "target_modules": LINEARS.get(kind, ["q_proj", "v_proj", "down_proj"]), "task_type": task, **over}
    return lambda m: get_peft_model(m, config(**o))


def optimizers(path):
    for name, make in {"adafactor": lambda p: __import__("transformers").Adafactor(p, lr=1e-3, relative_step=False), "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
                       "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9), "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
                       "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3), "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3)}.items():
        m = lora()(load(path))
        train(m)

        def save(p):
            opt = make([x for x in m.parameters() if x.requires_grad])
            sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1.0)
            for _ in range(3):
                for x in m.parameters():
                    if x.requires_grad:
                        x.grad = torch.randn_like(x) * 0.01
                opt.step()
                sched.step()
            m.save_pretrained(p)
            tokenizer().save_pretrained(p)
            torch.save(opt.state_dict(), os.path.join(p, "optimizer.pt"))
            torch.save(sched.state_dict(), os.path.join(p, "scheduler.pt"))
            torch.save({"cpu": torch.get_rng_state()}, os.path.join(p, "rng_state.pth"))
            state = {"global_step": 3, "max_steps": 10, "epoch": 0.3, "log_history": [{"loss": float("nan"), "grad_norm": float("inf"), "step": 1}]}
            with open(os.path.join(p, "trainer_state.json"), "w") as f:
                json.dump(state, f)
        put(f"opt_{name}/checkpoint-3", save, base=path)


def main():
    for kind in FAMILIES:
        path = base(kind)
        try:
            merged(f"lora_{kind}", path, lora(kind))
        except Exception as e:
            print("merge", kind, repr(e)[:200])
    llama = base("llama")
    tied = base("llama", tie_word_embeddings=True)
    qwen = base("qwen2")
    for name, make, where, extra in [
        ("bf16", lora(), llama, {"dtype": torch.bfloat16}), ("f16", lora(), llama, {"dtype": torch.float16}),
        ("f32_bf16", lora(), llama, {"save_dtype": torch.bfloat16}), ("f32_f16", lora(), llama, {"save_dtype": torch.float16}),
        ("save_head", lora(modules_to_save=["lm_head"]), llama, {}), ("save_norm", lora(modules_to_save=["norm"]), llama, {}),
        ("save_embed", lora(modules_to_save=["embed_tokens", "lm_head"]), llama, {}),
        ("tokens", lora(trainable_token_indices=[3, 5]), llama, {}), ("tokens_tied", lora(trainable_token_indices=[3, 5]), tied, {}),
        ("tokens_embed", lora(trainable_token_indices={"embed_tokens": [2, 9]}), llama, {}),
        ("bias_all", lora(bias="all"), qwen, {}), ("bias_lora", lora(bias="lora_only"), qwen, {}),
        ("dora", lora(use_dora=True), llama, {}), ("rslora", lora(use_rslora=True), llama, {}),
        ("target_embed", lora(target_modules=["q_proj", "embed_tokens"]), llama, {}),
        ("tying", lora(target_modules=["q_proj", "embed_tokens"], ensure_weight_tying=True), tied, {}),
        ("tying_save", lora(modules_to_save=["embed_tokens"], ensure_weight_tying=True), tied, {}),
        ("all_linear", lora(target_modules="all-linear"), llama, {}),
        ("layers", lora(layers_to_transform=[0]), llama, {}),
        ("replication", lora(layer_replication=[[0, 2], [1, 2]]), llama, {"merge": False}),
        ("parameters", lora("mixtral", target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj"]), base("mixtral"), {"merge": False}),
        ("adalora", lora(config=AdaLoraConfig, init_r=6, target_r=4, total_step=100), llama, {"merge": False}),
        ("bf16_head", lora(modules_to_save=["lm_head"]), llama, {"dtype": torch.bfloat16}),
        ("patterns", lora(rank_pattern={"down_proj": 2}, alpha_pattern={"q_proj": 3}), llama, {}),
    ]:
        try:
            merged(f"peft_{name}", where, make, **extra)
        except Exception as e:
            print("peft", name, repr(e)[:300])
    optimizers(llama)
    with open(os.path.join(OUT, "strangers.json"), "w") as f:
        json.dump(about, f, indent=1, default=str)


if __name__ == "__main__":
    main()
