"""Sums, means and variances that keep the digits of float32, whatever the width of a target's sums.

Processors add up in float64. GPUs are slow at that; there sums of float32 are those of short parts,
and mean and variance are sums of what differs from a number near the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx, topi

from ..fallback.graph import stop_gradient
from ..ir.loops import unravel
from ..ir.tensor import Tensor, type_shape
from ..layout.orders import Order
from ..layout.rule import LaidOut, Site, following, layout_rule, stored_axes
from . import functional as op
from .define import PREFIX, call_op, define_lowered, define_op
from .legalize import LEGALIZATIONS, legalization_by_ops
from .opaque_kernel import for_gpu

PRECISE_SUM = f"{PREFIX}precise_sum"

_SAMPLES = 8
"""Elements whose mean is near enough to that of all: by a fraction of the standard deviation."""


def moments(x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The mean and the population variance over axes, which are kept with extent 1.

    Both are NaN where there is nothing to average.

    Parameters
    ----------
    x : Tensor
        float32 or float64.
    axes : sequence of int
        Non-negative.
    """
    mean, variance = x.emitter.emit(call_op(_MOMENTS, [x.expr], axes=[int(axis) for axis in axes]))
    return mean, variance


def precise_sum(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The sum over axes, which are kept with extent 1, rounded once on processors.

    Parameters
    ----------
    x : Tensor
        float32 or float64.
    axes : sequence of int
        Non-negative.
    """
    call = call_op(_PRECISE_SUM, [x.expr], axes=[int(axis) for axis in axes])
    total: Tensor = x.emitter.emit(call)
    return total


def precise_mean(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The mean over axes by `precise_sum`."""
    return op.divide_by_count(precise_sum(x, axes), [x.shape[axis] for axis in axes])


def _reduced_type(call: relax.Call) -> relax.TensorType:
    (x,) = call.args
    extents = op.reduced_shape(type_shape(x.ty), [int(a) for a in call.attrs["axes"]], True)
    return relax.TensorType(extents, x.ty.dtype)


def _types(call: relax.Call) -> Any:
    ty = _reduced_type(call)
    return relax.TupleType([ty, ty])


@legalization_by_ops(PRECISE_SUM)
def _sum_in_width(x: Tensor, attrs: Any) -> Tensor:
    """Lower a precise sum: in float64, but on GPUs, whose sums of float32 are those of a tree."""
    wide = x if for_gpu() else x.astype("float64")
    return op.reduce_sum(wide, attrs.axes, keepdims=True).astype(x.dtype)


@layout_rule(PRECISE_SUM)
@following
def precise_sum_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """The axes are reduced where they are stored."""
    return site.passed([x], order, axes=sorted(stored_axes(order, site.attributes.axes)))


def _expression(call: relax.Call, x: te.Tensor) -> list[te.Tensor]:
    """The mean μ of x over some axes, and the mean of (x − μ)²."""
    axes = [int(axis) for axis in call.attrs["axes"]]
    if str(x.dtype) != "float32":
        return _of_float64(x, axes)
    if for_gpu() and axes and _exist(x, axes):
        return _of_float32(x, axes, _near_mean(x, axes), "float32")
    return _of_float32(x, axes, _first(x, axes), "float64")


def _of_float32(x: te.Tensor, axes: list[int], shift: te.Tensor, wide: str) -> list[te.Tensor]:
    """Mean and variance from Σ (x − s) and Σ (x − s)², where s is `shift`, computed in `wide`.

    Both sums take one pass. What (mean of squares) − (square of mean) loses is ε ((μ − s) / σ)²,
    where ε is the rounding of `wide`. Chan, Golub and LeVeque, *Algorithms for computing the sample
    variance* (1983), section 3. In float64 the first element will do for s; GPUs are slow in
    float64, and there s is near the mean, so that float32 loses nothing.
    """

    def shifted() -> te.Tensor:
        # A stage of its own for each reader, so that each computes it by itself.
        return topi.subtract(topi.cast(x, wide), shift)

    mean = mean_expression(shifted(), axes, True)
    deviation = shifted()
    square = mean_expression(topi.multiply(deviation, deviation), axes, True)

    def variance(*index: Any) -> Any:
        value = square(*index) - mean(*index) * mean(*index)
        # Rounding may make it negative. Not a maximum with 0, which may drop a NaN.
        return tirx.Select(value < 0, tirx.const(0, wide), value).astype("float32")

    return [
        topi.cast(topi.add(mean, shift), "float32"),
        te.compute(mean.shape, variance, name="variance"),
    ]


def _first(x: te.Tensor, axes: list[int]) -> te.Tensor:
    """The first element along the axes; zero where there may be none."""
    shape = [1 if axis in axes else extent for axis, extent in enumerate(x.shape)]
    exists = _exist(x, axes)

    def element(*index: Any) -> Any:
        return x(*index).astype("float64") if exists else tirx.const(0, "float64")

    # The moments do not depend on what is subtracted on the way.
    return stop_gradient(te.compute(shape, element, name="first"))


def _exist(x: te.Tensor, axes: list[int]) -> bool:
    """Whether there surely are elements along the axes, whose number is known."""
    return all(isinstance(n, tirx.IntImm) and int(n) for n in (x.shape[axis] for axis in axes))


def _near_mean(x: te.Tensor, axes: list[int]) -> te.Tensor:
    """The mean of `_SAMPLES` elements spread over the axes; of all where they are the last ones."""
    rank = len(x.shape)
    if sorted(axes) == list(range(rank - len(axes), rank)):
        # Of a row, which is read again from a near cache.
        return stop_gradient(mean_expression(x, axes, True))
    extents = [int(x.shape[axis]) for axis in axes]
    count = math.prod(extents)
    samples = min(count, _SAMPLES)
    k = te.reduce_axis((0, samples), "sample")

    def element(*index: Any) -> Any:
        at = list(index)
        place = tirx.floordiv(tirx.const(count, "int64") * k, samples)
        for axis, position in zip(axes, unravel(place, extents), strict=True):
            at[axis] = position
        return te.sum(x(*at), axis=k)

    shape = [1 if axis in axes else extent for axis, extent in enumerate(x.shape)]
    total = te.compute(shape, element, name="sample")
    return stop_gradient(topi.divide(total, tirx.const(samples, str(x.dtype))))


def _of_float64(x: te.Tensor, axes: list[int]) -> list[te.Tensor]:
    """Mean and variance in two passes, the mean first: no dtype is wide enough for the squares."""
    mean = mean_expression(x, axes, True)
    centered = topi.subtract(x, mean)
    return [mean, mean_expression(topi.multiply(centered, centered), axes, True)]


def mean_expression(x: te.Tensor, axes: Sequence[int], keepdims: bool) -> te.Tensor:
    """The mean over axes; NaN of no elements, where TVM's fails to build or reads garbage."""
    dtype = str(x.dtype)
    count = math.prod(x.shape[axis] for axis in axes)
    total = topi.sum(x, list(axes), keepdims) if axes else topi.identity(x)
    nan = tirx.const(float("nan"), dtype)
    is_static = isinstance(count, int | tirx.IntImm)
    if is_static and int(count) == 0:
        return te.compute(total.shape, lambda *_: nan, name="mean")

    def element(*index: Any) -> Any:
        if is_static:
            return total(*index) / tirx.const(int(count), dtype)
        # Of an empty sum the memory is not written: it must not be read.
        return tirx.if_then_else(count == 0, nan, total(*index) / count.astype(dtype))

    return te.compute(total.shape, element, name="mean")


_MOMENTS = define_op("moments", ["x"], _types, _expression)
_PRECISE_SUM = define_lowered(
    "precise_sum", ["x"], _reduced_type, LEGALIZATIONS[PRECISE_SUM], "a sum that loses no digits"
)
