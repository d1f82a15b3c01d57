"""The operator, the element and the first value of a reduction, recognized in its block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ....ir.kernel_structure import (
    Load,
    Stage,
    bound_values,
    is_among,
    statements_of,
    substitute_values,
)
from ....ir.visits import nodes_in
from ....ops.elementwise import larger, smaller

_COMBINERS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two elements, or NaN if one is: as `larger`, in fewer instructions.

    Whether an element is NaN is one ordered comparison of both.
    """
    # Written as a disjunction, ``a > b or b >= a`` would be simplified to true by TVM.
    ordered = tirx.Select(a > b, tirx.const(True, "bool"), b >= a)
    # A sum with NaN is NaN.
    return tirx.Select(ordered, tirx.Select(a > b, a, b), a + b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two elements, or NaN if one is: as `smaller`, in fewer instructions."""
    ordered = tirx.Select(a < b, tirx.const(True, "bool"), b <= a)
    return tirx.Select(ordered, tirx.Select(a < b, a, b), a + b)


_CHOICES = ((larger, maximum), (smaller, minimum))
"""Extrema that propagate NaN: as ops are lowered to them, and as they are computed."""

_REPEATABLE = (tirx.Max, tirx.Min, maximum, minimum)
"""Operators whose result does not change if a term counts twice."""


@dataclass(frozen=True)
class Accumulation:
    """One result of a reduction: the first value, and how an element is combined with it.

    Attributes
    ----------
    store : BufferStore
        The store of the result.
    combine : function
        Combines two values. It is associative and commutative, up to rounding and to which NaN it
        gives.
    element : Expr
        The term that each iteration combines with the accumulator.
    start : Expr
        The first value: the operator's identity or, of a maximum or minimum, any constant.
    """

    store: Any
    combine: Callable[[Any, Any], Any]
    element: Any
    start: Any


def accumulations_of(stage: Stage, block: Any) -> list[Accumulation] | None:
    """The accumulations of a reduction, one for each result.

    None if one is not recognized, so that the order of its terms may matter.
    """
    stores = [s for s in statements_of(block.body) if isinstance(s, tirx.BufferStore)]
    bindings = bound_values(block.body)
    starts = [s for s in statements_of(block.init) if isinstance(s, tirx.BufferStore)]
    if len(starts) != len(stores):
        return None
    accumulations = []
    for store in stores:
        value = substitute_values(store.value, bindings)
        start = [s.value for s in starts if s.buffer.same_as(store.buffer)]
        combination = _combination(value, store, [s.buffer for s in stores])
        if combination is None or len(start) != 1 or not _is_start(combination[0], start[0]):
            return None
        accumulations.append(Accumulation(store, *combination, start[0]))
    return accumulations


def _combination(
    value: Any, store: Any, written: Sequence[Any]
) -> tuple[Callable[[Any, Any], Any], Any] | None:
    """The operator by which a value combines the accumulator with an element, and that element.

    None if it does not, or if the element reads a result. Operators that propagate NaN are choices,
    which mention both operands several times.
    """
    kind = type(value)
    operands = [value.a, value.b] if kind in _COMBINERS else _chosen(value)
    # Either operand may be the accumulator.
    for accumulator, element in (operands, reversed(operands)) if operands else ():
        if not _is_accumulator(accumulator, store) or any(
            is_among(load.source, written) for load in loads_of(element)
        ):
            continue
        if kind in _COMBINERS:
            return kind, element
        for lowered, computed in _CHOICES:
            if tvm_ffi.structural_equal(lowered(accumulator, element), value):
                return computed, element
    return None


def _chosen(value: Any) -> list[Any]:
    """The two operands that a choice compares; an empty list if the value is no such choice."""
    if isinstance(value, tirx.Select) and isinstance(value.condition, tirx.GT | tirx.LT):
        return [value.condition.a, value.condition.b]
    return []


def _is_accumulator(value: Any, store: Any) -> bool:
    """Whether a value is a read of the very element that is stored to."""
    return (
        isinstance(value, Load)
        and value.source.same_as(store.buffer)
        and all(map(tvm_ffi.structural_equal, value.indices, store.indices))
    )


def loads_of(node: Any) -> list[Any]:
    """The loads in an expression."""
    return nodes_in(node, Load)


def _is_start(combine: Callable[[Any, Any], Any], start: Any) -> bool:
    """Whether several partial results may all begin with a value.

    It is the operator's identity, or a constant that may count more than once.
    """
    if combine in _REPEATABLE:
        variables = nodes_in(start, tvm.ir.Var)
        return not variables and not loads_of(start)
    neutral = 0 if combine is tirx.Add else 1
    return isinstance(start, tirx.IntImm | tirx.FloatImm) and float(start.value) == neutral
