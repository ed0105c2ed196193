"""Races PyTorch against the Go benchmarks of rl_test.go: GAE by the loops over columns that frameworks run, and the PPO token
loss with its gradient by autograd, in float64 on 1,048,576 tokens. For GAE PyTorch also gets 262,144 (256 rows), where a step
of the loop is mostly overhead.

    python -m venv .venv && .venv/bin/pip install torch==2.15.0
    go test -c -o rl.test ./benchmarks
    .venv/bin/python benchmarks/peers/gae.py ./rl.test [GAE/carry ...] > benchmarks/results/rl-<cpu>.txt

Go and PyTorch take turns, ABAB, after a warm-up of 4 s; each round times at least 60 ms of both. A round in which other
processes used, or the host took, more than 2 % of the machine is thrown away and tried again 2 s later; if 60 do not give 12
quiet ones, the 12 quietest count and the output says so. Before that the results of both sides are compared. Output is Go's
benchmark format; the ratio of the times per token (PyTorch / Go) is a comment with its bootstrap interval.
"""
import os
import platform
import random
import re
import resource
import statistics
import subprocess
import sys
import time

import torch

ROWS = COLS = 1024
GAMMA, LAMBDA = 0.99, 0.95
PAIRS, ATTEMPTS, QUIET, WARM, SPAN = 12, 60, 0.02, 4.0, 0.06


def fill(salt):
    i = torch.arange(ROWS * COLS, dtype=torch.int64)
    return ((((i + salt) * 7919) % 1009 - 504).double() / 331).reshape(ROWS, COLS)


LENGTH = 768 + 37 * torch.arange(ROWS) % 257
MASK = torch.arange(COLS)[None, :] < LENGTH[:, None]
M = MASK.double()
REWARD, VALUE, ADV = fill(1), fill(2), fill(3)
OLD, REF = fill(5) / 4 - 2, fill(6) / 4 - 2
LOGP = (fill(4) / 4 - 2).requires_grad_()
VALUE_0 = VALUE * M  # TRL zeroes the values after the response before its loop


def none(rows=ROWS):
    """TRL: no mask in the loop."""
    r, v = REWARD[:rows], VALUE_0[:rows]
    last, rev = 0, []
    for t in reversed(range(COLS)):
        nextvalues = v[:, t + 1] if t < COLS - 1 else 0.0
        delta = r[:, t] + GAMMA * nextvalues - v[:, t]
        last = delta + GAMMA * LAMBDA * last
        rev.append(last)
    adv = torch.stack(rev[::-1], dim=1)
    return adv, adv + v


def carry(rows=ROWS):
    """verl: masked cells keep what comes from the right."""
    r, v, m = REWARD[:rows], VALUE[:rows], M[:rows]
    nextvalues, last, rev = 0, 0, []
    for t in reversed(range(COLS)):
        delta = r[:, t] + GAMMA * nextvalues - v[:, t]
        here = delta + GAMMA * LAMBDA * last
        nextvalues = v[:, t] * m[:, t] + (1 - m[:, t]) * nextvalues
        last = here * m[:, t] + (1 - m[:, t]) * last
        rev.append(last)
    adv = torch.stack(rev[::-1], dim=1)
    return adv, adv + v


def cut_next(rows=ROWS):
    """The PPO tutorial: nothing is taken from a masked cell on the right."""
    r, v, m = REWARD[:rows], VALUE[:rows], M[:rows]
    adv = torch.zeros_like(r)
    last = torch.zeros(rows, dtype=torch.float64)
    for t in reversed(range(COLS)):
        if t == COLS - 1:
            nextvalues = nextmask = torch.zeros(rows, dtype=torch.float64)
        else:
            nextvalues, nextmask = v[:, t + 1], m[:, t + 1]
        delta = r[:, t] + GAMMA * nextvalues * nextmask - v[:, t]
        last = delta + GAMMA * LAMBDA * last * nextmask
        adv[:, t] = last
    return adv, adv + v


def ppo(rows=ROWS):
    """The clipped surrogate with k3 at beta .05, token mean, and backward."""
    LOGP.grad = None
    ratio = torch.exp(LOGP - OLD)
    loss = torch.maximum(-ADV * ratio, -ADV * torch.clamp(ratio, 0.8, 1.2))
    d = REF - LOGP
    loss = ((loss + 0.05 * (torch.exp(d) - d - 1)) * M).sum() / M.sum()
    loss.backward()
    return loss


def advantage(f):
    with torch.no_grad():
        return {"ΣA": float((f()[0] * M).sum())}


CASES = {  # Go's benchmark: the work here, what both must agree on, the batches that PyTorch gets
    "GAE/none": (none, lambda: advantage(none), (256, 1024)),
    "GAE/carry": (carry, lambda: advantage(carry), (256, 1024)),
    "GAE/cut_next": (cut_next, lambda: advantage(cut_next), (256, 1024)),
    "PPO": (ppo, lambda: {"L": float(ppo().detach()), "|∂L|": float(LOGP.grad.norm())}, (1024,)),
}


def run_go(binary, name, times):
    """Runs one Go benchmark; returns seconds per operation and its metrics."""
    pattern = "/".join("^%s$" % part for part in ("Benchmark" + name).split("/"))
    out = subprocess.run(
        [binary, "-test.run", "^$", "-test.bench", pattern, "-test.benchtime", "%dx" % times],
        check=True, capture_output=True, text=True,
    ).stdout
    line = next(l for l in out.splitlines() if l.startswith("Benchmark"))
    metrics = {unit: float(v) for v, unit in re.findall(r"(\S+) (\S+)(?:\t|$)", line.split("\t", 2)[2].strip().replace("  ", ""))}
    return metrics.pop("ns/op") * 1e-9, metrics


def run_torch(f, rows, times):
    start = time.perf_counter()
    for _ in range(times):
        f(rows)
    return (time.perf_counter() - start) / times


def ticks():
    """Seconds that all CPUs were busy, and that the host took, since the start."""
    with open("/proc/stat") as f:
        t = [int(x) / os.sysconf("SC_CLK_TCK") for x in f.readline().split()[1:9]]
    return t[0] + t[1] + t[2] + t[5] + t[6], t[7]


def used():
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def foreign(work):
    """Runs work; returns its result and the share of the machine that others had meanwhile."""
    busy, stolen, mine, start = *ticks(), used(), time.perf_counter()
    result = work()
    wall = time.perf_counter() - start
    busy2, stolen2 = ticks()
    others = max(0.0, (busy2 - busy) - (used() - mine)) + stolen2 - stolen
    return result, others / (wall * os.cpu_count())


def interval(ratios, draws=2000):
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[draws // 40], medians[-draws // 40]


def race(binary, name, rows, threads):
    """Returns the rounds that count, each (share of others, Go's and PyTorch's seconds per token, repetitions), and how many
    were tried."""
    f, values, _ = CASES[name]
    torch.set_num_threads(threads)
    _, got = run_go(binary, name, 1)
    for key, want in values().items():  # Go prints four digits
        if not abs(got[key] - want) <= 1e-3 * abs(want):
            sys.exit("%s: %s is %g in Go, %g in PyTorch" % (name, key, got[key], want))
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:
        torch_one = run_torch(f, rows, 1)
    go_one, _ = run_go(binary, name, 20)
    torch_n, go_n = int(SPAN / torch_one) + 1, int(SPAN / go_one) + 1
    rounds = []
    for _ in range(ATTEMPTS):
        (go, peer), others = foreign(lambda: (run_go(binary, name, go_n)[0], run_torch(f, rows, torch_n)))
        rounds.append((others, go / (ROWS * COLS), peer / (rows * COLS), go_n, torch_n))
        if others > QUIET:
            time.sleep(2)  # until their work is over
        if sum(r[0] <= QUIET for r in rounds) == PAIRS:
            break
    rounds.sort()
    return rounds[:PAIRS], len(rounds)


def main():
    binary = os.path.abspath(sys.argv[1])
    with open("/proc/cpuinfo") as f:
        info = dict(re.split(r"\s*:\s*", line.strip(), maxsplit=1) for line in f if ":" in line)
    print("# %s (family %s, model %s), %d cores, %s %s, python %s, torch %s" % (
        info["model name"], info["cpu family"], info["model"], os.cpu_count(), platform.system(), platform.release().split("-")[0],
        platform.python_version(), torch.__version__))
    print("# benchmarks/peers/gae.py: %d rounds of Go (1024×1024 tokens) and PyTorch in turn, float64" % PAIRS)
    print("goos: linux\ngoarch: amd64\npkg: plumbline/benchmarks\ncpu: %s" % info["model name"])
    for name in sys.argv[2:] or CASES:
        for rows in CASES[name][2]:
            for threads in sorted({1, os.cpu_count()}):
                rounds, tried = race(binary, name, rows, threads)
                peer_name = "Peer%s/torch-%dx%d-%d" % (name, rows, COLS, threads)
                for _, go, peer, go_n, torch_n in rounds:
                    print("Benchmark%s\t%d\t%.0f ns/op\t%.1f Mtok/s" % (name, go_n, go * ROWS * COLS * 1e9, 1e-6 / go))
                    print("Benchmark%s\t%d\t%.0f ns/op\t%.1f Mtok/s" % (peer_name, torch_n, peer * rows * COLS * 1e9, 1e-6 / peer))
                ratios = [peer / go for _, go, peer, _, _ in rounds]
                print("# %s per token: PyTorch/Go median %.2f (95 %% %.2f–%.2f), best/best %.2f; others had at most %.1f %% of the machine; %d rounds tried" % (
                    peer_name, statistics.median(ratios), *interval(ratios), min(r[2] for r in rounds) / min(r[1] for r in rounds),
                    100 * max(r[0] for r in rounds), tried))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
