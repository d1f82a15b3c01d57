"""Lowerings of ours in the place of stock ones."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx


def legalise_relu(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower relu so that NaN stays NaN.

    The stock form, ``max(x, 0)``, turns NaN into 0: a network that has diverged would report a
    finite loss.
    """

    def relu(x: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, str(x.dtype))
        return te.compute(x.shape, lambda *i: tirx.Select(x(*i) < zero, zero, x(*i)), name="relu")

    return builder.call_te(relu, call.args[0])
