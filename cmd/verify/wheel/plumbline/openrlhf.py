"""OpenRLHF: import plumbline.openrlhf at the end of openrlhf/utils/deepspeed/deepspeed.py, or plumbline run, which needs no edit."""
import os

from . import _hook_openrlhf, _session

_hook_openrlhf.write = _session.writer(_hook_openrlhf.write)


def install(strategy):
    """Put the hook into a strategy class, once. Without a session the dumps go into $PLUMBLINE_DUMPS (dumps)."""
    if "_plumbline" in vars(strategy):
        return
    strategy._plumbline = True
    if _session.current is None:
        _session.begin(_session.Session(os.environ.get("PLUMBLINE_DUMPS", "dumps")))
    _hook_openrlhf.install(strategy, _session.folder, _session.steps)


def install_from_environment(module):
    _session.from_environment()
    install(module.DeepspeedStrategy)
