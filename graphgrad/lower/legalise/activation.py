"""Lowerings of activations."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from .table import legalisation


@legalisation("relax.nn.relu")
def relu(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower relu so that NaN stays NaN.

    The stock form, ``max(x, 0)``, turns NaN into 0: a network that has diverged would report a
    finite loss.
    """

    def expression(x: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, str(x.dtype))
        return te.compute(x.shape, lambda *i: tirx.Select(x(*i) < zero, zero, x(*i)), name="relu")

    return builder.call_te(expression, call.args[0], primfunc_name_hint="relu")
