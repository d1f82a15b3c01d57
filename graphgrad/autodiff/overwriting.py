"""Calls that overwrite arguments which gradients read later.

The reverse sweep comes after all of the primal program, so values that rules read must not be
overwritten before.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from tvm import relax

from ..ir.calls import overwritten_by
from ..ir.program import Program, variables_in
from ..memory.call_effects import may_be_view


def overwriting(program: Program, active: Container[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the calls that overwrite memory which rules may read.

    Each is a tuple of the variable of the binding, the call, which is the binding's value or inside
    a branch of it, and the variable that is overwritten.

    Parameters
    ----------
    program : Program
    active : variables of the program
        Those bound to calls with a rule, which may read the arguments and the results.
    """
    calls = [(var, *pair) for var, value in program.bindings for pair in _overwritten(value)]
    if not calls:
        return
    owners_of = _owners(program)
    # A rule may read the result of its call and everything that the call reads.
    read = {
        owner
        for var, value in program.bindings
        if var in active
        for source in (var, *variables_in(value))
        for owner in owners_of.get(source, {source})
    }
    for var, call, argument in calls:
        if not read.isdisjoint(owners_of.get(argument, {argument})):
            yield var, call, argument


def _owners(program: Program) -> dict[Any, set[Any]]:
    """From a variable to the variables in whose memory it may be: an alias, a tuple, a view.

    A variable with memory of its own is left out.
    """
    owners_of: dict[Any, set[Any]] = {}
    for var, value in program.bindings:
        if not isinstance(value, relax.Call):
            sources = list(variables_in(value))
        else:
            sources = list(variables_in(value.args[0])) if may_be_view(value.op) else []
        if sources:
            owners_of[var] = {
                owner for source in sources for owner in owners_of.get(source, {source})
            }
    return owners_of


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
