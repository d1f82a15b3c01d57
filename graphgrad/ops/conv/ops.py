"""Convolutions and their two gradients as ops: how they are emitted, lowered and laid out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te

from ...errors import ArgumentError
from ...ir.attributes import Attributes
from ...ir.tensor import Dimension, Tensor, dimension_text, type_shape
from ...layout import orders
from ...layout.rule import LaidOut, Site, layout_rule
from ..define import call_op, define_op, in_given_shape
from ..legalize import legalization
from .forward import convolution
from .transposed import data_gradient
from .weights import weight_gradient
from .window import SPATIAL, Layouts, Window, check_layout


def conv(x: Tensor, w: Tensor, window: Window, layouts: Layouts | None = None) -> Tensor:
    """The convolution of data with weights, in the given layouts or with the channels first."""
    layouts = layouts or Layouts.standard(window.rank)
    function = getattr(relax.op.nn, f"conv{window.rank}d")
    call = function(x.expr, w.expr, **window.attributes(), **layouts.attributes())
    return x.emitter.emit(call)


def conv_data_gradient(
    ct: Tensor,
    w: Tensor,
    shape: Sequence[Dimension],
    window: Window,
    layouts: Layouts | None = None,
) -> Tensor:
    """The cotangent x̄ of the data of ``y = conv(x, w)``.

    Parameters
    ----------
    ct : Tensor
        Cotangent of y; positions at its far ends may be missing, and count as zeros.
    w : Tensor
        Weights.
    shape : sequence
        The shape of x.
    window : Window
    layouts : Layouts, optional
        Of x, ct and w; with the channels first by default.
    """
    arguments = [ct.expr, w.expr, relax.ShapeExpr(list(shape))]
    return _emitted(_DATA_GRADIENT, ct, arguments, window, layouts)


def conv_weight_gradient(
    x: Tensor,
    ct: Tensor,
    shape: Sequence[Dimension],
    window: Window,
    layouts: Layouts | None = None,
) -> Tensor:
    """The cotangent w̄ of the weights of ``y = conv(x, w)``.

    Parameters
    ----------
    x : Tensor
        Data.
    ct : Tensor
        Cotangent of y; positions at its far ends may be missing, and count as zeros.
    shape : sequence
        The shape of w.
    window : Window
    layouts : Layouts, optional
        Of x, ct and w; with the channels first by default.
    """
    arguments = [x.expr, ct.expr, relax.ShapeExpr(list(shape))]
    return _emitted(_WEIGHT_GRADIENT, ct, arguments, window, layouts)


def check_output(op: str, extents: Sequence[Dimension]) -> None:
    """Refuse a convolution without outputs.

    Parameters
    ----------
    op : str
        The name of the op, for the message.
    extents : sequence
        Of the output's spatial axes.

    Raises
    ------
    ArgumentError
        An extent is not positive.
    """
    if any(isinstance(extent, int) and extent <= 0 for extent in extents):
        text = ", ".join(map(dimension_text, extents))
        raise ArgumentError(
            f"{op}: its output would have the spatial extents ({text}); they have to be positive: "
            "the dilated kernel is larger than the padded input, or a transposed convolution "
            "crops all it has. Give a larger input, or change kernel and padding"
        )


def _emitted(
    op: Any, like: Tensor, arguments: list[Any], window: Window, layouts: Layouts | None
) -> Tensor:
    layouts = layouts or Layouts.standard(window.rank)
    call = call_op(op, arguments, **window.attributes(), **layouts.attributes())
    return like.emitter.emit(call)


def _data_gradient(call: relax.Call, ct: te.Tensor, w: te.Tensor) -> te.Tensor:
    window = Window.of(call.attrs)
    layouts = Layouts.of(call.attrs, window.rank)
    orders = (layouts.data, layouts.kernel, layouts.data)
    return data_gradient(ct, w, type_shape(call.ty), window, orders, str(call.ty.dtype))


def _weight_gradient(call: relax.Call, x: te.Tensor, ct: te.Tensor) -> te.Tensor:
    window = Window.of(call.attrs)
    layouts = Layouts.of(call.attrs, window.rank)
    return weight_gradient(x, ct, type_shape(call.ty), window, layouts)


_DATA_GRADIENT = define_op(
    "conv_data_gradient", ["ct", "weight", "shape"], in_given_shape, _data_gradient
)
_WEIGHT_GRADIENT = define_op(
    "conv_weight_gradient", ["data", "ct", "shape"], in_given_shape, _weight_gradient
)


# The stock lowerings add up half precision in half precision, and leave an output layout of its
# own, and all but one layout of transposed convolutions, to a code generator that cannot emit them.
_CONVOLUTIONS = [f"relax.nn.conv{rank}d" for rank in (1, 2, 3)]
_TRANSPOSED = [f"{name}_transpose" for name in _CONVOLUTIONS]


@legalization(*_CONVOLUTIONS, *_TRANSPOSED)
def _lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a convolution in any layout; a transposed one is the data gradient of another."""
    window, shape = Window.of(call.attrs), type_shape(call.ty)
    is_transposed = call.op.name in _TRANSPOSED
    form = data_gradient if is_transposed else convolution
    layouts = Layouts.of(call.attrs, window.rank)
    layouts = layouts.transposed if is_transposed else layouts
    out_layout = str(call.attrs.out_layout)
    check_layout(out_layout, layouts.data)
    extents = dict(zip(out_layout, shape, strict=True))
    check_output(call.op.name, [extents[axis] for axis in SPATIAL[window.rank]])

    def expression(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        axes = (layouts.data, layouts.kernel, out_layout)
        return form(x, w, shape, window, axes, str(call.ty.dtype))

    name = call.op.name.rsplit(".", 1)[-1]
    return builder.call_te(expression, *call.args, primfunc_name_hint=name)


def _has_standard_layout(call: relax.Call) -> bool:
    """Whether the layout of a convolution is to be converted.

    It is not where it is another one than the standard: its author has chosen a layout.
    """
    standard = Layouts.standard(len(call.args[1].ty.shape) - 2)
    if call.op.name in _TRANSPOSED:
        standard = standard.transposed
    attributes = Attributes(call.attrs)
    out_layout = standard.data if call.op == _DATA_GRADIENT else attributes.out_layout
    found = Layouts(attributes.data_layout, attributes.kernel_layout)
    return found == standard and out_layout == standard.data


@layout_rule(*_CONVOLUTIONS, *_TRANSPOSED, asks=_has_standard_layout)
def _convolution_layout(site: Site) -> LaidOut | None:
    """The convolution of NHWC data with HWIO weights, or OHWI on a GPU if not depthwise.

    Those of a transposed convolution become HWOI, or IHWO: the same memory as those of the
    convolution whose data gradient it is.
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


# The op that a transposed convolution is imported as where Relax's cannot state it.
@layout_rule("graphgrad.conv_data_gradient", asks=_has_standard_layout)
def _data_gradient_layout(site: Site) -> LaidOut | None:
    """The data gradient of NHWC data and reordered weights, for a shape in the stored order."""
    layouts = _layouts(site)
    if layouts is None:
        return None
    order = orders.channels_last(site.operands[0].rank)
    shape = relax.ShapeExpr(orders.extents(site.shape, order))
    return site.passed([*_operands(site), shape], order, **layouts)


def _layouts(site: Site) -> dict[str, str] | None:
    """The layouts of a convolution, channels last; None if it is not converted."""
    if not _has_standard_layout(site.call):
        return None
    rank = site.operands[1].rank
    data = orders.letters(site.attributes.data_layout, orders.channels_last(rank))
    kernel = orders.letters(site.attributes.kernel_layout, site.order_of_weights)
    return {"data_layout": data, "kernel_layout": kernel}


def _operands(site: Site) -> list[Any]:
    """The data and the weights of a convolution, channels last."""
    x, w = site.operands[:2]
    return [x.in_order(orders.channels_last(x.rank)), w.in_order(site.order_of_weights)]
