"""The rules that schedule a PrimFunc for a GPU, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.s_tir import dlight

from .parallel import parallel_loops
from .serial import one_thread


@dataclass(frozen=True)
class Rule:
    """A way to schedule a whole PrimFunc.

    Attributes
    ----------
    name : str
        As the compile report prints it.
    apply : function
        Of a PrimFunc and a target; returns the PrimFunc with its loops bound to threads, or None
        if its structure is not what the rule is for.
    """

    name: str
    apply: Callable[[tirx.PrimFunc, tvm.target.Target], tirx.PrimFunc | None]


def _stock(rule: dlight.ScheduleRule) -> Callable[..., tirx.PrimFunc | None]:
    """Return a rule of TVM's as one of ours."""

    def apply(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc | None:
        with target:
            schedule = rule.apply(func, target, False)
        return None if schedule is None else schedule.mod["main"]

    return apply


RULES = (
    Rule("matmul", _stock(dlight.gpu.Matmul())),
    Rule("fallback", _stock(dlight.gpu.Fallback())),
    Rule("parallel", parallel_loops),
    Rule("serial", one_thread),
)
