"""pytest --plumbline: every test that trains with TRL, verl or OpenRLHF is dumped and judged; the fixture plumbline for a loop of one's own.

    def test_step(plumbline):
        plumbline.dump(step=1, response_mask=mask, logp_new=logp, …)        # judged when the test ends
"""
from __future__ import annotations

import os

import pytest

from . import _check, _session, _watch


class Run:
    """The dumps of one test. profile and flags (of verify dump) may be set by the test."""

    def __init__(self, folder, profile):
        self.folder, self.profile, self.flags = str(folder), profile, {}

    def dump(self, **tensors):
        """plumbline.dump into the folder of the test; what cannot be dumped fails the test."""
        from ._dump import dump
        return dump(self.folder, strict=True, **tensors)

    def check(self):
        """Fail with the name of the bug in the first line."""
        __tracebackhide__ = True
        for path, _, names in sorted(os.walk(self.folder)):
            if any(n.endswith(".safetensors") for n in names):
                _check.assert_dump(path, profile=self.profile, **self.flags)


def pytest_addoption(parser):
    group = parser.getgroup("plumbline")
    group.addoption("--plumbline", action="store_true", help="dump the training steps of every test (TRL, verl, OpenRLHF) and judge them")
    group.addoption("--plumbline-profile", default=None, metavar="NAME", help="the convention to judge by; default: that of the release that the files name")


_RUN = pytest.StashKey()
_watching = False


def _hook(name, target):
    import importlib
    module = importlib.import_module(name)
    if hasattr(module, "install_all"):
        module.install_all(target)
    elif hasattr(target, "DeepspeedStrategy"):
        module.install(target.DeepspeedStrategy)


def _run(item, folder):
    if _RUN not in item.stash:
        item.stash[_RUN] = Run(folder, item.config.getoption("--plumbline-profile"))
    return item.stash[_RUN]


@pytest.fixture
def plumbline(request, tmp_path):
    return _run(request.node, tmp_path / "dumps")


@pytest.fixture(autouse=True)
def _plumbline(request):
    global _watching
    if not request.config.getoption("--plumbline"):
        yield
        return
    run = _run(request.node, request.getfixturevalue("tmp_path") / "dumps")
    if not _watching:
        _watch.watch(_hook)
        _watching = True
    _session.begin(_session.Session(run.folder, every=1))
    yield
    _session.current = None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    outcome = yield
    run = item.stash.get(_RUN, None)
    if run is not None and outcome.excinfo is None:
        try:
            session = _session.current
            if session is not None and session.folder == run.folder and session.cost()["lost"]:
                raise AssertionError(f"plumbline: micro-batches of steps {session.lost} could not be dumped")
            run.check()
        except Exception as e:
            outcome.force_exception(e.with_traceback(None))
