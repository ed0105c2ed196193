"""Folders that the libraries themselves save: models, adapters, checkpoints of trainers, merges, each of a tiny model.

    python golden/gen/checkpoint/produce.py golden/checkpoint [/path/to/python/with/trl-1.12]

EXPECT.json says of every folder its family, what it holds and the numbers that a reader must find: they are read back with
safetensors' own reader and from the library's objects. A second Python is for the PPO model with a value head, which trl
has up to 1.12. Packages that OpenRLHF imports and that need a GPU are replaced by stand-ins: of deepspeed, its save_model asks
for nothing but a copy of the weights.
"""
import glob
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import types
from unittest.mock import MagicMock

import peft
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, BitsAndBytesConfig, PreTrainedTokenizerFast

import manifest

SEED, VOCAB, H, HEADS, INNER, LAYERS = 20261121, 64, 16, 2, 32, 2
HERE = os.path.dirname(os.path.abspath(__file__))
expect = {}


def tokenizer():
    vocab = {"<pad>": 0, "<eos>": 1, **{chr(33 + i): i + 2 for i in range(VOCAB - 2)}}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<pad>", padding_side="left")


def config(kind, **over):
    ids = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    if kind == "gptj":
        return AutoConfig.for_model("gptj", n_layer=LAYERS, n_embd=H, n_head=HEADS, n_inner=INNER, vocab_size=VOCAB, rotary_dim=4, n_positions=32, **ids, **over)
    if kind == "gpt2":
        return AutoConfig.for_model("gpt2", n_layer=LAYERS, n_embd=H, n_head=HEADS, n_inner=INNER, vocab_size=VOCAB, n_positions=32, **ids, **over)
    return AutoConfig.for_model(kind, **{"num_hidden_layers": LAYERS, "hidden_size": H, "num_attention_heads": HEADS, "num_key_value_heads": 1,
                                "intermediate_size": INNER, "vocab_size": VOCAB, "max_position_embeddings": 32, **ids, **over})


def model(kind, dtype=torch.float32, **over):
    torch.manual_seed(SEED)
    c = config(kind, **over)
    c.initializer_range = 0.2
    return AutoModelForCausalLM.from_config(c).to(dtype)


def adapt(base, seed=1, fresh=False, **kwargs):
    torch.manual_seed(SEED + seed)
    m = get_peft_model(base, LoraConfig(**{"task_type": "CAUSAL_LM", "lora_dropout": 0.0, **kwargs}))
    if not fresh:
        with torch.no_grad():
            for name, p in m.named_parameters():
                if "lora_B" in name or "lora_embedding_A" in name:
                    p.normal_(0, 0.05)
    return m


def tensors(folder):
    """Tensors, parameters and bytes of every safetensors file below folder."""
    n = params = size = 0
    dtypes = set()
    for path in sorted(glob.glob(f"{folder}/**/*.safetensors", recursive=True)):
        with safe_open(path, "pt") as f:
            for k in f.keys():
                t = f.get_tensor(k)
                n, params, size = n + 1, params + t.numel(), size + t.numel() * t.element_size()
                dtypes.add(str(t.dtype).removeprefix("torch."))
    return {"tensors": n, "params": params, "tensor_bytes": size, "dtypes": sorted(dtypes)}


def entry(folder, family, kind, **facts):
    pickles = sorted(p for p in glob.glob(f"{folder}/**", recursive=True) if p.endswith((".bin", ".pt", ".pth", ".pkl")))
    expect[folder] = {"family": family, "kind": kind, "model_type": facts.pop("model_type", None), **tensors(folder),
                      "files": sorted(os.path.relpath(os.path.join(d, f), folder) for d, _, fs in os.walk(folder) for f in fs),
                      "tokenizer": os.path.exists(f"{folder}/tokenizer.json"), "pickles": [os.path.relpath(p, folder) for p in pickles], **facts}
    print(folder, expect[folder]["tensors"], expect[folder]["tensor_bytes"], file=sys.stderr)


def lora(folder, m, family="peft", **facts):
    """The entry of an adapter: ranks and scales as PEFT's own layers have them."""
    modules = {}
    for name, mod in m.named_modules():
        if hasattr(mod, "lora_A") and mod.r:
            modules[name.removeprefix("base_model.model.")] = {"r": mod.r["default"], "scaling": mod.scaling["default"],
                                                               "in": getattr(mod, "in_features", None), "out": getattr(mod, "out_features", None)}
    c = m.peft_config["default"]
    entry(folder, family, "adapter", model_type=m.config.model_type, r=c.r, lora_alpha=c.lora_alpha, use_rslora=c.use_rslora, use_dora=c.use_dora,
          targets=sorted({n.rsplit(".", 1)[-1] for n in modules}), modules=modules, **facts)


def hf():
    for name, kind, dtype, over in (("hf_gptj", "gptj", torch.float32, {}), ("hf_qwen2_tied", "qwen2", torch.float32, {"tie_word_embeddings": True}),
                                    ("hf_llama_bf16", "llama", torch.bfloat16, {"tie_word_embeddings": False}), ("hf_gpt2", "gpt2", torch.float32, {}),
                                    ("hf_llama", "llama", torch.float32, {"tie_word_embeddings": False}), ("hf_qwen2_f16", "qwen2", torch.float16, {"tie_word_embeddings": False})):
        m = model(kind, dtype, **over)
        m.save_pretrained(name)
        tokenizer().save_pretrained(name)
        entry(name, "hf", "model", model_type=kind, tied=m.config.tie_word_embeddings, shards=1, model_params=sum(p.numel() for p in m.parameters()))
    for name, kind, size in (("hf_llama_sharded", "llama", "12KB"), ("hf_gptj_sharded", "gptj", "10KB")):
        m = model(kind, tie_word_embeddings=False)
        m.save_pretrained(name, max_shard_size=size)
        tokenizer().save_pretrained(name)
        shards = len(glob.glob(f"{name}/model-*.safetensors"))
        assert shards > 1, shards
        entry(name, "hf", "model", model_type=kind, tied=False, shards=shards, model_params=sum(p.numel() for p in m.parameters()))
    c = config("qwen2", tie_word_embeddings=False)
    c.num_labels = 1
    torch.manual_seed(SEED)
    m = AutoModelForSequenceClassification.from_config(c)
    m.save_pretrained("hf_qwen2_reward")
    tokenizer().save_pretrained("hf_qwen2_reward")
    entry("hf_qwen2_reward", "hf", "model", model_type="qwen2", tied=False, shards=1, model_params=sum(p.numel() for p in m.parameters()), score_head=True)


def load(base, **kwargs):
    return AutoModelForCausalLM.from_pretrained(base, **kwargs)


def adapters():
    def save(name, base, m, **facts):
        m.save_pretrained(name)
        lora(name, m, base=base, **facts)

    qv = ["q_proj", "v_proj"]
    save("peft_gptj", "hf_gptj", adapt(load("hf_gptj"), r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "fc_in", "fc_out"]))
    save("peft_gptj_init", "hf_gptj", adapt(load("hf_gptj"), fresh=True, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "fc_in", "fc_out"]), fresh=True)
    save("peft_gptj_rslora", "hf_gptj", adapt(load("hf_gptj"), 2, r=4, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "k_proj", "v_proj", "out_proj"]))
    save("peft_qwen2_patterns", "hf_qwen2_tied", adapt(load("hf_qwen2_tied"), 3, r=4, lora_alpha=8, target_modules=qv,
         rank_pattern={"q_proj": 2}, alpha_pattern={r"layers\.1\.self_attn\.v_proj": 32}))
    save("peft_llama_all_linear", "hf_llama", adapt(load("hf_llama"), 4, r=2, lora_alpha=4, target_modules="all-linear"))
    save("peft_gpt2", "hf_gpt2", adapt(load("hf_gpt2"), 5, r=4, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True))
    save("peft_qwen2_head", "hf_qwen2_f16", adapt(load("hf_qwen2_f16", dtype=torch.float32), 6, r=2, lora_alpha=2, target_modules=qv, modules_to_save=["lm_head"]), modules_to_save=["lm_head"])
    save("peft_llama_dora", "hf_llama", adapt(load("hf_llama"), 7, r=4, lora_alpha=8, target_modules=qv, use_dora=True))
    save("peft_llama_bias", "hf_llama", adapt(load("hf_llama"), 8, r=4, lora_alpha=8, target_modules=qv, lora_bias=True))
    save("peft_llama_embedding", "hf_llama", adapt(load("hf_llama"), 9, r=4, lora_alpha=8, target_modules=qv + ["embed_tokens"]))
    save("peft_llama_layers", "hf_llama", adapt(load("hf_llama"), 10, r=4, lora_alpha=8, target_modules=qv, layers_to_transform=[1]))
    m = adapt(load("hf_llama", dtype=torch.bfloat16), 11, r=4, lora_alpha=8, target_modules=qv)
    for p in m.parameters():
        p.data = p.data.to(torch.bfloat16)
    save("peft_llama_bf16", "hf_llama", m)

    for name, base, adapter in (("merged_gptj", "hf_gptj", "peft_gptj"), ("merged_rslora", "hf_gptj", "peft_gptj_rslora"), ("merged_patterns", "hf_qwen2_tied", "peft_qwen2_patterns"),
                                ("merged_gpt2", "hf_gpt2", "peft_gpt2"), ("merged_llama_bf16", "hf_llama_bf16", "peft_llama_all_linear")):
        m = PeftModel.from_pretrained(load(base), adapter).merge_and_unload()
        m.save_pretrained(name)
        tokenizer().save_pretrained(name)
        entry(name, "hf", "model", model_type=m.config.model_type, tied=m.config.tie_word_embeddings, shards=1, base=base, adapter=adapter,
              model_params=sum(p.numel() for p in m.parameters()))


def int8():
    q = BitsAndBytesConfig(load_in_8bit=True)
    m = load("hf_llama_bf16", quantization_config=q, device_map={"": "cpu"})
    m.save_pretrained("hf_llama_int8")
    tokenizer().save_pretrained("hf_llama_int8")
    entry("hf_llama_int8", "hf", "model", model_type="llama", tied=False, shards=1, quantised="bitsandbytes int8", base="hf_llama_bf16")


def trainers():
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    data = Dataset.from_dict({"text": ["abcabcab", "XYZXYZ", "0123456", "fedcba"] * 4})
    for name, adapter in (("trl_sft_lora", LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")), ("trl_sft_full", None)):
        torch.manual_seed(SEED)
        args = SFTConfig(output_dir=name, max_steps=2, save_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[], use_cpu=True, bf16=False,
                         seed=SEED % 1000, max_length=16, gradient_checkpointing=False, logging_steps=1, disable_tqdm=True)
        t = SFTTrainer(model=load("hf_qwen2_f16", dtype=torch.float32), args=args, train_dataset=data, processing_class=tokenizer(), peft_config=adapter)
        t.train()
        t.save_model(f"{name}/final")
        facts = {"optimizer": True, "rng": True, "scheduler": True, "step": 2, "base": "hf_qwen2_f16", "resumable": f"{name}/checkpoint-2", "final": f"{name}/final"}
        if adapter:
            lora(name, t.model, family="trl", **facts)
        else:
            entry(name, "trl", "model", model_type="qwen2", tied=False, **facts)


def verl():
    """The FSDP actor of one rank as verl's checkpoint manager lays it out, through verl's own merger."""
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    for name, adapter in (("verl_full", None), ("verl_lora", dict(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"]))):
        actor, m = f"{name}/actor", load("hf_qwen2_f16", dtype=torch.float32)
        if adapter:
            m = adapt(m, 12, **adapter)
        os.makedirs(f"{actor}/huggingface")
        m.config.save_pretrained(f"{actor}/huggingface")
        tokenizer().save_pretrained(f"{actor}/huggingface")
        torch.save(m.state_dict(), f"{actor}/model_world_size_1_rank_0.pt")
        json.dump({"FSDP_version": 1, "world_size": 1}, open(f"{actor}/fsdp_config.json", "w"))
        if adapter:
            json.dump({"r": 4, "lora_alpha": 16, "task_type": "CAUSAL_LM"}, open(f"{actor}/lora_train_meta.json", "w"))
        target = f"{name}/merged"
        FSDPModelMerger(ModelMergerConfig(operation="merge", backend="fsdp", target_dir=target, local_dir=actor, hf_model_config_path=f"{actor}/huggingface")).merge_and_save()
        os.remove(f"{actor}/model_world_size_1_rank_0.pt")
        shutil.rmtree(f"{actor}/huggingface")
        os.rename(target, f"{actor}/huggingface")
        if adapter:
            os.rename(f"{actor}/huggingface/lora_adapter", f"{actor}/lora_adapter")
            lora(name, m, family="verl", base="hf_qwen2_f16", adapter_folder="actor/lora_adapter", model_folder="actor/huggingface")
            expect[name]["kind"] = "model and adapter"
        else:
            entry(name, "verl", "model", model_type="qwen2", tied=False, base="hf_qwen2_f16", model_folder="actor/huggingface")


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes imports of packages that need a GPU succeed; nothing of them is called."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("deepspeed", "flash_attn", "ring_flash_attn", "vllm", "ray"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        m = MagicMock(name=spec.name)
        m.__path__, m.__spec__ = [], spec
        return m

    def exec_module(self, module):
        pass


def openrlhf():
    clone = types.ModuleType("deepspeed.checkpoint.utils")
    clone.clone_tensors_for_torch_save = lambda state: {k: v.clone() for k, v in state.items()}
    sys.meta_path.append(StandIn())
    sys.modules["deepspeed.checkpoint.utils"] = clone
    from openrlhf.utils.deepspeed import deepspeed as module
    strategy = types.SimpleNamespace(is_rank_0=lambda: True, _unwrap_model=lambda m: m, stage=2, ds_tensor_parallel_size=1,
                                     args=types.SimpleNamespace(ds=types.SimpleNamespace(zero_stage=2, tensor_parallel_size=1)))
    module.torch_dist_barrier_and_cuda_sync = lambda: None
    m = load("hf_llama_bf16")
    module.DeepspeedStrategy.save_model(strategy, m, tokenizer(), "openrlhf_full")
    entry("openrlhf_full", "openrlhf", "model", model_type="llama", tied=False, base="hf_llama_bf16")
    m = adapt(load("hf_llama_bf16"), 13, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    module.DeepspeedStrategy.save_model(strategy, m, tokenizer(), "openrlhf_lora")
    lora("openrlhf_lora", m, family="openrlhf", base="hf_llama_bf16")
    from openrlhf.cli.lora_combiner import apply_lora
    apply_lora("hf_llama_bf16", "openrlhf_lora", "openrlhf_combined", False, "bf16")
    entry("openrlhf_combined", "openrlhf", "model", model_type="llama", tied=False, base="hf_llama_bf16", adapter="openrlhf_lora")


def value_head(python):
    subprocess.run([python, f"{HERE}/value_head.py"], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    for name, facts in json.load(open("value_head.json")).items():
        entry(name, "trl", facts.pop("kind"), **facts)
    os.remove("value_head.json")


os.makedirs(sys.argv[1], exist_ok=True)
os.chdir(sys.argv[1])
for old in os.listdir("."):
    if old not in ("activations.json", "activations_float32.json", "prompt.json", "sizes.json"):
        shutil.rmtree(old) if os.path.isdir(old) else os.remove(old)
for make in (hf, adapters, int8, trainers, verl, openrlhf):
    make()
if len(sys.argv) > 2:
    value_head(os.path.abspath(sys.argv[2]))
for path in glob.glob("**/README.md", recursive=True):  # model cards: prose of no reader's interest
    os.remove(path)
for e in expect.values():
    e["files"] = [f for f in e["files"] if not f.endswith("README.md")]
versions = {p: importlib.metadata.version(p) for p in ("torch", "transformers", "peft", "bitsandbytes", "trl", "verl", "openrlhf", "accelerate", "safetensors")}
versions["trl (value head)"] = "1.12.0"
json.dump({"producer": "golden/gen/checkpoint/produce.py", "versions": versions, "seed": SEED, "folders": expect}, open("EXPECT.json", "w"), indent=1)
manifest.write(".")
