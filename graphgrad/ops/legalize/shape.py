"""Lowerings of ops that move elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi

from ..border import check_border, origin
from ..functional import MANY_TENSORS
from ..indexing import outside_value
from .table import legalization


@legalization("relax.collapse_sum_like")
def collapse_sum_like(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the sum to a tensor's shape as that to a shape: half precision adds up in float32."""
    return relax.op.collapse_sum_to(call.args[0], call.args[1].ty.shape)


@legalization("relax.concat")
def concat(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the join of many tensors as that of joins of some."""
    return _joined(builder, call, relax.op.concat)


@legalization("relax.stack")
def stack(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the stack of many tensors as the join of stacks of some."""
    return _joined(builder, call, relax.op.stack)


def _joined(builder: relax.BlockBuilder, call: relax.Call, join: Any) -> Any:
    (tensors,) = call.args
    count, axis = len(tensors.ty.fields), int(call.attrs.axis or 0)
    if count <= MANY_TENSORS:
        return call.op.get_attr("FLegalize")(builder, call)
    fields = (
        list(tensors.fields)
        if isinstance(tensors, relax.Tuple)
        else [builder.emit(relax.TupleGetItem(tensors, index)) for index in range(count)]
    )
    batches = (fields[i : i + MANY_TENSORS] for i in range(0, count, MANY_TENSORS))
    return relax.op.concat([builder.emit(join(some, axis=axis)) for some in batches], axis=axis)


@legalization("relax.expand_dims")
def expand_dims(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower new axes of extent 1.

    The stock form asks the builder for types, so it cannot be given a builder of ours.
    """
    rank = len(call.ty.shape.values)
    new_axes = {int(axis) % rank for axis in call.attrs.axis}

    def expression(x: te.Tensor, shape: list[Any]) -> te.Tensor:
        def element(*indices: Any) -> Any:
            return x(*(index for axis, index in enumerate(indices) if axis not in new_axes))

        return te.compute(shape, element, name="expand_dims")

    return builder.call_te(
        expression, call.args[0], call.ty.shape, primfunc_name_hint="expand_dims"
    )


@legalization("relax.nn.pad")
def pad(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower padding so that a border may be longer than the axis.

    The stock form reflects once, and reads other elements where one reflection does not reach.
    """
    attrs = call.attrs
    widths = [int(width) for width in attrs.pad_width]
    mode = str(attrs.pad_mode)
    shape = list(call.args[0].ty.shape.values)
    check_border(shape, widths, mode)
    # Where a symbolic extent is 0 there is nothing to copy: no element outside may be read.
    may_be_empty = [
        extent
        for extent, before, after in zip(shape, widths[::2], widths[1::2], strict=True)
        if (before or after) and not isinstance(extent, tirx.IntImm)
    ]

    def constant(x: te.Tensor) -> te.Tensor:
        return topi.nn.pad(x, widths[::2], widths[1::2], attrs.pad_value)

    def copied(x: te.Tensor) -> te.Tensor:
        def element(*indices: Any) -> Any:
            value = x(
                *(
                    origin(i, before, extent, mode) if before or after else i
                    for i, before, after, extent in zip(
                        indices, widths[::2], widths[1::2], x.shape, strict=True
                    )
                )
            )
            if not may_be_empty:
                return value
            exists = tirx.all(*(extent > 0 for extent in may_be_empty))
            return tirx.if_then_else(exists, value, outside_value(str(x.dtype)))

        return te.compute(call.ty.shape.values, element, name="pad")

    expression = constant if mode == "constant" else copied
    return builder.call_te(expression, call.args[0], primfunc_name_hint="pad")


@legalization("relax.nn.pixel_shuffle")
def pixel_shuffle(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the rearrangement of channels into space; stock TVM looks for a missing function."""
    factor = int(call.attrs.upscale_factor)

    def expression(x: te.Tensor) -> te.Tensor:
        def element(*indices: Any) -> Any:
            *lead, channel, row, column = indices
            sub_pixel = row % factor * factor + column % factor
            return x(*lead, channel * factor**2 + sub_pixel, row // factor, column // factor)

        return te.compute(call.ty.shape.values, element, name="pixel_shuffle")

    return builder.call_te(expression, call.args[0], primfunc_name_hint="pixel_shuffle")


@legalization("relax.repeat")
def repeat(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower repetition; the stock form refuses scalars and a count of zero."""
    attrs = call.attrs
    repeats = int(attrs.repeats)

    def expression(x: te.Tensor) -> te.Tensor:
        axis = attrs.axis
        if axis is None:
            x, axis = topi.reshape(x, [math.prod(x.shape, start=tirx.const(1, "int64"))]), 0
        axis = int(axis) % len(x.shape)

        def element(*indices: Any) -> Any:
            # With a count of zero the result is empty, but its expression must not divide by zero.
            source = tirx.floordiv(indices[axis], max(repeats, 1))
            return x(*indices[:axis], source, *indices[axis + 1 :])

        return te.compute(call.ty.shape.values, element, name="repeat")

    return builder.call_te(expression, call.args[0], primfunc_name_hint="repeat")


@legalization("relax.slice_scatter")
def slice_scatter(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the replacing of a slice; the stock form refuses an axis of symbolic extent."""
    step = int(call.args[4])

    def expression(x: te.Tensor, source: te.Tensor, start: Any) -> te.Tensor:
        axis = int(call.attrs.axis) % len(x.shape)

        def element(*indices: Any) -> Any:
            distance = indices[axis] - start
            position = tirx.floordiv(distance, step)
            replaced = [distance >= 0, position < source.shape[axis]]
            if step > 1:
                replaced.append(tirx.floormod(distance, step) == 0)
            new = source(*indices[:axis], position, *indices[axis + 1 :])
            return tirx.if_then_else(tirx.all(*replaced), new, x(*indices))

        return te.compute(x.shape, element, name="slice_scatter")

    return builder.call_te(expression, *call.args[:3], primfunc_name_hint="slice_scatter")


@legalization("relax.strided_slice")
def strided_slice(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a slice; the stock form refuses negative axes of a symbolic shape."""
    x, axes, *bounds = call.args
    if isinstance(axes, relax.Tuple):
        numbers = [relax.prim_value(int(axis) % x.ty.ndim) for axis in axes]
        axes = builder.normalize(relax.Tuple(numbers))
    stock = call.op.get_attr("FLegalize")
    return stock(builder, relax.Call(call.op, [x, axes, *bounds], call.attrs))


def _triangle(builder: relax.BlockBuilder, call: relax.Call, keeps: Callable[..., Any]) -> Any:
    """Lower a triangle of matrices; stock TVM refuses diagonals that int32 cannot number."""

    def expression(x: te.Tensor, k: Any) -> te.Tensor:
        zero = tirx.const(0, str(x.dtype))

        def element(*indices: Any) -> Any:
            diagonal = indices[-1].astype("int64") - indices[-2].astype("int64")
            return tirx.Select(keeps(diagonal, k.astype("int64")), x(*indices), zero)

        return te.compute(x.shape, element, name="triangle")

    return builder.call_te(expression, *call.args, primfunc_name_hint="triangle")


@legalization("relax.tril")
def tril(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the lower triangle."""
    return _triangle(builder, call, operator.le)


@legalization("relax.triu")
def triu(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the upper triangle."""
    return _triangle(builder, call, operator.ge)
