"""Writing composite ops out: the form in which the sweep differentiates them.

A composite rule states an op in terms of ops that have rules. The calls on the way are replaced by
that statement in the primal program, so that nothing is computed twice, and derivatives exist to
whatever order the ops underneath have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..ir.program import Program
from .activity import Activity, analyze
from .mutation import mutations_of
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
        Active ops have no rule, an in-place call overwrites what gradients read, a value is used
        under its old name behind such a call, or an output depends on what a call wrote to memory.
    RuleError
        A composite rule returned values that are not those of its op.
    """
    mutations = mutations_of(program)
    if mutations is not None:
        mutations.refuse_stale_names()
    activity = analyze(program, wrt)
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
        activity = analyze(program, wrt)
    mutations = mutations_of(program)
    if mutations is not None:
        mutations.refuse_unknown_derivatives(activity)
    return program, activity
