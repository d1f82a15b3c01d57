"""How much the kernels of a function compute: stores, each as often as its loops run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import SBlock, SBlockRealize

_UNBOUNDED = 1 << 40
"""Trips that no loop of a benchmark makes."""


def body_evaluations(mod: tvm.IRModule, name: str) -> int | None:
    """Return how often the bodies of all stages are evaluated in one call of a Relax function.

    Its shapes are numbers. Where the range of a loop depends on another loop, its greatest extent
    counts. None where a loop has no bound that is known, as in sorting.
    """
    try:
        return _total(mod, name)
    except UnboundedLoopError:
        return None


class UnboundedLoopError(Exception):
    """The trips of a loop cannot be counted."""


def _total(mod: tvm.IRModule, name: str) -> int:
    return sum(count * evaluations(mod[kernel].body) for kernel, count in _calls(mod[name]).items())


def kernel_calls(mod: tvm.IRModule, name: str) -> int:
    """Return how many kernels one call of a Relax function runs."""
    return sum(_calls(mod[name]).values())


def _calls(function: relax.Function) -> Counter[Any]:
    found: Counter[Any] = Counter()

    def visit(call: Any) -> None:
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_tir":
            found[call.args[0]] += 1

    tvm_ffi.structural_walk(function, (tvm.ir.Call, visit))
    return found


def evaluations(statement: Any) -> int:
    """Return how often a statement stores an element of a tensor.

    Initial values of sums and scalars on the way do not count.
    """
    if isinstance(statement, tirx.For):
        return _greatest(statement.extent) * evaluations(statement.body)
    if isinstance(statement, tirx.SeqStmt):
        return sum(map(evaluations, statement.seq))
    if isinstance(statement, tirx.IfThenElse):
        return max(map(evaluations, filter(None, [statement.then_case, statement.else_case])))
    if isinstance(statement, SBlockRealize):
        return evaluations(statement.block)
    if isinstance(statement, SBlock):
        return evaluations(statement.body)
    return int(isinstance(statement, tirx.BufferStore) and statement.buffer.scope() == "global")


def _greatest(extent: Any) -> int:
    greatest = int(tvm.sym.Analyzer().const_int_bound(extent).max_value)
    if greatest > _UNBOUNDED:
        raise UnboundedLoopError(str(extent))
    return max(greatest, 0)
