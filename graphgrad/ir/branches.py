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
            [
                (binding.var, _bound(binding))
                for block in branch.blocks
                for binding in block.bindings
            ],
            branch.body,
            kernels=program.kernels,
            rules=program.rules,
        )
        for branch in (value.true_branch, value.false_branch)
    ]


def _bound(binding: Any) -> Any:
    """A binding's value as `Program.bindings` holds it: of a cast, the binding itself."""
    return binding if isinstance(binding, relax.MatchCast) else binding.value
