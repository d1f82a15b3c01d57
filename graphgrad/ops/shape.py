"""Ops that move elements, or none: their lowerings and layout rules."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from ..ir.calls import RESHAPES
from ..layout import orders
from ..layout.orders import Order
from ..layout.rule import (
    LaidOut,
    Site,
    along_axis,
    broadcast,
    cheapest_order,
    following,
    layout_rule,
    order_of_all,
    stored_axes,
    stored_axis,
)
from ..layout.value import Value
from .functional import MANY_TENSORS
from .legalize import fields_of, legalization

_RESHAPE = tvm.ir.Op.get("relax.reshape")


@layout_rule(*RESHAPES)
def reshape_layout(site: Site) -> LaidOut | None:
    """Reshape in memory too, where the axes that the model merges are adjacent there as well.

    Where they are not, as when channels are shuffled, elements move first, such that the result is
    channels last.
    """
    x = site.operands[0]
    if x.is_plain:
        return None
    order = x.preferred
    new_order = orders.through_reshape(order, x.shape, site.shape)
    if new_order is None and len(site.shape) > 2:
        new_order = orders.channels_last(len(site.shape))
        # Backwards: the order of the operand from which the reshape gives that result.
        order = orders.through_reshape(new_order, site.shape, x.shape)
    if new_order is None or order is None:
        return None
    target = relax.ShapeExpr(orders.extents(site.shape, new_order))
    call = relax.Call(_RESHAPE, [x.in_order(order), target], None, [], site.call.span)
    return LaidOut(call, new_order)


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


@layout_rule("relax.permute_dims")
def permute_dims_layout(site: Site) -> Value | None:
    """The same memory with other axes: no call is written."""
    x = site.operands[0]
    axes = site.attributes.axes
    axes = range(x.rank)[::-1] if axes is None else [axis % x.rank for axis in axes]
    return x.relabeled(site.name, list(axes))


@layout_rule("relax.broadcast_to")
def broadcast_to_layout(site: Site) -> LaidOut | None:
    """Broadcast the operand, in the order in which it is stored, to the shape in that order."""
    x = site.operands[0]
    order = cheapest_order([x], len(site.shape))
    if order is None:
        return None
    shape = relax.ShapeExpr(orders.extents(site.shape, order))
    return site.passed([broadcast(x, order), shape], order)


@legalization("relax.collapse_sum_like")
def collapse_sum_like(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the sum to a tensor's shape as that to a shape: half precision adds up in float32."""
    return relax.op.collapse_sum_to(call.args[0], call.args[1].ty.shape)


@legalization("relax.concat")
def concat(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the join of many tensors as that of joins of some."""
    return _joined(builder, call, relax.op.concat)


@layout_rule("relax.concat")
def concat_layout(site: Site) -> LaidOut | None:
    """Join along the axis where it is stored."""
    [parts] = site.operands
    order = order_of_all(parts, len(site.shape))
    if order is None:
        return None
    stored_parts = relax.Tuple([part.in_order(order) for part in parts])
    return site.passed([stored_parts], order, axis=stored_axis(order, site.attributes.axis or 0))


@legalization("relax.stack")
def stack(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the stack of many tensors as the join of stacks of some."""
    return _joined(builder, call, relax.op.stack)


@layout_rule("relax.stack")
def stack_layout(site: Site) -> LaidOut | None:
    """Put the new axis outermost in memory, wherever the model has it."""
    [parts] = site.operands
    order = order_of_all(parts, len(site.shape) - 1)
    if order is None:
        return None
    stored_parts = relax.Tuple([part.in_order(order) for part in parts])
    axis = (site.attributes.axis or 0) % len(site.shape)
    return site.passed([stored_parts], orders.insert_axis(order, axis), axis=0)


def _joined(builder: relax.BlockBuilder, call: relax.Call, join: Any) -> Any:
    (tensors,) = call.args
    count, axis = len(tensors.ty.fields), int(call.attrs.axis or 0)
    if count <= MANY_TENSORS:
        return call.op.get_attr("FLegalize")(builder, call)
    fields = fields_of(builder, tensors)
    batches = (fields[i : i + MANY_TENSORS] for i in range(0, count, MANY_TENSORS))
    return relax.op.concat([builder.emit(join(some, axis=axis)) for some in batches], axis=axis)


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


@layout_rule("relax.tile")
@following
def tile_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut | None:
    """Each axis is repeated; if there are more numbers than axes, new axes arise."""
    repeats = site.attributes.repeats
    if len(repeats) > len(order):
        return None
    repeats = [1] * (len(order) - len(repeats)) + list(repeats)
    return site.passed([x], order, repeats=[repeats[axis] for axis in order])


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


@layout_rule("relax.strided_slice")
@following
def strided_slice_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut | None:
    """The slice is cut along the axes where they are stored."""
    axes = _numbers(site.call.args[1])
    if axes is None:
        return None
    stored = [tirx.IntImm("int64", axis) for axis in stored_axes(order, axes)]
    return site.passed([x, relax.Tuple(stored), *site.call.args[2:]], order)


def _numbers(items: Any) -> Sequence[int] | None:
    """A tuple of constant integers; None if it is anything else."""
    if not isinstance(items, relax.Tuple):
        return None
    if not all(isinstance(item, tirx.IntImm) for item in items.fields):
        return None
    return [int(item) for item in items.fields]


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


layout_rule("relax.flip", "relax.repeat", "relax.split")(along_axis)
