"""Writing composite ops out: the form in which the sweep differentiates them.

A composite rule states an op in terms of ops that have rules. The calls on the way are replaced by
that statement in the primal program, so that nothing is computed twice, and derivatives exist to
whatever order the ops underneath have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import MissingGradientError
from ..ops.calls import overwritten_by
from .activity import Activity, analyse, op_name, place
from .program import Program, variables_in
from .written_out import written_out


def expand(program: Program, wrt: Sequence[Any]) -> tuple[Program, Activity]:
    """Return the program with its active composite calls written out, and its activity.

    Parameters
    ----------
    program : Program
        Not changed.
    wrt : variables of the program
        They stay variables of the returned one.

    Raises
    ------
    MissingGradientError
        Active ops have no rule, or an in-place call overwrites what gradients read.
    RuleError
        A composite rule returned values that are not those of its op.
    """
    activity = analyse(program, wrt)
    while composites := {v: r for v, r in activity.rules.items() if r.kind == "composite"}:
        bindings: list[tuple[Any, Any]] = []
        kernels = dict(program.kernels)
        for var, value in program.bindings:
            if var in composites:
                form = written_out(composites[var], var, value)
                bindings += form.bindings
                kernels |= form.kernels
            else:
                bindings.append((var, value))
        program = replace(program, bindings=bindings, kernels=kernels)
        activity = analyse(program, wrt)
    _refuse_overwriting(program, activity)
    return program, activity


def _refuse_overwriting(program: Program, activity: Activity) -> None:
    """Raise if a call overwrites what the rules of other calls, or its own, may read after it."""
    active = [(var, value) for var, value in program.bindings if var in activity.rules]
    read = {source for var, value in active for source in (var, *variables_in(value))}
    for var, value in program.bindings:
        for argument in overwritten_by(value):
            if argument in read:
                raise MissingGradientError(
                    f"{op_name(value)} at {place(var, value)} overwrites {argument.name}, which "
                    "gradients read afterwards; call the function out of place, by call_tir or "
                    "call_dps_packed"
                )
