"""The TRL hook under bad input, in real runs: training ends whatever becomes of the dumps.

    python trl_robust.py plumbline_trl.py
"""
import os
import resource
import signal
import sys
import tempfile
import warnings

import trl_toy
from trl import GRPOTrainer

METHODS = ("_compute_loss", "_get_per_token_logps_and_entropies", "_generate_and_score_completions", "_calculate_rewards")
released = {name: getattr(GRPOTrainer, name) for name in METHODS}


def train(hook, folder, config, **options):
    """A run of two steps; returns the hook's warnings and how many steps the trainer did."""
    for name, method in released.items():
        setattr(GRPOTrainer, name, method)
    with tempfile.TemporaryDirectory() as tmp, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trl_toy.load(hook).install(GRPOTrainer, folder, **options)
        t = trl_toy.trainer("GRPO", tmp, dict({"max_steps": 2}, **config))
        t.train()
        return [str(w.message) for w in seen if "plumbline" in str(w.message)], t.state.global_step


def main():
    hook = sys.argv[1]
    files = lambda folder: sorted(n for _, _, names in os.walk(folder) for n in names if n.endswith(".safetensors"))  # in the folder of the run
    with tempfile.TemporaryDirectory() as tmp:
        at = lambda name: os.path.join(tmp, name)
        said, steps = train(hook, at("a"), {})
        assert (said, steps, len(files(at("a")))) == ([], 2, 4), said
        # a second run into the same folder is a folder of its own: nothing is replaced
        paths = lambda: sorted(os.path.join(d, n) for d, _, names in os.walk(at("a")) for n in names)
        before = {n: os.stat(n).st_mtime_ns for n in paths()}
        said, steps = train(hook, at("a"), {})
        assert (said, steps, len(files(at("a")))) == ([], 2, 8), said
        assert before == {n: os.stat(n).st_mtime_ns for n in before} and len(os.listdir(at("a"))) == 2
        # evaluation is no training step, and later steps are not asked for
        said, steps = train(hook, at("b"), {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "max_steps": 3}, steps=range(2, 3))
        assert (said, steps, files(at("b"))) == ([], 3, ["step_000002_rank_0_mb_0.safetensors", "step_000002_rank_0_mb_1.safetensors"]), said
        # a folder that cannot be made, and a full disk: no file may grow beyond 4 kB
        open(at("file"), "w").close()
        said, steps = train(hook, os.path.join(at("file"), "dumps"), {})
        assert steps == 2 and len(said) == 4 and "NotADirectoryError" in said[0], said
        try:
            train(hook, os.path.join(at("file"), "dumps"), {}, strict=True)
        except NotADirectoryError:
            pass
        else:
            raise AssertionError("strict: no exception")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        model = trl_toy.tiny.save
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)

        def save_then_fill(*a, **k):
            out = model(*a, **k)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            return out
        trl_toy.tiny.save = save_then_fill
        try:
            said, steps = train(hook, at("c"), {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            trl_toy.tiny.save = model
        assert steps == 2 and len(said) == 4 and "File too large" in said[0] and files(at("c")) == [], said
        # another release
        import trl
        real, trl.__version__ = trl.__version__, "1.17.0"
        said, steps = train(hook, at("d"), {})
        trl.__version__ = real
        assert said == ["plumbline: this hook was tested with trl 1.16.0, this is 1.17.0"] and len(files(at("d"))) == 4, said
    print("TRL hook: taken names, strict, chosen steps, no folder, full disk, another release: training ended every time")


if __name__ == "__main__":
    main()
