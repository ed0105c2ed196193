"""One release of PEFT makes the folders of one case: python peft_folders.py CASE VARIANT FOLDER, with the release first on PYTHONPATH.

VARIANT is a type and a seed, f32-1. FOLDER gets what a user has on disk, and command.json, which says how verify checkpoint is called on
it, by the names of its paths. Models are tiny and random; B of every adapter is drawn, as training would leave it.
"""

import json
import os
import sys
import warnings

import torch
import transformers

if not hasattr(transformers, "HybridCache"):  # which PEFT 0.16 and 0.17 import and transformers 5 no longer has; no case uses it
    type(transformers).HybridCache = transformers.StaticCache
import peft

warnings.simplefilter("ignore")
torch.set_num_threads(1)
NO_IDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


class Case:
    """The folders of one run: case.base() is the model as saved, case.save(name, model) saves another."""

    def __init__(self, variant, folder, kind):
        dtype, seed = variant.split("-")
        self.dtype, self.seed, self.folder, self.kind = dict(f32=torch.float32, bf16=torch.bfloat16)[dtype], int(seed), folder, kind
        self.command = dict(dir="adapter", base=os.path.join("..", "..", f"base-{variant}"))
        torch.manual_seed(self.seed)
        self.generator = torch.Generator().manual_seed(self.seed)
        model = KINDS[kind]().to(self.dtype)
        for p in model.parameters():
            p.data = (torch.randn(p.shape, generator=self.generator) * 0.2).to(p.dtype)
        self.save(self.command["base"], model)

    def base(self):
        return transformers.AutoModelForCausalLM.from_pretrained(self.path(self.command["base"]), dtype=self.dtype)

    def path(self, name):
        return os.path.normpath(os.path.join(self.folder, name))

    def save(self, name, model):
        model.save_pretrained(self.path(name))
        self.clean(name)

    def clean(self, name):
        """Leaves what is judged, without paths of this machine."""
        for left in ("generation_config.json", "README.md"):
            if os.path.exists(os.path.join(self.path(name), left)):
                os.remove(os.path.join(self.path(name), left))
        config = os.path.join(self.path(name), "adapter_config.json")
        if os.path.exists(config):  # sets are in the order of this process
            value = json.load(open(config)) | dict(base_model_name_or_path=os.path.basename(self.command["base"]))
            for k, v in value.items():
                value[k] = sorted(v) if isinstance(v, list) and all(isinstance(x, str) for x in v) else v
            json.dump(value, open(config, "w"), indent=1)

    def train(self, model):
        """Draws what an adapter trains."""
        for name, p in sorted(model.named_parameters()):
            if p.requires_grad:
                p.data += (torch.randn(p.shape, generator=self.generator) * 0.1).to(p.dtype)
        return model

    def adapter(self, name="adapter", **settings):
        """A trained LoRA, saved."""
        settings = dict(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM") | settings
        self.save(name, self.train(peft.get_peft_model(self.base(), peft.LoraConfig(**settings))))

    def load(self):
        return peft.PeftModel.from_pretrained(self.base(), self.path("adapter"))

    def merged(self, model):
        self.command["merged"] = "merged"
        self.save("merged", model.merge_and_unload())


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=8, tie_word_embeddings=True, **NO_IDS))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=2, n_positions=8, n_inner=8, **NO_IDS))


def qwen2_moe():
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(vocab_size=8, hidden_size=8, intermediate_size=8, moe_intermediate_size=4, shared_expert_intermediate_size=4, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, num_experts=2, num_experts_per_tok=1, max_position_embeddings=8, tie_word_embeddings=True, **NO_IDS))


KINDS = dict(llama=llama, gpt2=gpt2, qwen2_moe=qwen2_moe)


def merge_twice(c):
    """peft#1355: merged for the engine, and merged again for the save."""
    c.adapter()
    model = c.load()
    model.merge_adapter()
    c.merged(model)


def set_scale(c):
    """peft#2775: the scale is set back to 1 before the merge."""
    c.adapter(use_rslora=True)
    model = c.load()
    for m in model.modules():
        if isinstance(m, peft.tuners.lora.LoraLayer):
            m.set_scale("default", 1.0)
    c.merged(model)


def patterns(c):
    """peft#2195: a rank for a kind of module, an α for one of them."""
    c.adapter(rank_pattern={"q_proj": 2}, alpha_pattern={"layers.1.self_attn.q_proj": 10})
    c.merged(c.load())


def pissa(c):
    """peft#2104: the residual that PiSSA leaves and the adapter that it starts with make the model that it began with."""
    model = peft.get_peft_model(c.base(), peft.LoraConfig(r=3, lora_alpha=6, target_modules=["attn.c_proj"], init_lora_weights="pissa", fan_in_fan_out=True, task_type="CAUSAL_LM"))
    model.peft_config["default"].init_lora_weights = True  # as PEFT's guide has it: what is saved is loaded on the residual
    c.command.update(base="residual", merged=c.command["base"])
    c.save("adapter", model)
    c.save("residual", model.unload())


def other_adapter(c):
    """peft#3282: one of two adapters is saved, and the name of the other begins with its own."""
    settings = dict(r=3, lora_alpha=6, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(c.base(), peft.LoraConfig(**settings), adapter_name="policy")
    model.add_adapter("policy_ref", peft.LoraConfig(**settings))
    for name, p in model.named_parameters():
        p.requires_grad = "lora_" in name
    c.command["dir"] = "adapter/policy"
    c.train(model).save_pretrained(c.path("adapter"), selected_adapters=["policy"])
    c.clean("adapter/policy")
    os.remove(c.path("adapter/README.md"))


def dora_sync(c):
    """peft#3532: merged for the engine and unmerged at every step, as a trainer does, and merged at the end."""
    c.adapter(use_dora=True, target_modules=["attn.c_proj"], fan_in_fan_out=True)
    model = c.load()
    model.merge_adapter()
    model.unmerge_adapter()
    c.merged(model)


def kept_modules(c):
    """peft#2334: two modules are trained whole, and the name of one begins with that of the other."""
    c.adapter(target_modules=["q_proj"], modules_to_save=["shared_expert", "shared_expert_gate"])
    c.merged(c.load())


def adalora_start(c):
    """peft#1884: an adapter before and after its training."""
    more = {} if tuple(int(x) for x in peft.__version__.split(".")[:2]) < (0, 14) else dict(total_step=10)
    model = peft.get_peft_model(c.base(), peft.AdaLoraConfig(init_r=3, target_r=2, lora_alpha=6, target_modules=["q_proj"], task_type="CAUSAL_LM", **more))
    c.command["init"] = "start"
    c.save("start", model)
    c.save("adapter", c.train(model))


CASES = {
    "peft-3282": (other_adapter, "llama"),
    "peft-3532": (dora_sync, "gpt2"),
    "peft-2334": (kept_modules, "qwen2_moe"),
    "peft-1884": (adalora_start, "llama"),
    "peft-1355": (merge_twice, "llama"),
    "peft-2775": (set_scale, "llama"),
    "peft-2195": (patterns, "llama"),
    "peft-2104": (pissa, "gpt2"),
}


def main():
    case, variant, folder = sys.argv[1:]
    make, kind = CASES[case]
    c = Case(variant, folder, kind)
    make(c)
    with open(c.path("command.json"), "w") as f:
        json.dump(c.command, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
