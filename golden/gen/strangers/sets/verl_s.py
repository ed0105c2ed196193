import os
from world_s import *
import numpy as np
from collections import defaultdict
import types, typing, enum, warnings


class Cfg(dict):
    __getattr__ = lambda s, k: s[k] if k in s else None


class VF:
    pass


VN = dict(torch=torch, np=np)
cut(
    os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/utils/torch_functional.py"),
    ["masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value", "logsumexp", "entropy_from_logits"],
    VN,
)
for k in VN:
    setattr(VF, k, staticmethod(VN[k])) if callable(VN[k]) else 0
import glob, re

GN = dict(torch=torch, np=np, Optional=typing.Optional, Sequence=typing.Sequence, Literal=typing.Literal, List=list)


class DP:
    def __init__(s, b):
        s.batch = b

    @classmethod
    def from_dict(c, tensors):
        return c(tensors)


GF = [f for f in glob.glob(os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/utils/*.py")) if re.search(r"^def group_mean_std", open(f).read(), re.M)][0]
_t = ast.parse(open(GF).read())
_n = [f.name for f in _t.body if isinstance(f, ast.FunctionDef)]


class _S:
    pass


GN.update(Any=typing.Any, get_device_name=lambda: "cpu", is_cuda_available=False, is_npu_available=False, is_torch_npu_available=lambda *a, **k: False, os=os)
cut(GF, _n, GN)
CORE = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/trainer/ppo/core_algos.py")


class AE:
    pass


C = dict(
    torch=torch,
    np=np,
    defaultdict=defaultdict,
    verl_F=VF,
    as_torch_index=GN["as_torch_index"],
    group_mean_std=GN["group_mean_std"],
    ActorConfig=Cfg,
    AlgoConfig=type("X", (), {}),
    DictConfig=Cfg,
    Optional=typing.Optional,
    Any=typing.Any,
    math=math,
    masked_mean=VF.masked_mean,
    warnings=warnings,
)
cut(
    CORE, [f.name for f in ast.parse(open(CORE).read()).body if isinstance(f, ast.FunctionDef) and f.name.startswith(("compute_", "agg_loss", "kl_penalty"))], C
)
RC = os.path.join(os.environ["WHEELS"], "verl-0.9.1/verl/trainer/ppo/rollout_corr_helper.py")
R_ = dict(C, DataProto=DP)
for n in ast.parse(open(RC).read()).body:
    if isinstance(n, (ast.Assign, ast.AnnAssign)):
        exec(compile(ast.Module([n], []), RC, "exec"), R_)
cut(RC, [f.name for f in ast.parse(open(RC).read()).body if isinstance(f, ast.FunctionDef)], R_)
m_ = types.ModuleType("verl.trainer.ppo.rollout_corr_helper")
m_.__dict__.update(R_)
for nm in ("verl", "verl.trainer", "verl.trainer.ppo"):
    sys.modules.setdefault(nm, types.ModuleType(nm))
sys.modules["verl.trainer.ppo.rollout_corr_helper"] = m_
