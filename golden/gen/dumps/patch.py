"""Plant a bug in a released method: replace statements of its source, compile it in the module it came from.

No sentence of the release is stored but the statement that a bug replaces, and each must occur exactly as often as the
patch says, so that another release fails loudly.
"""
import inspect
import os
import sys
import textwrap


class Patch:
    """One replacement: `old` by `new` in `method` of a class; `count` is how often `old` stands there."""

    def __init__(self, method, old, new, count=1):
        self.method, self.old, self.new, self.count = method, old, new, count


def compile_method(cls, name, patches):
    """The method `name` of `cls` with all patches applied, and where they went: file and line of the release."""
    fn = inspect.unwrap(getattr(cls, name))
    lines, first = inspect.getsourcelines(fn)
    src = "".join(lines)
    where = []
    for p in patches:
        if src.count(p.old) != p.count:
            raise RuntimeError(f"{cls.__name__}.{name}: statement found {src.count(p.old)} times, not {p.count}: {p.old!r}")
        at = "".join(lines).find(p.old)
        line = first + "".join(lines)[:at].count("\n") if at >= 0 else None
        where.append({"file": os.path.basename(inspect.getsourcefile(fn)), "method": f"{cls.__name__}.{name}", "line": line,
                      "from": " ".join(p.old.split()), "to": " ".join(p.new.split())})
        src = src.replace(p.old, p.new)
    # outside its class body the zero-argument form has no class cell
    src = textwrap.dedent(src).replace("super()", f"super({cls.__name__}, self)")
    module = sys.modules[cls.__module__]
    env = dict(vars(module))
    exec(compile(src, inspect.getsourcefile(fn), "exec"), env)
    return env[name], where
