"""Dumps of a training step, and the program that judges them.

    plumbline.dump("run/", step=3, response_mask=mask, logp_new=logp, ..., options={"beta": 0.04})
    plumbline.check("run/", profile="trl-grpo@1.16").exit
    plumbline.assert_dump("run/", profile="trl-grpo@1.16")      # in a test
"""
from ._check import Explanation, Report, Result, Verdict, VerifyError, assert_dump, binary, check, verdict
from ._dump import DumpError, dump

__all__ = ["DumpError", "Explanation", "Report", "Result", "Verdict", "VerifyError", "assert_dump", "binary", "check", "dump", "verdict"]
