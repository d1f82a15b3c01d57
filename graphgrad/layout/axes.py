"""Layout rules of ops along axes: reductions, normalizations, splits, slices.

Their axes are those of the model. Where the operand is stored in another order, the op is called
with the positions of the same axes in that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from . import orders
from .orders import Order
from .rule import LaidOut, Site, as_in_model, following, layout_rule, stored_axes, stored_axis
from .value import Value

_ALONG_ONE_AXIS = [
    *("relax.argsort", "relax.flip", "relax.sort", "graphgrad.resample"),
    *("relax.nn.log_softmax", "relax.nn.softmax"),
]
_OPTIONAL_AXIS_OPS = ["relax.cumsum", "relax.cumprod", "relax.repeat"]
_REDUCTIONS = [f"relax.{name}" for name in ("max", "mean", "min", "prod", "std", "sum", "variance")]


@layout_rule(*_ALONG_ONE_AXIS)
@following
def along_axis(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """The op runs along the axis where it is stored; further operands are as in the model."""
    further = map(as_in_model, site.operands[1:])
    return site.passed([x, *further], order, axis=stored_axis(order, site.attributes.axis))


@layout_rule(*_OPTIONAL_AXIS_OPS)
@following
def along_given_axis(site: Site, x: relax.Expr, order: Order) -> LaidOut | None:
    """The op runs along the axis where it is stored.

    Without an axis it goes over all elements in the model's order, so it stays as it is.
    """
    if site.attributes.axis is None:
        return None
    return site.passed([x], order, axis=stored_axis(order, site.attributes.axis))


@layout_rule("relax.split", "relax.topk")
@following
def into_parts(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """Every part is stored as the whole."""
    axis = stored_axis(order, site.attributes.axis)
    is_tuple = isinstance(site.call.ty, relax.TupleType)
    parts = [order] * len(site.call.ty.fields) if is_tuple else order
    return site.passed([x], parts, axis=axis)


@layout_rule(*_REDUCTIONS)
@following
def reduction(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """The axes are reduced where they are stored."""
    axes = site.attributes.axis
    reduced = list(range(len(order))) if axes is None else [axis % len(order) for axis in axes]
    remaining = order if site.attributes.keepdims else orders.without(order, reduced)
    return site.passed([x], remaining, axis=stored_axes(order, reduced))


@layout_rule("relax.argmax", "relax.argmin")
@following
def position(site: Site, x: relax.Expr, order: Order) -> LaidOut | None:
    """The position along one axis; over all of them it counts in the model's order."""
    axis = site.attributes.axis
    if axis is None:
        return None
    remaining = order if site.attributes.keepdims else orders.without(order, [axis % len(order)])
    return site.passed([x], remaining, axis=stored_axis(order, axis))


@layout_rule("relax.nn.batch_norm")
@following
def batch_norm(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """Scale, shift and statistics lie along the channels; the new statistics are vectors."""
    parameters = map(as_in_model, site.operands[1:])
    axis = stored_axis(order, site.attributes.axis)
    return site.passed([x, *parameters], [order, orders.own(1), orders.own(1)], axis=axis)


@layout_rule("relax.nn.group_norm", "relax.nn.instance_norm")
@following
def group_norm(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """Scale and shift lie along the channels."""
    parameters = map(as_in_model, site.operands[1:])
    return site.passed(
        [x, *parameters],
        order,
        channel_axis=stored_axis(order, site.attributes.channel_axis),
        axes=stored_axes(order, site.attributes.axes),
    )


@layout_rule("relax.nn.layer_norm", "relax.nn.rms_norm")
@following
def layer_norm(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """Scale and shift have the extents of the axes, in the order in which they are named."""
    parameters = map(as_in_model, site.operands[1:])
    return site.passed([x, *parameters], order, axes=stored_axes(order, site.attributes.axes))


@layout_rule("relax.nn.nll_loss")
def nll_loss(site: Site) -> LaidOut | None:
    """The loss of channels-last images, reduced to a scalar, is that of a matrix of their pixels.

    So the pixels become rows, and the classes need not be moved back to axis 1.
    """
    x, targets, *weights = site.operands
    order = orders.channels_last(x.rank)
    if x.rank < 3 or x.preferred != order or site.attributes.reduction == "none":
        return None
    *positions, classes = orders.extents(x.shape, order)
    if not all(isinstance(extent, int) for extent in positions):
        return None
    count = math.prod(positions)
    rows = x.reshaped(order, [count, classes])
    labels = targets.reshaped(orders.own(targets.rank), [count])
    return site.passed([rows, labels, *map(as_in_model, weights)], ())


@layout_rule("graphgrad.dropout", "graphgrad.dropout_mask")
@following
def dropout(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """The mask is that of the model's tensor, in whatever order its elements are stored."""
    # The op's `order` says which axis of the model's tensor each stored axis is.
    model_order = site.attributes.order or orders.own(len(order))
    stored_order = [model_order[axis] for axis in order]
    return site.passed([x, site.operands[1].plain], order, order=stored_order)


@layout_rule("relax.take")
@following
def take(site: Site, x: relax.Expr, order: Order) -> LaidOut | None:
    """A vector of indices picks along the axis where it is stored."""
    index = site.operands[1]
    if not isinstance(index, Value) or index.rank != 1 or site.attributes.axis is None:
        return None
    axis = stored_axis(order, site.attributes.axis)
    return site.passed([x, index.plain], order, axis=axis)


@layout_rule("relax.strided_slice")
@following
def strided_slice(site: Site, x: relax.Expr, order: Order) -> LaidOut | None:
    """The slice is cut along the axes where they are stored."""
    axes = _numbers(site.call.args[1])
    if axes is None:
        return None
    stored = [tirx.IntImm("int64", axis) for axis in stored_axes(order, axes)]
    return site.passed([x, relax.Tuple(stored), *site.call.args[2:]], order)


@layout_rule("relax.nn.pad")
@following
def pad(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """The border has a width before and after each axis."""
    widths = site.attributes.pad_width
    pairs = [widths[2 * axis : 2 * axis + 2] for axis in order]
    return site.passed([x], order, pad_width=[width for pair in pairs for width in pair])


@layout_rule("relax.tile")
@following
def tile(site: Site, x: relax.Expr, order: Order) -> LaidOut | None:
    """Each axis is repeated; if there are more numbers than axes, new axes arise."""
    repeats = site.attributes.repeats
    if len(repeats) > len(order):
        return None
    repeats = [1] * (len(order) - len(repeats)) + list(repeats)
    return site.passed([x], order, repeats=[repeats[axis] for axis in order])


def _numbers(items: Any) -> Sequence[int] | None:
    """A tuple of constant integers; None if it is anything else."""
    if not isinstance(items, relax.Tuple):
        return None
    if not all(isinstance(item, tirx.IntImm) for item in items.fields):
        return None
    return [int(item) for item in items.fields]
