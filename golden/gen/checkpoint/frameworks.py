"""Healthy folders of trainers and frameworks for the bench of folders.py: TRL, verl, bitsandbytes, accelerate, FSDP, DCP, and PEFT's other methods.

verl's manager of checkpoints is called on one rank of FSDP over gloo. Where a library is not installed its folders are left out, with a line.
"""
import copy
import importlib.abc
import importlib.machinery
import json
import os
import shutil
import sys
from unittest.mock import MagicMock

H, VOCAB = 16, 96


def healthy(bench):
    for make in (trl, bitsandbytes, adalora, methods, accelerate, sharded, trainer_fsdp, verl):
        try:
            make(bench)
        except Exception as e:
            print("left out", make.__name__, repr(e)[:300])


def each(kind, table):
    for tag, make in table.items():
        try:
            make()
        except Exception as e:
            print("left out", kind, tag, repr(e)[:300])


def lora(**over):
    from peft import LoraConfig
    return LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **over})


def text(n=16):
    return " ".join(f"w{3 + (7 * i + n) % (VOCAB - 4)}" for i in range(8))


def trl(bench):
    """Checkpoints 2 and 4 and the last save of every trainer of TRL, with an adapter and without."""
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification
    from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer
    prompts = [text(i) for i in range(16)]
    answers = [text(i + 3) for i in range(16)]
    worse = [text(i + 5) for i in range(16)]
    sets = {"sft": {"text": prompts}, "dpo": {"prompt": prompts, "chosen": answers, "rejected": worse}, "grpo": {"prompt": prompts}, "rloo": {"prompt": prompts},
            "reward": {"chosen": answers, "rejected": worse}, "kto": {"prompt": prompts, "completion": answers, "label": [i % 2 == 0 for i in range(16)]}}
    makers = {"sft": (SFTConfig, SFTTrainer, {"max_length": 16}), "dpo": (DPOConfig, DPOTrainer, {"max_length": 24}), "grpo": (GRPOConfig, GRPOTrainer, {"num_generations": 2, "max_completion_length": 6}),
              "rloo": (RLOOConfig, RLOOTrainer, {"num_generations": 2, "max_completion_length": 6}), "reward": (RewardConfig, RewardTrainer, {"max_length": 16}), "kto": (KTOConfig, KTOTrainer, {"max_length": 24})}

    def train(name, kind, adapter, **args):
        base = f"base_{kind}"
        config, cls, own = makers[name]
        tag = f"trl_{name}_{kind}" + ("_lora" if adapter else "_full") + "".join(f"_{k}" for k in args)
        a = config(output_dir=bench.at(f"run_{tag}"), max_steps=4, save_steps=2, logging_steps=1, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[], use_cpu=True, bf16=False, disable_tqdm=True,
                   gradient_checkpointing=False, save_strategy="steps", **own, **args)
        more = {}
        if name in ("grpo", "rloo"):
            more["reward_funcs"] = lambda completions, **_: [float(i % 2) for i, _ in enumerate(completions)]
        if name == "reward":
            m = AutoModelForSequenceClassification.from_pretrained(bench.at(base), num_labels=1)
        else:
            m = bench.load(base)
        peft = lora(task_type="SEQ_CLS" if name == "reward" else "CAUSAL_LM", modules_to_save=["score"] if name == "reward" else None) if adapter else None
        t = cls(model=m, args=a, train_dataset=Dataset.from_dict(sets[name]), processing_class=bench.tokenizer(), peft_config=peft, **more)
        t.train()
        t.save_model(bench.at(f"final_{tag}"))
        one, two = f"run_{tag}/checkpoint-2", f"run_{tag}/checkpoint-4"
        role = base if adapter else None
        bench.cases.append({"name": one, "dir": one, "base": role})
        bench.cases.append({"name": two, "dir": two, "base": role, "against": one})
        bench.cases.append({"name": f"final_{tag}", "dir": f"final_{tag}", "base": role})

    each("trl", {f"{n} {k} {a} {o}": (lambda n=n, k=k, a=a, o=o: train(n, k, a, **o)) for n in makers for k, a, o in
                 (("llama", True, {}), ("qwen2", False, {}), ("qwen3", True, {"lr_scheduler_type": "cosine"}))})


def bitsandbytes(bench):
    """Bases in eight and four bits, and adapters on them."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    four = {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.float32}
    kinds = {"int8": {"load_in_8bit": True}, "nf4": {**four, "bnb_4bit_quant_type": "nf4"}, "fp4": {**four, "bnb_4bit_quant_type": "fp4"},
             "double": {**four, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, "skip": {"load_in_8bit": True, "llm_int8_skip_modules": ["lm_head", "down_proj"]}}

    for kind in ("llama", "qwen2", "mistral"):  # products of four bits want widths that 32 divides
        bench.put(f"base_{kind}_wide", bench.with_tokenizer(bench.fresh(kind, hidden_size=64, intermediate_size=128)))

    def make(kind, tag):
        kind += "_wide"

        def load():
            return AutoModelForCausalLM.from_pretrained(bench.at(f"base_{kind}"), quantization_config=BitsAndBytesConfig(**kinds[tag]), device_map={"": "cpu"}, dtype=torch.float32)
        m = load()
        bench.put(f"quant_{kind}_{tag}", lambda p: (m.save_pretrained(p), bench.tokenizer().save_pretrained(p)))
        a = get_peft_model(prepare_model_for_kbit_training(load(), use_gradient_checkpointing=False), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
        bench.steps(a, 2)
        name = bench.put(f"qlora_{kind}_{tag}", a.save_pretrained, base=f"base_{kind}")
        bench.cases.append({"name": f"qlora_{kind}_{tag} on codes", "dir": name, "base": f"quant_{kind}_{tag}"})

    each("bitsandbytes", {f"{k} {t}": (lambda k=k, t=t: make(k, t)) for k in ("llama", "qwen2", "mistral") for t in kinds})


def adalora(bench):
    import torch
    from peft import AdaLoraConfig, get_peft_model

    def make(kind, tag, **over):
        torch.manual_seed(21)
        m = get_peft_model(bench.load(f"base_{kind}"), AdaLoraConfig(**{"init_r": 6, "target_r": 4, "tinit": 1, "tfinal": 2, "deltaT": 1, "total_step": 8, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"], "task_type": "CAUSAL_LM", **over}))
        opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2)
        for i in range(over.pop("steps", 6)):
            x = torch.randint(3, VOCAB, (4, 16))
            m(input_ids=x, labels=x).loss.backward()
            opt.step()
            m.base_model.update_and_allocate(i)
            opt.zero_grad()
        bench.put(f"adalora_{kind}_{tag}", m.save_pretrained, base=f"base_{kind}")

    each("adalora", {f"{k} {t}": (lambda k=k, t=t, o=o: make(k, t, **o)) for k in ("llama", "qwen2", "gemma") for t, o in {"plain": {}, "late": {"tinit": 5}, "save": {"modules_to_save": ["lm_head"]}}.items()})


def methods(bench):
    """One adapter of every method of PEFT that a language model takes, most of which are no LoRA."""
    import peft
    import torch
    task = {"task_type": "CAUSAL_LM"}
    over = {**task, "target_modules": ["q_proj", "v_proj"]}
    table = {
        "ia3": lambda: peft.IA3Config(**task, target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]), "loha": lambda: peft.LoHaConfig(**over, r=4), "lokr": lambda: peft.LoKrConfig(**over, r=4),
        "oft": lambda: peft.OFTConfig(**over, r=0, oft_block_size=4), "boft": lambda: peft.BOFTConfig(**over, boft_block_size=4), "vera": lambda: peft.VeraConfig(**{**over, "target_modules": ["q_proj"]}, r=4), "hra": lambda: peft.HRAConfig(**over, r=4),
        "fourierft": lambda: peft.FourierFTConfig(**over, n_frequency=8), "miss": lambda: peft.MissConfig(**over, r=4), "randlora": lambda: peft.RandLoraConfig(**{**over, "target_modules": ["q_proj"]}, r=4),
        "vblora": lambda: peft.VBLoRAConfig(**over, r=2, num_vectors=8, vector_length=8), "ln": lambda: peft.LNTuningConfig(**task, target_modules=["input_layernorm"]), "shira": lambda: peft.ShiraConfig(**over, r=2),
        "prefix": lambda: peft.PrefixTuningConfig(**task, num_virtual_tokens=4), "prompt": lambda: peft.PromptTuningConfig(**task, num_virtual_tokens=4), "ptuning": lambda: peft.PromptEncoderConfig(**task, num_virtual_tokens=4, encoder_hidden_size=16),
        "tokens": lambda: peft.TrainableTokensConfig(**task, token_indices=[4, 8], target_modules=["embed_tokens"]), "road": lambda: peft.RoadConfig(**over, group_size=4), "c3a": lambda: peft.C3AConfig(**over, block_size=4),
        "pissa": lambda: lora(init_lora_weights="pissa"), "olora": lambda: lora(init_lora_weights="olora"), "orthogonal": lambda: lora(init_lora_weights="orthogonal"), "lorabias": lambda: lora(lora_bias=True), "dropout": lambda: lora(lora_dropout=0.1),
        "megatron": lambda: lora(exclude_modules=["v_proj"]), "pattern": lambda: lora(layers_to_transform=[1], layers_pattern="layers"), "zerodropout": lambda: lora(r=1), "full_rank": lambda: lora(r=16),
    }

    def make(tag, config):
        torch.manual_seed(31)
        m = peft.get_peft_model(bench.load("base_llama"), config())
        bench.steps(m, 2)
        bench.put(f"method_{tag}", m.save_pretrained, base="base_llama")

    each("methods", {t: (lambda t=t, c=c: make(t, c)) for t, c in table.items()})


def accelerate(bench):
    import torch
    from accelerate import Accelerator

    def state(kind, tag, safe=True, extra=False, adapter=False):
        import peft
        m = bench.load(f"base_{kind}")
        if adapter:
            m = peft.get_peft_model(m, lora())
        a = Accelerator(cpu=True)
        opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1.0)
        data = torch.utils.data.DataLoader(torch.randint(3, VOCAB, (8, 16)), batch_size=2)
        model, opt, data, sched = a.prepare(m, opt, data, sched)
        if extra:
            a.register_for_checkpointing(copy.copy(sched))
        for x in data:
            loss = model(input_ids=x, labels=x).loss
            a.backward(loss)
            opt.step()
            sched.step()
            opt.zero_grad()
        bench.put(f"accelerate_state_{kind}_{tag}", lambda p: a.save_state(p, safe_serialization=safe))
        if adapter:  # save_model of a PeftModel is a folder that no class loads
            return
        bench.put(f"accelerate_model_{kind}_{tag}", lambda p: (a.save_model(model, p, safe_serialization=safe), a.unwrap_model(model).config.save_pretrained(p)))

    each("accelerate", {f"{k} {t}": (lambda k=k, t=t, o=o: state(k, t, **o)) for k in ("llama", "qwen3") for t, o in {"safe": {}, "bin": {"safe": False}, "custom": {"extra": True}, "lora": {"adapter": True}}.items()})


def gloo():
    import torch.distributed as dist
    if not dist.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        dist.init_process_group("gloo")


def sharded(bench):
    """FSDP2 on one rank, its state dicts through torch.distributed.checkpoint, and DCP's own writer of safetensors."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    gloo()
    mesh = init_device_mesh("cpu", (1,))

    def make(kind, tag):
        m = bench.load(f"base_{kind}")
        for layer in m.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(m, mesh=mesh)
        opt = bench.steps(m, 2)
        if tag == "full":
            whole = get_model_state_dict(m, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
            bench.put(f"fsdp_full_{kind}", lambda p: (bench.load(f"base_{kind}").save_pretrained(p, state_dict=whole), bench.tokenizer().save_pretrained(p)))
        elif tag == "model":
            bench.put(f"fsdp_dcp_{kind}", lambda p: dcp.save({"model": get_model_state_dict(m)}, checkpoint_id=p))
        elif tag == "both":
            bench.put(f"fsdp_dcp_optimizer_{kind}", lambda p: dcp.save({"model": get_model_state_dict(m), "optim": get_optimizer_state_dict(m, opt)}, checkpoint_id=p))
        elif tag == "beside":
            def save(p):
                dcp.save({"model": get_model_state_dict(m)}, checkpoint_id=os.path.join(p, "pytorch_model_fsdp_0"))
                dcp.save({"optimizer": get_optimizer_state_dict(m, opt)}, checkpoint_id=os.path.join(p, "optimizer_0"))
                m.config.save_pretrained(p)
                bench.tokenizer().save_pretrained(p)
            bench.put(f"fsdp_beside_{kind}", save)
        else:
            from torch.distributed.checkpoint import HuggingFaceStorageWriter
            whole = get_model_state_dict(m, options=StateDictOptions(full_state_dict=True))

            def save(p):
                dcp.save(whole, storage_writer=HuggingFaceStorageWriter(path=p))
                m.config.save_pretrained(p)
            bench.put(f"dcp_hf_{kind}", save)

    each("sharded", {f"{k} {t}": (lambda k=k, t=t: make(k, t)) for k in ("llama", "qwen3", "mistral") for t in ("full", "model", "both", "beside", "hf")})


def trainer_fsdp(bench):
    """Trainer's own checkpoints of options that change the files: no safetensors, the optimiser left out, the best model kept, callbacks that save."""
    each("trainer", {t: (lambda t=t, a=a: bench.trainer("base_llama", f"llama_{t}", **a)) for t, a in {
        "only_model": {"save_only_model": True}, "limit": {"save_total_limit": 3}, "sgd": {"optim": "sgd"}, "rmsprop": {"optim": "rmsprop"}, "warmup": {"warmup_steps": 2}, "clip": {"max_grad_norm": 0.1},
        "accumulate": {"gradient_accumulation_steps": 2}, "nan_log": {"logging_nan_inf_filter": False}, "polynomial": {"lr_scheduler_type": "polynomial"}, "adamw8bit": {"optim": "adamw_bnb_8bit"},
        "bf16": {"bf16": True}, "checkpointing": {"gradient_checkpointing": True}, "lion": {"optim": "lion_32bit"}, "constant_warmup": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},
        "stable_decay": {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 1, "lr_scheduler_kwargs": {"num_decay_steps": 2, "num_stable_steps": 2}}, "restarts": {"lr_scheduler_type": "cosine_with_restarts"}}.items()})


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes imports of packages that need a GPU or a cluster succeed; nothing of them is called."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("deepspeed", "flash_attn", "vllm", "ray", "codetiming", "pylatexenc", "math_verify"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        m = MagicMock(name=spec.name)
        m.__path__, m.__spec__ = [], spec
        return m

    def exec_module(self, module):
        pass


def verl(bench):
    """An actor of one rank as verl's manager of checkpoints saves it, and what its merger makes of that."""
    import torch
    import transformers
    if not hasattr(transformers, "AutoModelForVision2Seq"):  # verl 0.9.1 imports a class that transformers 5 has dropped
        transformers.AutoModelForVision2Seq = transformers.AutoModelForImageTextToText
    sys.meta_path.append(StandIn())
    from omegaconf import DictConfig
    from torch.distributed.fsdp import FullyShardedDataParallel
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
    gloo()

    def make(kind, adapter):
        m = bench.load(f"base_{kind}")
        tag = f"verl_{kind}" + ("_lora" if adapter else "")
        if adapter:
            import peft
            m = peft.get_peft_model(m, lora())
        w = FullyShardedDataParallel(m, use_orig_params=True, device_id=torch.device("cpu"))
        opt = bench.steps(w, 2)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1.0)
        manager = FSDPCheckpointManager(model=w, optimizer=opt, lr_scheduler=sched, processing_class=bench.tokenizer(), checkpoint_config=DictConfig({"load_contents": ["model", "optimizer", "extra"], "save_contents": ["model", "optimizer", "extra"]}))
        step = bench.at(f"{tag}/global_step_2/actor")
        os.makedirs(step)
        manager.save_checkpoint(local_path=step, hdfs_path=None, global_step=2, max_ckpt_to_keep=None)
        with open(bench.at(f"{tag}/latest_checkpointed_iteration.txt"), "w") as f:
            f.write("2")
        bench.cases.append({"name": tag, "dir": tag})
        bench.cases.append({"name": f"{tag} actor", "dir": f"{tag}/global_step_2/actor"})
        merged = bench.at(f"{tag}_merged")
        FSDPModelMerger(ModelMergerConfig(operation="merge", backend="fsdp", target_dir=merged, local_dir=step, hf_model_config_path=os.path.join(step, "huggingface"))).merge_and_save()
        bench.cases.append({"name": f"{tag}_merged", "dir": f"{tag}_merged"})
        if adapter and os.path.exists(os.path.join(merged, "lora_adapter")):
            bench.cases.append({"name": f"{tag}_adapter", "dir": f"{tag}_merged/lora_adapter", "base": f"base_{kind}"})

    each("verl", {f"{k} {a}": (lambda k=k, a=a: make(k, a)) for k in ("llama", "qwen2", "qwen3") for a in (False, True)})
