"""Dumps of TRL 1.12.0's PPOTrainer (the last release that ships it) on a tiny random model (CPU), clean and with a bug patched in.

The tensors are taken inside PPOTrainer.train by statements added there: after the whitening of the rollout, before the backward
pass, and after the metrics of a micro-batch; `dlogp` and `dvalues` are gradients of that very loss.
"""
import argparse
import multiprocessing
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass, field

warnings.simplefilter("ignore")
os.environ.update(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="1", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  TRANSFORMERS_VERBOSITY="error", TRL_EXPERIMENTAL_SILENCE="1")
import datasets, numpy, torch, transformers, trl
from transformers import Qwen2ForCausalLM, Qwen2ForSequenceClassification
from trl.experimental.ppo import PPOConfig, PPOTrainer

import check, check_ppo, tiny, writer
from patch import Patch, compile_method

torch.set_num_threads(1)
datasets.disable_progress_bars()
PROFILE = "trl-ppo@1.12"
ROLLOUT = "                advantages = torch.masked_fill(advantages, padding_mask, 0)\n"
LOSS = "                            accelerator.backward(loss)\n"
METRIC = "entropy_stats[ppo_epoch_idx, minibatch_idx, gradient_accumulation_idx] = entropy.mean()\n"
HOOKS = [
    Patch("train", ROLLOUT, ROLLOUT + "                self.dump_rollout(locals())\n"),
    Patch("train", LOSS, "                            self.dump_loss(locals())\n" + LOSS),
    Patch("train", METRIC, METRIC + "                                self.dump_metrics(locals())\n"),
]


@dataclass
class Case:
    folder: str
    what: str
    seed: int
    config: dict = field(default_factory=dict)
    patches: list = field(default_factory=list)
    faults: list = field(default_factory=list)
    inconsistent: list = field(default_factory=list)
    scalars: list = field(default_factory=list)
    conclude: str = "nothing inconsistent at float32 tolerance"
    option: str = ""
    pad_is_eos: bool = False


WHITEN = "advantages = masked_whiten(advantages, ~padding_mask)"
RETURNS = "returns = advantages + values"
CASES = [
    Case("clean/ppo", "one mini-batch, k1, score at EOS+1, values one token beyond the mask", 501),
    Case("clean/ppo_k3_accumulated", "k3 estimator, two micro-batches per step", 502, dict(kl_estimator="k3", gradient_accumulation_steps=2, per_device_train_batch_size=4)),
    Case("clean/ppo_mini_batches", "two mini-batches: a step holds half of the rows that were whitened together", 503, dict(num_mini_batches=2)),
    Case("clean/ppo_gamma", "γ .9, λ .8, rewards whitened", 504, dict(gamma=0.9, lam=0.8, whiten_rewards=True)),
    Case("faulty/score_last_column", "the score is added in the last column, not at EOS+1", 511, dict(gamma=0.98),
         [Patch("train", "actual_end = torch.where(sequence_lengths_p1 < rewards.size(1), sequence_lengths_p1, sequence_lengths)",
                "actual_end = torch.full_like(sequence_lengths, rewards.size(1) - 1)")],
         ["P170", "P190"], ["token_rewards"], [], "the score stands in the last column", "score.index=last_column"),
    Case("faulty/returns_after_whitening", "returns are computed from the whitened advantages", 512, {},
         [Patch("train", RETURNS, "pass"), Patch("train", WHITEN, WHITEN + "\n                returns = advantages + values")],
         ["C19"], ["returns"], [], "returns − values is whitened", "returns.before_whiten=false"),
    Case("faulty/whitening_counts_padding", "advantages whitened over all cells, padding included", 513, {},
         [Patch("train", WHITEN, "advantages = masked_whiten(advantages, torch.ones_like(padding_mask))")],
         ["C4"], ["advantages"], [], "mean and std of the advantages are those of all cells", "whiten.mask=none"),
    Case("faulty/value_loss_no_half", "value loss without the factor ½", 514, dict(vf_coef=0.2),
         [Patch("train", "vf_loss = 0.5 * masked_mean(", "vf_loss = 1.0 * masked_mean(")],
         ["P058"], ["value_loss", "dvalues"], ["loss/value_avg"], "value loss is twice as large", "value.factor=1"),
    Case("faulty/value_clip_min", "the smaller of the clipped and the plain squared error is taken", 515, dict(cliprange_value=0.02),
         [Patch("train", "vf_loss_max = torch.max(vf_losses1, vf_losses2)", "vf_loss_max = torch.min(vf_losses1, vf_losses2)")],
         ["V18"], ["value_loss", "dvalues"], ["loss/value_avg"], "value loss takes the optimistic bound"),
    Case("faulty/pad_is_eos", "pad = eos: the first EOS counts as padding and is masked", 516, {}, [],
         ["P054", "H13f"], ["response_mask"], [], "no row that ended has its EOS inside the mask", pad_is_eos=True),
]


class Hook:
    def dump_rollout(self, v):
        names = "query_responses responses context_length padding_mask padding_mask_p1 ref_logprobs scores rewards kl"
        self.rollout = {k: v[k].clone() if torch.is_tensor(v[k]) else v[k] for k in names.split()}
        self.queries = v["queries"].clone()

    def dump_loss(self, v):
        r, i = self.rollout, v["micro_batch_inds"]
        n = self.args.gradient_accumulation_steps
        dlogp, dvalues = torch.autograd.grad(v["loss"], [v["new_logprobs"], v["vpred"]], retain_graph=True)
        pad = self.processing_class.pad_token_id
        prompt = self.queries[i] != pad
        # accelerate divides what it back-propagates by the accumulation steps
        self.t = {"input_ids": r["query_responses"][i], "attention_mask": torch.cat([prompt, ~r["padding_mask"][i]], 1), "prompt_len": prompt.sum(1),
                  "response_ids": r["responses"][i], "response_mask": ~r["padding_mask"][i], "logp_new": v["new_logprobs"], "logp_old": v["mb_logprobs"],
                  "logp_ref": r["ref_logprobs"][i], "kl": r["kl"][i], "scores": r["scores"][i], "token_rewards": r["rewards"][i],
                  "values": v["mb_values"], "values_new": v["vpred"], "returns": v["mb_return"], "advantages": v["mb_advantage"],
                  "token_loss": v["pg_loss_max"], "pg_loss": v["pg_loss"] / n, "value_loss": v["vf_loss"] / n, "loss": v["loss"] / n,
                  "dlogp": dlogp / n, "dvalues": dvalues / n}

    def dump_metrics(self, v):
        micro = v["gradient_accumulation_idx"]
        if micro == 0:
            self.step += 1
        self.t["entropy"] = v["entropy"]
        a = self.args
        scalars = {"policy/approxkl_avg": v["approxkl"], "policy/clipfrac_avg": v["pg_clipfrac"], "loss/policy_avg": v["pg_loss"],
                   "loss/value_avg": v["vf_loss"], "val/clipfrac_avg": v["vf_clipfrac"], "policy/entropy_avg": v["entropy"].mean(), "val/ratio": v["ratio"].mean()}
        names = ("kl_coef kl_estimator cliprange cliprange_value vf_coef gamma lam whiten_rewards missing_eos_penalty temperature num_ppo_epochs "
                 "response_length num_mini_batches gradient_accumulation_steps per_device_train_batch_size learning_rate seed").split()
        opt = {k: getattr(a, k) for k in names}
        opt.update({"agg.div_ga": True, "eos_token_id": [tiny.EOS], "pad_token_id": self.processing_class.pad_token_id})
        meta = {"framework": "trl", "version": trl.__version__, "algorithm": "ppo", "align": "response", "step": self.step, "rank": 0, "world_size": 1,
                "micro_batch": micro, "micro_batches": a.gradient_accumulation_steps, "options": opt,
                "scalars": {k: float(x) for k, x in scalars.items()}, "scalars_scope": "micro_batch", "token_loss_includes_kl": False,
                "masked_fill": 1.0, "compute_dtype": "float32"}
        writer.write(os.path.join(self.folder, f"step_{self.step:04d}_mb_{micro}.safetensors"), self.t, meta)


def never_pad(model, pad_is_eos):
    """A pad that is no EOS is never sampled."""
    if not pad_is_eos:
        model.lm_head.register_forward_hook(lambda m, a, z: z.index_fill(-1, torch.tensor([tiny.PAD]), -1e4))
    return model


def train(case, folder):
    fn, where = compile_method(PPOTrainer, "train", case.patches + HOOKS)
    cls = type("DumpedPPOTrainer", (Hook, PPOTrainer), {"train": fn})
    torch.manual_seed(case.seed)
    numpy.random.seed(case.seed)
    tok = tiny.tokenizer(case.pad_is_eos)
    c = tiny.config()
    c.num_labels = 1
    c.pad_token_id = tok.pad_token_id
    policy = never_pad(Qwen2ForCausalLM(c), case.pad_is_eos)
    ref = never_pad(Qwen2ForCausalLM(c), case.pad_is_eos)
    g = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        for p, q in zip(ref.parameters(), policy.parameters()):
            p.copy_(q + 0.02 * torch.randn(q.shape, generator=g))
    value, reward = Qwen2ForSequenceClassification(c), Qwen2ForSequenceClassification(c)
    data = datasets.Dataset.from_dict({"input_ids": [tok(p)["input_ids"] for p in tiny.PROMPTS * 4]})
    with tempfile.TemporaryDirectory() as tmp:
        cfg = dict(output_dir=tmp, use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, seed=case.seed, total_episodes=16,
                   per_device_train_batch_size=8, gradient_accumulation_steps=1, num_mini_batches=1, num_ppo_epochs=2, response_length=16,
                   stop_token="eos", temperature=0.9, learning_rate=1e-3, lr_scheduler_type="constant", num_sample_generations=0,
                   local_rollout_forward_batch_size=8, missing_eos_penalty=None, gradient_checkpointing=False, kl_coef=0.05, dataloader_pin_memory=False)
        cfg.update(case.config)
        t = cls(PPOConfig(**cfg), tok, policy, ref, reward, data, value)
        t.folder, t.step = folder, 0
        t.callback_handler.callbacks = [x for x in t.callback_handler.callbacks if not isinstance(x, transformers.PrinterCallback)]
        stdout, sys.stdout = sys.stdout, open(os.devnull, "w")
        try:
            t.train()
        finally:
            sys.stdout = stdout
    where = where[: len(case.patches)]
    return where or [{"config": "pad_token = eos_token"}] * bool(case.faults)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--only", default="")
    ap.add_argument("--check", action="store_true")
    a = ap.parse_args()
    only = set(filter(None, a.only.split(",")))
    for case in CASES:
        key = "trl-ppo/" + case.folder
        if only and not only & {case.folder, os.path.basename(case.folder)}:
            continue
        if not a.check:
            folder = writer.fresh(key)
            ctx = multiprocessing.get_context("fork")
            here, there = ctx.Pipe()
            p = ctx.Process(target=lambda: there.send(train(case, folder)))
            p.start()
            there.close()
            p.join()
            if p.exitcode:
                sys.exit(f"{key} failed")
            where = here.recv()
        seen = check_ppo.judge(os.path.join(writer.ROOT, key))
        if not a.check:
            e = {"expect": "fault" if case.faults else "clean", "what": case.what, "profile": PROFILE, "seed": case.seed, "options": case.config,
                 "inconsistent": case.inconsistent, "scalars": case.scalars, "conclude": case.conclude}
            if case.faults:
                e.update(faults=case.faults, mnemonic=os.path.basename(case.folder).upper().replace("_", "-"), patched=where,
                         visible_in_steps={str(s): sorted(v) for s, v in sorted(seen.items()) if v})
                if case.option:
                    e["same_as_option"] = case.option
            writer.expect({key: e})
        check.agree(key, case, seen)
    if not a.check:
        writer.manifest({"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__, "trl-ppo": trl.__version__,
                         "numpy": numpy.__version__})
    sys.exit(1 if check.agree.failed else 0)


if __name__ == "__main__":
    main()
