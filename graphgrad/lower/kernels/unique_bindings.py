"""Schedules of kernels, also of those in whose expressions variables are bound several times.

Where a bound value was put in for several reads, as inlining does, each of its copies binds the
same variables. TVM makes no schedule of such a kernel.
"""

from __future__ import annotations

import inspect
from collections import Counter

from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import Schedule

from ...fallback.walk import identity
from ...ir.kernel_structure import substitute_values
from ...ir.visits import nodes_in, replace_nodes


class _UncheckedSchedule(Schedule):
    """A schedule whose primitives do not check the types of their arguments.

    TVM's decorator for that takes 12 microseconds a call, five times as long as most primitives.
    """


for _name, _method in vars(Schedule).items():
    if inspect.isfunction(_method):
        setattr(_UncheckedSchedule, _name, inspect.unwrap(_method))


def schedule_of(func: tirx.PrimFunc) -> Schedule:
    """A schedule of a kernel, in which each binding of an expression has a variable of its own.

    Raises
    ------
    tvm.error.InternalError
        TVM refuses the kernel.
    """
    return _UncheckedSchedule(bind_each_once(func))


def bind_each_once(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel in which no two expressions bind the same variable."""
    times = Counter(identity(let.var) for let in nodes_in(func.body, prim.Let))
    return func if all(count == 1 for count in times.values()) else bind_anew(func)


def bind_anew(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose expressions bind variables that are bound nowhere else."""

    # Inner ones first, and all of them: where one stands inside another of the same variable, the
    # body of the outer one has only reads of its own left.
    def renamed(let: prim.Let) -> prim.Let:
        var = tirx.Var(let.var.name, let.var.ty)
        return prim.Let(var, let.value, substitute_values(let.body, {let.var: var}))

    return func.with_body(replace_nodes(func.body, prim.Let, renamed))
