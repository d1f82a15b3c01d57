"""Lowerings of convolutions, plain and transposed.

The stock ones add up half precision in half precision, and leave an output layout of its own, and
all but one layout of transposed convolutions, to a code generator that cannot emit them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te

from ...errors import ArgumentError
from ...ops.conv import Window, check_output
from ...ops.conv_expressions import convolution, data_gradient, permuted
from ...ops.tensor import type_shape
from .table import legalisation

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def conv(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a convolution in any layout."""
    window = Window.of(call.attrs)
    layouts = _layouts(call, window)
    shape, dtype = type_shape(call.ty), str(call.ty.dtype)
    check_output(call.op.name, [shape[layouts[2].index(axis)] for axis in _SPATIAL[window.rank]])

    def expression(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        return convolution(x, w, shape, window, layouts, dtype)

    return _call_te(builder, call, expression)


def conv_transpose(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a transposed convolution in any layout: the data gradient of a convolution."""
    window = Window.of(call.attrs)
    data_layout, kernel_layout, out_layout = _layouts(call, window)
    spatial = _SPATIAL[window.rank]
    shape = [type_shape(call.ty)[out_layout.index(axis)] for axis in "NC" + spatial]
    check_output(call.op.name, shape[2:])

    def expression(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        ct = permuted(x, data_layout, "NC" + spatial)
        w = permuted(w, kernel_layout, "IO" + spatial)
        y = data_gradient(ct, w, shape, window, str(call.ty.dtype))
        return permuted(y, "NC" + spatial, out_layout)

    return _call_te(builder, call, expression)


def _call_te(builder: relax.BlockBuilder, call: relax.Call, expression: Callable[..., Any]) -> Any:
    name = call.op.name.rsplit(".", 1)[-1]
    return builder.call_te(expression, *call.args, primfunc_name_hint=name)


def _layouts(call: relax.Call, window: Window) -> tuple[str, str, str]:
    """Return the layouts of data, weights and output.

    Raises
    ------
    ArgumentError
        One is no order of the axes, such as the blocked NCHW4c.
    """
    spatial = _SPATIAL[window.rank]
    attributes = call.attrs
    layouts = (attributes.data_layout, attributes.kernel_layout, attributes.out_layout)
    for layout, axes in zip(layouts, ("NC" + spatial, "OI" + spatial, "NC" + spatial), strict=True):
        if sorted(layout) != sorted(axes):
            raise ArgumentError(
                f"{call.op.name} cannot be lowered with the layout {layout}: layouts are served "
                f"that permute the axes {axes}; convert the op's layout first"
            )
    return layouts


for _rank in (1, 2, 3):
    legalisation(f"relax.nn.conv{_rank}d")(conv)
    legalisation(f"relax.nn.conv{_rank}d_transpose")(conv_transpose)
