"""Contractions of bfloat16, two terms of the sum at a time.

Where a processor adds the products of pairs of bfloat16 to float32 (`pair_products`), a pair of
neighboring terms counts as one, and the pair of their factors as one element of 32 bits. What is
left is a contraction over elements as wide as its sums, which is planned as any other.

Elements that are neighbors along the axis of pairs are read where they are. Other factors are
copied first: into panels, if the plan has panels of them, else into a buffer like the tensor, with
pairs along one dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import ForKind

from ....ir.kernel_structure import (
    Axis,
    Load,
    buffer_of,
    linear_coefficient,
    static,
    substitute_values,
    uses,
    volume,
)
from ....ir.loops import Statement, block, ceil_div, fused, loop, variable
from ...kernels.contraction import Contraction
from ..pair_products import bits, pair
from .emit import emit
from .plan import Plan
from .store import ResultStore

_NARROW = "bfloat16"
_WIDE = "float32"

_COPY_COST = 4
"""Pair products that take as long as to copy a pair."""

_MAX_RELATIVE_COST = 0.9
"""Share of the cost of the contraction of single terms up to which pairs are preferred."""

_LANES = 16
"""Pairs that are copied at once, if neighbors in memory are so many."""


@dataclass(frozen=True)
class _Factor:
    """A factor of bfloat16, with the buffer that may hold its pairs.

    Attributes
    ----------
    load : TensorLoad
        The read of one number.
    dimension : int
        That of the tensor along which pairs lie.
    copy : Buffer
        Of int32; like the tensor, but half as long along that dimension.
    at : list of Expr
        The indices of a term's pair in the copy.
    pair : Expr
        The pair of a term, read from the tensor.
    """

    load: Any
    dimension: int
    copy: Any
    at: list[Any]
    pair: Any

    @property
    def are_neighbors(self) -> bool:
        """Whether the numbers of a pair lie side by side, so that both are read at once."""
        shape = buffer_of(self.load).shape
        is_last = all(static(extent) == 1 for extent in shape[self.dimension + 1 :])
        return is_last and int(shape[self.dimension]) % 2 == 0

    @property
    def size(self) -> int:
        """The number of pairs in the copy."""
        return math.prod(int(extent) for extent in self.copy.shape)


@dataclass(frozen=True)
class PairedContraction:
    """A contraction of pairs of terms.

    Attributes
    ----------
    contraction : Contraction
        Of the copies of both factors.
    factors : tuple of _Factor
    """

    contraction: Contraction
    factors: tuple[_Factor, _Factor]

    @property
    def cost(self) -> int:
        """The time of all products and copies, in products of pairs."""
        copied = sum(factor.size for factor in self.factors if not factor.are_neighbors)
        return volume(self.contraction.axes) + _COPY_COST * copied

    def emit(self, plan: Plan, result_store: ResultStore) -> Statement:
        """The statement that computes the contraction, with the copies that its plan needs."""
        kind = ForKind.PARALLEL if plan.parallel else ForKind.SERIAL
        packed = [number for number, _ in plan.packed]
        expressions, fills, copies = [], [], []
        for number, factor in enumerate(self.factors):
            is_broadcast = self.contraction.step(number, plan.vector) == 0
            if number in packed:
                # Panels take numbers that are neighbors of those of other pairs: in vectors of
                # first and of second ones. Squares of whole pairs are transposed.
                reads_tensor = not factor.are_neighbors
            else:
                reads_tensor = factor.are_neighbors and is_broadcast
            if reads_tensor:
                expressions.append(factor.pair)
            else:
                expressions.append(self.contraction.factors[number])
                fills.append(_filled(factor, kind))
                copies.append(factor.copy)
        contraction = replace(self.contraction, factors=(expressions[0], expressions[1]))
        return block("pairs", *fills, emit(contraction, plan, result_store), buffers=copies)


def paired(contraction: Contraction) -> PairedContraction | None:
    """A contraction as one of pairs; None if its factors are not of bfloat16, or it does not pay.

    Parameters
    ----------
    contraction : Contraction
    """
    if contraction.dtype != _WIDE or contraction.inside or contraction.extents:
        return None
    if not all(_is_widened(factor) for factor in contraction.factors):
        return None
    candidates = [
        candidate
        for axis in contraction.reduced
        if (candidate := _along(contraction, axis)) is not None
    ]
    best = min(candidates, key=lambda candidate: candidate.cost, default=None)
    most = _MAX_RELATIVE_COST * volume(contraction.axes)
    return best if best is not None and best.cost <= most else None


def _is_widened(factor: Any) -> bool:
    """Whether a factor is a number of bfloat16 in memory, cast to float32."""
    is_cast = isinstance(factor, tirx.Cast) and isinstance(factor.value, Load)
    return is_cast and str(buffer_of(factor.value).dtype) == _NARROW


def _along(contraction: Contraction, axis: Axis) -> PairedContraction | None:
    """The contraction of the pairs of terms along an axis; None if these are not regular."""
    if axis.extent is None or axis.extent < 2:
        return None
    half = Axis(variable(f"{axis.var.name}_pair", str(axis.var.ty)), ceil_div(axis.extent, 2), True)
    first, second = (_factor(factor.value, axis, half) for factor in contraction.factors)
    if first is None or second is None:
        return None
    reduced = tuple(half if other is axis else other for other in contraction.reduced)
    loads = (tirx.BufferLoad(first.copy, first.at), tirx.BufferLoad(second.copy, second.at))
    halved = replace(contraction, reduced=reduced, factors=loads, are_pairs=True)
    return PairedContraction(halved, (first, second))


def _factor(load: Any, axis: Axis, half: Axis) -> _Factor | None:
    """A factor in pairs along an axis; None if some pair begins at an odd index."""
    buffer = buffer_of(load)
    shape = [static(extent) for extent in buffer.shape]
    using = [number for number, index in enumerate(load.indices) if uses(index, axis.var)]
    if None in shape or len(using) != 1:
        return None
    (dimension,) = using
    index = load.indices[dimension]
    assert axis.extent is not None
    # Behind a last single term there must be a zero: the copy has one behind the tensor's end.
    if linear_coefficient(index, axis.var) != 1 or (
        axis.extent % 2 and axis.extent != shape[dimension]
    ):
        return None
    analyzer = tvm.sym.Analyzer()
    even = analyzer.simplify(substitute_values(index, {axis.var: half.var * 2}))
    if not analyzer.can_prove_equal(tirx.floormod(even, 2), 0):
        return None
    lengths = [ceil_div(n, 2) if d == dimension else n for d, n in enumerate(shape)]
    copy = tirx.decl_buffer(lengths, "int32", f"{buffer.name}_pairs")
    at, both = list(load.indices), []
    at[dimension] = analyzer.simplify(tirx.floordiv(even, 2))
    for place in (even, even + 1):
        indices = list(load.indices)
        indices[dimension] = place
        both.append(tirx.BufferLoad(buffer, indices))
    return _Factor(load, dimension, copy, at, pair(*both))


def _filled(factor: _Factor, kind: ForKind) -> Statement:
    """The nest that fills the copy of a factor; its outermost loop is of the given kind."""
    buffer, dimension = buffer_of(factor.load), factor.dimension
    dtype = str(factor.at[dimension].ty)
    extents = [int(extent) for extent in factor.copy.shape]
    length = extents[-1]
    indices = [variable("i", dtype) for _ in extents]
    around = list(zip(indices[:-1], extents[:-1], strict=True))
    in_vectors = length >= _LANES
    if in_vectors:
        # The last vector overlaps the one before, so that all are whole.
        trip, start = indices[-1], tirx.const(length - _LANES, dtype)
        around.append((trip, ceil_div(length, _LANES)))
        start = tirx.min(trip * _LANES, start) if length % _LANES else trip * _LANES
    else:
        around, start = [*around, (indices[-1], length)], indices[-1]
    if in_vectors and factor.are_neighbors and dimension == len(extents) - 1:
        one = tirx.const(1, dtype)
        both = tirx.BufferLoad(buffer, [*indices[:-1], tirx.Ramp(start * 2, one, 2 * _LANES)])
        at = [*indices[:-1], tirx.Ramp(start, one, _LANES)]
        body = tirx.BufferStore(factor.copy, tirx.reinterpret(f"int32x{_LANES}", both), at)
        return fused(around, body, kind)
    lane = variable("lane", dtype)
    at = [*indices[:-1], start + lane if in_vectors else start]
    first, second = list(at), list(at)
    first[dimension] = at[dimension] * 2
    second[dimension] = at[dimension] * 2 + 1
    low, high = tirx.BufferLoad(buffer, first), tirx.BufferLoad(buffer, second)
    extent = buffer.shape[dimension]
    value = pair(low, high)
    if int(extent) % 2:
        value = tirx.if_then_else(second[dimension] < extent, value, bits(low))
    body = tirx.BufferStore(factor.copy, value, at)
    if in_vectors:
        body = loop(lane, _LANES, body, ForKind.VECTORIZED)
    return fused(around, body, kind)
