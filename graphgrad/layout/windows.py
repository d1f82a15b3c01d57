"""Layout rules of convolutions, pooling and resizing, which compute channels last.

Convolutions ask for that order; pooling and resizing keep it where their data come so.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..ops.conv import Layouts
from ..registry.attributes import Attributes
from . import orders
from .orders import Order
from .rule import LaidOut, Site, layout_rule

_CONVOLUTIONS = [f"relax.nn.conv{rank}d" for rank in (1, 2, 3)]
_TRANSPOSED = [f"{name}_transpose" for name in _CONVOLUTIONS]
_DATA_GRADIENT = "graphgrad.conv_data_gradient"
"""The op that a transposed convolution is imported as where Relax's cannot state it."""

_POOLING = [
    f"relax.nn.{kind}_pool{rank}d" for kind in ("adaptive_avg", "avg", "max") for rank in (1, 2, 3)
]


def order_of_weights(value: Any) -> Order | None:
    """The order in which a convolution reads its weights, its second argument, after conversion.

    None for any value but a convolution, and for a convolution in another layout than the standard
    one, which is not converted: its author has chosen a layout.
    """
    name = getattr(value.op, "name", "") if isinstance(value, relax.Call) else ""
    if name not in (*_CONVOLUTIONS, *_TRANSPOSED, _DATA_GRADIENT):
        return None
    rank = len(value.args[1].ty.shape)
    standard = Layouts.standard(rank - 2)
    if name in _TRANSPOSED:
        standard = standard.transposed
    attributes = Attributes(value.attrs)
    out_layout = standard.data if name == _DATA_GRADIENT else attributes.out_layout
    if (
        Layouts(attributes.data_layout, attributes.kernel_layout) != standard
        or out_layout != standard.data
    ):
        return None
    return orders.filters_last(rank)


@layout_rule(*_CONVOLUTIONS, *_TRANSPOSED)
def convolution(site: Site) -> LaidOut | None:
    """The convolution of NHWC data with HWIO weights.

    Those of a transposed convolution become HWOI: the same memory as those of the convolution
    whose data gradient it is.
    """
    layouts = _layouts(site)
    if layouts is None:
        return None
    return site.passed(
        _operands(site),
        orders.channels_last(site.operands[0].rank),
        out_layout=layouts["data_layout"],
        **layouts,
    )


@layout_rule(_DATA_GRADIENT)
def data_gradient(site: Site) -> LaidOut | None:
    """The data gradient of NHWC data and HWIO weights, for a shape in the stored order."""
    layouts = _layouts(site)
    if layouts is None:
        return None
    order = orders.channels_last(site.operands[0].rank)
    shape = relax.ShapeExpr(orders.extents(site.shape, order))
    return site.passed([*_operands(site), shape], order, **layouts)


def _layouts(site: Site) -> dict[str, str] | None:
    """The layouts of a convolution, channels last; None if it is not converted."""
    filters = order_of_weights(site.call)
    if filters is None:
        return None
    order = orders.channels_last(len(filters))
    return {
        "data_layout": orders.letters(site.attributes.data_layout, order),
        "kernel_layout": orders.letters(site.attributes.kernel_layout, filters),
    }


def _operands(site: Site) -> list[Any]:
    """The data and the weights of a convolution, channels last."""
    x, w = site.operands[:2]
    return [x.in_order(orders.channels_last(x.rank)), w.in_order(orders.filters_last(w.rank))]


@layout_rule(*_POOLING)
def pooling(site: Site) -> LaidOut | None:
    """The pooling in NHWC, where the data come in that order."""
    x, attributes = site.operands[0], site.attributes
    standard = Layouts.standard(x.rank - 2).data
    if x.is_plain or (attributes.layout, attributes.out_layout) != (standard, standard):
        return None
    order = orders.channels_last(x.rank)
    layout = orders.letters(standard, order)
    return site.passed([x.in_order(order)], order, layout=layout, out_layout=layout)


@layout_rule("relax.image.resize2d", "relax.image.resize3d")
def resizing(site: Site) -> LaidOut | None:
    """The resizing in NHWC, where the data come in that order."""
    x = site.operands[0]
    standard = Layouts.standard(x.rank - 2).data
    if x.is_plain or site.attributes.layout != standard:
        return None
    order = orders.channels_last(x.rank)
    layout = orders.letters(standard, order)
    return site.passed([x.in_order(order), *site.call.args[1:]], order, layout=layout)
