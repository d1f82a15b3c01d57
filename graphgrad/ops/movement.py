"""Adjoints of slicing and of layout changes, as ops of our own.

Each takes every element back to where it came from in one kernel, with work in proportion to the
elements, and is linear: its own adjoint is the op that it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from ..ir.tensor import Dimension, Tensor
from . import functional as op
from .define import call_op, define_op, in_given_shape


def unslice(
    x: Tensor,
    axes: Sequence[int],
    begin: Sequence[Dimension],
    strides: Sequence[int],
    shape: Sequence[Dimension],
) -> Tensor:
    """Zeros of a shape with `x` in the elements ``begin + strides · k`` of the axes.

    Parameters
    ----------
    x : Tensor
        As many axes as `shape`, and its extents along all axes but `axes`.
    axes : sequence of int
        Not negative.
    begin : sequence
        Where the first element goes, one per axis; not negative, and inside `shape`.
    strides : sequence of int
        Not zero; negative ones count down.
    shape : sequence
        The result's.
    """
    arguments = [x.expr, relax.ShapeExpr(list(begin)), relax.ShapeExpr(list(shape))]
    call = call_op(_UNSLICE, arguments, axes=list(axes), strides=list(strides))
    return x.emitter.emit(call)


def slice_from(
    x: Tensor,
    axes: Sequence[int],
    begin: Sequence[Dimension],
    strides: Sequence[int],
    shape: Sequence[Dimension],
) -> Tensor:
    """The elements ``begin + strides · k`` of the axes: the slice that has a given shape.

    Parameters
    ----------
    x : Tensor
    axes : sequence of int
        Not negative.
    begin : sequence
        The first element, one per axis; not negative.
    strides : sequence of int
        Not zero; negative ones count down.
    shape : sequence
        The result's.
    """
    if 0 in shape or x.fill is not None:
        return x.emitter.full(x.fill or 0.0, shape, x.dtype)
    counts = [shape[axis] for axis in axes]
    # Stock TVM gets the extent of a symbolic slice with a negative stride wrong: flip instead.
    lowest = [
        first if stride > 0 else first + stride * (count - 1)
        for first, stride, count in zip(begin, strides, counts, strict=True)
    ]
    steps = [abs(stride) for stride in strides]
    end = [
        low + step * (count - 1) + 1 for low, step, count in zip(lowest, steps, counts, strict=True)
    ]
    sliced = op.strided_slice(x, list(axes), lowest, end, steps, assume_inbound=True)
    for axis, stride in zip(axes, strides, strict=True):
        sliced = op.flip(sliced, axis=axis) if stride < 0 else sliced
    return op.reshape(sliced, shape)


def untransform_layout(x: Tensor, index_map: Any, shape: Sequence[Dimension]) -> Tensor:
    """The tensor of a shape whose element i is the element ``index_map(i)`` of `x`."""
    arguments = [x.expr, relax.ShapeExpr(list(shape))]
    return x.emitter.emit(call_op(_UNTRANSFORM_LAYOUT, arguments, index_map=index_map))


def _compute_unslice(call: relax.Call, x: te.Tensor) -> te.Tensor:
    """The zeros of a shape, with a tensor in a strided slice of them."""
    begin, shape = call.args[1].values, call.args[2].values
    axes = [int(axis) for axis in call.attrs.axes]
    strides = [int(stride) for stride in call.attrs.strides]
    zero = tirx.const(0, str(x.dtype))

    def element(*indices: Any) -> Any:
        source, conditions = list(indices), []
        for axis, first, stride in zip(axes, begin, strides, strict=True):
            step = abs(stride)
            distance = indices[axis] - first if stride > 0 else first - indices[axis]
            conditions += [distance >= 0, tirx.floordiv(distance, step) < x.shape[axis]]
            if step > 1:  # what lies between the elements of the slice stays zero
                conditions.append(tirx.floormod(distance, step) == 0)
            source[axis] = tirx.floordiv(distance, step)
        return tirx.if_then_else(tirx.all(*conditions), x(*source), zero)

    return te.compute(shape, element, name="unslice")


def _infer_untransform_layout(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[1], call.args[0].ty.dtype)


def _compute_untransform_layout(call: relax.Call, x: te.Tensor) -> te.Tensor:
    """The tensor whose element i is the element ``index_map(i)`` of another."""
    index_map = call.attrs.index_map
    return te.compute(
        call.args[1].values, lambda *i: x(*index_map.map_indices(list(i))), name="layout"
    )


_UNSLICE = define_op("unslice", ["x", "begin", "shape"], in_given_shape, _compute_unslice)
_UNTRANSFORM_LAYOUT = define_op(
    "untransform_layout", ["x", "shape"], _infer_untransform_layout, _compute_untransform_layout
)
