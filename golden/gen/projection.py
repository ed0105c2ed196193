"""Produces golden/projection: a basis, gradients before and after projection, and adapters, computed by NumPy.

    python -m venv .venv && .venv/bin/pip install numpy==2.4.6 safetensors==0.8.0 ml_dtypes==0.6.0
    .venv/bin/python golden/gen/projection.py golden/projection

The program is what a user would write: g - Q @ (Q.T @ g) in the dtype of the arrays. Values that judge a reference
(components, defect) are computed here in float64 by other means than ours (numpy.linalg, math.fsum).
"""
import hashlib
import json
import math
import os
import sys

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save_file

SEED = 20250711
D, K = 768, 12
OUT, IN, R = 64, 32, 8  # lora_B (64, 8), lora_A (8, 32): 512 + 256 = 768 elements together


def project(q, g, passes=1):
    for _ in range(passes):
        g = g - q @ (q.T @ g)
    return g


def adam(rng, steps, q, what):
    """Steps of Adam (lr 3e-5) on a LoRA pair as one vector: lora_A, then lora_B, which starts at zero."""
    start = np.zeros(D)
    start[: R * IN] = rng.uniform(-1, 1, R * IN) / math.sqrt(IN)
    start = start.astype(np.float32).astype(np.float64)
    pull = rng.standard_normal(D)
    w, m, v = start.copy(), np.zeros(D), np.zeros(D)
    for t in range(1, steps + 1):
        g = pull + rng.standard_normal(D)
        g /= np.linalg.norm(g)
        if what == "gradient":
            g = project(q, g, 2)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        u = -3e-5 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        if what == "update":
            u = project(q, u, 2)
        w = w + u
    return start.astype(np.float32), w.astype(np.float32)


def adapter(path, w):
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_%s.weight"
    os.makedirs(path, exist_ok=True)
    save_file(
        {name % "A": w[: R * IN].reshape(R, IN), name % "B": w[R * IN :].reshape(OUT, R)},
        os.path.join(path, "adapter_model.safetensors"),
        metadata={"format": "pt"},
    )
    with open(os.path.join(path, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": R, "lora_alpha": R, "target_modules": ["q_proj"]}, f, sort_keys=True)


def main(out):
    os.makedirs(out, exist_ok=True)
    rng = np.random.default_rng(SEED)
    q64, r = np.linalg.qr(rng.standard_normal((D, K)))
    q64 *= np.sign(np.diag(r))
    q = q64.astype(np.float32)
    qd = q.astype(np.float64)
    g64 = rng.standard_normal(D)
    g64 /= np.linalg.norm(g64)
    g = g64.astype(np.float32)
    g100 = (100 * g64).astype(np.float32)
    arrays = {
        "q": q, "q_f64": q64, "q_f16": q.astype(np.float16), "q_fortran": np.asfortranarray(q), "q_transposed": np.ascontiguousarray(q.T),
        "q_big_endian": q.astype(">f4"), "g": g, "g_projected": project(q, g), "g_projected_twice": project(q, g, 2),
        "g100": g100, "g100_projected": project(q, g100),
        "g100_projected_f64": project(qd, g100.astype(np.float64)),
    }
    broken = q.copy()
    broken[:, 5] *= np.float32(1.001)
    arrays["q_column_scaled"] = broken
    equal = q.copy()
    equal[:, 7] = equal[:, 2]
    arrays["q_equal_columns"] = equal
    for name, a in arrays.items():
        np.save(os.path.join(out, name + ".npy"), a)
    np.savez_compressed(os.path.join(out, "bases.npz"), Q=q, other=q64[:, :3])
    save_file({"Q": q.astype(ml_dtypes.bfloat16)}, os.path.join(out, "q_bf16.safetensors"), metadata={"kind": "flat"})
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_%s.weight"
    grads = {name % "A": g[: R * IN].reshape(R, IN), name % "B": g[R * IN :].reshape(OUT, R)}
    save_file(grads, os.path.join(out, "grads.safetensors"))
    start, held = adam(np.random.default_rng(SEED + 1), 30, qd, "update")
    _, leak = adam(np.random.default_rng(SEED + 1), 30, qd, "gradient")
    adapter(os.path.join(out, "lora_init"), start)
    adapter(os.path.join(out, "lora_held"), held)
    adapter(os.path.join(out, "lora_leak"), leak)

    def components(basis, v):
        return [math.fsum(float(a) * float(b) for a, b in zip(basis[:, k], v)) for k in range(basis.shape[1])]

    def defect(basis):
        b = basis.astype(np.float64)
        worst = 0.0
        for i in range(b.shape[1]):
            for j in range(b.shape[1]):
                worst = max(worst, abs(math.fsum(float(x) * float(y) for x, y in zip(b[:, i], b[:, j])) - (i == j)))
        return worst

    def biggest(basis, v):
        return max(abs(c) for c in components(basis, v))

    mean = {n: float(np.mean(np.abs(t.astype(np.float64)))) for n, t in grads.items()}
    values = {
        "defect": {n: defect(arrays[n]) for n in ["q", "q_f64", "q_f16", "q_column_scaled", "q_equal_columns"]}
        | {"q_bf16": defect(q.astype(ml_dtypes.bfloat16).astype(np.float32))},
        "components_of_g": components(q, g),
        "max_component": {n: biggest(q, arrays[n]) for n in ["g", "g_projected", "g_projected_twice", "g100", "g100_projected", "g100_projected_f64"]},
        "drift": {
            "lora_held": biggest(q, held.astype(np.float64) - start.astype(np.float64)),
            "lora_leak": biggest(q, leak.astype(np.float64) - start.astype(np.float64)),
            "raw": biggest(q, leak),
        },
        "grad_flow": {"min": min(mean.values()), "max": max(mean.values()), "mean": sum(mean.values()) / len(mean)},
    }
    files = {}
    for root, _, names in os.walk(out):
        for n in names:
            path = os.path.join(root, n)
            if n != "manifest.json":
                with open(path, "rb") as f:
                    files[os.path.relpath(path, out).replace(os.sep, "/")] = hashlib.sha256(f.read()).hexdigest()
    manifest = {
        "producer": "golden/gen/projection.py",
        "versions": {"python": sys.version.split()[0], "numpy": np.__version__, "safetensors": safetensors.__version__, "ml_dtypes": ml_dtypes.__version__},
        "seed": SEED,
        "values": values,
        "sha256": dict(sorted(files.items())),
    }
    with open(os.path.join(out, "manifest.json"), "w") as f:
        json.dump(manifest, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
