"""Releases as they were shipped: modules are made of the text of an unpacked wheel, with edits, and what is not installed is a stand-in.

A stand-in is a module any name of which is an empty class; nothing of it is run by the functions that the programs here call.
"""

import ast
import importlib.abc
import importlib.machinery
import os
import sys
import textwrap
import types

WHEELS = os.environ["WHEELS"]  # the folder that golden/gen/strangers/wheels.py makes


class Meta(type):
    def __getattr__(cls, k):
        if k.startswith("__"):
            raise AttributeError(k)
        return Meta(k, (), {})

    def __call__(cls, *a, **k):
        return a[0] if len(a) == 1 and callable(a[0]) and not k else Meta(cls.__name__, (), {})

    def __getitem__(cls, k):
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Stand(types.ModuleType):
    __path__ = []

    def __getattr__(self, k):
        if k.startswith("__"):
            raise AttributeError(k)
        return Meta(k, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names or name in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Stand(spec.name)

    def exec_module(self, module):
        pass


def stand_ins(*names):
    sys.meta_path.insert(0, Finder(set(names)))


def text(wheel, path, edits=()):
    """The text of one file of a release, with the edits (old, new), each of which must hit exactly once."""
    with open(os.path.join(WHEELS, wheel, path)) as f:
        src = f.read()
    return apply(src, edits, f"{wheel}/{path}")


def apply(src, edits, where):
    for old, new in edits:
        if src.count(old) != 1:
            raise ValueError(f"{where}: an edit matches {src.count(old)} times: {old!r}")
        src = src.replace(old, new)
    return src


def functions(src, names, env, cls=None):
    """The named functions of a source, or of a class in it, without decorators, with the names of env; no other line of it is run."""
    tree = ast.parse(src)
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls).body if cls else tree.body
    got = dict(env)
    for n in body:
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in names:
            part = "from __future__ import annotations\n" + textwrap.dedent(ast.unparse(strip(n)))
            exec(compile(part, n.name, "exec"), got)
    missing = [n for n in names if n not in got]
    if missing:
        raise ValueError(f"not in the source: {missing}")
    return types.SimpleNamespace(**{n: got[n] for n in names}) if not env.get("_dict") else got


def strip(n):
    if isinstance(n, ast.FunctionDef):
        n.decorator_list = [d for d in n.decorator_list if "no_grad" in ast.unparse(d)]
    return n


def statements(src, function, first, last, cls=None, add=""):
    """The statements of a method from the one that starts with first to the one that starts with last, as code to be executed."""
    tree = ast.parse(src)
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls).body if cls else tree.body
    fn = next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == function)
    lines = [ast.unparse(n) for n in flat(fn.body)]
    a = next(i for i, s in enumerate(lines) if s.startswith(first))
    b = next(i for i, s in enumerate(lines) if i >= a and s.startswith(last))
    return compile("\n".join(lines[a : b + 1]) + "\n" + add, function, "exec")


def flat(body):
    for n in body:
        if isinstance(n, (ast.With,)):
            yield from flat(n.body)
        else:
            yield n
