"""A run that is dumped: which steps, into which folder, how much of it, and what that costs."""
from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import sys
import time
import warnings

SHARE = 0.05  # of the time of the steps, on the wall and of the processor, at most, that dumping may take where every= is not given
FIRST = 2  # steps that are dumped whatever they cost


class Session:
    """Which steps are dumped. `step in session` is asked once for each micro-batch, before it is dumped.

    folder   every run has a folder run-… in it
    every    rollout steps 1, 1 + every, … ; None: the first two and then as many as take SHARE of the time of the steps
    rows     of each micro-batch, the first so many only: losses, gradients and groups cannot be judged then and are left out
    limit    bytes of all files of the run; a step that begins below it is dumped as a whole
    costs    the file that says what was spent, or None
    """

    def __init__(self, folder="dumps", every=None, rows=None, limit=10**9, costs=None):
        for name, value in (("every", every), ("rows", rows), ("limit", limit)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r}: want a whole number of at least 1")
        self.folder, self.every, self.rows, self.limit, self.costs = folder, every, rows, limit, costs
        self.period = 1  # optimiser steps of a rollout: what is normalised over one is judged from all of them
        self.runs = []  # folders that were written to, in their order
        self.spent, self.bytes, self.files, self.lost, self.skipped, self.full = 0.0, 0, 0, [], 0, None
        self._began = self._last = self._pending = self._asked = None
        self._busy, self._busy_began, self._busy_asked = 0.0, 0.0, 0.0  # processor time: on a machine that others load, the wall makes a dump look cheaper than it is
        self._steps, self._runs, self._block, self._choice, self._heavy = 0, 0, None, False, 0
        if costs is not None:
            atexit.register(self._end)

    def __contains__(self, step):
        now = time.perf_counter()
        self._missed()
        if self._began is None:
            self._began, self._busy_began = now, _busy()
        if self._last is None or step < self._last:
            self._runs, self._block = self._runs + 1, None
        block = (step - 1) // self.period
        if block != self._block:
            self._block, self._choice = block, self._agree(block, self._wanted(block, now))
            self._heavy = self.bytes
        if step != self._last:
            self._steps += self._choice
            self.skipped += not self._choice
        self._last, self._now = step, now
        if self._choice:
            self._asked, self._busy_asked, self._pending = time.perf_counter(), _busy(), step
        return self._choice

    def _wanted(self, block, now):
        if self.full is not None:
            return False
        if self.limit is not None and 2 * self.bytes - self._heavy > self.limit / _world():
            self.full = block * self.period
            return False
        if self.every is not None:
            return block % self.every == 0
        if self._steps < max(FIRST, self.period):
            return True
        clocks = (self.spent, now - self._began), (self._busy, _busy() - self._busy_began)
        return all(spent * (1 + self.period / self._steps) <= SHARE * (elapsed - spent) for spent, elapsed in clocks)

    def _agree(self, block, wanted):
        """What the first of the ranks to ask decides holds for all: a step that some leave out cannot be judged."""
        if _world() == 1:
            return wanted
        key = f"plumbline {os.fspath(self.folder)} {self._runs} block {block}"
        return sys.modules["torch"].distributed.distributed_c10d._get_default_store().compare_set(key, "", str(int(wanted))).decode() == "1"

    def write(self, inner, path, tensors, meta):
        """Write a micro-batch by the function of a hook."""
        if self.rows is not None:
            tensors, meta = some_rows(tensors, meta, self.rows)
        inner(path, tensors, meta)
        self._pending = None
        self.bytes += os.stat(path).st_size
        self.files += 1
        run = os.path.dirname(path)
        if run not in self.runs:
            self.runs.append(run)
        self.spent += time.perf_counter() - self._asked
        self._busy += _busy() - self._busy_asked
        if self.files % 16 == 1:
            self._record()

    def _missed(self):
        if self._pending is not None:
            self.lost.append(self._pending)
            self._pending = None
            self._record()

    @contextlib.contextmanager
    def spending(self):
        """What is done within, judging while training waits, counts as dumping does: the next steps are dumped the later for it."""
        wall, busy = time.perf_counter(), _busy()
        try:
            yield
        finally:
            self.spent += time.perf_counter() - wall
            self._busy += _busy() - busy

    def cost(self):
        elapsed = 0 if self._began is None else self._now - self._began
        return {"steps": self._steps, "files": self.files, "bytes": self.bytes, "seconds": self.spent, "elapsed": elapsed if self._steps + self.skipped > 2 else 0, "skipped": self.skipped,
                "first": max(FIRST, self.period) if self.every is None else 0, "lost": self.lost, "full": self.full}

    def _end(self):
        self._missed()
        self._record()

    def _record(self):
        if self.costs is None or self._began is None:
            return
        try:
            with open(self.costs + ".part", "w", encoding="utf-8") as f:
                json.dump(self.cost(), f)
            os.replace(self.costs + ".part", self.costs)
        except OSError as e:
            warnings.warn(f"plumbline: {self.costs}: {e}")


def _busy():
    """Seconds that processors were busy with this process, and with those that it has waited for."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + waited.ru_utime + waited.ru_stime


def _world():
    d = getattr(sys.modules.get("torch"), "distributed", None)
    return d.get_world_size() if d is not None and d.is_available() and d.is_initialized() else 1


# Tensors of a row that mean something without the other rows.
_OF_A_ROW = frozenset("input_ids attention_mask response_ids response_mask prompt_len logp_new logp_old logp_gen logp_ref values values_new kl entropy is_weights advantages "
                      "token_loss segment_ids dones".split())


def some_rows(tensors, meta, rows):
    """The first rows of a micro-batch, without what only the whole of it decides: losses, gradients, groups, logged means."""
    kept = {k: x[:rows] for k, x in tensors.items() if k in _OF_A_ROW}
    return kept, {k: v for k, v in meta.items() if k not in ("scalars", "scalars_scope", "micro_batches")}


current = None


class _Current(os.PathLike):
    """Folder and steps of the session of the moment: a hook is put in once, sessions come and go."""

    def __fspath__(self):
        return os.fspath(current.folder)

    __str__ = __fspath__

    def __eq__(self, other):
        return str(self) == str(other)

    def __hash__(self):
        return hash(str(self))

    def __contains__(self, step):
        return current is not None and step in current


folder = steps = _Current()


def begin(session):
    """Make a session that of the moment. verl's hook reads the folder from the environment."""
    global current
    current = session
    os.environ["PLUMBLINE_DUMPS"] = os.fspath(session.folder)
    return session


def writer(inner):
    """The write of a hook, by way of the session."""
    return lambda path, tensors, meta: current.write(inner, path, tensors, meta)


def from_environment():
    """The session that `plumbline run` asks for, once in a process."""
    if current is None:
        s = json.loads(os.environ["PLUMBLINE_RUN"])
        begin(Session(s["folder"], s.get("every"), s.get("rows"), s.get("limit"), os.path.join(s["folder"], f"cost-{os.uname().nodename}-{os.getpid()}.json")))
    return current
