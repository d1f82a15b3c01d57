"""Rules of reductions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm import relax

from ..ir.tensor import Tensor, accumulator_dtype
from ..ops import functional as op
from ..ops.index import scatter_recurrence
from ..ops.indexing import Indexing
from .rule import linear, nondifferentiable, register_gradient
from .sample import sample, static, tensor

AXES: list[dict[str, Any]] = [
    {},
    {"axis": [1]},
    {"axis": [-1], "keepdims": True},
    {"axis": [0, 2]},
    {"axis": [0, 1, 2], "keepdims": True},
    {"axis": [-1, 0]},
]
axis_samples = [
    *(sample((2, 3, 4), **axes) for axes in AXES),
    sample(("n", 3), axis=[1]),
    sample((3, "n"), axis=[-1], keepdims=True),
    sample((0, 3), axis=[1]),
    sample((2, 3), axis=[]),
    sample((), axis=None),
]


@linear("relax.mean", samples=[*axis_samples, sample((2, 3), axis=[0, 1])])
def mean(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ / n, repeated along the reduced axes"""
    reduced = [x.shape[axis] for axis in op.normalize_axes(attrs.axis, x.ndim)]
    return op.unreduce(op.divide_by_count(ct, reduced), x.shape, attrs.axis)


@linear("relax.sum", samples=[*axis_samples, sample((0, 3), axis=[0])])
def sum(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ, repeated along the reduced axes"""
    return op.unreduce(ct, x.shape, attrs.axis)


@linear(
    "relax.collapse_sum_to",
    samples=[sample((4, 2, 3), static((2, 1))), sample((2, 3), static((3,)))],
)
def collapse_sum_to(x: Tensor, shape: Any, ct: Tensor) -> tuple[Tensor, None]:
    """x̄ = ȳ, broadcast to the shape of x"""
    return op.broadcast_to(ct, x.shape), None


def _extremum(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = ȳ split equally among the elements that equal the extremum."""
    (x,), (y,), (ct,) = inputs, outputs, cotangents
    if 0 in x.shape:
        return (x.emitter.full(0.0, x.shape, x.dtype),)  # there is nothing to count
    hit = op.equal(x, op.unreduce(y, x.shape, attrs.axis))
    count = op.reduce_sum(hit.astype(accumulator_dtype(x.dtype)), attrs.axis, keepdims=True)
    ct = op.reshape(op.widen(ct), count.shape)
    return (op.where(hit, ct / count, 0.0),)


extremum_samples = [
    *(sample(tensor(s.arguments[0].shape, distinct=True), **s.attributes) for s in axis_samples),
    sample((2, 0), axis=[1]),
]


@register_gradient("relax.max", samples=extremum_samples)
def max(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = ȳ at the maximum; ties share it equally"""
    return _extremum(inputs, outputs, cotangents, attrs)


@register_gradient("relax.min", samples=extremum_samples)
def min(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = ȳ at the minimum; ties share it equally"""
    return _extremum(inputs, outputs, cotangents, attrs)


nondifferentiable("relax.argmax", "relax.argmin")


median_samples = [
    sample(tensor((2, 3, 4), distinct=True), axis=[1]),
    sample(tensor((2, 4), distinct=True), axis=[-1], keepdims=True),
    sample(tensor(("n", 3), distinct=True), axis=[1]),
    sample(tensor((5,), distinct=True), axis=[0]),
    sample(tensor((2, 3), distinct=True)),
]


@register_gradient("relax.median", samples=median_samples)
def median(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = ȳ at the element that was chosen; over all axes, equal elements share it"""
    (x,), (_, *index), (ct, *_) = inputs, outputs, cotangents
    if not index:
        return _extremum(inputs, outputs, cotangents, attrs)
    (axis,) = op.normalize_axes(attrs.axis, x.ndim)
    along = op.reduced_shape(x.shape, [axis], keepdims=True)
    chosen = op.equal(op.reshape(index[0], along), _positions(x, axis))
    return (op.where(chosen, op.reshape(ct, along), 0.0),)


def _positions(x: Tensor, axis: int) -> Tensor:
    """0, 1, 2 … along an axis of x, of extent 1 along the others."""
    extent = x.shape[axis]
    positions = x.emitter.emit(relax.op.arange(0, extent, 1, "int64"))
    return op.reshape(positions, [extent if a == axis else 1 for a in range(x.ndim)])


_MAX_QUADRATIC_ELEMENTS = 16
"""Elements of a row up to which a kernel of n² products, in vectors, beats running along it."""

prod_samples = [
    *(replace(s, second_order=False) for s in axis_samples),  # the second order is long to compile
    sample((2, 3), axis=[1]),
    sample((2, 2, 2), axis=[-1, 0], keepdims=True),
    sample(tensor((2, 17), 0.5, 1.5), axis=[1]),
    sample((0, 3), axis=[0]),
    sample(("n",), axis=[0]),
    sample(tensor((3, 3), 0.0, 0.0), axis=[1]),
    sample(tensor(("n", 2), 0.0, 0.0), axis=[0]),
]


@register_gradient("relax.prod", samples=prod_samples)
def prod(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = ȳ · the product of the other elements, without a division: right for any zeros"""
    (x,), (ct,) = inputs, cotangents
    axes = op.normalize_axes(attrs.axis, x.ndim)
    order = [axis for axis in range(x.ndim) if axis not in axes] + axes
    moved = op.permute_dims(op.widen(x), order)
    kept = moved.shape[: x.ndim - len(axes)]
    rows = op.reshape(moved, [*kept, math.prod(moved.shape[len(kept) :])])
    others = op.reshape(_products_of_others(rows), moved.shape)
    others = op.permute_dims(others, [order.index(axis) for axis in range(x.ndim)])
    return (op.unreduce(op.widen(ct), x.shape, attrs.axis) * others,)


def _products_of_others(x: Tensor) -> Tensor:
    """Return, in place of each element of a row, the product of the others.

    A long row takes O(n) operations, a short one and one of symbolic extent O(n²).
    """
    if isinstance(x.shape[-1], int) and x.shape[-1] > _MAX_QUADRATIC_ELEMENTS:
        return _products(x, reverse=False) * _products(x, reverse=True)
    columns, rows = _positions(x, x.ndim - 1), op.expand_dims(_positions(x, x.ndim - 1), [-1])
    itself = op.equal(columns, rows)
    return op.prod(op.where(itself, 1.0, op.expand_dims(x, [-2])), axis=[-1])


def _products(x: Tensor, reverse: bool) -> Tensor:
    """The product of the elements before each one of a row, or of those after it."""
    ones = x.emitter.full(1.0, [*x.shape[:-1], 1], x.dtype)
    zeros = x.emitter.full(0.0, x.shape, x.dtype)
    line = Indexing("line", x.ndim - 1)
    return scatter_recurrence(ones, x, zeros, None, line, reverse=reverse)[0]


@register_gradient("relax.std", samples=axis_samples)
def std(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor | None]:
    """x̄ = ȳ · (x − mean x) / (n y), and 0 where y = 0"""
    (x,), (y,), (ct,) = inputs, outputs, cotangents
    y, ct = op.widen(y), op.widen(ct)
    constant = op.equal(y, 0.0)
    ct = op.where(constant, 0.0, ct / (2.0 * op.where(constant, 1.0, y)))
    return (_variance_gradient(op.widen(x), ct, attrs.axis),)


@register_gradient("relax.variance", samples=axis_samples)
def variance(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor | None]:
    """x̄ = ȳ · 2 (x − mean x) / n"""
    (x,), (ct,) = inputs, cotangents
    return (_variance_gradient(op.widen(x), op.widen(ct), attrs.axis),)


def _variance_gradient(x: Tensor, ct: Tensor, axes: Any) -> Tensor | None:
    extents = [x.shape[axis] for axis in op.normalize_axes(axes, x.ndim)]
    if all(extent == 1 for extent in extents):  # exactly zero, and not x − x as it is rounded
        return None
    total = op.reduce_sum(x, axes, keepdims=True)
    deviation = x - op.divide_by_count(total, extents)
    ct = op.unreduce(op.divide_by_count(2.0 * ct, extents), x.shape, axes)
    return ct * deviation
