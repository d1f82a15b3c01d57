"""What a reduction accumulates, read off its block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...visits import visit_nodes
from ..structure import Load, Stage, is_among, sequence, with_values

_COMBINERS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


@dataclass(frozen=True)
class Accumulation:
    """One result of a reduction: the first value, and how an element is combined with it.

    Attributes
    ----------
    store : BufferStore
        Of the result.
    combine : type
        A binary operation that is associative and commutative, up to rounding.
    element : Expr
    start : Expr
        Its identity, or, of a maximum or minimum, any value.
    """

    store: Any
    combine: type
    element: Any
    start: Any


def accumulations_of(stage: Stage, block: Any) -> list[Accumulation] | None:
    """Return what a reduction accumulates; None if the order of its terms may matter."""
    stores = [s for s in sequence(block.body) if isinstance(s, tirx.BufferStore)]
    bound = bound_values(block)
    starts = [s for s in sequence(block.init) if isinstance(s, tirx.BufferStore)]
    if len(starts) != len(stores):
        return None
    found = []
    for store in stores:
        value = with_values(store.value, bound)
        start = [s.value for s in starts if s.buffer.same_as(store.buffer)]
        element = _element(value, store, [s.buffer for s in stores])
        if element is None or len(start) != 1 or not _is_identity(type(value), start[0]):
            return None
        found.append(Accumulation(store, type(value), element, start[0]))
    return found


def bound_values(block: Any) -> dict[Any, Any]:
    """Return what the variables that a block binds are, without others of these."""
    values: dict[Any, Any] = {}
    for statement in sequence(block.body):
        if isinstance(statement, tirx.Bind):
            values[statement.var] = with_values(statement.value, values)
    return values


def _element(value: Any, store: Any, written: Sequence[Any]) -> Any | None:
    """Return what a value combines with the accumulator; None if it is something else."""
    if type(value) not in _COMBINERS:
        return None
    for own, other in ((value.a, value.b), (value.b, value.a)):
        if (
            isinstance(own, Load)
            and own.source.same_as(store.buffer)
            and all(map(tvm_ffi.structural_equal, own.indices, store.indices))
            and not any(is_among(load.source, written) for load in loads_of(other))
        ):
            return other
    return None


def loads_of(node: Any) -> list[Any]:
    """Return the loads in an expression."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (Load, found.append))
    return found


def _is_identity(combine: type, start: Any) -> bool:
    if combine in (tirx.Max, tirx.Min):
        variables: list[Any] = []
        visit_nodes(start, tvm.ir.Var, variables.append)
        return not variables and not loads_of(start)
    neutral = 0 if combine is tirx.Add else 1
    return isinstance(start, tirx.IntImm | tirx.FloatImm) and float(start.value) == neutral
