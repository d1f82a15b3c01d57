"""Branches: the gradient of an If is an If of the gradients of what it chooses between.

A branch that was taken is computed again, in the branch of the gradient that is then taken, so that
neither keeps values that the other has not.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..ir.program import Program, emit_program, variables_in
from ..ir.tensor import Emitter, expression_of
from ..tvm_fixes.hooks import begin_block, end_block


def branch_programs(program: Program, value: relax.If) -> list[Program]:
    """Both branches of an If as programs; what they read from outside are their parameters.

    Parameters
    ----------
    program : Program
        That the If is part of.
    value : relax.If
    """
    read = list(dict.fromkeys(variables_in(value)))
    return [
        Program(
            program.name,
            read,
            [(b.var, _bound(b)) for block in branch.blocks for b in block.bindings],
            branch.body,
            kernels=program.kernels,
            rules=program.rules,
        )
        for branch in (value.true_branch, value.false_branch)
    ]


def _bound(binding: Any) -> Any:
    return binding if isinstance(binding, relax.MatchCast) else binding.value


def emit_branch(emitter: Emitter, program: Program, environment: Any, sweep: Any) -> Any:
    """A branch as a sequence of its own: the bindings of a program, and what follows them.

    Parameters
    ----------
    emitter : Emitter
    program : Program
    environment : dict
        The variables of the outer program to their emitted values.
    sweep : callable
        Emits what follows, given the branch's environment; returns what the sequence is worth, as
        a list of `Tensor`.
    """
    builder = emitter.builder
    begin_block(builder)
    try:
        arguments = [environment.get(var, var) for var in program.params]
        values = sweep({**environment, **emit_program(program, builder, arguments)})
        result = builder.emit(expression_of(values))
    finally:
        block = end_block(builder)
    return relax.SeqExpr([block], result)


def materialized(cotangent: Any) -> Any:
    """A cotangent whose parts are emitted: not to be first in one branch, unseen outside."""
    if isinstance(cotangent, list):
        return [materialized(part) for part in cotangent]
    if cotangent is None:
        return None
    return cotangent.emitter.lift(cotangent.expr)
