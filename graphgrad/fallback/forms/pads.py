"""Conditions on ranges that become borders of zeros: reads outside their tensors, made harmless.

In a sum of products that counts only where an index of one operand is in a range, that operand is
replaced by one with zeros outside the range, over exactly the indices that occur. The sum then has
no condition. It differs where the other operand is not finite at a point that does not count: 0 · ∞
is no longer left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, prod
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import prim

from ..indices.affine import coefficients, nonnegative_expressions
from ..indices.index_system import Axis
from ..indices.linear_system import analyzer_of
from ..kinds import Kind, marked
from ..walk import Expr, loaded, tensor_key
from .contraction import Product, load_of, replace_load

_LOWEST, _HIGHEST = -(1 << 62), 1 << 62


@dataclass(frozen=True)
class _Range:
    """The indices of one dimension that are read, and those at which the tensor counts."""

    low: int
    high: int
    first: int
    last: int

    @property
    def has_border(self) -> bool:
        """Whether something is read that does not count."""
        return self.low < self.first or self.high > self.last

    def merged(self, other: _Range) -> _Range | None:
        """A range that serves both, None if they count differently where both are read."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        for read in (self, other):
            # What is read of a tensor and counts must count in the merged range.
            if max(read.first, read.low) < first or min(read.last, read.high) > last:
                return None
        return _Range(min(self.low, other.low), max(self.high, other.high), first, last)


_Ranges = list[_Range | None]
"""By dimension; None for one whose size is not constant, which never has a border."""


@dataclass
class _Pad:
    """One tensor with a border, and the stage that computes it once it is needed."""

    tensor: te.Tensor
    ranges: _Ranges
    stage: te.Tensor | None = None

    def absorb(self, ranges: _Ranges) -> bool:
        """Grow until other reads are served too; return whether that is possible."""
        merged: _Ranges = []
        for own, other in zip(self.ranges, ranges, strict=True):
            if own is None or other is None:
                if any(span is not None and span.has_border for span in (own, other)):
                    return False
                merged.append(None)
                continue
            both = own.merged(other)
            if both is None:
                return False
            merged.append(both)
        self.ranges = merged
        return True


def padded(products: Sequence[Product]) -> list[Product]:
    """Products without conditions where borders of zeros can stand for them.

    Parameters
    ----------
    products : sequence of Product
        Parts of one gradient, with affine indices. They share the stages that add a border.

    Returns
    -------
    list of Product
        One for each; those whose conditions fit no index are as they were.
    """
    pads: list[_Pad] = []
    chosen: list[list[_Pad | None] | None] = []
    for product in products:
        ranges = _Reads(product).ranges()
        if ranges is None:
            chosen.append(None)
            continue
        tensors = [loaded(load_of(load))[0] for load in product.loads]
        chosen.append([_pad(pads, t, r) for t, r in zip(tensors, ranges, strict=True)])
    # Only now is each pad complete: a later product may have made it grow.
    return [
        product if product_pads is None else _reading(product, product_pads)
        for product, product_pads in zip(products, chosen, strict=True)
    ]


class _Reads:
    """Which indices the two loads of a product read, and under which conditions."""

    def __init__(self, product: Product):
        self.product = product
        self.analyzer = analyzer_of(product.axes)
        self.tensors = [loaded(load_of(load))[0] for load in product.loads]
        self.indices = [loaded(load_of(load))[1] for load in product.loads]
        self.limits: dict[tuple[int, int], tuple[int, int]] = {}

    def ranges(self) -> tuple[_Ranges, _Ranges] | None:
        """The reads of both tensors; None if a condition or an index does not fit."""
        forms = [
            f for condition in self.product.conditions for f in nonnegative_expressions(condition)
        ]
        if any(form is None or not self._limits(form) for form in forms):
            return None
        result: tuple[_Ranges, _Ranges] = ([], [])
        for load, indices in enumerate(self.indices):
            for dimension in range(len(indices)):
                of_dimension = self._range(load, dimension)
                # A dimension of no constant range gets no border: it must be read inside.
                if of_dimension is None and not self._is_inside(load, dimension):
                    return None
                result[load].append(of_dimension)
        return result

    def _limits(self, form: Expr) -> bool:
        """Note a condition `form ≥ 0` as a limit of an index; return whether it is one."""
        # The smaller tensor first: its border costs less.
        for load in sorted(range(2), key=lambda number: _size(self.tensors[number])):
            for dimension, index in enumerate(self.indices[load]):
                limit = _limit(form, index, self.product.axes)
                if limit is not None:
                    first, last = self.limits.get((load, dimension), (_LOWEST, _HIGHEST))
                    self.limits[load, dimension] = max(first, limit[0]), min(last, limit[1])
                    return True
        return False

    def _is_inside(self, load: int, dimension: int) -> bool:
        """Whether a dimension of any size is read inside it at all points."""
        index, extent = self.indices[load][dimension], self.tensors[load].shape[dimension]
        return (
            (load, dimension) not in self.limits
            and self.analyzer.can_prove(index >= 0)
            and self.analyzer.can_prove(index < extent)
        )

    def _range(self, load: int, dimension: int) -> _Range | None:
        """The range read along a dimension, and what of it counts; None if not constant."""
        extent = self.tensors[load].shape[dimension]
        form = coefficients(self.indices[load][dimension], self.product.axes)
        if form is None or not isinstance(form[1], prim.IntImm):
            return None
        low = high = int(form[1])
        for factor, axis in zip(form[0], self.product.axes, strict=True):
            if not factor:
                continue
            if not isinstance(axis.extent, prim.IntImm) or not isinstance(axis.low, prim.IntImm):
                return None
            ends = [factor * int(axis.low), factor * (int(axis.low) + int(axis.extent) - 1)]
            low, high = low + min(ends), high + max(ends)
        if not isinstance(extent, prim.IntImm):
            return None
        first, last = self.limits.get((load, dimension), (_LOWEST, _HIGHEST))
        return _Range(low, high, max(first, 0), min(last, int(extent) - 1))


def _limit(form: Expr, index: Expr, axes: Sequence[Axis]) -> tuple[int, int] | None:
    """The range of an index in which `form` is at least 0; None if there is none."""
    of_form, of_index = coefficients(form, axes), coefficients(index, axes)
    if of_form is None or of_index is None:
        return None
    # The condition bounds the index only if their coefficients are proportional.
    ratios = {
        Fraction(b, a) if a else None
        for a, b in zip(of_form[0], of_index[0], strict=True)
        if a or b
    }
    ratio = ratios.pop() if len(ratios) == 1 else None
    # It is a condition on other loops, too, or not on this index.
    if not ratio:
        return None
    # form = (index - rest of index) / ratio + rest of form
    if ratio.denominator == 1:
        end = tvm.sym.Analyzer().simplify(of_index[1] - of_form[1] * ratio.numerator)
        edge = Fraction(int(end)) if isinstance(end, prim.IntImm) else None
    else:
        constant = isinstance(of_form[1], prim.IntImm) and isinstance(of_index[1], prim.IntImm)
        edge = int(of_index[1]) - ratio * int(of_form[1]) if constant else None
    if edge is None:
        return None
    return (ceil(edge), _HIGHEST) if ratio > 0 else (_LOWEST, floor(edge))


def _pad(pads: list[_Pad], tensor: te.Tensor, ranges: _Ranges) -> _Pad | None:
    """A pad that serves some reads, one of `pads` if possible; None if they need none."""
    if not any(span is not None and span.has_border for span in ranges):
        return None
    for pad in pads:
        if tensor_key(pad.tensor) == tensor_key(tensor) and pad.absorb(ranges):
            return pad
    pads.append(_Pad(tensor, ranges))
    return pads[-1]


def _reading(product: Product, pads: Sequence[_Pad | None]) -> Product:
    """A product whose loads are from tensors with borders."""
    analyzer = analyzer_of(product.axes)
    operands = []
    for operand, pad in zip(product.loads, pads, strict=True):
        if pad is None:
            operands.append(operand)
        else:
            if pad.stage is None:
                pad.stage = _stage(pad)
            indices = [
                analyzer.simplify(index - span.low)
                if span is not None and span.has_border
                else index
                for index, span in zip(loaded(load_of(operand))[1], pad.ranges, strict=True)
            ]
            operands.append(replace_load(operand, pad.stage(*indices)))
    return replace(product, loads=(operands[0], operands[1]), conditions=[])


def _stage(pad: _Pad) -> te.Tensor:
    tensor = pad.tensor
    borders = [
        (d, span) for d, span in enumerate(pad.ranges) if span is not None and span.has_border
    ]
    shape = list(tensor.shape)
    for d, border in borders:
        shape[d] = tirx.const(border.high - border.low + 1, str(shape[d].ty))

    def body(*position: Any) -> Expr:
        indices = list(position)
        conditions = []
        for d, border in borders:
            indices[d] = position[d] + border.low
            if border.low < border.first:
                conditions.append(indices[d] >= border.first)
            if border.high > border.last:
                conditions.append(indices[d] <= border.last)
        zero = tirx.const(0.0, str(tensor.dtype))
        return tirx.if_then_else(tirx.all(*conditions), tensor(*indices), zero)

    return te.compute(tuple(shape), body, name=f"{tensor.op.name}_pad", attrs=marked(Kind.PAD))


def _size(tensor: te.Tensor) -> float:
    """The number of elements as far as it is known."""
    return prod(int(extent) for extent in tensor.shape if isinstance(extent, prim.IntImm))
