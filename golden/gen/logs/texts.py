"""What PyTorch says of the faults that end a run, each raised for good and printed as Python prints it.

    python golden/gen/logs/texts.py verify/runlog/testdata/texts

texts.txt has a line for each log: file, the symptom that must come first, the version of torch. Needs torch (2.15.0), on a machine
without a GPU and without bitsandbytes: out of memory of CUDA cannot be raised there, and is written by hand where it is tested.
"""

import os
import sys
import traceback

import torch
from torch import nn
import torch.nn.functional as F


def half_base():  # A1: an int8 base computes in float16, the adapter is float32
    base, lora = nn.Linear(4, 4).half(), nn.Linear(4, 4)
    lora(base(torch.ones(2, 4, dtype=torch.float16)))


def half_scores():
    torch.matmul(torch.ones(2, 4, dtype=torch.float16), torch.ones(4, 2))


def bfloat16_adapter():
    F.linear(torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(2, 4))


def half_addmm():
    torch.addmm(torch.ones(2), torch.ones(2, 4).half(), torch.ones(4, 2).half())


def half_attention():
    q = torch.ones(1, 1, 2, 4)
    F.scaled_dot_product_attention(q.half(), q, q)


def second_backward():  # D3: the RL update before the main backward pass
    prompt = nn.Linear(4, 4)(torch.ones(1, 4)).tanh()
    value, loss = prompt.exp().sum(), prompt.exp().pow(2).sum()
    value.backward()
    loss.backward()


def changed_in_place():  # D3: the RL update steps the weights between forward and backward pass
    layer, more = nn.Linear(4, 4), nn.Linear(4, 4)
    out = more(layer(torch.ones(1, 4)).tanh()).sum()
    with torch.no_grad():
        more.weight.add_(1)
    out.backward()


def detached_loss():  # D18
    (nn.Linear(4, 1)(torch.ones(1, 4)).detach() * 2).sum().backward()


def no_grad_loss():
    with torch.no_grad():
        loss = nn.Linear(4, 1)(torch.ones(1, 4)).sum()
    loss.backward()


def float_target():  # D1: target.float() where classes are due
    F.cross_entropy(torch.ones(3, 10), torch.ones(3))


def float_nll():
    F.nll_loss(torch.ones(3, 10).log_softmax(-1), torch.ones(3))


def kl_shapes():
    F.kl_div(torch.ones(3, 10).log_softmax(-1), torch.ones(4, 10).softmax(-1), reduction="batchmean")


def target_rows():
    F.cross_entropy(torch.ones(3, 10), torch.ones(4, dtype=torch.long))


def target_range():
    F.cross_entropy(torch.ones(3, 10), torch.full((3,), 10))


def target_grid():
    F.cross_entropy(torch.ones(1, 10, 3, 3), torch.ones(1, 3, 4, dtype=torch.long))


def unscale_half():  # H11
    layer = nn.Linear(4, 1).half()
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=.1)
    scaler.scale(layer(torch.ones(1, 4).half()).sum()).backward()
    scaler.unscale_(optimizer)


def no_device():  # C1
    torch.ones(1).to("cuda")


def no_adam8bit():  # C2
    import bitsandbytes  # noqa: F401


def empty_optimizer():  # A10
    layer = nn.Linear(4, 1).requires_grad_(False)
    torch.optim.AdamW([p for p in layer.parameters() if p.requires_grad], lr=1e-4)


def no_micro_step():  # H7b: every micro-step was skipped by continue
    last_loss = None
    print(f"iter 3: loss {last_loss:.4f}")


TEXTS = [("H7b", no_micro_step), ("A1", half_base), ("A1", half_scores), ("A1", bfloat16_adapter), ("A1", half_addmm), ("A1", half_attention), ("D3", second_backward), ("D3", changed_in_place),
         ("D18", detached_loss), ("D18", no_grad_loss), ("D1", float_target), ("D1", float_nll), ("D1", kl_shapes), ("D1", target_rows), ("D1", target_range), ("D1", target_grid),
         ("H11", unscale_half), ("C1", no_device), ("C2", no_adam8bit), ("A10", empty_optimizer)]


def main(out):
    os.makedirs(out, exist_ok=True)
    rows = []
    for symptom, fault in TEXTS:
        try:
            fault()
        except Exception:
            lines = traceback.format_exc().splitlines()
        else:
            print(symptom, fault.__name__, "raises nothing here")
            continue
        name = f"{symptom}-{fault.__name__}.log"
        kept = [l for l in lines if not l.startswith("  ")]  # without the files and lines of this machine
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            f.write("step 1 loss 0.6931\n" + "\n".join(kept) + "\n")
        rows.append(f"{name}\t{symptom}\ttorch {torch.__version__}\n")
        print(symptom, kept[-1][:150])
    with open(os.path.join(out, "texts.txt"), "w", encoding="utf-8") as f:
        f.writelines(rows)


if __name__ == "__main__":
    main(sys.argv[1])
