"""Histories that the wandb library writes and exports itself, without network: python wandb_logs.py golden/logs/loggers

A run is logged in offline mode. The records of its run-*.wandb file (blocks of LevelDB's log format, messages of wandb's own protobuf)
are what the server would hold as the history; the one request of wandb's public Run.history is answered with them, and all that
follows is wandb's export: its rows as JSON lines and as one list, its pandas frame as CSV and as JSON by columns. Needs torch 2.15.0, wandb 0.31.0,
pandas and numpy.
"""

import glob
import json
import os
import shutil
import struct
import sys
import tempfile

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_CONSOLE="off", WANDB__DISABLE_STATS="true", WANDB_DISABLE_GIT="true", WANDB_DISABLE_CODE="true")
import wandb
from wandb.apis.public.runs import Run
from wandb.proto import wandb_internal_pb2

import loggers


def records(path):
    """The records of a .wandb file: a header of 7 bytes, then blocks of 32 KiB of chunks (checksum, length, type)."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:4] == b":W&B"
    at, held = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at:at + 7])
        chunk, at = data[at + 7:at + 7 + length], at + 7 + length
        held = chunk if kind in (1, 2) else held + chunk  # full, first, middle, last
        if kind in (1, 4):
            yield held


def history(path):
    """The lines of JSON that the history of the run consists of."""
    for data in records(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") != "history":
            continue
        row = {}
        for item in record.history.item:
            to, keys = row, list(item.nested_key) or [item.key]
            for k in keys[:-1]:
                to = to.setdefault(k, {})
            to[keys[-1]] = json.loads(item.value_json)
        row["_step"] = record.history.step.num
        row.pop("_timestamp", None)  # the clock of the producer
        row.pop("_runtime", None)
        yield json.dumps(row, sort_keys=True)  # wandb keeps no order


def export(path):
    """wandb's own Run.history, whose request is answered from the file."""
    lines = list(history(path))
    run = Run.__new__(Run)
    object.__setattr__(run, "_exec", lambda *_, **__: {"project": {"run": {"history": lines}}})
    return Run.history(run, pandas=False), Run.history(run, pandas=True)


def log(run, name, step, m):
    if name == "verl":
        run.log(loggers.verl(m, step), step=step)
    elif name == "nested":  # a dictionary inside: wandb joins the names by a point
        run.log({"train": {"loss": m["loss"], "grad_norm": m["grad_norm"], "entropy": m["entropy"]}, "note": "text", "reward": m["reward"]}, step=step)
    else:
        run.log({**loggers.hf(m, step), "weights": wandb.Histogram([m["reward"], m["entropy"], 1.0])}, step=step, commit=False)
        if step % 4 == 0:  # held-out numbers come in some lines only
            run.log({"eval/loss": m["loss"] + 0.01}, step=step, commit=False)
        run.log({"train/epoch": step / 12}, step=step)


def main():
    out = sys.argv[1]
    for name, kind, args in (("wandb-healthy", "hf", {}), ("wandb-nan", "hf", {"nan_from": 6}), ("wandb-verl", "verl", {}), ("wandb-verl-temperature", "verl", {"temperature": 0.1}), ("wandb-nested", "nested", {})):
        to = os.path.join(out, name)
        shutil.rmtree(to, ignore_errors=True)
        os.makedirs(to)
        with tempfile.TemporaryDirectory() as tmp:
            run = wandb.init(project="project", name="run", id="run0", dir=tmp, config={"learning_rate": 1e-6, "beta": 0.0})
            for step, m in loggers.loop(12, **args):
                log(run, kind, step, m)
            run.finish()
            wandb.teardown()  # its process writes the end of the file
            (file,) = glob.glob(os.path.join(tmp, "wandb", "offline-run-*", "*.wandb"))
            rows, frame = export(file)
        with open(os.path.join(to, "history.jsonl"), "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
        with open(os.path.join(to, "history.json"), "w") as f:
            json.dump(rows, f)
        frame.to_csv(os.path.join(to, "history.csv"), index=False)
        frame.to_json(os.path.join(to, "columns.json"))
    loggers.manifest(os.path.dirname(os.path.abspath(out)))


if __name__ == "__main__":
    main()
