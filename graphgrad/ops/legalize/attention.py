"""Lowerings of attention."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...ir.tensor import Emitter
from ..attention import attend
from .table import legalization


@legalization("relax.nn.attention")
@legalization("relax.nn.attention_bias")
def attention(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower attention to matrix products and a softmax.

    The stock form has no window; it reads past the end of key and value where heads share them,
    computes half precision in half precision, and masks by zeros before it takes the maximum, which
    makes NaN of a row whose scores are all far below zero.
    """
    emitter = Emitter(builder)
    with emitter.at(call.span, ""):
        inputs = [emitter.lift(argument) for argument in call.args]
        query, key, value = inputs[:3]
        bias = inputs[3] if len(inputs) > 3 else None
        attrs = call.attrs
        scale = None if attrs.scale is None else float(attrs.scale)
        window = None if attrs.window_size is None else int(attrs.window_size)
        return attend(query, key, value, bias, scale, attrs.causal_mask, window).expr
