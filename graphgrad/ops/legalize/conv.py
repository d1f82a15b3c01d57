"""Lowerings of convolutions, plain and transposed.

The stock ones add up half precision in half precision, and leave an output layout of its own, and
all but one layout of transposed convolutions, to a code generator that cannot emit them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te

from ...ir.tensor import type_shape
from ..conv import SPATIAL, Layouts, Window, check_layout, check_output, convolution, data_gradient
from .table import legalization


def conv(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a convolution in any layout."""
    window = Window.of(call.attrs)
    layouts = Layouts.of(call.attrs, window.rank)

    def expression(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        orders = (layouts.data, layouts.kernel, _out_layout(call, layouts))
        return convolution(x, w, type_shape(call.ty), window, orders, str(call.ty.dtype))

    return _call_te(builder, call, layouts, expression)


def conv_transpose(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a transposed convolution in any layout: the data gradient of a convolution."""
    window = Window.of(call.attrs)
    layouts = Layouts.of(call.attrs, window.rank).transposed

    def expression(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        orders = (layouts.data, layouts.kernel, _out_layout(call, layouts))
        return data_gradient(x, w, type_shape(call.ty), window, orders, str(call.ty.dtype))

    return _call_te(builder, call, layouts, expression)


def _call_te(
    builder: relax.BlockBuilder,
    call: relax.Call,
    layouts: Layouts,
    expression: Callable[[te.Tensor, te.Tensor], te.Tensor],
) -> Any:
    """The call of a convolution's kernel, once its outputs are known to exist."""
    extents = dict(zip(_out_layout(call, layouts), type_shape(call.ty), strict=True))
    check_output(call.op.name, [extents[axis] for axis in SPATIAL[len(extents) - 2]])
    name = call.op.name.rsplit(".", 1)[-1]
    return builder.call_te(expression, *call.args, primfunc_name_hint=name)


def _out_layout(call: relax.Call, layouts: Layouts) -> str:
    """The layout of the result, which permutes the axes of the data's."""
    layout = str(call.attrs.out_layout)
    check_layout(layout, layouts.data)
    return layout


for _rank in (1, 2, 3):
    legalization(f"relax.nn.conv{_rank}d")(conv)
    legalization(f"relax.nn.conv{_rank}d_transpose")(conv_transpose)
