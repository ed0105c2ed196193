"""Run by Python at its start in every process of `plumbline run`, since this folder is on PYTHONPATH: it waits for the trainer."""
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_package = os.path.dirname(_here)


def _load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _act(name, target):
    import warnings
    try:
        try:
            module = importlib.import_module(name)
        except ImportError:  # the program runs under another Python than plumbline was installed for
            sys.path.append(os.path.dirname(_package))
            module = importlib.import_module(name)
        module.install_from_environment(target)
    except Exception as e:
        warnings.warn(f"plumbline: no hook in {target.__name__}, training goes on: {type(e).__name__}: {e}")


def _other():
    """The sitecustomize that this one stands before."""
    for folder in sys.path:
        path = os.path.join(folder or ".", "sitecustomize.py")
        if os.path.abspath(os.path.dirname(path)) != _here and os.path.isfile(path):
            return path
    return None


if os.environ.get("PLUMBLINE_RUN"):
    _load("_plumbline_watch", os.path.join(_package, "_watch.py")).watch(_act)
if _other():
    _load("_plumbline_sitecustomize", _other())
