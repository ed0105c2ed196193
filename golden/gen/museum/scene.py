"""What every case of the museum stands on: a small batch of rows, a rollout of the strangers' world, and files in the dump's format."""

import hashlib
import json
import math
import os
import types

import torch
from world import LM, Policy, Task, rollout

CASES = {}
ns = types.SimpleNamespace


def manifest(out, wheels, producer, seed, releases, **versions):
    """Writes manifest.json: what made the files below out, of which wheels, and the sha256 of each. Returns the latter by path."""
    sums = {}
    for folder, _, names in os.walk(out):
        for n in names:
            full = os.path.join(folder, n)
            if n != "manifest.json":
                os.chmod(full, 0o644)
                with open(full, "rb") as f:
                    sums[os.path.relpath(full, out)] = hashlib.sha256(f.read()).hexdigest()
    with open(os.path.join(wheels, "sha256.json")) as f:
        known = json.load(f)
    versions |= {"torch": torch.__version__.split("+")[0], **{"wheel " + r: known[r] for r in sorted(releases) if r in known}}
    with open(os.path.join(out, "manifest.json"), "w") as f:
        json.dump({"producer": producer, "seed": seed, "versions": versions, "sha256": dict(sorted(sums.items()))}, f, indent=1)
        f.write("\n")
    return sums


def case(id, variants=(("f32", 1), ("f32", 2))):
    """Registers a function (release, side, seed, dtype) that yields (tensors, metadata) of the files of one run."""

    def register(f):
        CASES[id] = (f, variants)
        return f

    return register


BOTH = (("f32", 1), ("f32", 2), ("bf16", 3))


class Scene:
    """A rollout, the policy that sampled it, the policy of a later update, and a reference."""

    def __init__(self, seed, dtype="f32", prompts=3, group=4, T=10, vocab=24, fill=0.7, **task):
        self.task = Task(prompts=prompts, group=group, T=T, prompt=4, **task)
        self.old = Policy(LM(seed, vocab=vocab, mean_length=T * fill), dtype)
        self.new, self.ref = self.old.copy(seed + 1, 0.03), self.old.copy(seed + 2, 0.05)
        r = rollout(self.old.model, self.task, seed * 1000)
        width = int(r["live"].sum(1).max())
        for k in ("response", "live", "mask", "gen"):
            r[k] = r[k][:, :width]
        self.T, self.r = width, r
        self.ids, self.att = torch.cat([r["prompt_ids"], r["response"]], 1), torch.cat([r["prompt_mask"], r["live"]], 1)
        self.mask, self.gen, self.group = r["mask"], r["gen"], r["group"]
        self.scores = r["score"]
        self.rng = torch.Generator().manual_seed(seed)

    def logps(self, policy, temperature=1.0):
        return policy.score(self.ids, self.att, self.T, temperature)[0].detach()

    def normal(self, *shape, std=1.0):
        return torch.randn(*shape, generator=self.rng) * std

    def rows(self):
        """What names the rows and their tokens."""
        return dict(
            input_ids=self.ids,
            attention_mask=self.att,
            response_ids=self.r["response"],
            response_mask=self.mask,
            group_id=self.group,
            prompt_len=self.r["plen"],
        )

    def advantages(self, eps=1e-6):
        """Rewards of a group, centred and divided by their standard deviation."""
        g = self.scores.view(-1, self.task.group)
        return ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + eps)).view(-1)

    def tokens(self):
        return dict(response_mask=self.mask, group_id=self.group)


def meta(framework, release, algorithm, profile=None, micro=0, micros=1, rank=0, ranks=1, step=1, options=None, scalars=None, **more):
    m = dict(
        framework=framework,
        version=release.name.rsplit("-", 1)[1],
        algorithm=algorithm,
        step=step,
        rank=rank,
        world_size=ranks,
        micro_batch=micro,
        micro_batches=micros,
        options=options or {},
        scalars=scalars or {},
        scalars_scope="micro_batch",
    )
    if profile:
        m["profile"] = profile
    m.update(more)
    return m


def gradient(loss, x):
    return torch.autograd.grad(loss, x, retain_graph=True, materialize_grads=True)[0]
