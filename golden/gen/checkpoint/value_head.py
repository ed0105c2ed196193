"""The PPO model with a value head of trl 1.12, with and without an adapter. Called by produce.py inside its folder."""
import json
import os
import sys

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl.experimental.ppo import AutoModelForCausalLMWithValueHead

torch.manual_seed(20261121)
facts = {}
os.makedirs("trl_ppo_lora", exist_ok=True)
m = AutoModelForCausalLMWithValueHead.from_pretrained("hf_llama", peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
with torch.no_grad():
    for name, p in m.named_parameters():
        if "lora_B" in name:
            p.normal_(0, 0.05)
m.save_pretrained("trl_ppo_lora")
facts["trl_ppo_lora"] = {"kind": "adapter", "model_type": "llama", "base": "hf_llama", "r": 4, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "value_head": "pytorch_model.bin"}
m = AutoModelForCausalLMWithValueHead.from_pretrained("hf_llama")
m.save_pretrained("trl_ppo_full")
facts["trl_ppo_full"] = {"kind": "model", "model_type": "llama", "base": "hf_llama", "value_head": "model.safetensors"}
json.dump(facts, open("value_head.json", "w"))
