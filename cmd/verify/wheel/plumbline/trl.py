"""TRL's GRPOTrainer, RLOOTrainer and DPOTrainer: GRPOTrainer(…, callbacks=[PlumblineCallback()]), or plumbline run, which needs no line of yours."""
from __future__ import annotations

import contextlib
import os
import sys
import warnings

import transformers

from . import _check, _hook_trl, _hook_trl_dpo, _hook_trl_rloo, _session

HOOKS = {"GRPOTrainer": _hook_trl, "RLOOTrainer": _hook_trl_rloo, "DPOTrainer": _hook_trl_dpo}
for hook in HOOKS.values():
    hook.write = _session.writer(hook.write)


def install(cls):
    """Put the hook into a trainer class, once."""
    if "_plumbline" in vars(cls):
        return
    cls._plumbline = True
    HOOKS[cls.__name__].install(cls, _session.folder, _session.steps)
    real = cls.train

    def train(self, *args, **kwargs):
        if _session.current is not None:
            a = self.args
            rollout = a.steps_per_generation * a.num_iterations if hasattr(a, "steps_per_generation") else 1  # pairs have none
            _session.current.period = max(1, -(-rollout // a.gradient_accumulation_steps))
        return real(self, *args, **kwargs)
    cls.train = train


def install_all(module):
    """Put the hooks into the trainers that a module has."""
    for name in HOOKS:
        if cls := getattr(module, name, None):
            install(cls)


def install_from_environment(module):
    _session.from_environment()
    install_all(module)


class PlumblineCallback(transformers.TrainerCallback):
    """Dump steps of a GRPOTrainer, RLOOTrainer or DPOTrainer, judge them, and say the verdict at the end of training.

    folder   of the dumps; every run has a folder run-… in it
    every, rows, limit   see Session: by default the first two steps and then as many as take 5 % of the time, 1 GB in all
    stop     judge after every step that was dumped, within the same share of the time, and end training at the first failure
    profile, flags   of verify dump: profile="trl-grpo@1.16", set={"adv.ddof": 0}, …

    The verdict is printed, goes to W&B and TensorBoard where the trainer reports to them, and stays in `verdict` (.exit, .text).
    """

    def __init__(self, folder="dumps", every=None, rows=None, limit=10**9, stop=False, profile=None, **flags):
        import trl
        self.session = _session.begin(_session.Session(folder, every, rows, limit))
        self.stop, self.flags, self.verdict, self._judged, self._boards = stop, {"profile": profile, "ignore": _check.unjudged(rows), **flags}, None, 0, None
        install_all(trl)

    def on_train_begin(self, args, state, control, **_):
        self.verdict, self._judged = None, self.session.files
        _session.begin(self.session)

    def on_step_end(self, args, state, control, **_):
        if not self.stop:
            return
        due, self._judged = self.session.files > self._judged and bool(self.session.runs), self.session.files
        with self.session.spending() if due else contextlib.nullcontext():
            if self._fails(due):
                control.should_training_stop = True

    def _fails(self, due):
        """Whether the run has failed by now; with several ranks the first judges and says it to all, whoever of them lost a dump."""
        d = getattr(sys.modules.get("torch"), "distributed", None)
        several = d is not None and d.is_available() and d.is_initialized() and d.get_world_size() > 1
        failed = [False]
        if due and (not several or d.get_rank() == 0):
            try:
                failed = [_check.check(self.session.runs[-1], **self.flags).exit == 1]
            except _check.VerifyError as e:
                warnings.warn(f"plumbline: not judged, training goes on: {e}")
        if several:
            d.broadcast_object_list(failed, src=0)
        return failed[0]

    def on_train_end(self, args, state, control, **_):
        if not state.is_world_process_zero:
            return
        try:
            self.verdict = _check.verdict(self.session.runs[-1:], **self.flags)
            print(self.verdict.text, flush=True)
            for line in _check.costs([self.session.cost()]):
                print(line, flush=True)
            self._log(args, state.global_step)
        except Exception as e:
            warnings.warn(f"plumbline: no verdict: {type(e).__name__}: {e}")

    def _log(self, args, step):
        to = args.report_to or []
        wandb = sys.modules.get("wandb")
        if "wandb" in to and wandb is not None and wandb.run is not None:
            wandb.run.summary["plumbline/verdict"] = self.verdict.headline
            wandb.run.summary["plumbline/exit"] = self.verdict.exit
        if "tensorboard" in to:
            from torch.utils.tensorboard import SummaryWriter
            folder = os.environ.get("TENSORBOARD_LOGGING_DIR") or os.path.join(args.output_dir, "runs", "plumbline")
            with SummaryWriter(os.path.expanduser(folder)) as w:
                w.add_scalar("plumbline/exit", self.verdict.exit, step)
                w.add_text("plumbline/verdict", self.verdict.headline + "\n\n```\n" + self.verdict.text + "\n```", step)
