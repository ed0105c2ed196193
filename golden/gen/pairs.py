"""Produces golden/pairs: what DPOTrainer._compute_loss of TRL 1.16.0 makes of one batch of pairs under every loss it has, and with bugs planted.

    python golden/gen/pairs.py golden/pairs      (trl 1.16.0, torch 2.15.0, safetensors)

The released method runs on a stand-in for the trainer: log-probs of tokens are drawn, nothing else of a model is read. A bug is a statement of
the method that is replaced. Each folder is two steps of a dump; EXPECT.json names the planted bug, "" where there is none.
"""
import collections
import hashlib
import json
import os
import sys
import types

import torch
import trl
from safetensors.torch import save_file
from trl.trainer.dpo_trainer import DPOTrainer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "dumps"))
from patch import Patch, compile_method

SEED = 20261128
PAIRS, PROMPT, ANSWER = 8, 3, 12

# name, fields of DPOConfig beside the defaults
CLEAN = {
    "sigmoid": {}, "hinge": dict(beta=0.2), "ipo": dict(beta=0.3), "sigmoid_norm": dict(beta=2.0),
    "robust": dict(label_smoothing=0.1, beta=0.2), "exo_pair": dict(label_smoothing=1e-3), "nca_pair": {}, "bco_pair": {}, "sppo_hard": dict(beta=0.2),
    "apo_zero": {}, "apo_down": {}, "discopop": dict(discopop_tau=0.05), "aot": dict(label_smoothing=0.05), "aot_unpaired": dict(beta=0.3),
    "forward_kl": dict(loss_type=["sigmoid"], f_divergence_type="forward_kl"), "exo_js": dict(loss_type=["exo_pair"], label_smoothing=0.01, f_divergence_type="js_divergence"),
    "rpo": dict(loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.5]), "mpo": dict(loss_type=["sigmoid", "bco_pair", "sft"], loss_weights=[0.8, 0.2, 1.0]),
    "mix": dict(loss_type=["robust", "ipo", "aot", "sigmoid"], loss_weights=[0.5, 0.1, 1.0, 2.0], label_smoothing=0.1, beta=0.3),
}
P = lambda *a: Patch("_compute_loss", *a)
# name, of which clean run, the bug, the statement
FAULTY = {
    "robust-not-divided": ("robust", "DPO-SMOOTHING", P("(clean_loss_term - flipped_loss_term) / (1 - 2 * self.label_smoothing)", "clean_loss_term - flipped_loss_term")),
    "exo-smoothing-exchanged": ("exo_pair", "DPO-SMOOTHING", P("log_pw = torch.log1p(-epsilon)", "log_pw = torch.log(epsilon)")),
    "nca-whole": ("nca_pair", "DPO-TERMS", P("- 0.5 * F.logsigmoid(-chosen_rewards)", "- F.logsigmoid(-chosen_rewards)")),
    "bco-rejected-sign": ("bco_pair", "DPO-TERMS", P("-F.logsigmoid(chosen_rewards) - F.logsigmoid(-rejected_rewards)", "-F.logsigmoid(chosen_rewards) - F.logsigmoid(rejected_rewards)")),
    "sppo-target": ("sppo_hard", "DPO-TERMS", P("(rejected_logratios + 0.5 / self.beta) ** 2", "(rejected_logratios - 0.5 / self.beta) ** 2")),
    "apo-zero-as-down": ("apo_zero", "DPO-LOSS", P('elif loss_type == "apo_zero":', 'elif loss_type == "none":'), P('elif loss_type == "apo_down":', 'elif loss_type in ("apo_zero", "apo_down"):')),
    "discopop-mixed-up": ("discopop", "DPO-TERMS", P("logistic_component * (1 - log_ratio_modulation) + exp_component * log_ratio_modulation", "logistic_component * log_ratio_modulation + exp_component * (1 - log_ratio_modulation)")),
    "aot-unsorted": ("aot", "DPO-LOSS", P("logratios_sorted, _ = torch.sort(logratios, dim=0)", "logratios_sorted = logratios", 1), P("ref_logratios_sorted, _ = torch.sort(ref_logratios, dim=0)", "ref_logratios_sorted = ref_logratios")),
    "mpo-bco-swapped": ("mpo", "DPO-TERMS", P("-F.logsigmoid(chosen_rewards) - F.logsigmoid(-rejected_rewards)", "-F.logsigmoid(chosen_rewards) - F.logsigmoid(rejected_rewards)")),
    "mpo-reference-lost": ("mpo", "DPO-NO-REFERENCE", P("chosen_logratios = chosen_logps - ref_chosen_logps", "chosen_logratios = chosen_logps"), P("rejected_logratios = rejected_logps - ref_rejected_logps", "rejected_logratios = rejected_logps")),
}


def config(name, fields):
    c = dict(loss_type=[name], loss_weights=None, beta=0.1, label_smoothing=0.0, f_divergence_type="reverse_kl", f_alpha_divergence_coef=0.5, discopop_tau=0.05,
             ld_alpha=None, use_weighting=False, gradient_accumulation_steps=1)
    return dict(c, **fields)


def batch(g):
    """Log-probs of the tokens of pairs under the policy, and of their answers under the reference; masks of answers of different lengths."""
    mask = torch.zeros(2 * PAIRS, PROMPT + ANSWER, dtype=torch.long)
    for row in mask:
        row[PROMPT : PROMPT + int(torch.randint(3, ANSWER + 1, (), generator=g))] = 1
    on = mask[:, 1:]
    tokens = -2 * torch.rand(on.shape, generator=g) * on
    reference = (tokens + 0.3 * torch.randn(on.shape, generator=g) * on).sum(1)
    return mask, tokens, reference


def step(method, c, g):
    mask, tokens, reference = batch(g)
    tokens.requires_grad_()
    of = torch.zeros(2 * PAIRS, mask.shape[1] - 1)
    outputs = types.SimpleNamespace(log_probs=tokens, entropy=of, mean_logits=of, is_top1=of.bool())
    same = lambda x: x
    trainer = types.SimpleNamespace(
        model=types.SimpleNamespace(training=True), accelerator=types.SimpleNamespace(device="cpu", gather=same, gather_for_metrics=same), aux_loss_enabled=False, precompute_ref_logps=True,
        loss_types=c["loss_type"], loss_weights=c["loss_weights"] or [1.0] * len(c["loss_type"]), args=types.SimpleNamespace(**c), _metrics={"train": collections.defaultdict(list)},
        _total_train_tokens=0, _tp_size=1, **{k: c[k] for k in ("beta", "label_smoothing", "ld_alpha", "use_weighting", "f_divergence_type", "f_alpha_divergence_coef")})
    rc, rr = reference.chunk(2)
    inputs = dict(input_ids=torch.ones_like(mask), attention_mask=torch.ones_like(mask), completion_mask=mask, ref_chosen_logps=rc, ref_rejected_logps=rr)
    seen = {}

    def look(frame, event, _):
        if event == "return" and frame.f_code.co_name == "_compute_loss":
            seen.update(frame.f_locals)

    sys.setprofile(look)
    loss = method(trainer, lambda **k: outputs, inputs, False)
    sys.setprofile(None)
    grads = torch.autograd.grad(loss, [seen["chosen_logps"], seen["rejected_logps"]], materialize_grads=True)
    m, n = mask.chunk(2)
    t = dict(logp_chosen=seen["chosen_logps"], logp_rejected=seen["rejected_logps"], ref_chosen=rc, ref_rejected=rr, chosen_tokens=m.sum(1), rejected_tokens=n.sum(1), loss=loss,
             dlogp_chosen=grads[0], dlogp_rejected=grads[1], response_mask=m[:, 1:].bool())
    if "sft" in c["loss_type"]:
        t["nll_loss"] = seen["batch_loss"]
    if len(c["loss_type"]) == 1:
        t["pair_loss"] = seen["per_sequence_loss"]
    metrics = {k: v[-1] for k, v in trainer._metrics["train"].items() if k.startswith(("rewards/", "logps/"))}
    return {k: v.detach().contiguous().clone() for k, v in t.items()}, metrics


def main(folder):
    expect = {}
    runs = [(name, name, "", []) for name in CLEAN] + [(name, of, bug, patches) for name, (of, bug, *patches) in FAULTY.items()]
    for name, of, bug, patches in runs:
        method, _ = compile_method(DPOTrainer, "_compute_loss", patches)
        c, g = config(of, CLEAN[of]), torch.Generator().manual_seed(SEED)
        expect[name] = bug
        for i in (1, 2):
            t, scalars = step(method, c, g)
            meta = dict(schema=2, framework="trl", version=trl.__version__, algorithm="dpo", run=name, step=i, rank=0, world_size=1, micro_batch=0, micro_batches=1, options=c, scalars=scalars, scalars_scope="micro_batch")
            path = os.path.join(folder, name, f"step_{i:06d}_rank_0_mb_0.safetensors")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            save_file(t, path, {"plumbline": json.dumps(meta, sort_keys=True)})
            os.chmod(path, 0o644)
    with open(os.path.join(folder, "EXPECT.json"), "w") as f:
        json.dump(expect, f, indent=1)
        f.write("\n")
    sums = {}
    for root, _, names in os.walk(folder):
        for n in names:
            if n != "manifest.json":
                with open(os.path.join(root, n), "rb") as f:
                    sums[os.path.relpath(os.path.join(root, n), folder)] = hashlib.sha256(f.read()).hexdigest()
    with open(os.path.join(folder, "manifest.json"), "w") as f:
        json.dump({"producer": "golden/gen/pairs.py", "seed": SEED, "versions": {"trl": trl.__version__, "torch": torch.__version__.split("+")[0]}, "sha256": dict(sorted(sums.items()))}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
