"""Rules of users for loops, in terms of what `gg.scan` takes and returns."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from tvm import relax

from ..errors import RuleError
from ..ir.tensor import Tensor, is_float
from ..ops import functional as op
from ..registry.rule import Rule


def of_steps(rule: Rule, carries: int) -> Rule:
    """The rule for a loop's kernel, given one that sees the results without their first rows.

    A kernel of `gg.scan` returns each carry also as it is before the first step, and a row of zeros
    in front of every other result. The loop itself returns neither. Its first arguments are the
    carries before the first step, as many as `carries` says.

    Raises
    ------
    RuleError
        The rule is not of the general form.
    """
    if rule.kind == "nondifferentiable":
        return rule
    if rule.kind != "general" or rule.function is None:
        raise RuleError(
            f"{rule.location}: the rule for the loop {rule.op} is {rule.kind}; register one of the "
            "general form, by graphgrad.register_gradient"
        )
    function = rule.function

    @functools.wraps(function)
    def kernel_rule(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> Any:
        rows = [[_without_first_row(value) for value in values] for values in (outputs, cotangents)]
        results = function(inputs, *rows, attrs)
        if not isinstance(results, list | tuple) or len(results) != len(inputs):
            return results  # the check of a rule's results reports it
        first = [_first_row(cotangent) for cotangent in cotangents[:carries]]
        return [*map(_sum, results[:carries], first), *results[carries:]]

    return replace(rule, function=kernel_rule)


def _without_first_row(value: Tensor | None) -> Tensor | None:
    """All rows of a tensor but the first."""
    if value is None:
        return None
    rows = value.shape[0]
    if value.fill is not None:
        return value.emitter.full(value.fill, [rows - 1, *value.shape[1:]], value.dtype)
    return op.strided_slice(value, [0], [1], [rows], assume_inbound=True)


def _first_row(value: Tensor | None) -> Tensor | None:
    """The first row of a tensor; None if it is zero."""
    if value is None or value.fill == 0.0:
        return None
    row = op.strided_slice(value, [0], [0], [1], assume_inbound=True)
    return op.reshape(row, value.shape[1:])


def _sum(given: Any, more: Tensor | None) -> Any:
    """A cotangent that a rule has returned, and more of it."""
    if more is None or given is None:
        return more if given is None else given
    value = more.emitter.emit(given) if isinstance(given, relax.Expr) else given
    if not isinstance(value, Tensor) or not is_float(value.dtype):
        return given  # the check of a rule's results reports it
    try:
        return more + op.sum_to(value, more.shape).astype(more.dtype)
    except RuleError:
        return given  # so does it report a shape that does not fit
