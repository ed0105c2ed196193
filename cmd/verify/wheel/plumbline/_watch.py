"""Puts a hook into TRL, verl or OpenRLHF when the program imports it.

It imports nothing of this package until then: every process that a training run starts passes here.
"""
import importlib.util
import sys

# module that defines what is hooked → module of this package that hooks it
TARGETS = {
    "trl.trainer.grpo_trainer": "plumbline.trl",
    "trl.trainer.rloo_trainer": "plumbline.trl",
    "trl.trainer.dpo_trainer": "plumbline.trl",
    "verl.workers.utils.losses": "plumbline.verl",
    "openrlhf.utils.deepspeed.deepspeed": "plumbline.openrlhf",
}


class Finder:
    """First among the finders: it lets the others find a target and acts when that has run."""

    def __init__(self, act):
        self.act, self.busy = act, set()

    def find_spec(self, name, path=None, target=None):
        if name not in TARGETS or name in self.busy:
            return None
        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        loader = getattr(spec, "loader", None)
        run = getattr(loader, "exec_module", None)
        if run is None:
            return spec

        def exec_module(module):
            del loader.exec_module
            run(module)
            self.act(TARGETS[name], module)
        loader.exec_module = exec_module
        return spec


def watch(act):
    """Call act(module of this package, imported target) for every target, those that are there already included."""
    sys.meta_path.insert(0, Finder(act))
    for name in TARGETS:
        module = sys.modules.get(name)
        if module is not None:
            act(TARGETS[name], module)
