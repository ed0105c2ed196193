"""A bench of healthy folders and of folders with one fault, as the libraries save them, of tiny models.

    python golden/gen/checkpoint/folders.py make OUT SEED     # folders and OUT/cases.json
    python golden/gen/checkpoint/folders.py judge OUT VERIFY HALF   # HALF is open, sealed or all: figures; of open cases the rows, too

Bugs have their names, and the ids under which a report may name them first, before anything is judged: MUTATIONS. The half of a
case is drawn from SEED. A fault is one change of the bytes of a healthy folder, and a folder where nothing could be changed is left out.
"""
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import zlib

import frameworks

VOCAB, H, INNER, LAYERS = 96, 16, 40, 3
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
common = {"num_hidden_layers": LAYERS, "hidden_size": H, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": INNER, "vocab_size": VOCAB,
          "max_position_embeddings": 64, **IDS}
no_kv = {k: v for k, v in common.items() if k != "num_key_value_heads"}
FAMILIES = {
    "llama": common, "mistral": common, "qwen2": {**common, "tie_word_embeddings": False}, "qwen3": {**common, "head_dim": 8}, "gemma": {**common, "head_dim": 8}, "gemma2": {**common, "head_dim": 8},
    "gemma3_text": {**common, "head_dim": 8}, "phi": {**common, "partial_rotary_factor": 0.5}, "phi3": common, "olmo": common, "olmo2": common, "olmo3": common,
    "mixtral": {**common, "num_local_experts": 4}, "granite": common, "smollm3": common, "starcoder2": common, "stablelm": common, "cohere": common, "gpt_neox": no_kv,
    "qwen2_moe": {**common, "num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "num_experts_per_tok": 2},
    "qwen3_moe": {**common, "head_dim": 8, "num_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2},
    "opt": {"num_hidden_layers": LAYERS, "hidden_size": H, "num_attention_heads": 2, "ffn_dim": INNER, "vocab_size": VOCAB, "word_embed_proj_dim": H, "max_position_embeddings": 64, **IDS},
    "bloom": {"n_layer": LAYERS, "hidden_size": H, "n_head": 2, "vocab_size": VOCAB, **IDS},
    "falcon": {"num_hidden_layers": LAYERS, "hidden_size": H, "num_attention_heads": 2, "vocab_size": VOCAB, **IDS},
    "mamba": {"num_hidden_layers": LAYERS, "hidden_size": H, "vocab_size": VOCAB, "state_size": 4, **IDS},
    "gpt2": {"n_layer": LAYERS, "n_embd": H, "n_head": 2, "vocab_size": VOCAB, "n_positions": 64, **IDS},
    "gptj": {"n_layer": LAYERS, "n_embd": H, "n_head": 2, "vocab_size": VOCAB, "n_positions": 64, "rotary_dim": 4, **IDS},
    "t5": {"num_layers": LAYERS, "d_model": H, "d_kv": 8, "d_ff": INNER, "num_heads": 2, "vocab_size": VOCAB, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 0},
}
LINEARS = {"phi": ["q_proj", "dense", "fc1"], "phi3": ["qkv_proj", "down_proj"], "opt": ["q_proj", "fc1"], "bloom": ["query_key_value"], "falcon": ["query_key_value"],
           "gpt_neox": ["query_key_value", "dense_h_to_4h"], "mamba": ["in_proj", "out_proj"], "t5": ["q", "wo"], "gpt2": ["c_attn", "c_fc"], "mixtral": ["q_proj", "v_proj"], "gptj": ["q_proj", "fc_in"],
           "starcoder2": ["q_proj", "c_fc"], "qwen2_moe": ["q_proj", "v_proj"], "qwen3_moe": ["q_proj", "v_proj"]}
cases, OUT = [], ""


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, VOCAB)}}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<pad>")


def fresh(kind, cls=None, **over):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    torch.manual_seed(zlib.crc32(kind.encode()))
    c = AutoConfig.for_model(kind, **{**FAMILIES[kind], **over})
    for k in ("initializer_range", "init_std"):
        if hasattr(c, k):
            setattr(c, k, 0.1)
    m = (cls or (AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM)).from_config(c).float()
    with torch.no_grad():
        for n, p in m.named_parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.01)
    return m


def at(name):
    return os.path.join(OUT, name)


def put(name, save, **roles):
    path = at(name)
    os.makedirs(path, exist_ok=True)
    save(path)
    cases.append({"name": name, "dir": name, **roles})
    return name


def with_tokenizer(m, **kw):
    def save(p):
        m.save_pretrained(p, **kw)
        tokenizer().save_pretrained(p)
    return save


def steps(m, n, opt=None, lr=1e-2):
    """n steps of an optimiser on random tokens."""
    import torch
    params = [p for p in m.parameters() if p.requires_grad]
    opt = opt or torch.optim.AdamW(params, lr=lr)
    for _ in range(n):
        x = torch.randint(3, VOCAB, (4, 16))
        loss = m(input_ids=x, labels=x).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
    return opt


def load(name, dtype=None):
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
    return (AutoModelForSeq2SeqLM if "_t5" in name else AutoModelForCausalLM).from_pretrained(at(name), dtype=dtype or torch.float32)


def adapter(base, kind, tag, n=3, merge=True, merge_dtype=None, first=False, **over):
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    torch.manual_seed(11)
    task = "SEQ_2_SEQ_LM" if kind == "t5" else "CAUSAL_LM"
    m = get_peft_model(load(base), LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": LINEARS.get(kind, ["q_proj", "v_proj", "down_proj"]), "task_type": task, **over}))
    roles = {"base": base}
    if first:
        init = f"init_{tag}"
        os.makedirs(at(init), exist_ok=True)
        m.save_pretrained(at(init))
        roles["init"] = init
    opt = steps(m, n)
    name = put(f"lora_{tag}", m.save_pretrained, **roles)
    if first:
        steps(m, 2, opt)
        put(f"next_{tag}", m.save_pretrained, base=base, against=name)
    if merge:
        w = PeftModel.from_pretrained(load(base, merge_dtype), at(name)).merge_and_unload()
        put(f"merged_{tag}", with_tokenizer(w))
        cases[-1].update(dir=name, base=base, merged=f"merged_{tag}")
    return name


def trainer(base, tag, lora=True, **args):
    """Checkpoints 2 and 4 of transformers' Trainer."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Trainer, TrainingArguments
    torch.manual_seed(3)
    m = load(base)
    if lora:
        m = get_peft_model(m, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    data = [{"input_ids": (x := torch.randint(3, VOCAB, (16,))), "labels": x} for _ in range(16)]
    a = TrainingArguments(at(f"run_{tag}"), max_steps=5, save_steps=2, logging_steps=1, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[], use_cpu=True, disable_tqdm=True, **args)
    Trainer(m, a, train_dataset=data, processing_class=tokenizer()).train()
    one, two = f"run_{tag}/checkpoint-2", f"run_{tag}/checkpoint-4"
    cases.append({"name": one, "dir": one, "base": base if lora else None})
    cases.append({"name": two, "dir": two, "base": base if lora else None, "against": one})


def healthy():
    import torch
    from transformers import AutoModelForSequenceClassification
    for kind in FAMILIES:
        try:
            m = fresh(kind)
        except Exception as e:
            print("left out", kind, repr(e)[:100])
            continue
        base = put(f"base_{kind}", with_tokenizer(m))
        for tag, make in {
            "bf16": lambda: put(f"base_{kind}_bf16", with_tokenizer(fresh(kind).to(torch.bfloat16))),
            "f16": lambda: put(f"base_{kind}_f16", with_tokenizer(fresh(kind).half())),
            "shards": lambda: put(f"base_{kind}_shards", with_tokenizer(fresh(kind), max_shard_size="20KB")),
            "deep": lambda: put(f"base_{kind}_tied", with_tokenizer(fresh(kind, tie_word_embeddings=True))),
            "lora": lambda: adapter(base, kind, kind, first=True, merge=kind not in ("mamba",)),
            "dora": lambda: adapter(base, kind, f"{kind}_rs", n=2, use_rslora=True, merge_dtype=torch.bfloat16),
            "reward": lambda: kind not in ("t5", "mamba") and put(f"reward_{kind}", with_tokenizer(fresh(kind, AutoModelForSequenceClassification, num_labels=1))),
            "step": lambda: full_steps(kind),
        }.items():
            try:
                make()
            except Exception as e:
                print("left out", kind, tag, repr(e)[:160])
    options = {"save": {"modules_to_save": ["lm_head"]}, "norms": {"modules_to_save": ["norm"]}, "tokens": {"trainable_token_indices": [5, 9, 40]}, "dora": {"use_dora": True}, "all": {"target_modules": "all-linear"},
               "embed": {"target_modules": ["q_proj", "embed_tokens"]}, "layers": {"layers_to_transform": [0, 2]}, "ranks": {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"q_proj": 3}}, "bias": {"bias": "lora_only"},
               "regex": {"target_modules": r".*\.self_attn\.(q|v)_proj"}, "gaussian": {"init_lora_weights": "gaussian"}, "head": {"target_modules": ["q_proj", "lm_head"]}}
    for tag, over in options.items():
        for kind in ("llama", "qwen2"):
            try:
                adapter(f"base_{kind}", kind, f"{kind}_{tag}", first=True, **over)
            except Exception as e:
                print("left out", kind, tag, repr(e)[:160])
    for kind in ("llama", "mistral", "qwen3"):
        for tag, args in {"linear": {}, "cosine": {"lr_scheduler_type": "cosine", "warmup_steps": 1}, "adafactor": {"optim": "adafactor"}, "adagrad": {"optim": "adagrad"}, "constant": {"lr_scheduler_type": "constant", "weight_decay": 0.1}}.items():
            try:
                trainer(f"base_{kind}", f"{kind}_{tag}", **args)
            except Exception as e:
                print("left out", kind, tag, repr(e)[:160])
        trainer(f"base_{kind}", f"{kind}_full", lora=False)
    others()
    frameworks.healthy(sys.modules[__name__])


def full_steps(kind):
    import torch
    torch.manual_seed(5)
    m = load(f"base_{kind}")
    opt = steps(m, 1, lr=1e-3)
    a = put(f"step1_{kind}", with_tokenizer(m))
    steps(m, 2, opt)
    put(f"step3_{kind}", with_tokenizer(m), against=a)


def others():
    import torch
    import torch.distributed.checkpoint as dcp
    from accelerate import Accelerator
    m = load("base_llama")

    def accelerated(p):
        acc = Accelerator(cpu=True)
        model, opt = acc.prepare(m, torch.optim.AdamW(m.parameters()))
        steps(model, 2, opt)
        acc.save_state(p)
    put("accelerate_state", accelerated)
    put("dcp", lambda p: dcp.save({"model": m.state_dict()}, checkpoint_id=p, no_dist=True))
    put("dcp_optimizer", lambda p: dcp.save({"model": m.state_dict(), "optim": steps(m, 1).state_dict()}, checkpoint_id=p, no_dist=True))
    put("accelerate_bin", lambda p: torch.save(m.state_dict(), os.path.join(p, "pytorch_model.bin")))


# --- one fault in a copy of a healthy folder --------------------------------------------------------------------------------------

class Nothing(Exception):
    """The folder has nothing that this fault could change."""


def weights(path):
    names = [n for n in ("adapter_model.safetensors", "model.safetensors") if os.path.exists(os.path.join(path, n))]
    if not names:
        raise Nothing
    return os.path.join(path, names[0])


def tensors(path, change):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
    f = weights(path)
    with safe_open(f, "pt") as s:
        meta = s.metadata()
    t = load_file(f)
    before = {k: v.clone() for k, v in t.items()}
    t = change(t) or t
    import torch
    if t.keys() == before.keys() and all(t[k].dtype == before[k].dtype and t[k].shape == before[k].shape and torch.equal(t[k], before[k]) for k in t):
        raise Nothing
    save_file({k: v.contiguous() for k, v in t.items()}, f, metadata=meta)


def edit(path, file, change):
    f = os.path.join(path, file)
    if not os.path.exists(f):
        raise Nothing
    with open(f) as s:
        o = json.load(s)
    text = json.dumps(o, sort_keys=True)
    change(o)
    if json.dumps(o, sort_keys=True) == text:
        raise Nothing
    with open(f, "w") as s:
        json.dump(o, s)


def pick(t, part, dims=2):
    names = sorted(k for k, v in t.items() if part in k and v.dim() >= dims)
    if not names:
        raise Nothing
    return names[len(names) // 2]


def each(fn, part=""):
    def change(t):
        n = pick(t, part)
        t[n] = fn(t[n])
    return lambda c, p: tensors(p["dir"], change)


def layer_of(name):
    return next((int(x) for x in name.split(".") if x.isdigit()), None)


def drop_layer(c, p):
    def change(t):
        last = max(i for i in map(layer_of, t) if i is not None)
        return {k: v for k, v in t.items() if layer_of(k) != last}
    tensors(p["dir"], change)


def copy_layer(c, p):
    def change(t):
        for k in list(t):
            if layer_of(k) == 1:
                t[k] = t[k.replace(".1.", ".0.", 1)].clone()
    tensors(p["dir"], change)


def keep_old(role, want):
    """Tensors that want picks have the values of the other folder."""
    def plant(c, p):
        from safetensors.torch import load_file
        if not c.get(role):
            raise Nothing
        old = load_file(weights(p[role]))

        def change(t):
            for k in t:
                if want(k):
                    t[k] = old[k].clone()
        tensors(p["dir"], change)
    return plant


def config(key, fn, file="config.json", role="dir"):
    def plant(c, p):
        if not p.get(role):
            raise Nothing

        def change(o):
            if key not in o:
                raise Nothing
            o[key] = fn(o[key])
        edit(p[role], file, change)
    return plant


def inner_size(c, p):
    if "_moe" in c["name"]:
        raise Nothing  # every layer has experts, whose size is moe_intermediate_size: no tensor and no class depends on it
    config("intermediate_size", lambda v: v + 24)(c, p)


def swap_tokens(role):
    def plant(c, p):
        if not p.get(role):
            raise Nothing

        def change(o):
            v = o["model"]["vocab"]
            v["w10"], v["w11"] = v["w11"], v["w10"]
        edit(p[role], "tokenizer.json", change)
    return plant


def added_token(c, p):
    edit(p["dir"], "tokenizer.json", lambda o: o["added_tokens"].append({**o["added_tokens"][-1], "id": VOCAB, "content": "<think>"}))


def optimizer(change):
    def plant(c, p):
        import torch
        f = os.path.join(p["dir"], "optimizer.pt")
        if not os.path.exists(f):
            raise Nothing
        s = torch.load(f, weights_only=True)
        if "exp_avg" not in next(iter(s["state"].values()), {}) or "exp_avg_sq" not in s["state"][0]:
            raise Nothing
        change(s)
        torch.save(s, f)
    return plant


def reverse_state(s):
    n = len(s["state"])
    s["state"] = {i: s["state"][n - 1 - i] for i in range(n)}


def for_all(key, fn):
    def change(s):
        for x in s["state"].values():
            x[key] = fn(x[key])
    return change


def zero_state(s):
    for x in s["state"].values():
        x["exp_avg"].zero_()
        x["exp_avg_sq"].zero_()


def stale(c, p):
    import torch
    from safetensors.torch import load_file, save_file
    if not os.path.exists(os.path.join(p["dir"], "model.safetensors.index.json")):
        raise Nothing
    t = {}
    for n in sorted(os.listdir(p["dir"])):
        if n.endswith(".safetensors"):
            t.update(load_file(os.path.join(p["dir"], n)))
    save_file({k: v + 0.01 * torch.ones_like(v) for k, v in t.items()}, os.path.join(p["dir"], "model.safetensors"), metadata={"format": "pt"})


def as_bits(x):
    import torch
    return x.view(torch.int32) if x.element_size() == 4 else x.view(torch.int16)


def half_rows(x):
    x = x.clone()
    x[: x.shape[0] // 2] = 0
    return x


def nan(x):
    x = x.clone()
    x.view(-1)[3] = float("nan")
    return x


def merged_base(want):
    """Tensors of the merged model that want picks are the base's."""
    def plant(c, p):
        from safetensors.torch import load_file
        if not c.get("merged"):
            raise Nothing
        old = load_file(weights(p["base"]))

        def change(t):
            for k in t:
                if want(k) and k in old and old[k].shape == t[k].shape:
                    t[k] = old[k].to(t[k].dtype)
        tensors(p["merged"], change)
    return plant


def scale_merge(factor):
    def plant(c, p):
        from safetensors.torch import load_file
        if not c.get("merged"):
            raise Nothing
        old = load_file(weights(p["base"]))

        def change(t):
            for k in t:
                if k in old and old[k].shape == t[k].shape:
                    t[k] = (old[k].float() + factor * (t[k].float() - old[k].float())).to(t[k].dtype)
        tensors(p["merged"], change)
    return plant


def scheduler_lr(c, p):
    import torch
    f = os.path.join(p["dir"], "scheduler.pt")
    if not os.path.exists(f):
        raise Nothing
    s = torch.load(f, weights_only=True)
    s["_last_lr"] = [x * 3 + 1e-3 for x in s["_last_lr"]]
    torch.save(s, f)


def rows_half(part):
    def change(t):
        n = pick(t, part)
        t[n] = t[n][: t[n].shape[0] // 2].clone()
    return lambda c, p: tensors(p["dir"], change)


def other_file(name):
    def plant(c, p):
        f = os.path.join(p["dir"], name)
        if not os.path.exists(f):
            raise Nothing
        os.remove(f)
    return plant


def cut_file(c, p):
    f = weights(p["dir"])
    os.truncate(f, os.path.getsize(f) - 64)


def add_score(c, p):
    import torch
    if not os.path.exists(os.path.join(p["dir"], "adapter_config.json")):
        raise Nothing
    tensors(p["dir"], lambda t: {**t, "base_model.model.score.weight": torch.randn(1, H)})


def both_generation(c, p):
    if not os.path.exists(os.path.join(p["dir"], "generation_config.json")):
        raise Nothing
    for f in ("generation_config.json", "config.json"):
        edit(p["dir"], f, lambda o: o.pop("eos_token_id"))


CLASSIFIER = lambda c: c["name"].startswith("reward")
IS = {
    "adapter": lambda c: c["name"].startswith(("lora_", "next_")), "whole": lambda c: c["name"].startswith(("base_", "step")), "merged": lambda c: bool(c.get("merged")),
    "run": lambda c: c["name"].startswith("run_"), "against": lambda c: bool(c.get("against")), "init": lambda c: bool(c.get("init")), "any": lambda c: True, "shards": lambda c: c["name"].endswith("_shards"), "reward": CLASSIFIER,
}
LORA = lambda k: "lora_" in k
# name of the bug: where, how, and the ids under which a report may name it first
MUTATIONS = {
    "last layer not saved": ("whole", drop_layer, ["TENSOR-MISSING", "MERGE-MISSING"]),
    "one matrix not saved": ("whole", lambda c, p: tensors(p["dir"], lambda t: {k: v for k, v in t.items() if k != pick(t, ".1.")}), ["TENSOR-MISSING"]),
    "a matrix cut in half": ("whole", rows_half(".1."), ["TENSOR-SHAPE", "ZERO-LENGTH"]),
    "vocab_size of another model": ("whole", config("vocab_size", lambda v: v + 32), ["TENSOR-SHAPE", "SPECIAL-RANGE"]),
    "hidden_size of another model": ("whole", config("hidden_size", lambda v: v * 4), ["TENSOR-SHAPE"]),
    "intermediate_size of another model": ("whole", inner_size, ["TENSOR-SHAPE"]),
    "one layer fewer in config.json": ("whole", config("num_hidden_layers", lambda v: v - 1), ["LAYERS-CUT"]),
    "NaN in one matrix": ("whole", each(nan), ["NAN"]),
    "half of a matrix zero": ("whole", each(half_rows, ".1."), ["ZERO-PART", "P202"]),
    "a layer copied over another": ("whole", copy_layer, ["LAYER-COPIED"]),
    "float weights declared as integers": ("whole", lambda c, p: tensors(p["dir"], lambda t: {k: (as_bits(v) if v.dim() == 2 and ".1." in k else v) for k, v in t.items()}), ["INT-WEIGHTS"]),
    "a matrix 1e6 times too large": ("whole", each(lambda x: (x.float() * 1e6).to(x.dtype), ".1."), ["VALUES-HUGE", "INF"]),
    "eos_token_id beyond the rows": ("whole", lambda c, p: edit(p["dir"], "generation_config.json", lambda o: o.update(eos_token_id=VOCAB + 5)), ["SPECIAL-RANGE"]),
    "no eos anywhere": ("whole", both_generation, ["NO-EOS"]),
    "eos_token that the tokenizer lacks": ("whole", lambda c, p: edit(p["dir"], "tokenizer_config.json", lambda o: o.update(eos_token="<|im_end|>")), ["EOS-UNKNOWN"]),
    "an added token without a row": ("whole", added_token, ["ADDED-TOKEN", "VOCABULARY"]),
    "a stale model.safetensors beside the shards": ("shards", stale, ["STALE-SINGLE"]),
    "a shard missing": ("shards", lambda c, p: os.remove(os.path.join(p["dir"], sorted(n for n in os.listdir(p["dir"]) if n.startswith("model-"))[1])), ["SHARD-MISSING"]),
    "file cut off": ("any", cut_file, ["BROKEN-SAFETENSORS"]),
    "reward head dropped": ("reward", lambda c, p: tensors(p["dir"], lambda t: {k: v for k, v in t.items() if not k.startswith(("score", "classifier"))}), ["TASK-HEAD"]),
    "B zero in one module": ("adapter", lambda c, p: tensors(p["dir"], lambda t: {**t, pick(t, "lora_B"): t[pick(t, "lora_B")] * 0}), ["B-ZERO-PARTLY", "A-ZERO"]),
    "half of the rows of one B zero": ("adapter", each(half_rows, "lora_B"), ["B-ZERO-ROWS"]),
    "adapter of one layer copied over another": ("adapter", copy_layer, ["LAYER-COPIED"]),
    "subnormal B": ("adapter", each(lambda x: x * 1e-42, "lora_B"), ["VALUES-SUBNORMAL"]),
    "one layer of the adapter missing": ("adapter", drop_layer, ["LAYER-MISSING", "P102"]),
    "r of another run": ("adapter", config("r", lambda v: v * 2, "adapter_config.json"), ["RANK-CONFIG"]),
    "a target that no layer has": ("adapter", config("target_modules", lambda v: v + ["gate_out_proj"] if isinstance(v, list) else v, "adapter_config.json"), ["H4a"]),
    "score under CAUSAL_LM": ("adapter", add_score, ["TASK-HEAD"]),
    "alpha 0": ("adapter", config("lora_alpha", lambda v: 0, "adapter_config.json"), ["P086"]),
    "trainable_token_indices beyond the rows": ("adapter", config("trainable_token_indices", lambda v: [5, 9, VOCAB + 7] if v else v, "adapter_config.json"), ["TOKEN-INDEX"]),
    "alpha changed since the checkpoint before": ("against", config("lora_alpha", lambda v: v * 4, "adapter_config.json"), ["CONFIG-SCALING"]),
    "rslora turned over": ("against", config("use_rslora", lambda v: not v, "adapter_config.json"), ["CONFIG-SCALING"]),
    "a layer stands still": ("against", keep_old("against", lambda k: layer_of(k) == 1), ["LAYER-STILL", "D14", "MODULE-STILL", "PART-STILL"]),
    "the embedding stands still": ("against", keep_old("against", lambda k: k.endswith(("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight"))), ["PART-STILL"]),
    "all stands still": ("against", keep_old("against", lambda k: True), ["C9"]),
    "tokenizer changed since the checkpoint before": ("against", swap_tokens("dir"), ["TOKENIZER-CHANGED"]),
    "epsilon changed since the checkpoint before": ("against", config("rms_norm_eps", lambda v: 1e-3), ["CONFIG-CHANGED"]),
    "a layer equals its start": ("init", keep_old("init", lambda k: layer_of(k) == 1), ["LAYER-STILL", "B-ZERO-PARTLY"]),
    "a module trained whole equals its start": ("init", keep_old("init", lambda k: not LORA(k)), ["PART-STILL"]),
    "alpha changed since the start": ("init", config("lora_alpha", lambda v: v * 4, "adapter_config.json"), ["CONFIG-SCALING"]),
    "merged twice": ("merged", scale_merge(2), ["MERGE-TWICE", "MERGE-OTHER", "MERGE-SCALE", "P197", "P198"]),
    "unmerged in place of merged": ("merged", scale_merge(-1), ["MERGE-SIGN", "MERGE-OTHER"]),
    "not merged": ("merged", scale_merge(0), ["P086", "MERGE-LEFT-OUT"]),
    "one layer not merged": ("merged", merged_base(lambda k: layer_of(k) == 1), ["MERGE-PARTLY", "MERGE-LEFT-OUT"]),
    "rope of another model in the merge": ("merged", config("rope_parameters", lambda v: {**v, "rope_theta": 5e5} if v and "rope_theta" in v else v, role="merged"), ["MERGE-CONFIG"]),
    "epsilon of another model in the merge": ("merged", config("rms_norm_eps", lambda v: 1e-3, role="merged"), ["MERGE-CONFIG"]),
    "tokenizer of another model in the merge": ("merged", swap_tokens("merged"), ["MERGE-TOKENIZER"]),
    "merge without its last layer": ("merged", lambda c, p: drop_layer(c, {"dir": p["merged"]}), ["MERGE-MISSING", "TENSOR-MISSING"]),
    "moments in the reverse order": ("run", optimizer(reverse_state), ["OPT-ORDER", "OPT-SHAPE"]),
    "second moments zero": ("run", optimizer(for_all("exp_avg_sq", lambda v: v * 0)), ["MOMENT-BOUND"]),
    "second moments 1e-4 times too small": ("run", optimizer(for_all("exp_avg_sq", lambda v: v * 1e-4)), ["MOMENT-BOUND"]),
    "first and second moments exchanged": ("run", optimizer(lambda s: [x.update(exp_avg=x["exp_avg_sq"], exp_avg_sq=x["exp_avg"]) for x in s["state"].values()]), ["MOMENT-SIGN", "MOMENT-BOUND"]),
    "all moments zero": ("run", optimizer(zero_state), ["MOMENT-ZERO"]),
    "an optimiser of another step": ("run", optimizer(for_all("step", lambda v: v - 1)), ["OPT-STEP"]),
    "learning rate off the schedule": ("run", scheduler_lr, ["LR-SCHEDULE"]),
    "log ahead of the step": ("run", lambda c, p: edit(p["dir"], "trainer_state.json", lambda o: o["log_history"].append({**o["log_history"][-1], "step": o["global_step"] + 3})), ["LOG-AHEAD"]),
    "global_step of another save": ("run", config("global_step", lambda v: v + 1, "trainer_state.json"), ["STEP-MISMATCH", "OPT-STEP"]),
    "trainer_state.json missing": ("run", other_file("trainer_state.json"), ["STATE-MISSING"]),
}
EACH = 6  # folders for each bug


def faulty(seed):
    rng = random.Random(seed)
    sound = list(cases)
    for bug, (kind, plant, ids) in MUTATIONS.items():
        pool = [c for c in sound if IS[kind](c) and (kind not in ("whole", "adapter") or not c.get("against") and not c.get("init") and not c.get("merged")) and not c["name"].startswith(("dcp", "accelerate"))]
        if kind == "adapter":
            pool = [c for c in sound if IS["adapter"](c) and not c.get("merged")]
        rng.shuffle(pool)
        done = 0
        for c in pool:
            if done == EACH:
                break
            name = f"bug_{len(cases):04d}"
            moved = "merged" if kind == "merged" and not bug.startswith("file") else "dir"
            source = c[moved]
            path = at(f"{name}/{os.path.basename(source)}")
            shutil.copytree(at(source), path)
            p = {k: at(c[k]) for k in ("dir", "base", "merged", "against", "init") if c.get(k)}
            p[moved] = path
            try:
                plant(c, p)
            except Exception as e:
                if not isinstance(e, Nothing):
                    print("not planted:", bug, c["name"], repr(e)[:100])
                shutil.rmtree(at(name))
                continue
            cases.append({**c, "name": name, moved: os.path.relpath(path, OUT), "bug": bug, "ids": ids, "of": c["name"]})
            done += 1
        if done == 0:
            print("nowhere:", bug)


def make(seed):
    healthy()
    print(len(cases), "healthy")
    faulty(seed)
    rng = random.Random(seed + 1)
    for c in cases:
        c["half"] = rng.choice(["open", "sealed"])
    with open(at("cases.json"), "w") as f:
        json.dump(cases, f, indent=1)
    print(sum("bug" in c for c in cases), "faulty")


def judge(verify, half):
    with open(at("cases.json")) as f:
        todo = [c for c in json.load(f) if half in ("all", c["half"])]
    rows, total = [], collections.Counter()
    for c in todo:
        args = [verify, "checkpoint", at(c["dir"]), "--format", "json"]
        for k in ("base", "merged", "against", "init"):
            if c.get(k):
                args += [f"--{k}", at(c[k])]
        r = subprocess.run(args, capture_output=True, text=True)
        try:
            results = json.loads(r.stdout)["results"]
        except Exception:
            results = []
        names = [(x["verdict"], (x.get("explanations") or [{}])[0].get("fault", ""), x.get("reason", "")) for x in results if x["verdict"] in ("FAIL", "WARN")]
        fails = [n for n in names if n[0] == "FAIL"] or names
        if "bug" not in c:
            what = {1: "healthy FAIL", 4: "healthy exit 4", 6: "healthy undetermined", 0: "healthy pass"}.get(r.returncode, f"healthy exit {r.returncode}")
        else:
            warned = any(n[0] == "WARN" and n[1] in c["ids"] for n in names)
            what = {1: "faulty exit 1", 4: "faulty exit 4"}.get(r.returncode, "faulty WARN" if warned else "faulty SILENT")
            if r.returncode in (1, 4) or warned:
                first = fails[0][1] if r.returncode == 1 or warned else next((n[1] for n in names), "")
                total["named first" if first in c["ids"] else "named otherwise"] += 1
                if first not in c["ids"]:
                    what += " OTHER NAME"
        total[what.replace(" OTHER NAME", "")] += 1
        rows.append((what, c["name"], c.get("bug", ""), c.get("of", ""), c["half"], names[:3], r.stderr[:200] if not results else ""))
    for k, v in sorted(total.items()):
        print(f"{v:5d} {k}")
    if half == "open":
        for row in rows:
            if row[0] in ("healthy FAIL", "healthy exit 4") or "SILENT" in row[0] or "OTHER" in row[0] or "WARN" in row[0] or row[0].startswith("healthy exit"):
                print(*row)


if __name__ == "__main__":
    OUT = os.path.abspath(sys.argv[2])
    os.makedirs(OUT, exist_ok=True)
    if sys.argv[1] == "make":
        make(int(sys.argv[3]))
    else:
        judge(sys.argv[3], sys.argv[4])
