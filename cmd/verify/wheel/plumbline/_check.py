"""Run the program verify and return its report."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


class VerifyError(Exception):
    """verify gave no report: usage, a missing path, a crash. `exit` is its exit code."""

    def __init__(self, exit, message):
        super().__init__(message)
        self.exit = exit


@dataclass(frozen=True)
class Explanation:
    title: str
    fault: str = ""  # id in the catalogue of verify faults
    evidence: str = ""
    lead: bool = False  # fits only partly


@dataclass(frozen=True)
class Result:
    check: str
    subject: str
    verdict: str  # PASS, FAIL, CONVENTION, UNDETERMINED, WARN, NOTE, "not seen", SKIP
    reason: str = ""
    metric: str = ""
    measured: float | None = None
    limit: float | None = None
    ratio: float | None = None
    compared: int = 0
    resolution: float | None = None
    where: str = ""
    facts: dict = field(default_factory=dict)
    explanations: list = field(default_factory=list)
    fix: str = ""
    repeat: str = ""


@dataclass(frozen=True)
class Report:
    """The JSON report. `raw` is the whole of it, with what has no field here."""

    exit: int
    meaning: str
    error: str
    counts: dict
    inputs: list
    results: list
    lines: list
    raw: dict = field(repr=False)

    @property
    def ok(self):
        return self.exit == 0

    @property
    def bad(self):
        """Results with the verdicts FAIL, CONVENTION and UNDETERMINED."""
        return [r for r in self.results if r.verdict in ("FAIL", "CONVENTION", "UNDETERMINED")]


def binary():
    """The path of the program: of this package, or what the variable PLUMBLINE_VERIFY names."""
    path = os.environ.get("PLUMBLINE_VERIFY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "verify")
    if not os.path.isfile(path):
        raise VerifyError(3, f"{path} is missing: install a wheel made for this platform (make wheel), or set PLUMBLINE_VERIFY")
    return path


def main():
    """The console script: this process becomes verify."""
    try:
        path = binary()
        os.execv(path, [path, *sys.argv[1:]])
    except (OSError, VerifyError) as e:
        print(f"verify: {e}", file=sys.stderr)
        sys.exit(3)


def check(path, profile=None, **flags):
    """Run `verify dump` on a file, a folder, a glob or a list of them. Return its Report, whatever the verdict.

    flags are those of the command with _ for -: first_step=True, set={"adv.ddof": 0}, select=["kl", "ratio"],
    config="trainer.yaml", steps="0..9", ... VerifyError if there is no report, as for a flag or path that does not exist.
    """
    out = _run(path, profile, {**flags, "format": "json"})
    try:
        raw = json.loads(out.stdout)
    except ValueError:
        raise VerifyError(out.returncode, out.stderr.strip() or f"verify ended with exit code {out.returncode} and no report") from None
    return Report(exit=out.returncode, meaning=raw["meaning"], error=raw.get("error", ""), counts=raw["counts"], inputs=raw["inputs"],
                  results=[_result(r) for r in raw["results"]], lines=raw["lines"], raw=raw)


def assert_dump(path, profile=None, **flags):
    """Fail, with the report as the message, unless `verify dump` ends with exit code 0. For use in tests."""
    __tracebackhide__ = True  # pytest then shows the line of the test
    v = verdict(path, profile, **flags)
    if v.exit != 0:
        raise AssertionError(f"{v.headline}\n\n{v.text}")


@dataclass(frozen=True)
class Verdict:
    exit: int
    headline: str  # "ADV-DDOF: the standard deviation divides by n (step 1)"
    text: str  # what the terminal shows


def verdict(path, profile=None, **flags):
    """What `verify dump` says of a run, for people. Exit code 5 where there is no path."""
    if not isinstance(path, (str, bytes, os.PathLike)) and not path:
        return Verdict(5, "nothing was dumped", "nothing was dumped")
    out = _run(path, profile, flags)
    text = "\n".join(s for s in (out.stdout.strip(), out.stderr.strip()) if s)
    lines = text.splitlines() or [f"verify ended with exit code {out.returncode} and no report"]
    headline = lines[0 if out.returncode == 0 else -1].lstrip("✗x ")
    if out.returncode == 1:  # the short form has one line of many findings
        try:
            found = [f for f in check(path, profile, **flags).raw.get("findings", []) if f.get("verdict") in ("FAIL", "CONVENTION")]
            headline = "; ".join(f"{f['name']}: {f['title']} (from step {f['first_bad']})" for f in found) or headline
        except (VerifyError, KeyError):
            pass
    return Verdict(out.returncode, headline, text)


def unjudged(rows):
    """Checks that need the rows that rows= leaves out."""
    return ["advantage"] if rows else None


def costs(records):
    """What the sessions of a run spent, in lines; lost micro-batches among them."""
    records = [r for r in records if r["steps"]]
    if not records:
        return []
    worst = max(records, key=lambda r: r["seconds"] / r["steps"])
    size, files, steps = sum(r["bytes"] for r in records), sum(r["files"] for r in records), max(r["steps"] for r in records)
    share = worst["elapsed"] - worst["seconds"]
    lines = [f"plumbline: {steps} of {steps + max(r['skipped'] for r in records)} steps dumped, {files} files, {size / 1e6:.1f} MB; "
             f"{1000 * worst['seconds'] / worst['steps']:.1f} ms each" + (f", {100 * worst['seconds'] / share:.1f} % of the time of the steps" if share > 0 else "")
             + (f" (the first {worst['first']} are dumped whatever they cost)" if 0 < share * 0.05 < worst["seconds"] and worst["steps"] <= worst["first"] else "")]
    full = [r["full"] for r in records if r["full"] is not None]
    if full:
        lines.append(f"plumbline: the size limit was reached: nothing after step {min(full)} is dumped (limit=)")
    lost = sorted(step for r in records for step in r["lost"])
    if lost:
        some = ", ".join(str(s) for s in sorted(set(lost))[:8])
        lines.append(f"plumbline: {len(lost)} micro-batch{'es' * (len(lost) > 1)} of step {some} could not be dumped (a warning says why): the verdict is about the others")
    return lines


def _run(path, profile, flags):
    paths = [path] if isinstance(path, (str, bytes, os.PathLike)) else list(path)
    command = [binary(), "dump", *arguments({"profile": profile, **flags}), "--", *(os.fsdecode(p) for p in paths)]
    # The caller reports; the summary of the step belongs to the command line.
    env = {k: v for k, v in os.environ.items() if k not in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "CLICOLOR_FORCE")}
    try:
        return subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", env=env, stdin=subprocess.DEVNULL)
    except OSError as e:
        raise VerifyError(3, f"{command[0]}: {e}") from e


def arguments(flags):
    """The flags of the command line: None and False are left out, lists and mappings repeat the flag."""
    args = []
    for name, value in flags.items():
        name = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            args.append(name)
        elif isinstance(value, Mapping):
            args += [f"{name}={k}={_word(v)}" for k, v in value.items()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            args += [f"{name}={_word(v)}" for v in value]
        else:
            args.append(f"{name}={_word(value)}")
    return args


def _word(v):
    if v is None or isinstance(v, bool):
        return {None: "none", True: "true", False: "false"}[v]
    return os.fsdecode(v) if isinstance(v, (bytes, os.PathLike)) else str(v)


def _result(r):
    numbers = {k: _number(r[k]) for k in ("measured", "limit", "ratio", "resolution") if k in r}
    words = {k: r[k] for k in ("check", "subject", "verdict", "reason", "metric", "compared", "where", "fix", "repeat") if k in r}
    return Result(**words, **numbers, facts={f["name"]: _number(f["value"]) for f in r.get("facts", [])},
                  explanations=[Explanation(**{k: e[k] for k in ("title", "fault", "evidence", "lead") if k in e}) for e in r.get("explanations", [])])


def _number(v):
    """Non-finite numbers are strings in the report."""
    return float(v)
