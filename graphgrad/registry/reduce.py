"""Rules of reductions."""

from __future__ import annotations

from typing import Any

from ..ops import functional as op
from ..ops.tensor import Tensor, accumulator_dtype
from .rule import linear, nondifferentiable, register_gradient
from .sample import sample, static, tensor

AXES: list[dict[str, Any]] = [
    {},
    {"axis": [1]},
    {"axis": [-1], "keepdims": True},
    {"axis": [0, 2]},
    {"axis": [0, 1, 2], "keepdims": True},
]
axis_samples = [sample((2, 3, 4), **axes) for axes in AXES] + [sample(("n", 3), axis=[1])]


@linear("relax.mean", samples=[*axis_samples, sample((2, 3), axis=[0, 1])])
def mean(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ / n, repeated along the reduced axes"""
    reduced = [x.shape[axis] for axis in op.normalise_axes(attrs.axis, x.ndim)]
    return op.unreduce(op.divide_by_count(ct, reduced), x.shape, attrs.axis)


@linear("relax.sum", samples=[*axis_samples, sample((0, 3), axis=[0]), sample((), axis=None)])
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
    hit = op.equal(x, op.unreduce(y, x.shape, attrs.axis))
    count = op.reduce_sum(hit.astype(accumulator_dtype(x.dtype)), attrs.axis, keepdims=True)
    ct = op.reshape(op.widen(ct), count.shape)
    return (op.where(hit, ct / count, 0.0),)


extremum_samples = [sample(tensor((2, 3, 4), distinct=True), **axes) for axes in AXES]


@register_gradient("relax.max", samples=extremum_samples)
def max(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = ȳ at the maximum; ties share it equally"""
    return _extremum(inputs, outputs, cotangents, attrs)


@register_gradient("relax.min", samples=extremum_samples)
def min(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = ȳ at the minimum; ties share it equally"""
    return _extremum(inputs, outputs, cotangents, attrs)


nondifferentiable("relax.argmax", "relax.argmin")
