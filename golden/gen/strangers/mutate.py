"""Bugs that nobody wrote: one statement of a trainer's source changed by a rule that knows no trainer.

lines() runs a case and notes the statements that it executes; mutations() lists every change that a rule can make there. A change is
an edit (file, "@at", (start, end, text)) of source.py. The rules are the mistakes that people make in such code; what one of them breaks
is told from the words of the statement, in broad terms: the subjects of SUBJECTS, whose names a finding may have.
"""

import ast
import os
import re
import sys

# what a statement is about: words in it, and the beginnings of the names (ids of `verify explain --bugs`, options) that are about that
SUBJECTS = dict(
    advantage=(r"adv|baseline|std_|_std|mean_grouped|id2|rloo|remax|opo|center|group", "ADV- adv. WHITEN whiten. OTHER-FORM REWARD-WEIGHTS REWARD-ONE RFPP"),
    gae=(r"gae|lam\b|lambd|gamma|delta|nextval|\btd\b|returns|cumulative|ahead", "GAE- gae. RETURNS- returns. VALUE-TARGET WHITEN whiten. ADV-FORM OTHER-FORM"),
    whiten=(r"whiten|masked_var|variance|rsqrt", "WHITEN whiten. ADV- rewards.whiten OTHER-FORM"),
    kl=(r"kl|ref_|\bref\b|beta|approx", "KL- kl. K1-LOSS REF- BETA OTHER-FORM"),
    clip=(r"clip|clamp|epsilon|\blow\b|\bhigh\b|coef_2|surr|min\(|max|dual|delta", "CLIP- clip. LOSS-KIND loss.kind tis. IS- KL-CLAMP kl.clamp VALUE-CLIP value.clip"),
    ratio=(r"ratio|coef_1|negative_approx|log_importance|gap|rho|exp\(|old", "RATIO- ratio. OLD- CLIP- clip. LOSS-KIND loss.kind IS- LOGP- GRADIENT-ZERO POLICY-GRADIENT"),
    weights=(r"rollout_is|importance_sampling_ratio|vllm|is_w|is_corr|\bgen\b|\bw\b", "IS- tis. GEN- KL-TIMES"),
    loss=(r"loss|objective|token", "LOSS- POLICY- loss. agg. AGG- CLIP- RATIO- ADV- LOSS-SIGN SAPO sapo. CISPO GRAD"),
    reduction=(r"mean|sum|agg|loss_mat|normal|batch|total|dp_size|num_items|len\(", "AGG- agg. LOSS-MASK mask. mean. FACTOR MEAN-EPS GRAD-GA kl.agg value.agg METRIC-"),
    mask=(r"mask|\bm\b|live|valid", "LOSS-MASK MASK mask. AGG- agg. KL-OUTSIDE METRIC- GAE-PADS GAE-TOOL GAE-HOLE gae.hole NAN WHITEN-PADS ADV-TRUNC"),
    entropy=(r"entrop|\bent\b|bonus", "ENTROPY entropy. METRIC-ENTROPY TOP-ENTROPY"),
    reward=(r"reward|score|penalty|eos|sequence_length|r_", "REWARD reward. SCORE score. EOS eos. ADV- GAE-REWARD KL-PADS KL- kl. OTHER-FORM rewards.whiten"),
    value=(r"value|vf|vpred|\bv\b|err|held", "VALUE value. GAE-VALUE RETURNS-"),
    metric=(r"logged|logs|metrics|clipfrac|frac|\.item\(|approx", "METRIC- metric."),
)
# files and functions that a case may execute; None: the whole text
KINDS = dict(
    logp=r"log_?probs?|logps?|\blp\b|\bold\b|\bref\b|\bgen\b",
    mask=r"mask|\bm\b|\bvalid\b",
    value=r"values|vpreds?|returns|\bv\b|advantages|\badv\b|\bA\b",
    number=r"low|high|beta|coef|gamma|lam|epsilon|clip",
)


def words(node):
    """An operand as people exchange it: a name, an attribute, or a key of a dictionary."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    return ""


def kind(node):
    w = words(node)
    return next((k for k, p in KINDS.items() if w and re.search(p, w)), "")


class Text:
    def __init__(self, text):
        self.text, self.tree = text, ast.parse(text)
        self.starts = [0]
        for s in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(s))
        self.rows = text.splitlines()
        for n in ast.walk(self.tree):
            for c in ast.iter_child_nodes(n):
                c.parent = n

    def at(self, line, col):
        return self.starts[line - 1] + len(self.rows[line - 1].encode()[:col].decode())

    def span(self, n):
        return self.at(n.lineno, n.col_offset), self.at(n.end_lineno, n.end_col_offset)

    def of(self, n):
        i, j = self.span(n)
        return self.text[i:j]


def changes(t, n, names):
    """Yields (family, node, new text) for what people get wrong at a node. names: operands of the function by their kind."""
    s = t.of
    if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
        f, recv = n.func.attr, n.func.value
        module = isinstance(recv, ast.Name) and recv.id in ("torch", "F", "verl_F", "np", "math", "nn")
        call, args = s(n), [s(a) for a in n.args] + [f"{k.arg}={s(k.value)}" for k in n.keywords]
        rename = lambda new: s(n.func)[: -len(f)] + new + "(" + ", ".join(args) + ")"
        first = s(n.args[0]) if module and n.args else s(recv)
        if f == "detach" and not module:
            yield "detach lost", n, s(recv)
        if f in ("mean", "sum") and not any(k.arg in ("dtype",) for k in n.keywords):
            yield "mean and sum", n, rename({"mean": "sum", "sum": "mean"}[f])
            if f == "mean" and not args:
                yield "median", n, f"{s(recv)}.median()"
            if f == "mean" and not args:
                yield "batch for group", n, f"{s(recv)}.max()"
        if f in ("masked_mean", "masked_sum"):
            yield "mean and sum", n, rename({"masked_mean": "masked_sum", "masked_sum": "masked_mean"}[f])
            yield "mask lost", n, f"({args[0]}).mean()"
        if f in ("clamp", "clip", "clamp_min"):
            yield "clamp lost", n, f"({first})"
            yield "clamp detached", n, f"({call}).detach()"
        if f in ("min", "minimum", "max", "maximum") and module and len(n.args) == 2 and not isinstance(n.args[1], ast.Constant):
            o = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}[f]
            yield "min and max", n, rename(o)
            yield "one side of min or max", n, f"({args[0]})"
            yield "one side of min or max", n, f"({args[1]})"
        if f == "exp":
            yield "sign", n, f"torch.exp(-({first}))" if module else f"(-({first})).exp()"
            yield "linear for exp", n, f"(1 + ({first}))"
        if f in ("std", "var"):
            yield "unbiased", n, f"({call}) * 0.93"
            yield "spread", n, f"({call}) ** {2 if f == 'std' else 0.5}"
        if f == "where" and module and len(n.args) == 3:
            yield "branches", n, f"torch.where({args[0]}, {args[2]}, {args[1]})"
        if f in ("square", "abs"):
            yield "power", n, f"({first}).{'abs' if f == 'square' else 'square'}()"
        if f in ("masked_fill", "nan_to_num", "unsqueeze") and not module and f == "masked_fill":
            yield "fill lost", n, s(recv)
        if f in ("flip", "roll") and module:
            yield "order", n, first
        for k in list(n.keywords) + [None]:
            if k is not None and k.arg in ("dim", "axis") and isinstance(k.value, ast.Constant):
                yield "axis", k.value, {"0": "-1"}.get(s(k.value), "0")
        if f in ("sum", "mean", "cumsum") and not module and n.args and isinstance(n.args[0], (ast.Constant, ast.UnaryOp)):
            yield "axis", n.args[0], {"0": "1"}.get(args[0], "0")
    if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in ("min", "max") and len(n.args) == 2:
        yield "min and max", n, f"{ {'min': 'max', 'max': 'min'}[n.func.id]}({s(n.args[0])}, {s(n.args[1])})"
    if isinstance(n, ast.BinOp):
        a, b = s(n.left), s(n.right)
        count = re.search(r"sum\(|len\(|numel|shape|size|count|total|num_|batch|steps|\bn\b|divisor", b)
        if isinstance(n.op, (ast.Add, ast.Sub)):
            yield "sign", n, f"{a} {'-' if isinstance(n.op, ast.Add) else '+'} ({b})"
            if not isinstance(n.right, ast.Constant) or re.search(r"1e-|eps", b):
                yield "term lost", n, f"({a})"
            if isinstance(n.op, ast.Sub):
                yield "order", n, f"(({b}) - ({a}))"
                yield "term lost", n, f"(-({b}))"
            if re.search(r"1e-|eps", b):
                yield "epsilon", n, f"({a}) + 0.1"
        if isinstance(n.op, ast.Mult):
            yield "factor lost", n, f"({a})"
            yield "factor lost", n, f"({b})"
            yield "factor twice", n, f"({a}) * ({b}) * ({b})"
        if isinstance(n.op, ast.Div):
            yield "factor lost", n, f"({a})"
            yield "inverted", n, f"({a}) * ({b})"
            if count:
                yield "count", n, f"({a}) / (({b}) + 1)"
                yield "count", n, f"({a}) / (({b}) * 2)"
                for other in names.get("mask", ()):
                    if other in b and "sum(" in b and not b.startswith("("):
                        yield "count", n, f"({a}) / ({other}).numel()"
                        yield "count", n, f"({a}) / ({other}).shape[0]"
                        yield "count", n, f"({a}) / ({other}).shape[-1]"
        if isinstance(n.op, ast.Pow):
            yield "power", n, f"({a}).abs()"
        if isinstance(n.op, (ast.BitAnd, ast.BitOr)):
            yield "logic", n, f"({a}) {'|' if isinstance(n.op, ast.BitAnd) else '&'} ({b})"
            yield "logic", n, f"({a})"
    if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub) and not isinstance(n.operand, ast.Constant):
        yield "sign", n, f"({s(n.operand)})"
    if isinstance(n, ast.UnaryOp) and isinstance(n.op, (ast.Invert, ast.Not)):
        yield "logic", n, f"({s(n.operand)})"
    if isinstance(n, ast.Compare) and len(n.ops) == 1 and isinstance(n.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE)):
        o = {"Lt": ">=", "Gt": "<=", "LtE": ">", "GtE": "<"}[type(n.ops[0]).__name__]
        yield "comparison", n, f"{s(n.left)} {o} {s(n.comparators[0])}"
        yield "comparison", n, f"{s(n.left)} {o.replace('=', '') if '=' in o else o} 0.3"
    if isinstance(n, ast.Constant) and isinstance(n.value, (int, float)) and not isinstance(n.value, bool) and isinstance(getattr(n, "parent", None), (ast.BinOp, ast.Call)):
        v = n.value
        if isinstance(n.parent, ast.BinOp) and not isinstance(n.parent.op, ast.Pow):
            yield "constant", n, repr(v * 2 if v else 1)
            if v == 1:
                yield "constant", n, "0.9"
    if isinstance(n, (ast.Name, ast.Subscript, ast.Attribute)) and isinstance(getattr(n, "ctx", None), ast.Load):
        k = kind(n)
        own = getattr(n, "parent", None)
        if k and not (isinstance(own, ast.Attribute) and words(n) in ("torch", "self", "args", "config")) and not isinstance(own, ast.Call) or k and isinstance(own, ast.Call) and n in own.args:
            for other in names.get(k, ()):
                if other != s(n):
                    yield {"number": "other number"}.get(k, "other tensor"), n, other
            if k == "mask":
                yield "mask shifted", n, f"torch.roll({s(n)}, 1, -1)"
                yield "mask shifted", n, f"torch.roll({s(n)}, -1, -1)"
                yield "mask inverted", n, f"(1 - ({s(n)}).float()).to(({s(n)}).dtype)"
                yield "mask lost", n, f"torch.ones_like({s(n)})"
                yield "mask lost at an end", n, f"(({s(n)}) * torch.roll({s(n)}, 1, -1))"
                yield "mask lost at an end", n, f"(({s(n)}) * torch.roll({s(n)}, -1, -1))"
            if k in ("logp", "value"):
                yield "tensor shifted", n, f"torch.roll({s(n)}, 1, -1)"
                yield "tensor shifted", n, f"torch.roll({s(n)}, -1, -1)"
                yield "rows moved", n, f"torch.roll({s(n)}, 1, 0)"
                yield "rows moved", n, f"({s(n)}).flip(0)"
                yield "rounded", n, f"({s(n)}).to(torch.bfloat16).to(({s(n)}).dtype)"
                yield "truncated", n, f"({s(n)}).int()"
                yield "detached", n, f"({s(n)}).detach()"
                yield "zeroed", n, f"torch.zeros_like({s(n)})"
    if isinstance(n, ast.If) and not n.orelse and len(n.body) < 4 and not any(isinstance(x, (ast.Raise, ast.Return)) for x in n.body):
        yield "branch lost", n.test, "False"
        yield "branch always", n.test, "True"
    if isinstance(n, ast.IfExp):
        yield "branches", n, f"({s(n.orelse)} if {s(n.test)} else {s(n.body)})"
    if isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], (ast.Name, ast.Subscript)):
        target = s(n.targets[0])
        if any(isinstance(x, (ast.Name, ast.Subscript)) and s(x) == target for x in ast.walk(n.value)):
            yield "statement lost", n, "pass"
        elif isinstance(n.targets[0], ast.Name) and re.search("loss|adv|ratio|kl|returns|reward", target):
            yield "constant factor", n.value, f"({s(n.value)}) * 0.5"
            yield "constant factor", n.value, f"({s(n.value)}) * 3"
            yield "detached", n.value, f"({s(n.value)}).detach()"
            yield "absolute", n.value, f"({s(n.value)}).abs()"
    if isinstance(n, ast.AugAssign):
        yield "statement lost", n, "pass"
    if isinstance(n, ast.Slice) and n.lower is not None and s(n.lower) == "1" and n.upper is None:
        yield "index", n, ":-1"
    if isinstance(n, ast.Slice) and n.upper is not None and s(n.upper) == "-1" and n.lower is None:
        yield "index", n, "1:"
    if isinstance(n, ast.BinOp) and isinstance(getattr(n, "parent", None), (ast.Subscript, ast.Tuple)) and s(n.right) == "1":
        yield "index", n, s(n.left)


def mutations(text, path, executed):
    """All changes at executed lines of a file: (family, subject words, edit, what)."""
    t = Text(text)
    out = []
    for fn in [n for n in ast.walk(t.tree) if isinstance(n, ast.FunctionDef)] + [t.tree]:
        if isinstance(fn, ast.FunctionDef) and isinstance(getattr(fn, "parent", None), ast.FunctionDef):
            continue
        names = {}
        own = [n for n in ast.walk(fn) if isinstance(fn, ast.FunctionDef) and getattr(n, "lineno", 0) in executed]
        for n in own:
            if isinstance(n, (ast.Name, ast.Subscript, ast.Attribute)) and isinstance(getattr(n, "ctx", None), ast.Load) and kind(n) and "\n" not in t.of(n):
                if not (isinstance(n.parent, ast.Call) and n.parent.func is n):
                    names.setdefault(kind(n), set()).add(t.of(n))
        names = {k: sorted(v) for k, v in names.items()}
        for n in own:
            where = n
            while where is not None and not isinstance(where, ast.stmt):
                where = getattr(where, "parent", None)
            if isinstance(where, (ast.FunctionDef, ast.Raise, ast.Assert, ast.Return)) and not isinstance(where, ast.Return):
                continue
            up, literal = n, False  # inside an f-string positions are not those of the file
            while up is not None and not literal:
                literal, up = isinstance(up, (ast.JoinedStr, ast.arg, ast.arguments)), getattr(up, "parent", None)
            if literal:
                continue
            for family, node, new in changes(t, n, names):
                i, j = t.span(node)
                if t.text[i:j] == new:
                    continue
                line = t.of(where).split("\n")[0] if isinstance(where, (ast.If, ast.For)) else t.of(where)
                name = fn.name if isinstance(fn, ast.FunctionDef) else ""
                out.append((family, f"{name}: {line}", (path, "@at", (i, j, new)), f"{t.text[i:j][:120]}  →  {new[:120]}"))
    return out


def lines(do, folder):
    """Runs do(), and returns the executed lines by file, of files in folders that are no package of the interpreter."""
    seen = {}

    def local(frame, event, arg):
        if event == "line":
            seen.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return local

    def trace(frame, event, arg):
        name = frame.f_code.co_filename
        return local if name.startswith(folder) else None

    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(None)
    return seen


def subjects(words):
    """The subjects of a statement, and the beginnings of the right names."""
    found = [k for k, (p, _) in SUBJECTS.items() if re.search(p, words)]
    return found, sorted({x for k in found for x in SUBJECTS[k][1].split()})
