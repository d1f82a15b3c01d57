"""Loops from 0, as TVM's code generator wants them.

TVM's own pass (`CanonicalizeLoop`) overlooks that the range of a loop inside is in terms of the
loops around it: of two loops that both begin elsewhere, as those over a triangle of a matrix, the
inner one keeps the bounds that it had in terms of the old variable of the outer one.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir.passes import Phase, compiler_pass
from ...ir.visits import replace_nodes
from ...tvm_fixes.hooks import identity


@compiler_pass(
    Phase.SCHEDULED,
    over="kernel",
    because="schedules make loops, too",
    before={
        "write_exact_divisions": "indices get other dividends",
        "build_early": "it hands kernels to TVM's own lowering",
    },
)
def start_loops_at_zero(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Count loops that begin elsewhere, or in steps, from 0 by ones."""
    body = replace_nodes(func.body, tirx.For, _zero_based)
    return func if body.same_as(func.body) else func.with_body(body)


def _zero_based(loop: Any) -> Any:
    """A loop over the number of the iteration; what is inside of it is zero-based already."""
    step = 1 if loop.step is None else loop.step
    if _is_constant(loop.min, 0) and _is_constant(step, 1):
        return loop
    var = tirx.Var(loop.loop_var.name, str(loop.loop_var.ty))
    trips = loop.extent if _is_constant(step, 1) else tirx.ceildiv(loop.extent, step)
    value = loop.min + var * step
    body = replace_nodes(
        loop.body,
        tvm.ir.Var,
        lambda node: value if identity(node) == identity(loop.loop_var) else node,
    )
    zero = tirx.const(0, str(loop.min.ty))
    return tirx.For(
        var, zero, trips, loop.kind, body, loop.thread_binding, loop.annotations, span=loop.span
    )


def _is_constant(value: Any, number: int) -> bool:
    return isinstance(value, int | tirx.IntImm) and int(value) == number
