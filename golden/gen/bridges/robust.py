"""The torch hook under bad input: what cannot be dumped is a warning with the reason, or an exception when strict; nothing is left half written.

    python robust.py plumbline_torch.py
"""
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import warnings

import torch
from safetensors import safe_open


def load(path):
    spec = importlib.util.spec_from_file_location("plumbline_torch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dump


def warned(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        out = call()
    return out, [str(w.message) for w in seen]


def batch():
    lp = torch.randn(4, 6).log_softmax(-1).requires_grad_()
    mask = torch.ones(4, 6, dtype=torch.bool)
    return {"logp_new": lp, "logp_old": lp.detach(), "response_mask": mask, "loss": -(lp.exp() * mask).mean()}


def main():
    dump = load(sys.argv[1])
    with tempfile.TemporaryDirectory() as tmp:
        folder = os.path.join(tmp, "dumps")

        # strange layouts, types and devices are dumped as they are
        b = batch()
        wide = torch.randn(6, 4).T
        path, said = warned(lambda: dump(folder, 1, options={"clip.low": 0.2}, kl=wide.bfloat16(), logp_ref=wide, entropy=torch.randn(1, 6).expand(4, 6),
                                         advantages=torch.randn(8)[::2], values=None, logp_gen=torch.randn(4, 6).half(), **b))
        assert not said and os.path.basename(path) == "step_000001_rank_0_mb_0.safetensors", (path, said)
        with safe_open(path, "pt") as f:
            t = {k: f.get_tensor(k) for k in f.keys()}
            meta = json.loads(f.metadata()["plumbline"])
        assert t["kl"].dtype == torch.bfloat16 and torch.equal(t["kl"], wide.bfloat16()) and torch.equal(t["logp_ref"], wide) and "values" not in t
        b["loss"].backward()  # the graph is still there
        assert torch.equal(t["dlogp"], b["logp_new"].grad), "dlogp is the gradient of that loss"
        assert meta["schema"] == 1 and meta["step"] == 1 and meta["rank"] == 0 and meta["options"] == {"clip.low": 0.2}
        if torch.cuda.is_available():
            gpu = {k: x.detach().cuda() for k, x in batch().items()}
            assert not warned(lambda: dump(folder, 2, **gpu))[1]

        # what the training owns is not shared with what is written, and a scalar that is not finite becomes null
        path, said = warned(lambda: dump(os.path.join(tmp, "one.safetensors"), 7, meta={"rank": 3, "world_size": 8, "scalars": {"kl": float("nan"), "x": torch.tensor(2.0)}}, **batch()))
        with safe_open(path, "pt") as f:
            meta = json.loads(f.metadata()["plumbline"])
        assert not said and meta["rank"] == 3 and meta["scalars"] == {"kl": None, "x": 2.0}, (said, meta)

        def refused(words, call):
            for strict in (False, True):
                before = sorted(os.listdir(folder))
                if strict:
                    try:
                        call(strict)
                    except Exception as e:
                        assert words in f"{type(e).__name__}: {e}", e
                    else:
                        raise AssertionError(f"strict: no exception about {words}")
                else:
                    out, said = warned(lambda: call(strict))
                    assert out is None and len(said) == 1 and "training goes on" in said[0] and words in said[0], said
                assert [n for n in sorted(os.listdir(folder)) if n.endswith(".safetensors")] == [n for n in before if n.endswith(".safetensors")]

        refused("is there already", lambda strict: dump(folder, 1, strict=strict, **batch()))
        refused("logp_ref [4, 5]: want the shape of response_mask, [4, 6]", lambda strict: dump(folder, 9, strict=strict, logp_ref=torch.zeros(4, 5), **batch()))
        refused("JSON", lambda strict: dump(folder, 9, options={"kl.beta": float("inf")}, strict=strict, **batch()))
        refused("NotADirectoryError" if os.name == "posix" else "", lambda strict: dump(os.path.join(path, "x"), 9, strict=strict, **batch()))

        # a full disk: no file may grow beyond 4 kB
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        refused("File too large", lambda strict: dump(folder, 10, strict=strict, logits=torch.zeros(4, 6, 500), **batch()))
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        path, said = warned(lambda: dump(folder, 10, **batch()))
        assert path and not said, "after the disk has room again"
    print("torch hook: layouts, types, ranks, taken names, shapes, full disk: as expected")


if __name__ == "__main__":
    main()
