"""verl: actor_rollout_ref.model.external_lib=plumbline.verl critic.model.external_lib=plumbline.verl, or plumbline run.

Importing this module puts the hook into ppo_loss and value_loss. Dumps go into $PLUMBLINE_DUMPS (dumps).
"""
import os

from . import _session

if _session.current is None:
    if os.environ.get("PLUMBLINE_RUN"):
        _session.from_environment()
    else:
        _session.begin(_session.Session(os.environ.get("PLUMBLINE_DUMPS", "dumps")))

from . import _hook_verl  # noqa: E402  (it acts when it is imported, in the folder of the session)

_hook_verl.write = _session.writer(_hook_verl.write)
_hook_verl.STEPS = _session.steps


def install_from_environment(module):
    """Importing was enough."""
