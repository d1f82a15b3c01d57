"""Layout rules of reshapes and permutations: where possible, no element moves."""

from __future__ import annotations

import tvm
from tvm import relax

from . import orders
from .rule import LaidOut, Site, layout_rule
from .value import Value

_RESHAPE = tvm.ir.Op.get("relax.reshape")


@layout_rule("relax.permute_dims")
def permute_dims(site: Site) -> Value | None:
    """The same memory with other axes: no call is written."""
    x = site.operands[0]
    axes = site.attributes.axes
    axes = range(x.rank)[::-1] if axes is None else [axis % x.rank for axis in axes]
    return x.relabeled(site.name, list(axes))


@layout_rule("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.nn.batch_flatten")
def reshape(site: Site) -> LaidOut | None:
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
