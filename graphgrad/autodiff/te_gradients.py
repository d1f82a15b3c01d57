"""Gradients that a ``call_tir_with_grad`` names, as for TVM's own gradient pass.

They are functions that return tensor expressions of the cotangent and the arguments, registered by
``tvm.relax.training.utils.register_te_gradient``.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..errors import MissingGradientError
from ..ir.calls import WITH_TE_GRADIENT
from ..ir.tensor import Tensor, expression_of, is_float
from ..registry.rule import Rule

_PREFIX = "tvm.relax.te_grad._register."


def te_gradient_rule(value: Any) -> Rule | None:
    """The rule of the gradient that a value names; None if it is no ``call_tir_with_grad``.

    Raises
    ------
    MissingGradientError
        Nothing is registered under the name.
    """
    if not isinstance(value, relax.Call) or value.op != WITH_TE_GRADIENT:
        return None
    name = str(value.attrs.te_grad_name)
    write = tvm.get_global_func(_PREFIX + name, allow_missing=True)
    if write is None:
        raise MissingGradientError(
            f"its te_grad_name {name!r} is not registered: register a function of that name by "
            "tvm.relax.training.utils.register_te_gradient, or use call_tir, whose gradient is "
            "derived"
        )

    def rule(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> list[Any]:
        emitter = outputs[0].emitter
        arguments = expression_of(inputs)
        call = relax.Call(
            WITH_TE_GRADIENT, [value.args[0], arguments, *value.args[2:]], value.attrs
        )
        cts = [
            expression_of(ct or _zero(output))
            for ct, output in zip(cotangents, outputs, strict=True)
        ]
        ct = cts[0] if len(cts) == 1 else cts
        gradients = emitter.lift(write(outputs[0].expr, call, ct, emitter.builder))
        gradient_list = gradients if isinstance(gradients, list) else [gradients]
        # Surplus gradients are kept, so that the check of a rule's results reports their number.
        return [
            _of_float(*pair) for pair in zip(inputs, gradient_list, strict=False)
        ] + gradient_list[len(inputs) :]

    return Rule(name, "general", rule, origin="user", written=f"te gradient {name!r}")


def _zero(output: Tensor) -> Tensor:
    return output.emitter.full(0.0, output.shape, output.dtype)


def _of_float(value: Any, gradient: Any) -> Any:
    """The gradient for an argument; TVM's functions give integers a gradient too."""
    return gradient if isinstance(value, Tensor) and is_float(value.dtype) else None
