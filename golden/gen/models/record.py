"""What every producer of golden/models shares: weights drawn from a seed, float32 on disk, files and their manifest."""
import hashlib
import importlib.metadata
import json
import os

import numpy as np
import torch
from safetensors.torch import save_file

SEED = 20261121


def generator(name):
    """A generator of its own for every name, so that a change of one model leaves the others alone."""
    return np.random.default_rng([SEED, *name.encode()])


def fill(module, rng, matrix=0.25, vector=0.1):
    """Draws every parameter and rounds it to float32: a weight of one axis lies around 1, a bias around 0."""
    for name, p in module.named_parameters():
        z = rng.normal(size=tuple(p.shape)) * (matrix if p.ndim > 1 else vector)
        if p.ndim == 1 and name.endswith("weight"):
            z = z + 1
        p.data = torch.from_numpy(z.astype(np.float32))


def gradients(scalar, module, skip=()):
    """{name: gradient} of a scalar by autograd; a parameter that it does not reach is left out."""
    for p in module.parameters():
        p.grad = None
    scalar.backward(retain_graph=True)
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None and n not in skip}


def differences(f, module, names, rng, h=1e-6):
    """Central differences of f() at one random element of each named parameter, beside what autograd gave."""
    out = []
    parameters = dict(module.named_parameters())
    grads = gradients(f(), module)
    with torch.no_grad():
        for n in names:
            at = tuple(int(rng.integers(0, d)) for d in parameters[n].shape)
            x = parameters[n][at].item()
            both = []
            for v in (x + h, x - h):
                parameters[n][at] = v
                both.append(f().item())
            parameters[n][at] = x
            out.append({"entry": n, "index": list(at), "autograd": grads[n][at].item(), "finite_difference": (both[0] - both[1]) / (2 * h)})
    for d in out:
        assert abs(d["autograd"] - d["finite_difference"]) <= 1e-7 * max(1, abs(d["autograd"])), d
    return out


def versions(*packages):
    return {p: importlib.metadata.version(p) for p in sorted(packages)}


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def save_weights(folder, module, config, alias=None):
    """base/config.json and base/model.safetensors; alias {name: of} stores a tied weight under its second name too."""
    os.makedirs(os.path.join(folder, "base"), exist_ok=True)
    state = {n: t.detach().float().clone().contiguous() for n, t in module.state_dict().items()}
    for name, of in (alias or {}).items():
        state[name] = state[of].clone()
    save_file(state, os.path.join(folder, "base", "model.safetensors"), metadata={"format": "pt"})
    write_json(os.path.join(folder, "base", "config.json"), config)


def save_golden(folder, tensors, about):
    tensors = {n: t.detach().clone().contiguous() for n, t in tensors.items()}
    for n, t in tensors.items():
        if t.dtype == torch.float64 and not n.startswith("hf_double/"):
            assert torch.isfinite(t).all(), n
    save_file(tensors, os.path.join(folder, "golden.safetensors"))
    about["tensors"] = {n: [str(t.dtype)[6:], list(t.shape)] for n, t in tensors.items()}
    write_json(os.path.join(folder, "golden.json"), {"seed": SEED, **about})


def save_manifest(folder, producer, packages):
    """manifest.json of a folder: who made it, with what, and the sha256 of every file in it."""
    sums = {}
    for root, _, names in os.walk(folder):
        for n in names:
            path = os.path.join(root, n)
            os.chmod(path, 0o644)
            if n != "manifest.json":
                with open(path, "rb") as f:
                    sums[os.path.relpath(path, folder).replace(os.sep, "/")] = hashlib.sha256(f.read()).hexdigest()
    write_json(os.path.join(folder, "manifest.json"),
               {"producer": producer, "versions": versions(*packages), "seed": SEED, "sha256": dict(sorted(sums.items()))})


def worst(a, b):
    """The largest difference of two tensors, relative to the largest magnitude of the second."""
    a, b = torch.as_tensor(a).double(), torch.as_tensor(b).double()
    return float((a - b).abs().max() / b.abs().max())
