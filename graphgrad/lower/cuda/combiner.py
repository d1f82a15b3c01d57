"""The combiner of a reduction, found in its expression, so that partial results can be combined.

A kernel says how the result so far takes in one more term, not how two partial results combine.
The combination is recognized for sums, products, extrema, and choices between the result and the
term. These are associative, and taking in the start value more than once, as each part does,
changes nothing. A choice whose outcome is a constant is not recognized: it may ask for the last
term with some property, which depends on the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.expr import BinaryOpExpr, CmpExpr

from ...ir.kernel_structure import Load, is_among
from ...ir.visits import nodes_in

Combine = Callable[[list[Any], list[Any]], list[Any]]
"""Combines the results of two parts; the part with the earlier terms comes first."""

_IDEMPOTENT = (tirx.Max, tirx.Min, tirx.And, tirx.Or)
_NEUTRAL = {tirx.Add: 0, tirx.Mul: 1}  # only these start values may be taken in repeatedly


class _UnknownCombinerError(Exception):
    """An expression is not one that is recognized."""


def combiner(
    values: Sequence[Any], targets: Sequence[Any], initial: Sequence[Any]
) -> Combine | None:
    """The function that combines two parts of a reduction; None if it is not recognized.

    Parameters
    ----------
    values : sequence of Expr
        Each result with one more term; the result so far is a load of its target.
    targets : sequence of BufferStore
        The stores of the results; more than one for a reduction of tuples.
    initial : sequence of Expr
        The results before the first term.
    """
    results = [store.buffer for store in targets]
    try:
        terms = [
            _term(value, result, start)
            for value, result, start in zip(values, results, initial, strict=True)
        ]
        rewritten = [_Rewriting(results, terms, component) for component in range(len(terms))]

        def combine(left: list[Any], right: list[Any]) -> list[Any]:
            pairs = zip(rewritten, values, strict=True)
            return [rewriting.apply(value, left, right) for rewriting, value in pairs]

        combine(terms, terms)  # an unknown expression raises here, and not when kernels are made
    except _UnknownCombinerError:
        return None
    return combine


def _term(value: Any, result: Any, start: Any) -> Any:
    """The term that a value adds to the result so far.

    A choice, such as that of a maximum with its index, has several leaves: the result so far, and
    the one term, either itself or added to the result.
    """
    if isinstance(value, tirx.Select):
        leaves = [leaf for leaf in _leaves(value) if not _is_load(leaf, result)]
        terms = [
            _other(leaf, result)
            if isinstance(leaf, tirx.Add) and _mentions(leaf, [result])
            else leaf
            for leaf in leaves
        ]
        if not terms or not all(tvm_ffi.structural_equal(terms[0], leaf) for leaf in terms):
            raise _UnknownCombinerError
        return terms[0]
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
    """Rewrites one component of a reduction: from a term taken in to two parts combined.

    In the expression, the left part takes the place of the result so far, the right part that of
    the term.
    """

    def __init__(self, results: list[Any], terms: list[Any], component: int):
        # A term that depends on the result so far cannot be replaced by another part's result.
        if any(_mentions(term, results) for term in terms):
            raise _UnknownCombinerError
        self.results = results
        # Its own term first: two components may have equal ones.
        order = [component, *(i for i in range(len(terms)) if i != component)]
        self.terms = [(i, terms[i]) for i in order]

    def apply(self, value: Any, left: list[Any], right: list[Any]) -> Any:
        """An expression with results of the left part for results so far, of the right for terms.

        An operand that is neither, such as a constant, is refused by `_operands`.
        """
        for i, term in self.terms:
            if tvm_ffi.structural_equal(term, value):
                return right[i]
        for i, result in enumerate(self.results):
            if _is_load(value, result):
                return left[i]
        operands = [self.apply(operand, left, right) for operand in _operands(value)]
        return _rebuild(value, operands)


def _operands(value: Any) -> list[Any]:
    """The operands of an expression; raises for one that combines nothing."""
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
    """Whether an expression reads any of some buffers."""
    return any(is_among(load.source, buffers) for load in nodes_in(value, Load))


def _is_constant(value: Any, number: int) -> bool:
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and value.value == number
