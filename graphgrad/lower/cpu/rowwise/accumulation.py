"""What a reduction accumulates, read off its block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ....ir.kernel_structure import Load, Stage, is_among, statements_of, substitute_values
from ....ir.visits import nodes_in
from ....ops.extrema import larger, smaller

_COMBINERS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


def maximum(a: Any, b: Any) -> Any:
    """As `larger`, in fewer instructions: whether there is NaN is one comparison.

    As a disjunction TVM would take ``a > b or b >= a`` for granted.
    """
    ordered = tirx.Select(a > b, tirx.const(True, "bool"), b >= a)
    return tirx.Select(ordered, tirx.Select(a > b, a, b), a + b)


def minimum(a: Any, b: Any) -> Any:
    """As `smaller`, likewise."""
    ordered = tirx.Select(a < b, tirx.const(True, "bool"), b <= a)
    return tirx.Select(ordered, tirx.Select(a < b, a, b), a + b)


_CHOICES = ((larger, maximum), (smaller, minimum))
"""Extrema that hand NaN on: as they are lowered, and as they are computed."""

_REPEATABLE = (tirx.Max, tirx.Min, maximum, minimum)
"""What may take a term in more than once."""


@dataclass(frozen=True)
class Accumulation:
    """One result of a reduction: the first value, and how an element is combined with it.

    Attributes
    ----------
    store : BufferStore
        Of the result.
    combine : function
        Of two values: associative and commutative, up to rounding and to which NaN it gives.
    element : Expr
    start : Expr
        Its identity, or, of a maximum or minimum, any value.
    """

    store: Any
    combine: Callable[[Any, Any], Any]
    element: Any
    start: Any


def accumulations_of(stage: Stage, block: Any) -> list[Accumulation] | None:
    """The accumulation of a reduction; None if the order of its terms may matter."""
    stores = [s for s in statements_of(block.body) if isinstance(s, tirx.BufferStore)]
    bound = bound_values(block)
    starts = [s for s in statements_of(block.init) if isinstance(s, tirx.BufferStore)]
    if len(starts) != len(stores):
        return None
    found = []
    for store in stores:
        value = substitute_values(store.value, bound)
        start = [s.value for s in starts if s.buffer.same_as(store.buffer)]
        combination = _combination(value, store, [s.buffer for s in stores])
        if combination is None or len(start) != 1 or not _is_start(combination[0], start[0]):
            return None
        found.append(Accumulation(store, *combination, start[0]))
    return found


def bound_values(block: Any) -> dict[Any, Any]:
    """The values of the variables that a block binds, without others of these."""
    values: dict[Any, Any] = {}
    for statement in statements_of(block.body):
        if isinstance(statement, tirx.Bind):
            values[statement.var] = substitute_values(statement.value, values)
    return values


def _combination(
    value: Any, store: Any, written: Sequence[Any]
) -> tuple[Callable[[Any, Any], Any], Any] | None:
    """How a value combines the accumulator with an element, and that; None if it does not.

    NaN is handed on by a choice, which names both operands several times.
    """
    kind = type(value)
    operands = [value.a, value.b] if kind in _COMBINERS else _chosen(value)
    for own, other in (operands, reversed(operands)) if operands else ():
        if not _is_accumulator(own, store) or any(
            is_among(load.source, written) for load in loads_of(other)
        ):
            continue
        if kind in _COMBINERS:
            return kind, other
        for lowered, computed in _CHOICES:
            if tvm_ffi.structural_equal(lowered(own, other), value):
                return computed, other
    return None


def _chosen(value: Any) -> list[Any]:
    """The two operands that a choice compares first; none if it is no such choice."""
    if isinstance(value, tirx.Select) and isinstance(value.condition, tirx.GT | tirx.LT):
        return [value.condition.a, value.condition.b]
    return []


def _is_accumulator(value: Any, store: Any) -> bool:
    return (
        isinstance(value, Load)
        and value.source.same_as(store.buffer)
        and all(map(tvm_ffi.structural_equal, value.indices, store.indices))
    )


def loads_of(node: Any) -> list[Any]:
    """The loads in an expression."""
    return nodes_in(node, Load)


def _is_start(combine: Callable[[Any, Any], Any], start: Any) -> bool:
    """Whether several parts may begin with a value: an identity, or one that may repeat."""
    if combine in _REPEATABLE:
        variables = nodes_in(start, tvm.ir.Var)
        return not variables and not loads_of(start)
    neutral = 0 if combine is tirx.Add else 1
    return isinstance(start, tirx.IntImm | tirx.FloatImm) and float(start.value) == neutral
