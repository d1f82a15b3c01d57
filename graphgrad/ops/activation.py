"""Activations: their lowerings and layout rules."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from ..layout.rule import along_axis, layout_rule
from .elementwise import expm1, mapped
from .legalize import legalization, lower_half_in_float32


@legalization("relax.nn.relu")
def relu(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower relu so that NaN stays NaN.

    The stock form, ``max(x, 0)``, turns NaN into 0: a network that has diverged would report a
    finite loss.
    """

    def element(x: Any) -> Any:
        zero = tirx.const(0, str(x.ty.dtype))
        return tirx.Select(x < zero, zero, x)

    return mapped(builder, call.args[0], element, "relu")


@legalization("relax.nn.prelu")
def prelu(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower prelu along any axis; the stock form knows no symbolic channels."""
    axis = int(call.attrs.axis) % call.args[0].ty.ndim

    def expression(x: te.Tensor, alpha: te.Tensor) -> te.Tensor:
        # One slope for all channels.
        shared = isinstance(alpha.shape[0], tirx.IntImm) and int(alpha.shape[0]) == 1
        zero = tirx.const(0, str(x.dtype))

        def element(*index: Any) -> Any:
            slope = alpha(0 if shared else index[axis])
            return tirx.Select(x(*index) > zero, x(*index), slope * x(*index))

        return te.compute(x.shape, element, name="prelu")

    return builder.call_te(expression, *call.args, primfunc_name_hint="prelu")


layout_rule("relax.nn.prelu")(along_axis)


@legalization("relax.nn.softplus")
def softplus(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower softplus so that small results keep their digits: far below 0 it is exp(βx) / β."""
    beta, threshold = float(call.attrs.beta), float(call.attrs.threshold)

    def element(x: Any) -> Any:
        zero, bound, scale = (tirx.const(v, str(x.ty.dtype)) for v in (0.0, threshold, beta))
        scaled = x * scale
        positive = scaled > zero
        # A choice and not −|βx|, so that a derived gradient is right at 0 too.
        power = tirx.exp(tirx.Select(positive, -scaled, scaled))
        value = tirx.Select(positive, scaled, zero) + tirx.log1p(power)
        return tirx.Select(scaled > bound, x, value / scale)

    return mapped(builder, call.args[0], element, "softplus")


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@legalization("relax.nn.selu")
def selu(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower selu so that small results keep their digits, which exp(x) − 1 loses."""

    def element(x: Any) -> Any:
        dtype = str(x.ty.dtype)
        zero, scale, alpha = (tirx.const(v, dtype) for v in (0.0, _SELU_SCALE, _SELU_ALPHA))
        below = expm1(tirx.Select(x > zero, zero, x))
        return scale * tirx.Select(x > zero, x, alpha * below)

    return mapped(builder, call.args[0], element, "selu")


# Their formulas end in sums with 1 that leave half precision few digits, or in exp(x) that it
# cannot hold.
lower_half_in_float32(
    "relax.nn.gelu",
    "relax.nn.gelu_tanh",
    "relax.nn.selu",
    "relax.nn.silu",
    "relax.nn.softplus",
    "relax.sigmoid",
)
