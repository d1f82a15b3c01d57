"""Elementwise ops as the steps that a library computes behind a contraction.

A step computes in float32, whatever the dtypes of the op are: what is rounded in between in a
program of half precision is not rounded here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

Value: TypeAlias = int | float
"""A number; or a value, by its count."""

Emit: TypeAlias = Callable[..., int]
"""Adds a step, by its op and operands, and gives the value that it is."""

_HALF_PI_ROOT = math.sqrt(2 / math.pi)


def _relu(emit: Emit, x: Value) -> int:
    return emit("select", emit("less", x, 0.0), 0.0, x)  # NaN stays NaN


def _silu(emit: Emit, x: Value) -> int:
    return emit("multiply", x, emit("sigmoid", x))


def _gelu(emit: Emit, x: Value) -> int:
    """x / 2 (1 + erf(x / √2))"""
    erf = emit("erf", emit("multiply", x, math.sqrt(0.5)))
    return emit("multiply", emit("multiply", x, 0.5), emit("add", erf, 1.0))


def _gelu_tanh(emit: Emit, x: Value) -> int:
    """x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³)))"""
    cube = emit("multiply", emit("multiply", x, x), x)
    inner = emit("add", x, emit("multiply", cube, 0.044715))
    tanh = emit("tanh", emit("multiply", inner, _HALF_PI_ROOT))
    return emit("multiply", emit("multiply", x, 0.5), emit("add", tanh, 1.0))


def _square(emit: Emit, x: Value) -> int:
    return emit("multiply", x, x)


def _masked_product(emit: Emit, ct: Value, factor: Value) -> int:
    """ct · factor, but 0 where ct is 0 and the factor is infinite or NaN."""
    product = emit("multiply", ct, factor)
    kept = emit("select", emit("less", emit("abs", factor), math.inf), product, 0.0)
    return emit("select", emit("equal", ct, 0.0), kept, product)


def _direct(op: str) -> Callable[..., int]:
    return lambda emit, *operands: emit(op, *operands)


_DIRECT = {
    "abs": "abs",
    "add": "add",
    "divide": "divide",
    "equal": "equal",
    "erf": "erf",
    "exp": "exp",
    "greater": "greater",
    "greater_equal": "greater_equal",
    "less": "less",
    "less_equal": "less_equal",
    "log": "log",
    "multiply": "multiply",
    "negative": "negative",
    "not_equal": "not_equal",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid",
    "sqrt": "sqrt",
    "subtract": "subtract",
    "tanh": "tanh",
    "where": "select",
}

CAST = "relax.astype"

STEPS: Mapping[str, Callable[..., int]] = {
    **{f"relax.{name}": _direct(op) for name, op in _DIRECT.items()},
    "graphgrad.masked_product": _masked_product,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.nn.relu": _relu,
    "relax.nn.silu": _silu,
    "relax.square": _square,
    CAST: lambda emit, x: x,
}
"""By the name of an op, how its steps are added; a cast, whose value stays as it is, has none."""
