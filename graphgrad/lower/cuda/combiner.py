"""What a reduction does to two values: found in its expression, so that parts can be put together.

A reduction of tensor expressions says how the result takes in one more term. Sums, products,
extrema and choices between the result and the term are recognized; they are associative, and taking
in the start value more than once changes nothing. A choice by a constant is not: it may be that of
the last term with some property, which depends on the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.expr import BinaryOpExpr, CmpExpr

from ...ir.kernel_structure import Load

Combine = Callable[[list[Any], list[Any]], list[Any]]
"""Of the results of two parts, the one with the earlier terms first."""

_IDEMPOTENT = (tirx.Max, tirx.Min, tirx.And, tirx.Or)
_NEUTRAL = {tirx.Add: 0, tirx.Mul: 1}


class _UnknownCombinerError(Exception):
    """An expression is not one that is recognized."""


def combiner(
    values: Sequence[Any], targets: Sequence[Any], initial: Sequence[Any]
) -> Combine | None:
    """How to put two parts of a reduction together; None if it is not recognized.

    Parameters
    ----------
    values : sequence of Expr
        Each result with one more term, in terms of loads of the targets.
    targets : sequence of BufferStore
        Where the results are; more than one for a reduction of tuples.
    initial : sequence of Expr
        What the results are before the first term.
    """
    results = [store.buffer for store in targets]
    try:
        terms = [
            _term(value, result, start)
            for value, result, start in zip(values, results, initial, strict=True)
        ]
        rewritten = [_Rewriting(results, terms, own) for own in range(len(terms))]

        def combine(left: list[Any], right: list[Any]) -> list[Any]:
            pairs = zip(rewritten, values, strict=True)
            return [rewriting.apply(value, left, right) for rewriting, value in pairs]

        combine(terms, terms)  # raises here rather than later
    except _UnknownCombinerError:
        return None
    return combine


def _term(value: Any, result: Any, start: Any) -> Any:
    """The term that a value takes in."""
    if isinstance(value, tirx.Select):
        leaves = [leaf for leaf in _leaves(value) if not _is_load(leaf, result)]
        found = [
            _other(leaf, result)
            if isinstance(leaf, tirx.Add) and _mentions(leaf, [result])
            else leaf
            for leaf in leaves
        ]
        if not found or not all(tvm_ffi.structural_equal(found[0], leaf) for leaf in found):
            raise _UnknownCombinerError
        return found[0]
    if isinstance(value, _IDEMPOTENT) or (
        type(value) in _NEUTRAL and _is_constant(start, _NEUTRAL[type(value)])
    ):
        return _other(value, result)
    raise _UnknownCombinerError


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tirx.Select):
        return [*_leaves(value.true_value), *_leaves(value.false_value)]
    return [value]


def _other(value: Any, result: Any) -> Any:
    """The operand that is not the result so far."""
    if _is_load(value.a, result):
        return value.b
    if _is_load(value.b, result):
        return value.a
    raise _UnknownCombinerError


class _Rewriting:
    """One component of a reduction with parts in place of the result so far and of the term."""

    def __init__(self, results: list[Any], terms: list[Any], own: int):
        if any(_mentions(term, results) for term in terms):
            raise _UnknownCombinerError
        self.results = results
        # Its own term first: two components may have equal ones.
        order = [own, *(i for i in range(len(terms)) if i != own)]
        self.terms = [(i, terms[i]) for i in order]

    def apply(self, value: Any, left: list[Any], right: list[Any]) -> Any:
        for i, term in self.terms:
            if tvm_ffi.structural_equal(term, value):
                return right[i]
        for i, result in enumerate(self.results):
            if _is_load(value, result):
                return left[i]
        parts = [self.apply(operand, left, right) for operand in _operands(value)]
        return _rebuild(value, parts)


def _operands(value: Any) -> list[Any]:
    if isinstance(value, tirx.Select):
        return [value.condition, value.true_value, value.false_value]
    if isinstance(value, BinaryOpExpr | CmpExpr | tirx.And | tirx.Or):
        return [value.a, value.b]
    if isinstance(value, tirx.Not):
        return [value.a]
    if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op):
        return list(value.args)
    raise _UnknownCombinerError


def _rebuild(value: Any, operands: list[Any]) -> Any:
    if isinstance(value, tvm.ir.Call):
        return tvm.ir.Call(value.op, operands, value.attrs, value.ty_args, ret_ty=value.ty)
    return type(value)(*operands)


def _is_load(value: Any, buffer: Any) -> bool:
    return isinstance(value, Load) and value.source.same_as(buffer)


def _mentions(value: Any, buffers: Sequence[Any]) -> bool:
    found = False

    def visit(load: Any) -> None:
        nonlocal found
        found = found or any(load.source.same_as(buffer) for buffer in buffers)

    tvm_ffi.structural_walk(value, (Load, visit))
    return found


def _is_constant(value: Any, number: int) -> bool:
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and value.value == number
