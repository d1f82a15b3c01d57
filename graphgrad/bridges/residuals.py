"""A function and its gradient as two programs, of which the second reads what the first has kept.

Frameworks call a model first and ask for its gradient later. What the gradient reads of the forward
pass is kept in between, unless it is elementwise or a view of what is: that is computed again, in
the kernels that read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from ..ir.program import Program, substitute, variables_in
from ..registry.rule import find
from .derivative import Step, flat_types, gradients_behind

_REPEATED = frozenset(
    f"relax.{name}"
    for name in (
        *("arange", "astype", "broadcast_to", "clip", "equal", "expand_dims", "flatten", "full"),
        *("full_like", "grad.no_grad", "greater", "greater_equal", "less", "less_equal"),
        *("logical_and", "logical_not", "logical_or", "maximum", "minimum", "nn.relu"),
        *("not_equal", "ones", "ones_like", "permute_dims", "reshape", "squeeze", "where"),
        *("zeros", "zeros_like"),
    )
)
"""Ops that are computed again, besides those whose rules are elementwise."""


@dataclass(frozen=True)
class Split:
    """The two programs.

    Attributes
    ----------
    forward : Program
        From the arguments to the results, and behind them what is kept besides.
    backward : Program
        From the arguments, the cotangents and what is kept to the gradients.
    kept : list of int
        The positions, among all results of `forward`, of what is kept.
    count : int
        How many of these are results of the program itself.
    """

    forward: Program
    backward: Program
    kept: list[int]
    count: int


def split(program: Program, step: Step) -> Split | None:
    """The two programs of a program and a step; None if it is no straight line of tensors.

    Parameters
    ----------
    program : Program
        Not changed.
    step : Step

    Raises
    ------
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    """
    joint = gradients_behind(program, step)
    count = len(flat_types(program.result.ty))
    if not joint.dataflow or any(isinstance(v, relax.MatchCast) for _, v in joint.bindings):
        return None
    arguments = joint.params[: len(program.params)]
    cotangents = set(joint.params[len(program.params) :])
    late = set(cotangents)
    for var, value in joint.bindings:
        if not late.isdisjoint(variables_in(value)):
            late.add(var)
    results, gradients = joint.result.fields[:count], joint.result.fields[count:]
    early = {var: value for var, value in joint.bindings if var not in late}
    kept, repeated = _residuals(joint, late, early, gradients)
    if any(isinstance(var.ty, relax.TupleType) for var in kept):
        return None
    returned = [*results, *(var for var in kept if not _is_in(var, results))]
    forward = replace(
        joint, params=arguments, bindings=list(early.items()), result=relax.Tuple(returned)
    )
    given = {var: relax.Var(f"kept_{number}", var.ty) for number, var in enumerate(kept)}
    bindings = [
        (var, substitute(value, given))
        for var, value in joint.bindings
        if var in repeated or var in late
    ]
    backward = replace(
        joint,
        params=[*joint.params, *given.values()],
        bindings=bindings,
        result=substitute(relax.Tuple(gradients), given),
    )
    positions = [next(n for n, r in enumerate(returned) if r is var or r == var) for var in kept]
    return Split(forward, backward, positions, count)


def _residuals(
    joint: Program, late: set[Any], early: dict[Any, Any], gradients: Iterable[Any]
) -> tuple[list[Any], set[Any]]:
    """The variables that are kept, and those that are computed again."""
    read = [v for var, value in joint.bindings if var in late for v in variables_in(value)]
    waiting = [*read, *(gradient for gradient in gradients if isinstance(gradient, relax.Var))]
    kept: dict[Any, None] = {}
    repeated: set[Any] = set()
    while waiting:
        var = waiting.pop()
        if var in repeated or var in kept or var not in early:
            continue
        value = early[var]
        if _is_repeated(value, early):
            repeated.add(var)
            waiting.extend(variables_in(value))
        else:
            kept[var] = None
    order = [var for var in early if var in kept]
    return order, repeated


def _is_repeated(value: Any, early: dict[Any, Any]) -> bool:
    """Whether a value is computed again rather than kept."""
    if isinstance(value, relax.TupleGetItem):
        whole = early.get(value.tuple_value)
        # Of a call with several results those that are read are kept.
        return whole is not None and not isinstance(whole, relax.Call)
    if not isinstance(value, relax.Call):
        return True
    name = getattr(value.op, "name", "")
    rule = find(name) if name.startswith("relax.") else None
    return name in _REPEATED or (rule is not None and rule.kind == "elementwise")


def _is_in(var: Any, values: Iterable[Any]) -> bool:
    return any(isinstance(value, relax.Var) and value == var for value in values)
