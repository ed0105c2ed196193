"""Dumps of TRL 1.16.0's GRPOTrainer on a tiny random model (CPU): healthy runs, and runs with one bug patched into TRL.

The tensors are taken inside GRPOTrainer._compute_loss, after its last change of `loss`, by a statement added there; `dlogp` is
the gradient of that very loss. Everything else is the released code. See patch.py for how bugs are planted.
"""
import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
os.environ.update(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="1", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  TRANSFORMERS_VERBOSITY="error", HF_DATASETS_DISABLE_PROGRESS_BARS="1", TRL_EXPERIMENTAL_SILENCE="1")
import accelerate, datasets, numpy, peft, torch, transformers, trl
import trl.trainer.grpo_trainer as G
from trl import GRPOConfig, GRPOTrainer

import tiny, writer
from patch import Patch, compile_method
from trl_grpo_cases import CLEAN, FAULTS

torch.set_num_threads(1)
datasets.disable_progress_bars()
transformers.utils.logging.disable_progress_bar()
PROFILE = "trl-grpo@1.16"
LOSS_SITE = "        # Log the metrics\n        def masked_seq_mean(x):"
SCORE_SITE = "        # Slice to keep only the local part of the data\n        process_slice = slice("

NATIVE = ("loss_type num_generations beta epsilon epsilon_high temperature top_p top_k min_p scale_rewards gradient_accumulation_steps "
          "num_iterations max_completion_length importance_sampling_level mask_truncated_completions per_device_train_batch_size "
          "steps_per_generation generation_batch_size multi_objective_aggregation max_grad_norm learning_rate delta "
          "use_bias_correction_kl top_entropy_quantile off_policy_mask_threshold entropy_coef seed").split()


def reward_digits(completions, **_):
    return [sum(c.isdigit() for c in s) / max(len(s), 1) for s in completions]


def reward_short(completion_ids, **_):
    return [2.0 ** (-len(c) / 12) for c in completion_ids]


def reward_even(completion_ids, **_):
    return [float(len(c) % 2 == 0) for c in completion_ids]


def reward_offset(completion_ids, **_):
    return [4096.0 + (len(c) % 5) / 64 for c in completion_ids]


CAST = ("logp_new", "logp_old", "logp_gen", "logp_ref", "kl", "entropy", "token_loss", "dlogp")  # what a frugal hook casts down
REWARDS = {"digits": reward_digits, "short": reward_short, "even": reward_even, "offset": reward_offset}


def trainer_class(patches):
    """GRPOTrainer with the dump hook and the bug's replacements; second, where the bug went."""
    where = []
    methods = {}
    hook = {
        "_compute_loss": (LOSS_SITE, "        self.dump_loss(locals())\n"),
        "_generate_and_score_completions": (SCORE_SITE, "        self.dump_scores(locals())\n"),
    }
    for name in sorted(set(hook) | {p.method for p in patches if hasattr(GRPOTrainer, p.method)}):
        mine = [p for p in patches if p.method == name]
        if name in hook:
            site, call = hook[name]
            fn, w = compile_method(GRPOTrainer, name, mine + [Patch(name, site, call + site)])
            w = w[:-1]
        else:
            fn, w = compile_method(GRPOTrainer, name, mine)
        where += w
        methods[name] = fn
    return type("DumpedGRPOTrainer", (Hook, GRPOTrainer), {"released": methods, **{k: f for k, f in methods.items() if k not in vars(Hook)}}), where


class Hook:
    """The dump hook: keeps what the loss used and writes one file per micro-batch when the step's scalars are known."""

    released = {}

    def arm(self, folder, case, want_logits):
        self.folder, self.case, self.want_logits = folder, case, want_logits
        self.pending, self.generation, self.gen_logps = [], 0, None

    # the patched methods, under their own names
    def _compute_loss(self, model, inputs):
        return self.released["_compute_loss"](self, model, inputs)

    def _generate_and_score_completions(self, inputs):
        out = self.released["_generate_and_score_completions"](self, inputs)
        n, first = len(inputs), self.accelerator.process_index * len(inputs)
        rows = torch.arange(first, first + n)
        world = n * self.accelerator.num_processes
        out["group_id"] = rows // self.num_generations + self.generation * (world // self.num_generations)
        out["scores"] = self.scores[first:first + n]
        out["rewards_per_func"] = self.rewards_per_func[first:first + n]
        if self.gen_logps is not None:
            T = out["completion_ids"].shape[1]
            out["logp_gen"] = torch.stack([torch.cat([g[:T], torch.zeros(max(0, T - len(g)))]) for g in self.gen_logps]) \
                * out["completion_mask"]
        self.generation += 1
        return out

    def _prepare_inputs(self, generation_batch):
        f = self.released.get("_prepare_inputs")
        return f(self, generation_batch) if f else super()._prepare_inputs(generation_batch)

    def _generate_single_turn(self, *args, **kw):
        """The released generation, with the sampler's own (processed) scores kept beside the tokens."""
        model = self.accelerator.unwrap_model(self.model_wrapped)
        plain, kept = model.generate, {}

        def generate(*a, **k):
            out = plain(*a, **k, return_dict_in_generate=True, output_scores=True)
            kept["out"], kept["width"] = out, k["input_ids"].shape[1]
            return out.sequences
        model.generate = generate
        try:
            ids, logprobs = super()._generate_single_turn(*args, **kw)
        finally:
            del model.generate
        lp = torch.stack([s.float().log_softmax(-1) for s in kept["out"].scores], 1)
        tok = kept["out"].sequences[:, kept["width"]:]
        lp = lp.gather(-1, tok.unsqueeze(-1)).squeeze(-1)
        self.gen_logps = [lp[i, :len(c)] for i, c in enumerate(ids)]
        return ids, logprobs

    def dump_scores(self, v):
        """The rewards that the advantages were made of; normalize_then_sum has none, there it is the weighted sum that TRL logs."""
        f = v["rewards_per_func"]
        self.rewards_per_func = f.clone()
        self.scores = v["rewards"].clone() if self.multi_objective_aggregation == "sum_then_normalize" else f @ self.reward_weights

    def dump_loss(self, v):
        inp, loss, lp = v["inputs"], v["loss"], v["per_token_logps"]
        (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True, allow_unused=True)
        dlogp = torch.zeros_like(lp) if dlogp is None else dlogp
        prompt_mask = inp["prompt_mask"]
        mask = inp["completion_mask"]
        if "tool_mask" in inp:
            mask = mask * inp["tool_mask"]
        t = {
            "input_ids": v["input_ids"], "attention_mask": v["attention_mask"], "prompt_len": prompt_mask.sum(1),
            "response_ids": inp["completion_ids"], "response_mask": mask,
            "logp_new": lp, "logp_old": v["old_per_token_logps"], "logp_gen": inp.get("logp_gen"),
            "logp_ref": inp.get("ref_per_token_logps") if self.beta != 0 else None,
            "kl": v.get("per_token_kl"), "entropy": v["entropies"], "advantages": inp["advantages"], "scores": inp["scores"],
            "rewards_per_func": inp["rewards_per_func"], "group_id": inp["group_id"],
            "token_loss": v["per_token_loss"].expand_as(lp), "loss": loss, "dlogp": dlogp,
        }
        if self.want_logits:
            with torch.no_grad():
                z = self.accelerator.unwrap_model(self.model)(input_ids=v["input_ids"], attention_mask=v["attention_mask"]).logits
            t["logits"] = z[:, -lp.shape[1] - 1:-1]
        self.pending.append((t, float(inp["num_items_in_batch"])))

    def log(self, logs, start_time=None):
        super().log(logs, start_time)
        if not self.pending:
            return
        drop = {"step_time", "epoch"}
        scalars = {k: float(x) for k, x in logs.items() if isinstance(x, (int, float)) and k not in drop}
        a, acc = self.args, self.accelerator
        opt = {k: getattr(a, k) for k in NATIVE}
        opt["epsilon_high"] = self.epsilon_high
        opt.update(reward_weights=[float(w) for w in self.reward_weights], reward_funcs=list(self.reward_func_names), advantage_eps=1e-4,
                   padding_side_prompt="left", eos_token_id=list(self.eos_token_ids), pad_token_id=self._tokenizer.pad_token_id,
                   dtype=str(self.model.dtype).removeprefix("torch."))
        if a.loss_type == "sapo":
            opt.update(sapo_temperature_pos=a.sapo_temperature_pos, sapo_temperature_neg=a.sapo_temperature_neg)
        for mb, (t, items) in enumerate(self.pending):
            lossy = [k for k in CAST if k in t and t[k] is not None] if self.case.cast else []
            t.update({k: t[k].bfloat16() for k in lossy})
            meta = {"framework": "trl", "version": trl.__version__, "algorithm": "grpo", "align": "response", "step": self.state.global_step,
                    "rank": acc.process_index, "world_size": acc.num_processes, "micro_batch": mb, "micro_batches": len(self.pending),
                    "options": dict(opt, num_items_in_batch=items), "scalars": scalars, "scalars_scope": "optimizer_step",
                    "token_loss_includes_kl": True, "masked_fill": 0.0}
            # a bfloat16 model still hands out float32 log-probs: the fused head of TRL 1.16 ends in float32
            if not self.case.bf16:
                meta["compute_dtype"] = "float32"
            if lossy:
                meta["lossy"] = lossy
            rank = f"_rank_{acc.process_index}" if acc.num_processes > 1 else ""
            writer.write(os.path.join(self.folder, f"step_{self.state.global_step:04d}{rank}_mb_{mb}.safetensors"), t, meta)
        self.pending.clear()


def train(case, folder):
    """Run one case and write its dump; returns where its bug went."""
    cls, where = trainer_class(case.patches)
    with tempfile.TemporaryDirectory() as tmp:
        dtype = torch.bfloat16 if case.bf16 else torch.float32
        path = tiny.save(os.path.join(tmp, "model"), case.seed, case.pad_is_eos, dtype)
        cfg = dict(output_dir=os.path.join(tmp, "out"), use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
                   disable_tqdm=True, seed=case.seed, max_steps=case.steps, per_device_train_batch_size=4, gradient_accumulation_steps=2,
                   num_generations=4, max_completion_length=20, learning_rate=4e-4, lr_scheduler_type="constant", temperature=0.9,
                   loss_type="grpo", beta=0.04, epsilon=0.2, epsilon_high=0.28, num_iterations=2, gradient_checkpointing=False,
                   model_init_kwargs={"dtype": dtype}, ddp_find_unused_parameters=False, dataloader_pin_memory=False)
        cfg.update(case.config)
        args = GRPOConfig(**cfg)
        if case.temperature_dropped:
            plain = G.add_fused_lm_head
            G.add_fused_lm_head = lambda model, temperature=1.0, **k: plain(model, **k)
            where = where + [{"file": "grpo_trainer.py", "method": "GRPOTrainer.__init__", "line": 1068,
                              "from": "add_fused_lm_head(temperature=self.temperature)", "to": "add_fused_lm_head(temperature=1.0)"}]
        data = datasets.Dataset.from_dict({"prompt": tiny.PROMPTS})
        extra = {}
        if case.lora:
            extra["peft_config"] = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        if case.tools:
            extra["rollout_func"] = tool_rollout
        t = cls(model=path, reward_funcs=[REWARDS[r] for r in case.rewards], args=args, train_dataset=data,
                processing_class=tiny.tokenizer(case.pad_is_eos), **extra)
        t.arm(folder, case, case.logits)
        t.remove_callback(transformers.PrinterCallback)
        t.train()
    if case.temperature_dropped:
        G.add_fused_lm_head = plain
    return where


def tool_rollout(prompts, trainer):
    """Two turns: after one of the tokens `=(),` five tokens of a tool's answer, which the policy did not write, then it goes on."""
    budget, calls, answer = trainer.args.max_completion_length, {13, 14, 15, 17}, [14, 5, 3, 7, 12]
    ids, _, _ = trainer._tokenize_prompts(prompts)
    first, _ = trainer._generate_single_turn(ids, None, {}, trainer.num_generations)
    out, mask, gen, again = [], [], [], []
    for i, (c, lp) in enumerate(zip(first, trainer.gen_logps)):
        call = next((k + 1 for k, x in enumerate(c) if x in calls and k + 1 + len(answer) < budget), None)
        tool = answer if call else []
        c, lp = c[:call], lp[:call]
        out.append(c + tool); mask.append([1] * len(c) + [0] * len(tool)); gen.append(torch.cat([lp, torch.zeros(len(tool))]))
        again += [i] if tool else []
    if again:
        second, _ = trainer._generate_single_turn([ids[i] + out[i] for i in again], None, {}, 1)
        for i, c, lp in zip(again, second, trainer.gen_logps):
            c = c[:budget - len(out[i])]
            out[i] += c; mask[i] += [1] * len(c); gen[i] = torch.cat([gen[i], lp[:len(c)]])
    trainer.gen_logps = gen
    return {"prompt_ids": ids, "completion_ids": out, "logprobs": None, "env_mask": mask}


def launch(name, case, folder):
    """Run one case in a process of its own, or in one per rank."""
    if case.ranks > 1:
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(case.ranks), "--master_port", "29611",
                        os.path.abspath(__file__), "--worker", name, "--folder", folder], check=True)
        return []
    ctx = multiprocessing.get_context("fork")
    here, there = ctx.Pipe()
    p = ctx.Process(target=lambda: there.send(train(case, folder)))
    p.start()
    there.close()
    p.join()
    if p.exitcode:
        sys.exit(f"{name} failed")
    return here.recv()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--only", default="")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--worker", default="", help=argparse.SUPPRESS)
    ap.add_argument("--folder", default="", help=argparse.SUPPRESS)
    a = ap.parse_args()
    cases = {c.folder: c for c in CLEAN + FAULTS}
    if a.worker:
        train(cases[a.worker], a.folder)
        return
    import check
    only = set(filter(None, a.only.split(",")))
    for name, case in cases.items():
        if only and not {name, os.path.basename(name)} & only:
            continue
        key = "trl-grpo/" + name
        if a.check:
            seen = check.trl_grpo(os.path.join(writer.ROOT, key))
            check.agree(key, case, seen)
            continue
        folder = writer.fresh(key)
        where = launch(name, case, folder)
        seen = check.trl_grpo(folder)
        entry = case.expectation(PROFILE, where, seen)
        writer.expect({key: entry})
        check.agree(key, case, seen)
    if not a.check:
        writer.manifest({"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__, "trl": trl.__version__,
                         "peft": peft.__version__, "accelerate": accelerate.__version__, "datasets": datasets.__version__,
                         "numpy": numpy.__version__})
    sys.exit(1 if check.agree.failed else 0)


if __name__ == "__main__":
    main()
