"""The branches of an If as programs of their own."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .program import Program, variables_in


def branch_programs(program: Program, value: relax.If) -> list[Program]:
    """Both branches of an If as programs; their parameters are the variables that the If reads.

    Parameters
    ----------
    program : Program
        The program that the If is part of.
    value : relax.If
    """
    params = list(dict.fromkeys(variables_in(value)))
    return [
        Program(
            program.name,
            params,
            bindings_of(branch),
            branch.body,
            kernels=program.kernels,
            rules=program.rules,
        )
        for branch in (value.true_branch, value.false_branch)
    ]


def bindings_of(branch: relax.SeqExpr) -> list[tuple[Any, Any]]:
    """The bindings of a branch, as `Program.bindings` holds them: of a cast, the cast itself."""
    return [
        (binding.var, binding if isinstance(binding, relax.MatchCast) else binding.value)
        for block in branch.blocks
        for binding in block.bindings
    ]
