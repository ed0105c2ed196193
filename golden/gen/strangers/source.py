"""Pieces of released sources, edited and executed. A bug is a list of edits (file, old text, new text), each found exactly once."""

import ast
import glob
import math
import os
import textwrap
import types
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SOURCE = "source:"  # before the name of a file that was compiled here
ROOTS = {}  # release -> folder of the unpacked wheel


def unpacked(wheels):
    """Fills ROOTS with the wheels that wheels.py unpacked below a folder."""
    for release in os.listdir(wheels):
        pure = glob.glob(os.path.join(wheels, release, "*.data", "purelib"))
        ROOTS[release] = pure[0] if pure else os.path.join(wheels, release)


def definition(text, name):
    """The lines of a function, without decorators, and where they lie."""
    for n in ast.walk(ast.parse(text)):
        if isinstance(n, ast.FunctionDef) and n.name == name:
            return n.lineno - 1, n.end_lineno, "\n".join(text.splitlines()[n.lineno - 1 : n.end_lineno])
    raise RuntimeError(f"no {name}")


def edited(text, edits, name):
    """The text with edits in it, of (anything, old text, new text) or (anything, "@at", (start, end, text))."""
    for _, old, new in edits:
        if old == "@at":
            text = text[: new[0]] + new[2] + text[new[1] :]
            continue
        if text.count(old) != 1:
            raise RuntimeError(f"{name}: found {text.count(old)} times: {old!r}")
        text = text.replace(old, new)
    return text


class Release:
    """The sources of one release with edits in them. The edit (file, "@swap", "release:path:function") puts in a function of another release."""

    def __init__(self, name, edits=()):
        self.root, self.edits, self.done, self.cache = ROOTS[name], [e for e in edits if e[0] != "call"], set(), {}

    def text(self, path):
        if path not in self.cache:
            full = os.path.join(self.root, path)
            text = open(full, encoding="utf-8").read()
            for i, (p, old, new) in enumerate(self.edits):
                if p == os.path.basename(path) or p == path:
                    if old == "@swap":
                        release, other, name = new.split(":")
                        i0, i1, _ = definition(text, name)
                        lines = text.splitlines()
                        text = (
                            "\n".join(
                                lines[:i0]
                                + [definition(open(os.path.join(ROOTS[release], other), encoding="utf-8").read(), name)[2]]
                                + lines[i1:]
                            )
                            + "\n"
                        )
                        self.done.add(i)
                        continue
                    if old == "@at":
                        text = text[: new[0]] + new[2] + text[new[1] :]
                        self.done.add(i)
                        continue
                    if text.count(old) != 1:
                        raise RuntimeError(f"{path}: found {text.count(old)} times: {old!r}")
                    text = text.replace(old, new)
                    self.done.add(i)
            self.cache[path] = text
        return self.cache[path]

    def check(self):
        missing = [e for i, e in enumerate(self.edits) if i not in self.done]
        if missing:
            raise RuntimeError(f"edits without a file: {missing}")

    def functions(self, path, ns, want=None, cls=None):
        """Executes functions (and classes where cls is None and want is None) of a file in ns."""
        body = ast.parse(self.text(path)).body
        if cls:
            body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == cls).body
        keep = []
        for n in body:
            if (
                isinstance(n, ast.FunctionDef)
                and (want is None or n.name in want)
                or isinstance(n, ast.ClassDef)
                and want is not None
                and n.name in want
            ):
                n.decorator_list = [d for d in n.decorator_list if isinstance(d, ast.Name) and d.id == "staticmethod" and False]
                keep.append(n)
        future = ast.parse("from __future__ import annotations").body
        exec(compile(ast.Module(future + keep, []), SOURCE + path, "exec"), ns)
        return ns

    def method(self, path, name, ns, keep_locals=False):
        """One function's text, dedented; with keep_locals its last return leaves the locals in self._frame."""
        text = self.text(path)
        for n in ast.walk(ast.parse(text)):
            if isinstance(n, ast.FunctionDef) and n.name == name:
                break
        else:
            raise RuntimeError(f"{path}: no {name}")
        lines = text.splitlines()[n.lineno - 1 : n.end_lineno]
        code = textwrap.dedent("\n".join(lines))
        if keep_locals:
            head, tail = code.rsplit("\n    return loss", 1)
            code = head + "\n    self._frame = dict(locals())\n    return loss" + tail
        above = "\n" * (n.lineno - 2)  # the lines have the numbers of the file
        exec(compile(above + "from __future__ import annotations\n" + code, SOURCE + path, "exec"), ns)
        return ns[name]

    def block(self, path, first, last):
        """Lines from the first that contains `first` to the next that contains `last`, dedented and compiled."""
        lines = self.text(path).splitlines()
        i = next(k for k, s in enumerate(lines) if first in s)
        j = next(k for k in range(i, len(lines)) if last in lines[k])
        indent = len(lines[i]) - len(lines[i].lstrip())
        code = "\n".join(s[indent:] if s.strip() else "" for s in lines[i : j + 1])
        return compile("\n" * i + code, SOURCE + path, "exec")


def base():
    return dict(torch=torch, nn=nn, F=F, np=np, math=math, os=os, defaultdict=defaultdict, types=types)


class Config(types.SimpleNamespace):
    def get(self, k, d=None):
        v = getattr(self, k, d)
        return v
