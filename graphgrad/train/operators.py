"""Programs in the ops that are written as ONNX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax

from ..autodiff.activity import location, op_name
from ..autodiff.derive import KERNEL_CALLS, derive_rule
from ..autodiff.written_out import written_out
from ..errors import LoweringError, MissingGradientError, ModelError
from ..frontend.writer import unwritable
from ..ir.branches import bindings_of
from ..ir.program import Program, variables_in


def in_operators(program: Program) -> Program:
    """A program in which ops that are not written are stated in others, as they are lowered.

    Raises
    ------
    ModelError
        Some cannot be; names all of them.
    """
    kernels = dict(program.kernels)
    problems: dict[tuple[str, str], list[str]] = {}  # places by names of ops, and why

    def branch_stated(branch: relax.SeqExpr, origin: str) -> relax.SeqExpr:
        bindings = [b for var, value in bindings_of(branch) for b in stated(var, value, origin)]
        block = relax.BindingBlock(
            [
                value if isinstance(value, relax.MatchCast) else relax.VarBinding(var, value)
                for var, value in bindings
            ]
        )
        return relax.SeqExpr([block], branch.body)

    def stated(var: Any, value: Any, origin: str) -> list[tuple[Any, Any]]:
        if isinstance(value, relax.If):
            branches = (branch_stated(b, origin) for b in (value.true_branch, value.false_branch))
            return [(var, relax.If(value.cond, *branches, span=value.span))]
        obstacle = unwritable(var, value, kernels)
        if obstacle is None:
            return [(var, value)]
        name, reason = obstacle
        origin = origin or op_name(value)
        try:
            # Without tensors there is nothing that a statement could begin with.
            is_stated = isinstance(value, relax.Call) and len([*variables_in(value)]) > 0
            if name in KERNEL_CALLS or not is_stated:
                raise MissingGradientError(name)
            form = written_out(derive_rule(value, kernels), var, value)
        except (MissingGradientError, LoweringError):
            problems.setdefault((origin, reason), []).append(location(var, value))
            return [(var, value)]
        kernels.update(form.kernels)
        return [binding for inner in form.bindings for binding in stated(*inner, origin)]

    bindings = [binding for var, value in program.bindings for binding in stated(var, value, "")]
    if problems:
        lines = [
            f"  {name} ×{len(places)}: {', '.join(dict.fromkeys(places))} ({reason})"
            for (name, reason), places in sorted(problems.items())
        ]
        raise ModelError(
            f"{len(problems)} op(s) are not written as ONNX, nor what they are lowered to:\n"
            + "\n".join(lines)
        )
    return replace(program, bindings=bindings, kernels=kernels)
