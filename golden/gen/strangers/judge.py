"""Runs `verify dump` on every case and scores it: python judge.py VERIFY CASES OUT [--publish DIR].

CASES is the folder that run.py wrote (one folder per case, cases.json). A case is OPEN or SEALED by the hash of its producer and
family; failures of the sealed half are counted and never listed.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile

from case import half
from safetensors import safe_open
from safetensors.torch import load_file, save_file

GENERAL = {"FACTOR", "EXTRA-TERM"}  # true of many bugs: neither the right name nor a wrong one
LIMIT = 45  # seconds of CPU; a run beyond is killed and counts as one over 20 s
KEEP = (
    "schema",
    "step",
    "rank",
    "world_size",
    "micro_batch",
    "micro_batches",
    "align",
    "scalars",
    "scalars_scope",
    "token_loss_includes_kl",
    "logits_rows",
)


def undeclare(folder, to):
    """The same tensors with no word about framework, profile or options."""
    os.makedirs(to, exist_ok=True)
    for n in sorted(os.listdir(folder)):
        p = os.path.join(folder, n)
        with safe_open(p, "pt") as f:
            meta = json.loads(f.metadata()["plumbline"])
        meta = {k: v for k, v in meta.items() if k in KEEP}
        save_file(load_file(p), os.path.join(to, n), metadata={"plumbline": json.dumps(meta, sort_keys=True)})


def verify(binary, folder, *args):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        p = subprocess.Popen(
            [binary, "dump", folder, "--format", "json", "-o", out.name, *args],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT)),
        )
        err = p.stderr.read().decode(errors="replace")
        _, status, use = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        text = open(out.name).read()
    report = json.loads(text) if text.strip() else {}
    return ("timeout" if p.returncode < 0 else p.returncode), report, use.ru_utime + use.ru_stime, err.strip()[-300:]


def names(explanation):
    """What an explanation says: the id of a fault, and the options that it would change."""
    out = set()
    if explanation.get("fault"):
        out.add(explanation["fault"])
    for o in explanation.get("options", ()):
        out.add(o["option"])
        out.add(f"{o['option']}={o['value']}")
    return out


def first(findings, report):
    """The names of the first finding: those of its class (at most eight that give the same numbers), else its first explanation."""
    for f in findings:
        ex = f.get("explanations") or []
        if not ex:
            return f, set()
        tie = set(f.get("class") or ())
        got = names(ex[0])
        if 0 < len(tie) <= 8:
            got |= tie
            for e in ex:
                if e.get("fault") in tie:
                    got |= names(e)
        return f, got
    return None, set()


def judge(binary, case, folder, declared):
    tmp = None
    if not declared:
        tmp = tempfile.mkdtemp()
        undeclare(folder, tmp)
    try:
        code, report, cpu, err = verify(binary, tmp or folder)
    finally:
        if tmp:
            shutil.rmtree(tmp)
    findings = [r for r in report.get("results", ()) if r["verdict"] in ("FAIL", "CONVENTION")]
    undetermined = [r for r in report.get("results", ()) if r["verdict"] == "UNDETERMINED"]
    f, got = first(findings, report)
    say = lambda r: (
        f"{r['verdict']} {r['check']}: {r.get('reason', '')[:160]}"
        + (
            f" [{'; '.join((e.get('fault') or '-') + ': ' + e['title'][:90] for e in r['explanations'][:3])}]"
            if r.get("explanations")
            else ""
        )
    )
    out = dict(
        id=case["id"],
        half=half(case),
        bug=case["bug"],
        family=case["family"],
        producer=case["producer"],
        declared=declared,
        exit=code,
        cpu=cpu,
        err=err,
        findings=[say(r) for r in findings[:4]],
        undetermined=[say(r) for r in undetermined[:3]],
    )
    if case["bug"]:
        out["caught"] = code == 1
        out["stage"] = any(r["check"].startswith(tuple(case["stages"])) for r in findings) if case["stages"] else code == 1
        right = set(case["names"])
        out["named"] = bool(got & right)
        out["misnamed"] = code == 1 and bool(got - GENERAL) and not got & right
        out["first"] = sorted(got)
        out["right"] = case["names"]
    return out


def fisher(a, b, c, d):
    """Two-sided exact test of the table a b / c d."""
    n, r, k = a + b + c + d, a + b, a + c
    p = lambda x: math.comb(k, x) * math.comb(n - k, r - x) / math.comb(n, r)
    ref = p(a)
    return min(1.0, sum(q for x in range(max(0, r + k - n), min(r, k) + 1) if (q := p(x)) <= ref * (1 + 1e-9)))


def table(rows):
    lines = []
    for declared in (True, False):
        word = "declared" if declared else "nothing declared"
        h = [r for r in rows if not r["bug"] and r["declared"] == declared]
        g = [r for r in rows if r["bug"] and r["declared"] == declared]
        count = lambda rs, f: {k: sum(1 for r in rs if f(r) and r["half"] == k) for k in ("open", "sealed")}
        total = {k: sum(1 for r in h if r["half"] == k) for k in ("open", "sealed")}
        for what, f in (
            ("FAIL or CONVENTION", lambda r: r["exit"] == 1),
            ("undetermined", lambda r: r["exit"] in (5, 6)),
            ("other exit", lambda r: r["exit"] not in (0, 1, 5, 6)),
        ):
            c = count(h, f)
            p = fisher(c["open"], total["open"] - c["open"], c["sealed"], total["sealed"] - c["sealed"]) if h else 1
            lines.append(
                f"healthy, {word}: {what:20s} open {c['open']:3d} of {total['open']:3d}   sealed {c['sealed']:3d} of {total['sealed']:3d}   p {p:.2f}"
            )
        total = {k: sum(1 for r in g if r["half"] == k) for k in ("open", "sealed")}
        for what, f in (
            ("caught", lambda r: r["caught"]),
            ("caught at the stage", lambda r: r["caught"] and r["stage"]),
            ("named first", lambda r: r["named"] and r["caught"]),
            ("misnamed", lambda r: r["misnamed"]),
            ("over 20 s of CPU", lambda r: r["cpu"] > 20),
        ):
            c = count(g, f)
            p = fisher(c["open"], total["open"] - c["open"], c["sealed"], total["sealed"] - c["sealed"]) if g else 1
            lines.append(
                f"bugs, {word}: {what:20s} open {c['open']:3d} of {total['open']:3d} ({100 * c['open'] / max(1, total['open']):.0f} %)   "
                f"sealed {c['sealed']:3d} of {total['sealed']:3d} ({100 * c['sealed'] / max(1, total['sealed']):.0f} %)   p {p:.2f}"
            )
    return lines


def bad(r):
    if not r["bug"]:
        return r["exit"] != 0
    return not (r["caught"] and r["stage"] and r["named"]) or r["misnamed"] or r["cpu"] > 20


def why(r):
    if not r["bug"]:
        return "must pass (exit 0)"
    parts = []
    if not r["caught"]:
        parts.append("must be caught (exit 1)")
    elif not r["stage"]:
        parts.append("caught at the wrong stage")
    if r["caught"] and not r["named"]:
        parts.append("misnamed" if r["misnamed"] else "not named")
    if r["cpu"] > 20:
        parts.append(f"{r['cpu']:.0f} s of CPU")
    return ", ".join(parts)


def publish(to, rows, cases, root, head):
    os.makedirs(to, exist_ok=True)
    new = os.path.join(to, "dumps.new")
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(new)
    by = {c["id"]: c for c in cases}
    lines = [
        "# Failing cases of the OPEN half of the bench of strangers",
        "",
        *head,
        "",
        "One entry per failing case. `dumps/ID` is judged as `verify dump dumps/ID` (declared in the files); `undeclared/ID` holds the same without declarations.",
        "A bug's `right` are the names that would be right, `stage` the checks where it sits.",
        "",
    ]
    made = set()
    for kind, pick in (
        ("healthy, declared", lambda r: not r["bug"] and r["declared"]),
        ("healthy, nothing declared", lambda r: not r["bug"] and not r["declared"]),
        ("bugs, declared: missed or at the wrong stage", lambda r: r["bug"] and r["declared"] and not (r["caught"] and r["stage"])),
        ("bugs, declared: misnamed", lambda r: r["bug"] and r["declared"] and r["caught"] and r["stage"] and r["misnamed"]),
        ("bugs, declared: not named", lambda r: r["bug"] and r["declared"] and r["caught"] and r["stage"] and not r["misnamed"]),
        ("bugs, nothing declared", lambda r: r["bug"] and not r["declared"]),
    ):
        chosen = [r for r in rows if bad(r) and r["half"] == "open" and pick(r)]
        lines += [f"## {kind} ({len(chosen)})", ""]
        for r in chosen:
            c = by[r["id"]]
            sub = "dumps" if r["declared"] else "undeclared"
            target = os.path.join(new, sub, r["id"])
            if (sub, r["id"]) not in made:
                made.add((sub, r["id"]))
                (shutil.copytree if r["declared"] else undeclare)(os.path.join(root, r["id"]), target)
            lines.append(
                f"- `{sub}/{r['id']}` exit {r['exit']} ({r['cpu']:.1f} s): **{why(r)}**. {c['what']} [{c['producer']}, {c['dtype']}]"
                + (f" right: {', '.join(c['names']) or 'none in the catalogue'}; stage: {', '.join(c['stages'])}" if c["bug"] else "")
            )
            for f in (r["findings"] or r["undetermined"])[:3]:
                lines.append(f"    - {f}")
            if r["err"]:
                lines.append(f"    - stderr: {r['err']}")
        lines.append("")
    for sub in ("dumps", "undeclared"):
        shutil.rmtree(os.path.join(to, sub), ignore_errors=True)
        if os.path.isdir(os.path.join(new, sub)):
            os.rename(os.path.join(new, sub), os.path.join(to, sub))
    shutil.rmtree(new)
    with open(os.path.join(to, "README.md.part"), "w") as f:
        f.write("\n".join(lines) + "\n")
    os.replace(os.path.join(to, "README.md.part"), os.path.join(to, "README.md"))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("verify"), p.add_argument("cases"), p.add_argument("out")
    p.add_argument("--publish"), p.add_argument("--undeclared", type=int, default=12, help="one case in so many is judged undeclared, too")
    p.add_argument("--only", default=""), p.add_argument("--jobs", type=int, default=2), p.add_argument("--label", default="")
    p.add_argument("--first", help="rows of an earlier run: what failed there is judged first")
    a = p.parse_args()
    cases = [c for c in json.load(open(os.path.join(a.cases, "cases.json"))) if a.only in c["id"]]
    work = [(c, True) for c in cases] + [
        (c, False) for c in cases if a.undeclared and int(hashlib.sha256(c["id"].encode()).hexdigest()[:6], 16) % a.undeclared == 0
    ]
    done = {}  # a run that was cut short goes on: rows of the same binary and the same files stand
    stamp = lambda c: f"{os.path.getmtime(a.verify):.0f} {c.get('stamp')}"
    if os.path.exists(a.out):
        done = {(r["id"], r["declared"]): r for r in json.load(open(a.out))}
    rows = [
        dict(done[c["id"], d], half=half(c), family=c["family"])
        for c, d in work
        if (c["id"], d) in done and done[c["id"], d].get("stamp") == stamp(c)
    ]
    have = {(r["id"], r["declared"]) for r in rows}
    work = [w for w in work if (w[0]["id"], w[1]) not in have]
    failed = {(r["id"], r["declared"]) for r in json.load(open(a.first)) if bad(r)} if a.first and os.path.exists(a.first) else set()
    work.sort(key=lambda w: (w[0]["id"], w[1]) not in failed)

    def save(final):
        head = [
            f"verify: {a.label or a.verify}; {len(rows)} of {len(rows) + len(work) - at} runs"
            if not final
            else f"verify: {a.label or a.verify}; {len(cases)} cases",
            "",
        ] + ["    " + s for s in table(rows)]
        order = sorted(rows, key=lambda r: (r["id"], not r["declared"]))
        with open(a.out + ".part", "w") as f:
            json.dump(order, f, indent=1)
        os.replace(a.out + ".part", a.out)
        if a.publish:
            publish(a.publish, order, cases, a.cases, head)
        return head

    at = 0
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:

        def one(w):
            return dict(judge(a.verify, w[0], os.path.join(a.cases, w[0]["id"]), w[1]), stamp=stamp(w[0]))

        for f in concurrent.futures.as_completed([pool.submit(one, w) for w in work]):
            rows.append(f.result())
            at += 1
            if at % 40 == 0:
                save(False)
                print(at, "of", len(work), flush=True)
    print("\n".join(save(True)))


if __name__ == "__main__":
    main()
