"""plumbline run: a training command with the hook put in, into a folder of its own, and the verdict at its end."""
from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from . import _check

EPILOG = """\
  plumbline run train.py --lr 1e-6
  plumbline run --stop -- trl grpo --model_name_or_path …
  plumbline run --every 10 -- torchrun --nproc_per_node 8 train.py

The hook is put into TRL's GRPOTrainer, RLOOTrainer and DPOTrainer, verl's losses and OpenRLHF's strategy when the program, or a
process that it starts, imports them; a run of another trainer dumps nothing, which is exit 5. Everything but run is a command of verify: plumbline dump FOLDER, plumbline explain ID, ...

Exit: that of the command if it failed; else that of verify dump: 0 nothing failed, 1 a bug, 5 nothing was dumped, 6 undetermined."""


def size(text):
    """Bytes of 500MB, 2GiB or a plain number."""
    for unit, factor in (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("KB", 10**3), ("MB", 10**6), ("GB", 10**9), ("", 1)):
        if text.endswith(unit):
            try:
                n = int(float(text[:len(text) - len(unit)]) * factor)
            except (ValueError, OverflowError):
                break
            if n >= 1:
                return n
            break
    raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500MB, 2GiB or bytes")


def natural(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: want a whole number of at least 1")
    return int(text)


class Help(argparse.HelpFormatter):
    """Paragraphs of prose are set to the width of the terminal, examples stay."""

    def _fill_text(self, text, width, indent):
        return "\n\n".join(p if p.startswith("  ") else super(Help, self)._fill_text(p, width, indent) for p in text.split("\n\n"))


def parser():
    p = argparse.ArgumentParser(prog="plumbline run", description="Run a training command, dump steps of it, and say whether they compute what they should.",
                                formatter_class=Help, epilog=EPILOG, allow_abbrev=False)
    p.add_argument("--into", default="plumbline-runs", metavar="DIR", help="every run gets a folder of its own in it (plumbline-runs)")
    p.add_argument("--stop", action="store_true", help="stop the run at the first failure (SIGINT, as Ctrl-C does)")
    p.add_argument("--every", type=natural, metavar="N", help="dump rollout steps 1, 1+N, ...; default: the first two, then as many as take 5 %% of the time")
    p.add_argument("--rows", type=natural, metavar="N", help="the first N rows of each micro-batch only: losses, gradients and groups are then not judged")
    p.add_argument("--limit", type=size, default=10**9, metavar="SIZE", help="of all files of the run (1GB)")
    p.add_argument("--profile", help="the convention to judge by; default: that of the release that the files name")
    p.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="as of verify dump; repeatable")
    p.add_argument("--config", action="append", default=[], metavar="FILE", help="as of verify dump; repeatable")
    p.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT.py ... | -- COMMAND ...")
    return p


def main(argv=None):
    """The console script plumbline."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] != "run":
        _check.main()
    p = parser()
    a = p.parse_args(argv[1:])
    command = a.command[1:] if a.command[:1] == ["--"] else a.command
    if not command:
        p.error("name the training script, or -- and a command")
    if command[0].endswith(".py"):
        if not os.path.isfile(command[0]):
            p.error(f"there is no file {command[0]}")
        command = [sys.executable, *command]
    elif shutil.which(command[0]) is None:
        p.error(f"there is no program {command[0]}")
    sys.exit(run(command, a))


def run(command, a):
    folder = fresh(a.into)
    flags = {"profile": a.profile, "set": a.set, "config": a.config, "ignore": _check.unjudged(a.rows)}
    env = dict(os.environ, PLUMBLINE_RUN=json.dumps({"folder": os.path.abspath(folder), "every": a.every, "rows": a.rows, "limit": a.limit}))
    site = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_site")
    env["PYTHONPATH"] = os.pathsep.join([site, *filter(None, [env.get("PYTHONPATH")])])
    say(f"dumps go into {folder}")
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command gets it, too, and decides
    try:
        child = subprocess.Popen(command, env=env, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        stopped = watch(child, folder, flags) if a.stop else child.wait() and False
    finally:
        signal.signal(signal.SIGINT, interrupt)
    worst = 0
    judged = runs(folder)
    for path in judged:
        out = subprocess.run([_check.binary(), "dump", *_check.arguments(flags), "--", path], stdin=subprocess.DEVNULL)
        worst = worse(worst, out.returncode)
    records = []
    for path in glob.glob(os.path.join(glob.escape(folder), "cost-*.json")):
        with open(path, encoding="utf-8") as f:
            records.append(json.load(f))
    for line in _check.costs(records):
        say(line.removeprefix("plumbline: "))
    if not judged:
        worst = 5
        say(nothing(records))
    elif any(r["lost"] for r in records):
        worst = worse(worst, 6)
    if stopped:
        say("the run was stopped at the first failure (--stop)")
        return 1
    if child.returncode:
        by = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        say(f"the command ended with {by}")
        return 128 - child.returncode if child.returncode < 0 else child.returncode
    return worst


def say(text):
    print("plumbline: " + text, file=sys.stderr, flush=True)


def worse(a, b):
    """The exit code of two: a failure before an error before what was not decided."""
    order = [0, 5, 6, 2, 3, 4, 1]
    return max(a, b, key=lambda code: order.index(code) if code in order else len(order))


def fresh(into):
    """A new folder, named after the time."""
    for n in range(100):
        folder = os.path.join(into, time.strftime("%Y%m%d-%H%M%S") + (f"-{n}" if n else ""))
        try:
            os.makedirs(folder)
            return folder
        except FileExistsError:
            continue
        except OSError as e:
            sys.exit(f"plumbline run: --into {into}: {e.strerror}")
    sys.exit(f"plumbline run: --into {into}: no free name")


def runs(folder):
    """Folders that hold dumps: one for each time that training began, the critic's own."""
    return [path for path, _, names in sorted(os.walk(folder)) if any(n.endswith(".safetensors") for n in names)]


def nothing(records):
    if records:
        return "the trainer was hooked, but no step was dumped: a warning above says why"
    return ("nothing was dumped: no process trained with TRL's GRPOTrainer, RLOOTrainer or DPOTrainer, verl's losses or OpenRLHF's strategy; other trainers have no hook. A loop of your own calls plumbline.dump "
            "(verify explain dump); python -I and -E, and containers, do not see PYTHONPATH: use the callback or external_lib there")


def watch(child, folder, flags):
    """Judge while the command runs; True if it was stopped."""
    seen, wait = -1, 0.5
    while True:
        try:
            child.wait(wait)
            return False
        except subprocess.TimeoutExpired:
            pass
        began = time.monotonic()
        names = sum(len(files) for _, _, files in os.walk(folder))
        if names == seen:
            continue
        seen = names
        for path in runs(folder):
            done = whole(path)
            if done is None:
                continue
            out = subprocess.run([_check.binary(), "dump", "--quiet", *_check.arguments({**flags, "steps": f"..{done}"}), "--", path],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if out.returncode == 1:
                end(child)
                return True
        wait = max(0.5, 20 * (time.monotonic() - began))  # judging takes 5 % of one processor at most


def whole(path):
    """The last step of a run that no file will be added to: the one before the newest."""
    steps = sorted({int(n[5:11]) for n in os.listdir(path) if n.startswith("step_") and n[5:11].isdecimal()})
    return steps[-2] if len(steps) > 1 else None


def end(child):
    for sign, seconds in ((signal.SIGINT, 30), (signal.SIGTERM, 10), (signal.SIGKILL, None)):
        child.send_signal(sign)
        try:
            child.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            continue
