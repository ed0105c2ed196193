"""What the hook of TRL costs a step, measured in one process whose steps are dumped and not dumped in turn.

    python golden/gen/bridges/cost.py [--pairs 40] [--share 0.05]

needs TRL and the wheel. Two runs of the same script:

1. every=2: step 1 is dumped, step 2 is not, and so on. The cost of a dump is the mean over the pairs of (dumped − not dumped), by the clock on the
   wall and by the processor time of the process (one thread of PyTorch), beside what the session counts. A session that counts less than it
   takes would keep to its share on paper only.
2. the default: how many of the steps it dumps. The share is that fraction · cost / time of a step that is not dumped.

Exit 1 where a share is above --share by more than two standard errors, or the session counts less than two thirds of the processor time of a
dump. On a loaded machine the wall says little.
"""
import argparse
import os
import statistics
import sys
import tempfile
import time

os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "examples"))
import torch
import transformers
import trl_grpo
from plumbline.trl import PlumblineCallback

torch.set_num_threads(1)


class Clock(transformers.TrainerCallback):
    """Seconds of each step on the wall and of the processor, and whether it was dumped."""

    def __init__(self, session):
        self.session, self.steps, self.files = session, [], 0

    def on_step_begin(self, *_, **__):
        self.began = time.perf_counter(), time.process_time()

    def on_step_end(self, *_, **__):
        self.steps.append((time.perf_counter() - self.began[0], time.process_time() - self.began[1], self.session.files > self.files))
        self.files = self.session.files


def run(steps, **options):
    real = trl_grpo.GRPOTrainer
    seen = PlumblineCallback(**options)
    clock = Clock(seen.session)
    trl_grpo.GRPOTrainer = lambda *a, **k: real(*a, callbacks=[clock, seen], **k)
    try:
        trl_grpo.main(steps)
    finally:
        trl_grpo.GRPOTrainer = real
    assert len(clock.steps) == steps and not seen.session.lost, (len(clock.steps), seen.session.lost)
    return clock.steps, seen.session


def mean(values):
    """The mean and its standard error."""
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pairs", type=int, default=40)
    ap.add_argument("--share", type=float, default=0.05)
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        steps, session = run(2 * a.pairs + 4, folder=os.path.join(tmp, "pairs"), every=2)
        said = session.spent / session._steps
        steps = steps[4:]  # the first ones fill caches
        assert all(dumped == (i % 2 == 0) for i, (_, _, dumped) in enumerate(steps)), steps
        every, _ = run(3 * a.pairs, folder=os.path.join(tmp, "default"))
        dumped = sum(d for *_, d in every[2:]) / len(every[2:])
    shares, costs = {}, {}
    for clock, name in enumerate(("on the wall", "of the processor")):
        cost, error = mean([steps[i][clock] - steps[i + 1][clock] for i in range(0, len(steps), 2)])
        plain, _ = mean([x[clock] for x in steps if not x[2]])
        costs[name], shares[name] = (cost, error), (dumped * cost / plain, dumped * error / plain)
        print(f"{name}: a step that is not dumped {1e3 * plain:.1f} ms, a dump {1e3 * cost:.1f} ± {1e3 * error:.1f} ms; by default {100 * shares[name][0]:.1f} ± {100 * shares[name][1]:.1f} % of the steps' time")
    print(f"the session counts {1e3 * said:.1f} ms for a dump of {session.bytes / session.files * 2 / 1e3:.0f} kB, and dumps {100 * dumped:.0f} % of the steps by default; load {os.getloadavg()[0]:.1f}")
    cost, noise = costs["of the processor"]
    sys.exit(0 if all(share <= a.share + 2 * error for share, error in shares.values()) and said >= cost * 2 / 3 - 2 * noise else 1)


if __name__ == "__main__":
    main()
