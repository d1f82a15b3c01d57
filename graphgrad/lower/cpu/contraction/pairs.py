"""Contractions of bfloat16, two terms of the sum at a time.

Where a processor adds the products of pairs of bfloat16 to float32 (`pair_products`), a pair of
neighboring terms counts as one, and the pair of their factors as one element of 32 bits. What is
left is a contraction over elements as wide as its sums, which is planned as any other.

Elements that are neighbors along the axis of pairs are read where they are. Other factors are
copied first: into panels, if the plan has panels of them, else into a buffer like the tensor, with
pairs along one dimension. So are factors that the kernel has rounded to bfloat16, and holds as
float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import tvm
from tvm import tirx
from tvm.tirx import ForKind

from ....ir.kernel_structure import (
    Axis,
    Load,
    buffer_of,
    is_among,
    linear_coefficient,
    static,
    substitute_values,
    uses,
    volume,
)
from ....ir.loops import Statement, block, ceil_div, fused, loop, sequence, variable
from ...kernels.contraction import Contraction, known
from ..map import SMALL
from ..pair_products import bits, pair
from .emit import emit
from .plan import Plan
from .store import ResultStore

if TYPE_CHECKING:
    from ...kernels.pads import Border

_NARROW = "bfloat16"
_WIDE = "float32"

_COPY_COST = 4
"""Pair products that take as long as to copy a pair."""

_MAX_RELATIVE_COST = 0.9
"""Share of the cost of the contraction of single terms up to which pairs are preferred."""

_MIN_TERMS = 3
"""Terms along an axis from which on there are two pairs, and so a loop over them."""

_LANES = 16
"""Pairs that are copied at once, if neighbors in memory are so many."""


@dataclass(frozen=True)
class _Factor:
    """A factor of bfloat16, or rounded to it, with the buffer that may hold its pairs.

    Attributes
    ----------
    source : Buffer
        The tensor, without a border.
    before : tuple of int
        Zeros of the border before the first element along each axis.
    dimension : int
        That along which pairs lie.
    copy : Buffer
        Of int32; like the tensor in its border, but half as long along that dimension.
    at : list of Expr
        The indices of a term's pair in the copy.
    pair : Expr or None
        The pair of a term, read from the tensor. None if the tensor does not have both numbers of
        each pair.
    """

    source: Any
    before: tuple[int, ...]
    dimension: int
    copy: Any
    at: list[Any]
    pair: Any

    @property
    def are_neighbors(self) -> bool:
        """Whether the numbers of a pair are neighbors in memory."""
        return self.dimension == len(self.at) - 1

    @property
    def are_pairs(self) -> bool:
        """Whether such neighbors are the bits of a pair."""
        return self.are_neighbors and str(self.source.dtype) == _NARROW

    def is_read(self, in_panels: bool, in_vectors: bool) -> bool:
        """Whether pairs are read from the tensor, and not from the copy.

        Parameters
        ----------
        in_panels : bool
            Whether they are read to fill panels. These take the numbers that are neighbors of those
            of other pairs: in vectors of first and of second ones. Of pairs of neighbors, squares
            are transposed, which are of whole pairs.
        in_vectors : bool
            Whether the pairs of several results are read at once.
        """
        if self.pair is None:
            return False
        return not self.are_neighbors if in_panels else self.are_pairs and not in_vectors

    def filled(self, kind: ForKind) -> Statement:
        """The nest that fills the copy; its outermost loop is of the given kind."""
        dtype = str(self.at[self.dimension].ty)
        extents = [int(extent) for extent in self.copy.shape]
        # Pairs that lack a number are at the end of their dimension alone.
        whole = int(self.source.shape[self.dimension]) // 2
        length = whole if self.are_neighbors else extents[-1]
        indices = [variable("i", dtype) for _ in extents]
        around = list(zip(indices[:-1], extents[:-1], strict=True))
        if length < _LANES:
            body = loop(indices[-1], extents[-1], self._of_numbers(indices))
            return fused(around, body, kind)
        run, lane = variable("run", dtype), variable("lane", dtype)
        start = run * _LANES
        if length % _LANES:  # the last vector overlaps the one before, so that all are whole
            start = tirx.min(start, tirx.const(length - _LANES, dtype))
        numbers = self._of_numbers([*indices[:-1], start + lane])
        body = loop(lane, _LANES, numbers, ForKind.VECTORIZED)
        if not self.are_neighbors:
            return fused([*around, (run, ceil_div(length, _LANES))], body, kind)
        if self.are_pairs:
            body = self._of_neighbors(indices[:-1], start)
        body = loop(run, ceil_div(length, _LANES), body)
        if extents[-1] > whole:
            body = sequence(body, self._of_numbers([*indices[:-1], tirx.const(whole, dtype)]))
        return fused(around, body, kind)

    def _of_numbers(self, at: list[Any]) -> Statement:
        """The statement that makes one pair of its two numbers."""
        shifted = self._in_source(at)
        first, second = list(shifted), list(shifted)
        first[self.dimension] = at[self.dimension] * 2
        second[self.dimension] = at[self.dimension] * 2 + 1
        low, high = tirx.BufferLoad(self.source, first), tirx.BufferLoad(self.source, second)
        extent = self.source.shape[self.dimension]
        body = tirx.BufferStore(self.copy, pair(low, high), at)
        if int(extent) % 2:
            # A statement, because no vectors are made of a choice between values.
            single = tirx.BufferStore(self.copy, bits(low), at)
            body = tirx.IfThenElse(second[self.dimension] < extent, body, single)
        return self._inside_border(shifted, at, body, tirx.const(0, "int32"))

    def _of_neighbors(self, outer: list[Any], start: Any) -> Statement:
        """The statement that copies a vector of pairs, both numbers of which are neighbors."""
        step = tirx.const(1, str(start.ty))
        shifted = self._in_source(outer)
        numbers = tirx.BufferLoad(self.source, [*shifted, tirx.Ramp(start * 2, step, 2 * _LANES)])
        at = [*outer, tirx.Ramp(start, step, _LANES)]
        body = tirx.BufferStore(self.copy, tirx.reinterpret(f"int32x{_LANES}", numbers), at)
        zeros = tirx.Broadcast(tirx.const(0, "int32"), _LANES)
        return self._inside_border(shifted, at, body, zeros)

    def _in_source(self, at: list[Any]) -> list[Any]:
        """Indices of the copy, all or the outer ones, less the border."""
        indices = zip(at, self.before, strict=False)
        return [index - zeros if zeros else index for index, zeros in indices]

    def _inside_border(
        self, shifted: list[Any], at: list[Any], body: Statement, zero: Any
    ) -> Statement:
        """A statement that stores, or the store of a zero where the indices are in the border."""
        conditions = []
        for index, padded, extent, zeros in zip(
            shifted, self.copy.shape, self.source.shape, self.before, strict=False
        ):
            if zeros > 0:
                conditions.append(index >= 0)
            if int(padded) - zeros > int(extent):
                conditions.append(index < extent)
        if not conditions:
            return body
        return tirx.IfThenElse(tirx.all(*conditions), body, tirx.BufferStore(self.copy, zero, at))


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
        copied = [
            factor.copy
            for number, factor in enumerate(self.factors)
            if number not in self.contraction.lasting and not factor.is_read(False, False)
        ]
        pairs = sum(math.prod(int(extent) for extent in copy.shape) for copy in copied)
        return volume(self.contraction.axes) + _COPY_COST * pairs

    def emit(self, plan: Plan, result_store: ResultStore) -> Statement:
        """The statement that computes the contraction, with the copies that its plan needs."""
        packed = [number for number, _ in plan.packed]
        expressions, fills, copies = [], [], []
        for number, factor in enumerate(self.factors):
            in_vectors = self.contraction.step(number, plan.vector) != 0
            if factor.is_read(number in packed, in_vectors):
                expressions.append(factor.pair)
            else:
                expressions.append(self.contraction.factors[number])
                is_large = math.prod(map(int, factor.copy.shape)) >= SMALL
                kind = ForKind.PARALLEL if plan.parallel and is_large else ForKind.SERIAL
                fills.append(factor.filled(kind))
                copies.append(factor.copy)
        contraction = replace(self.contraction, factors=(expressions[0], expressions[1]))
        return block("pairs", *fills, emit(contraction, plan, result_store), buffers=copies)


def paired(
    contraction: Contraction,
    arguments: Sequence[Any],
    borders: Mapping[Any, Border],
    rounded: Sequence[Any] = (),
) -> PairedContraction | None:
    """A contraction as one of pairs; None if its factors are not of bfloat16, or it does not pay.

    Parameters
    ----------
    contraction : Contraction
    arguments : sequence of Buffer
        The arguments of the kernel. A buffer that it allocates is no bfloat16 in the end: TVM makes
        it one of float32.
    borders : dict
        From the buffer of each padded copy to what it is a copy of, which is read instead.
    rounded : sequence of Buffer
        Buffers of float32 that hold numbers of bfloat16.
    """
    if contraction.dtype != _WIDE or contraction.inside or contraction.extents:
        return None
    if not all(_is_narrow(factor, rounded) for factor in contraction.factors):
        return None
    readable = [*arguments, *rounded]
    candidates = [
        candidate
        for axis in contraction.reduced
        if (candidate := _along(contraction, axis, readable, borders)) is not None
    ]
    best = min(candidates, key=lambda candidate: candidate.cost, default=None)
    most = _MAX_RELATIVE_COST * volume(contraction.axes)
    return best if best is not None and best.cost <= most else None


def _is_narrow(factor: Any, rounded: Sequence[Any]) -> bool:
    """Whether a factor is a number of bfloat16 in memory, cast to float32 or held as one."""
    if isinstance(factor, Load):
        return is_among(buffer_of(factor), rounded)
    is_cast = isinstance(factor, tirx.Cast) and isinstance(factor.value, Load)
    return is_cast and str(buffer_of(factor.value).dtype) == _NARROW


def _along(
    contraction: Contraction,
    axis: Axis,
    readable: Sequence[Any],
    borders: Mapping[Any, Border],
) -> PairedContraction | None:
    """The contraction of the pairs of terms along an axis; None if these are not regular."""
    if axis.extent is None or axis.extent < _MIN_TERMS:
        return None
    half = Axis(variable(f"{axis.var.name}_pair", str(axis.var.ty)), ceil_div(axis.extent, 2), True)
    factors = []
    for load in contraction.loads:
        buffer = buffer_of(load)
        border = borders.get(buffer)
        source = buffer if border is None else border.source
        before = (0,) * len(buffer.shape) if border is None else border.before
        factor = _factor(load, axis, half, source, before)
        if factor is None or not is_among(source, readable):
            return None
        factors.append(factor)
    reduced = tuple(half if other is axis else other for other in contraction.reduced)
    loads = [tirx.BufferLoad(factor.copy, factor.at) for factor in factors]
    halved = replace(contraction, reduced=reduced, factors=(loads[0], loads[1]), are_pairs=True)
    return PairedContraction(halved, (factors[0], factors[1]))


def _factor(
    load: Any, axis: Axis, half: Axis, source: Any, before: tuple[int, ...]
) -> _Factor | None:
    """A factor in pairs along an axis; None if pairs are not such of its tensor.

    Parameters
    ----------
    load : TensorLoad
        The read of one number.
    axis, half : Axis
        The axis of the sum, and that of its pairs.
    source, before
        See `_Factor`.
    """
    buffer = buffer_of(load)
    shape = [static(extent) for extent in buffer.shape]
    using = [number for number, index in enumerate(load.indices) if uses(index, axis.var)]
    if None in shape or len(using) != 1:
        return None
    (dimension,) = using
    index, length = load.indices[dimension], shape[dimension] or 0
    has_border = before[dimension] != 0 or int(source.shape[dimension]) != length
    is_odd = known(axis) % 2 == 1
    # A last single term has a zero beside it: behind the end of the tensor.
    if has_border or linear_coefficient(index, axis.var) != 1 or (is_odd and known(axis) != length):
        return None
    analyzer = tvm.sym.Analyzer()
    first = analyzer.simplify(substitute_values(index, {axis.var: half.var * 2}))
    if not analyzer.can_prove_equal(tirx.floormod(first, 2), 0):
        return None
    lengths = list(shape)
    lengths[dimension] = ceil_div(length, 2)
    copy = tirx.decl_buffer(lengths, "int32", f"{buffer.name}_pairs")
    at, both = list(load.indices), []
    at[dimension] = analyzer.simplify(tirx.floordiv(first, 2))
    for place in (first, first + 1):
        indices = list(load.indices)
        indices[dimension] = place
        both.append(tirx.BufferLoad(source, indices))
    # In rows of an odd length, pairs are not at multiples of their size, as those of a copy.
    is_whole = not is_odd and source.same_as(buffer) and length % 2 == 0
    return _Factor(source, before, dimension, copy, at, pair(*both) if is_whole else None)
