"""Produces golden/peft: adapters saved by PEFT, what PEFT makes of them, and what it makes of adapters that plumbline wrote.

    python -m venv .venv && .venv/bin/pip install -r golden/gen/peft/requirements.txt
    .venv/bin/python golden/gen/peft/produce.py golden/peft

Needs Go beside Python: the adapters of the second half are written by

    go test ./internal/format/peft -run TestWrittenForPEFT -written FOLDER

and stay beside PEFT's results; that test demands that plumbline still writes them so. Every adapter is loaded by PeftModel.from_pretrained with warnings as
errors, except those listed in LENIENT. Results are of the model cast to float64, with the float32 islands of the modelling
file lifted (golden/gen/models/hf.py): logits of the sequence IDS, the tokens of greedy generation after it, and for each
module s·B·A as get_delta_weight computes it.
"""
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import warnings

import numpy as np
import peft
import safetensors
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models"))
from hf import lifted

SEED = 20260717
IDS = [3, 1, 4, 1, 5, 9, 2, 6]
# PEFT warns of a saved embedding, of a transposition that the configuration did not name, of patterns that match nothing,
# and takes the bias of lora_bias for a factor that lost a dimension.
LENIENT = {"bias", "embedding", "embedding_tied", "embedding_gpt2", "gpt2_unnamed", "patterns", "saved_tied", "saved_embedding"}


def llama(tie):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=29, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=tie,
        bos_token_id=0, eos_token_id=0, initializer_range=0.2))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=29, n_embd=16, n_layer=2, n_head=4, n_positions=32, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
        bos_token_id=0, eos_token_id=0, initializer_range=0.2))


BASES = {"llama": lambda: llama(False), "tied": lambda: llama(True), "gpt2": gpt2}

# name: (base, arguments of LoraConfig, changes of the saved adapter_config.json)
CASES = {
    "list": ("llama", dict(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=8), {}),
    "regex": ("llama", dict(target_modules=r"model\.layers\.\d+\.(self_attn\.[qv]|mlp\.(up|down))_proj", r=2, lora_alpha=3, use_rslora=True), {}),
    "patterns": ("llama", dict(
        target_modules=["q_proj", "k_proj", "o_proj", "up_proj"], r=2, lora_alpha=4, use_rslora=True,
        rank_pattern={"o_proj": 3, "layers.1.self_attn.q_proj": 1, r".*\.mlp\..*": 5, "q_pro": 7},
        alpha_pattern={"layers.0": 9, r"model\.layers\.1\..*k_proj": 0.5, "up.proj": 6}), {}),
    # Two patterns match q_proj of layer 1; the file names the later one of the alphabet first, and the first one counts.
    "order": ("llama", dict(target_modules=["q_proj"], r=2, lora_alpha=4, rank_pattern={"q_proj": 3}),
              {"rank_pattern": {"q_proj": 3, "layers.1.self_attn.q_proj": 1}}),
    "all_linear": ("llama", dict(target_modules="all-linear", r=1, lora_alpha=2), {"target_modules": "all-linear"}),
    "exclude": ("llama", dict(target_modules=["q_proj", "up_proj", "down_proj"], exclude_modules=["layers.0.mlp.up_proj", "1.self_attn.q_proj"], r=2, lora_alpha=2), {}),
    "exclude_regex": ("llama", dict(target_modules=["q_proj", "v_proj"], exclude_modules=r".*\.0\..*q_proj", r=2, lora_alpha=2), {}),
    "layers": ("llama", dict(target_modules=["q_proj", "down_proj"], layers_to_transform=[1], r=2, lora_alpha=2), {}),
    "layers_pattern": ("llama", dict(target_modules=["q_proj", "model.layers.1.mlp.gate_proj"], layers_to_transform=0, layers_pattern="layers", r=2, lora_alpha=2), {}),
    "saved": ("llama", dict(target_modules=["v_proj"], modules_to_save=["lm_head", "norm"], r=2, lora_alpha=2), {}),
    "saved_tied": ("tied", dict(target_modules=["v_proj"], modules_to_save=["lm_head"], r=2, lora_alpha=2), {}),
    "saved_embedding": ("tied", dict(target_modules=["v_proj"], modules_to_save=["embed_tokens"], r=2, lora_alpha=2), {}),
    "bias": ("llama", dict(target_modules=["v_proj", "gate_proj"], lora_bias=True, r=2, lora_alpha=5), {}),
    "bf16": ("tied", dict(target_modules=["q_proj"], r=3, lora_alpha=6), {}),
    "embedding": ("llama", dict(target_modules=["embed_tokens", "q_proj"], r=3, lora_alpha=6), {}),
    "gpt2": ("gpt2", dict(target_modules=["c_attn", "c_proj"], r=2, lora_alpha=4, fan_in_fan_out=True), {}),
    "bias_lora_only": ("gpt2", dict(target_modules=["c_attn"], r=2, lora_alpha=4, fan_in_fan_out=True, bias="lora_only"), {}),
    "bias_all": ("gpt2", dict(target_modules=["c_proj"], r=2, lora_alpha=4, fan_in_fan_out=True, bias="all"), {}),
    "gpt2_unnamed": ("gpt2", dict(target_modules=["c_fc"], r=2, lora_alpha=4, fan_in_fan_out=True), {"fan_in_fan_out": False}),
    # A tied head keeps the base's embedding without the adapter's part.
    "embedding_tied": ("tied", dict(target_modules=["embed_tokens", "v_proj"], r=2, lora_alpha=6), {}),
    "embedding_gpt2": ("gpt2", dict(target_modules=["wte", "wpe", "c_attn"], r=3, lora_alpha=4, use_rslora=True, fan_in_fan_out=True), {}),
}


def fill(model, generator, dtype):
    """Draws every trainable parameter anew, since B starts at zero; the values are exact in bfloat16."""
    for name, p in sorted(model.named_parameters()):
        if p.requires_grad or "lora_" in name:
            p.data = (torch.randn(p.shape, generator=generator) * 0.3).to(torch.bfloat16).to(dtype)


def modules(model):
    """Returns the modules that an adapter could be for: path, inputs, outputs, kind."""
    head = model.get_output_embeddings()
    found = []
    for path, m in model.named_modules():
        if isinstance(m, torch.nn.Linear):
            found.append([path, m.in_features, m.out_features, "head" if m is head else "linear"])
        elif isinstance(m, Conv1D):
            found.append([path, m.nx, m.nf, "linear"])
        elif isinstance(m, torch.nn.Embedding):
            found.append([path, m.num_embeddings, m.embedding_dim, "embedding"])
    return found


def load(folder, name):
    model = BASES[name]()
    model.load_state_dict(safetensors.torch.load_file(os.path.join(folder, name, "model.safetensors")), strict=name == "llama")
    model.tie_weights()
    return model.eval()


def result(model, path, lenient=False):
    """Loads the adapter at path on model and returns the scaling of its modules, their deltas and the logits."""
    with warnings.catch_warnings():
        warnings.simplefilter("default" if lenient else "error")
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = PeftModel.from_pretrained(model, path)
    wrapped = wrapped.double().eval()
    scaling, delta = {}, {}
    for key, m in wrapped.named_modules():
        if not isinstance(m, LoraLayer):
            continue
        key = key.removeprefix("base_model.model.")
        scaling[key] = [m.r["default"], m.lora_alpha["default"], m.scaling["default"]]
        delta[key] = m.get_delta_weight("default").detach().contiguous()
    return scaling, delta, *compute(wrapped)


def compute(model):
    """Returns the logits of IDS and 12 greedy tokens after them."""
    ids = torch.tensor([IDS])
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    with torch.no_grad(), lifted(base):
        logits = model(input_ids=ids).logits[0]
        greedy = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert logits.dtype == torch.float64
    return logits, greedy[0, len(IDS):].tolist()


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def main(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(SEED)
    expect = {"ids": IDS, "modules": {}, "greedy": {}, "cases": {}, "written": {}}
    tensors = {}
    for name, make in BASES.items():
        torch.manual_seed(SEED)
        model = make().eval()
        for _, p in sorted(model.named_parameters()):
            if p.dim() == 1:  # norms and biases start at ones and zeros, which hide mistakes
                p.data += 0.1 * torch.randn(p.shape, generator=generator)
        model.save_pretrained(os.path.join(folder, name))
        os.remove(os.path.join(folder, name, "generation_config.json"))
        expect["modules"][name] = modules(model)
        tensors["base/" + name], expect["greedy"][name] = compute(model.double())
    for name, (base, arguments, changes) in CASES.items():
        path = os.path.join(folder, "cases", name)
        model = get_peft_model(load(folder, base), LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path=base, **arguments))
        fill(model, generator, torch.bfloat16 if name == "bf16" else torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("default" if name in LENIENT else "error")
            warnings.simplefilter("ignore", FutureWarning)
            model.save_pretrained(path)
        os.remove(os.path.join(path, "README.md"))
        config = os.path.join(path, "adapter_config.json")
        with open(config) as f:
            value = json.load(f) | {"base_model_name_or_path": base} | changes
        for key in ("target_modules", "exclude_modules"):  # sets, saved in the order of this process
            if isinstance(value[key], list):
                value[key].sort()
        with open(config, "w") as f:
            json.dump(value, f, indent=2)
        scaling, delta, logits, greedy = result(load(folder, base), path, name in LENIENT)
        expect["cases"][name] = {"base": base, "scaling": scaling, "greedy": greedy}
        tensors["logits/" + name] = logits
        tensors |= {f"delta/{name}/{key}": d for key, d in delta.items()}

    written = os.path.abspath(os.path.join(folder, "written"))
    os.mkdir(written)
    subprocess.run(["go", "test", "./internal/format/peft", "-count=1", "-run", "TestWrittenForPEFT", "-written", written], check=True)
    for name in sorted(os.listdir(written)):
        path = os.path.join(written, name)
        with open(os.path.join(path, "adapter_config.json")) as f:
            base = json.load(f)["base_model_name_or_path"]
        scaling, delta, logits, greedy = result(load(folder, base), path)
        expect["written"][name] = {"base": base, "scaling": scaling, "greedy": greedy}
        tensors["logits/written/" + name] = logits
        tensors |= {f"delta/written/{name}/{key}": d for key, d in delta.items()}

    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(folder, "expect.safetensors"))
    with open(os.path.join(folder, "expect.json"), "w") as f:
        json.dump(expect, f, indent=1, sort_keys=True)
        f.write("\n")
    sums = {}
    for root, _, files in os.walk(folder):
        for f in files:
            os.chmod(os.path.join(root, f), 0o644)
            sums[os.path.relpath(os.path.join(root, f), folder)] = digest(os.path.join(root, f))
    manifest = {
        "producer": "golden/gen/peft/produce.py",
        "versions": {"python": platform.python_version(), "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
                     "peft": peft.__version__, "safetensors": safetensors.__version__, "numpy": np.__version__},
        "seed": SEED,
        "sha256": dict(sorted(sums.items())),
    }
    with open(os.path.join(folder, "manifest.json"), "w") as f:
        json.dump(manifest, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
