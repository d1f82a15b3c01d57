"""Calls that overwrite their arguments, and what gradients read after them.

The reverse sweep comes behind all of the primal program, so what a rule reads must last until then.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import tvm
from tvm import relax

from ..ir.calls import overwritten_by
from ..ir.program import Program, variables_in

_VIEW_OPS = [
    tvm.ir.Op.get(f"relax.{name}")
    for name in (
        "expand_dims",
        "flatten",
        "memory.ensure_zero_offset",
        "memory.view",
        "reshape",
        "squeeze",
    )
]
"""Ops whose result may be their first argument, in its memory."""


def overwriting(program: Program, active: Container[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the bound variables of what overwrites what rules read, each with call and argument.

    The call is the binding's value, or one inside a branch of it.

    Parameters
    ----------
    program : Program
    active : variables of the program
        Bound to what is differentiated: its rule may read the arguments and the results.
    """
    calls = [(var, *pair) for var, value in program.bindings for pair in _overwritten(value)]
    if not calls:
        return
    places = _places(program)
    read = {
        place
        for var, value in program.bindings
        if var in active
        for source in (var, *variables_in(value))
        for place in places.get(source, {source})
    }
    for var, call, argument in calls:
        if not read.isdisjoint(places.get(argument, {argument})):
            yield var, call, argument


def _places(program: Program) -> dict[Any, set[Any]]:
    """The variables in whose memory each variable may be that has no memory of its own."""
    places: dict[Any, set[Any]] = {}
    for var, value in program.bindings:
        if not isinstance(value, relax.Call):
            sources = list(variables_in(value))
        else:
            sources = list(variables_in(value.args[0])) if value.op in _VIEW_OPS else []
        if sources:
            places[var] = {place for s in sources for place in places.get(s, {s})}
    return places


def _overwritten(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the calls in a binding's value, in branches too, with the variables they overwrite."""
    if isinstance(value, relax.If):
        for branch in (value.true_branch, value.false_branch):
            for block in branch.blocks:
                for binding in block.bindings:
                    yield from _overwritten(binding.value)
    for argument in overwritten_by(value):
        for source in variables_in(argument):
            yield value, source
