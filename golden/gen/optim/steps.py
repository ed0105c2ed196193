"""Steps of real optimisers, as dumps: torch.optim on a small regression, right and with a bug of its use each.

    python golden/gen/optim/steps.py golden/steps        (torch 2.15.0, numpy 2.4.6)

Each case is a folder of four dumps: the gradient before clipping, the weights before the step and the update of three tensors, the rate
and the norm as transformers.Trainer logs them (the rate behind the scheduler's step, the norm that clip_grad_norm_ returns).
"""
import hashlib
import json
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "cmd/verify/wheel"))
import plumbline  # noqa: E402

SEED, STEPS, LR, CLIP = 20, 4, 1e-3, 0.5


DECLARED = {"optim.kind": "adamw", "optim.lr": LR, "optim.eps": 1e-8, "optim.clip_norm": CLIP}


def case(folder, name, make=None, fault=None, options=None, dtype=torch.float32, schedule=None, clip=CLIP, ahead=1, **meta):
    torch.manual_seed(SEED)
    params = {"layer.weight": torch.randn(24, 8) * 0.3, "layer.bias": torch.randn(8) * 0.1, "v_head.weight": torch.randn(1, 24) * 0.2}
    params = {k: v.to(dtype).requires_grad_() for k, v in params.items()}
    trained = list(params.values())
    if fault == "no-head":
        trained = trained[:2]
    make = make or (lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=0.01))
    optimizer = make(trained)
    held = {k: torch.zeros_like(v) for k, v in params.items()}
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule or (lambda step: 1.0))
    late = None
    for step in range(1, STEPS + 1):
        x, y, z = torch.randn(16, 24).to(dtype), torch.randn(16, 8).to(dtype), torch.randn(16, 1).to(dtype)
        optimizer.zero_grad()
        params["v_head.weight"].grad = None
        loss = ((x @ params["layer.weight"] + params["layer.bias"] - y) ** 2).mean() + ((x @ params["v_head.weight"].T - z) ** 2).mean()
        loss.backward()
        grads = {k: v.grad.clone() for k, v in params.items()}
        before = {k: v.detach().clone() for k, v in params.items()}
        if fault == "step-first":  # the gradients of this step are used by the next one
            for k, v in params.items():
                v.grad = late[k] if late else None
            late = grads
        if fault == "unclipped":
            norm = torch.nn.utils.get_total_norm([g for g in grads.values()])
        elif fault == "clip-value":
            norm = torch.nn.utils.get_total_norm([g for g in grads.values()])
            torch.nn.utils.clip_grad_value_(list(params.values()), clip)
        elif fault == "clip-scaled":  # the sum of four micro-batches is clipped, and divided behind it
            norm = torch.nn.utils.get_total_norm([g for g in grads.values()])
            for p in params.values():
                p.grad.mul_(4)
            torch.nn.utils.clip_grad_norm_(list(params.values()), clip)
            for p in params.values():
                p.grad.div_(4)
        elif fault == "kept":  # zero_grad is missing: backward adds to what was clipped in the step before
            for k, v in params.items():
                v.grad.add_(held[k])
            norm = torch.nn.utils.clip_grad_norm_(list(params.values()), clip)
            held = {k: v.grad.clone() for k, v in params.items()}
        elif fault == "each-tensor":
            norm = torch.nn.utils.get_total_norm([g for g in grads.values()])
            for p in params.values():
                torch.nn.utils.clip_grad_norm_([p], clip)
        else:
            norm = torch.nn.utils.clip_grad_norm_(list(params.values()), clip)
        if fault == "norm-after":
            norm = torch.nn.utils.get_total_norm([p.grad for p in params.values()])
        if fault == "made-anew":
            optimizer = make(trained)
        if fault == "decay-sign":
            with torch.no_grad():
                for p in trained:
                    p.mul_(1 + 2 * LR * 0.1)  # of which AdamW takes one off again
        optimizer.step()
        if fault == "twice":
            optimizer.step()
        for _ in range(ahead):
            scheduler.step()
        tensors = {"response_mask": torch.ones(1, 1, dtype=torch.bool)}
        for k, v in params.items():
            tensors.update({f"grad/{k}": grads[k], f"weights/{k}": before[k], f"update/{k}": v.detach() - before[k]})
        plumbline.dump(str(folder / name / f"step_{step}.safetensors"), step=step, rank=0, world_size=1, micro_batch=0, micro_batches=1, **(meta or {"algorithm": "grpo"}), run=name,
                       options=(options or {}) if meta else {**DECLARED, **(options or {})},
                       scalars={"lr": float(scheduler.get_last_lr()[0]), "grad_norm": float(norm)}, **tensors)


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    case(folder, "adamw")
    case(folder, "adamw-fused", lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=0.01, fused=True))
    case(folder, "adamw-loop-warm", lambda p: torch.optim.AdamW(p, lr=LR, betas=(0.9, 0.95), foreach=False), schedule=lambda step: min(1, step / 3))
    case(folder, "adam", lambda p: torch.optim.Adam(p, lr=LR, weight_decay=0.01), options={"optim.kind": "adam"})
    case(folder, "sgd", lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9), options={"optim.kind": "sgd"})
    case(folder, "bfloat16", dtype=torch.bfloat16)
    case(folder, "adamw-no-decay", lambda p: torch.optim.AdamW([{"params": [x for x in p if x.dim() > 1], "weight_decay": 0.1}, {"params": [x for x in p if x.dim() < 2], "weight_decay": 0.0}], lr=LR),
         options={"optim.weight_decay": 0.1, "optim.no_decay": "biases_and_norms"})
    case(folder, "adamw-betas", lambda p: torch.optim.AdamW(p, lr=LR, betas=(0.85, 0.97)))
    case(folder, "cleanrl", lambda p: torch.optim.Adam(p, lr=LR, eps=1e-5), framework="cleanrl", algorithm="ppo")
    case(folder, "linear", schedule=lambda step: 1 - step / 40, options={"optim.schedule": "linear", "max_steps": 40})
    case(folder, "bug-l2", lambda p: torch.optim.Adam(p, lr=LR, weight_decay=0.1))
    case(folder, "bug-rate", lambda p: torch.optim.AdamW(p, lr=LR / 3, weight_decay=0.01), options={"optim.schedule": "constant"})
    case(folder, "bug-ascent", lambda p: torch.optim.AdamW(p, lr=LR, maximize=True))
    case(folder, "bug-betas", lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=0.01), options={"optim.beta1": 0.9, "optim.beta2": 0.95})
    case(folder, "bug-cleanrl-eps", lambda p: torch.optim.Adam(p, lr=LR), framework="cleanrl", algorithm="ppo")
    case(folder, "bug-schedule", schedule=lambda step: 1 - step / 40, options={"optim.schedule": "linear", "max_steps": 40}, ahead=4)
    case(folder, "bug-decay-sign", lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=0.1), fault="decay-sign", options={"optim.weight_decay": 0.1})
    case(folder, "bug-clip-value", fault="clip-value", clip=0.02, options={"optim.clip_norm": 0.02})
    case(folder, "bug-clip-scaled", fault="clip-scaled", clip=16, options={"optim.clip_norm": 16, "gradient_accumulation_steps": 4})
    case(folder, "bug-kept", fault="kept")
    for fault in ["no-head", "step-first", "unclipped", "each-tensor", "norm-after", "made-anew", "twice"]:
        case(folder, "bug-" + fault, fault=fault, clip=0.05 if fault == "each-tensor" else CLIP,
             options={"optim.clip_norm": 0.05} if fault == "each-tensor" else None)
    files = sorted(p for p in folder.rglob("*.safetensors"))
    manifest = {"producer": "golden/gen/optim/steps.py", "seed": SEED, "versions": {"torch": torch.__version__.split("+")[0]},
                "sha256": {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
