"""Arithmetic, comparisons and activations, with PyTorch's promotion of dtypes.

TVM's importer leaves out ``alpha``, and rounds the numbers that are added to integers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from ...ir.tensor import Tensor, is_float
from ...ops import functional as op
from ...ops.call_te import call_te
from ...ops.losses import softplus as softplus_of
from ..converters.activation import exponential_below_zero
from .node import CONVERTERS, Node, converter

_UNARY: dict[str, Any] = {
    "abs": relax.op.abs,
    "acos": relax.op.acos,
    "acosh": relax.op.acosh,
    "asin": relax.op.asin,
    "asinh": relax.op.asinh,
    "atan": relax.op.atan,
    "atanh": relax.op.atanh,
    "bitwise_not": relax.op.bitwise_not,
    "ceil": relax.op.ceil,
    "cos": relax.op.cos,
    "cosh": relax.op.cosh,
    "erf": relax.op.erf,
    "exp": relax.op.exp,
    "floor": relax.op.floor,
    "log": relax.op.log,
    "neg": relax.op.negative,
    "relu": relax.op.nn.relu,
    "round": relax.op.round,
    "rsqrt": relax.op.rsqrt,
    "sigmoid": relax.op.sigmoid,
    "sign": relax.op.sign,
    "silu": relax.op.nn.silu,
    "sin": relax.op.sin,
    "sinh": relax.op.sinh,
    "sqrt": relax.op.sqrt,
    "tan": relax.op.tan,
    "tanh": relax.op.tanh,
    "trunc": relax.op.trunc,
}

_TESTS: dict[str, Any] = {
    "isinf": relax.op.isinf,
    "isnan": relax.op.isnan,
}

_COMPARISONS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "eq": op.equal,
    "ge": op.greater_equal,
    "gt": op.greater,
    "le": op.less_equal,
    "lt": op.less,
    "ne": op.not_equal,
}

_BITS: dict[str, Any] = {
    "bitwise_and.Scalar": relax.op.bitwise_and,
    "bitwise_and.Tensor": relax.op.bitwise_and,
    "bitwise_or.Scalar": relax.op.bitwise_or,
    "bitwise_or.Tensor": relax.op.bitwise_or,
    "bitwise_xor.Scalar": relax.op.bitwise_xor,
    "bitwise_xor.Tensor": relax.op.bitwise_xor,
}

_LOGIC: dict[str, Any] = {
    "logical_and.default": relax.op.logical_and,
    "logical_or.default": relax.op.logical_or,
    "logical_xor.default": relax.op.logical_xor,
}


def _unary(function: Any) -> Any:
    def convert(node: Node, x: Tensor) -> Tensor:
        return node.emitter.emit(function(x.astype(node.dtype).expr))

    return convert


def _test(function: Any) -> Any:
    def convert(node: Node, x: Tensor) -> Tensor:
        return node.emitter.emit(function(x.expr))

    return convert


def _comparison(function: Callable[[Tensor, Any], Tensor]) -> Any:
    def convert(node: Node, x: Tensor, y: Any) -> Tensor:
        return function(*_tensors(x, y, node.common_dtype()))

    return convert


def _bits(function: Any) -> Any:
    def convert(node: Node, x: Tensor, y: Any) -> Tensor:
        x, y = _tensors(x, y, node.dtype)
        return node.emitter.emit(function(x.expr, y.expr))

    return convert


def _logic(function: Any) -> Any:
    def convert(node: Node, x: Tensor, y: Tensor) -> Tensor:
        x, y = (t if t.dtype == "bool" else op.not_equal(t, 0) for t in (x, y))
        return node.emitter.emit(function(x.expr, y.expr))

    return convert


def _tensors(x: Any, y: Any, dtype: str) -> tuple[Tensor, Tensor]:
    """Two operands, of which one may be a number, as tensors of a dtype."""
    like = x if isinstance(x, Tensor) else y

    def tensor(value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value.astype(dtype)
        return like.emitter.lift(relax.const(value, dtype))

    return tensor(x), tensor(y)


CONVERTERS.update({f"{name}.default": _unary(function) for name, function in _UNARY.items()})
CONVERTERS.update({f"{name}.default": _test(function) for name, function in _TESTS.items()})
CONVERTERS.update(
    {
        f"{name}.{kind}": _comparison(function)
        for name, function in _COMPARISONS.items()
        for kind in ("Scalar", "Tensor")
    }
)
CONVERTERS.update({name: _bits(function) for name, function in _BITS.items()})
CONVERTERS.update({name: _logic(function) for name, function in _LOGIC.items()})


@converter("add.Tensor", "add.Scalar")
def add(node: Node, x: Tensor, y: Any, alpha: Any) -> Tensor:
    """x + α y; of truth values whether one is true"""
    x, y = _tensors(x, y, node.dtype)
    if node.dtype == "bool":
        return op.logical_or(x, y)
    return x + (y if alpha == 1 else y * alpha)


@converter(
    "sub.Tensor",
)
def sub(node: Node, x: Tensor, y: Any, alpha: Any) -> Tensor:
    """x − α y"""
    x, y = _tensors(x, y, node.dtype)
    return x - (y if alpha == 1 else y * alpha)


@converter("mul.Tensor", "mul.Scalar")
def mul(node: Node, x: Tensor, y: Any) -> Tensor:
    """x y; of truth values whether both are true"""
    x, y = _tensors(x, y, node.dtype)
    return op.logical_and(x, y) if node.dtype == "bool" else x * y


@converter(
    "div.Tensor",
)
def div(node: Node, x: Tensor, y: Any) -> Tensor:
    """x / y, of integers in floats."""
    return operator.truediv(*_tensors(x, y, node.dtype))


@converter(
    "div.Tensor_mode",
)
def div_mode(node: Node, x: Tensor, y: Any, rounding_mode: str | None) -> Tensor:
    """x / y, rounded down or towards zero."""
    x, y = _tensors(x, y, node.dtype)
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        return node.emitter.emit(relax.op.floor_divide(x.expr, y.expr))
    quotient = x / y  # of integers, towards zero
    return op.trunc(quotient) if is_float(node.dtype) else quotient


@converter("remainder.Tensor", "remainder.Scalar")
def remainder(node: Node, x: Tensor, y: Any) -> Tensor:
    """x − ⌊x / y⌋ y"""
    x, y = _tensors(x, y, node.dtype)
    return node.emitter.emit(relax.op.floor_mod(x.expr, y.expr))


@converter("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(node: Node, x: Any, y: Any) -> Tensor:
    """xʸ"""
    return op.power(*_tensors(x, y, node.dtype))


@converter("fmod.Tensor", "fmod.Scalar")
def exact_remainder(node: Node, x: Tensor, y: Any) -> Tensor:
    """The remainder of x / y that has the sign of x."""
    x, y = _tensors(x, y, node.dtype)
    return node.emitter.emit(relax.op.mod(x.expr, y.expr))


@converter("logical_not.default")
def is_zero(node: Node, x: Tensor) -> Tensor:
    """Whether x is 0 or False."""
    return op.equal(x, 0) if x.dtype != "bool" else op.logical_not(x)


@converter("atan2.default")
def atan2(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """The angle of the point (y, x)."""
    x, y = _tensors(x, y, node.dtype)
    return node.emitter.emit(relax.op.atan2(x.expr, y.expr))


@converter("maximum.default")
def maximum(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """The larger of two; where they are equal, each has half the cotangent."""
    return op.maximum(*_tensors(x, y, node.dtype))


@converter("minimum.default")
def minimum(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """The smaller of two."""
    return op.minimum(*_tensors(x, y, node.dtype))


@converter("reciprocal.default")
def reciprocal(node: Node, x: Tensor) -> Tensor:
    """1 / x"""
    return 1.0 / x.astype(node.dtype)


@converter("exp2.default")
def exp2(node: Node, x: Tensor) -> Tensor:
    """2ˣ"""
    return op.exp(x.astype(node.dtype) * math.log(2.0))


@converter("log2.default")
def log2(node: Node, x: Tensor) -> Tensor:
    """log x / log 2"""
    return op.log(x.astype(node.dtype)) / math.log(2.0)


@converter("log10.default")
def log10(node: Node, x: Tensor) -> Tensor:
    """log x / log 10"""
    return op.log(x.astype(node.dtype)) / math.log(10.0)


@converter("log1p.default")
def log1p(node: Node, x: Tensor) -> Tensor:
    """log(1 + x), near 0 too."""
    return call_te(_log1p, x.astype(node.dtype))


@converter("expm1.default")
def expm1(node: Node, x: Tensor) -> Tensor:
    """exp(x) − 1, near 0 too."""
    x = x.astype(node.dtype)
    below = op.minimum(x, 1.0)
    return op.where(op.less(x, 1.0), exponential_below_zero_or_little(below), op.exp(x) - 1.0)


def exponential_below_zero_or_little(x: Tensor) -> Tensor:
    """exp(x) − 1 of an x up to 1: 2 t / (1 − t) for the t = tanh(x / 2)."""
    t = op.tanh(0.5 * x)
    return 2.0 * t / (1.0 - t)


def _log1p(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *i: tirx.log1p(x(*i)), name="log1p")


@converter("clamp.default", "clamp.Tensor", "hardtanh.default")
def clamp(node: Node, x: Tensor, low: Any, high: Any) -> Tensor:
    """x, kept between bounds, either of which may be left out."""
    x = x.astype(node.dtype)
    is_range = low is not None and high is not None  # no integer is infinite
    of_numbers = not isinstance(low, Tensor) and not isinstance(high, Tensor)
    if of_numbers and (is_range or is_float(node.dtype)):
        return op.clip(x, -math.inf if low is None else low, math.inf if high is None else high)
    for bound, function in ((low, op.maximum), (high, op.minimum)):
        if bound is not None:
            x = function(*_tensors(x, bound, node.dtype))
    return x


@converter("where.self")
def where(node: Node, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """x where the condition holds, else y."""
    return op.where(condition, *_tensors(x, y, node.dtype))


@converter("gelu.default")
def gelu(node: Node, x: Tensor, approximate: str) -> Tensor:
    """x Φ(x), or its form with tanh."""
    function = relax.op.nn.gelu if approximate == "none" else relax.op.nn.gelu_tanh
    return node.emitter.emit(function(x.expr))


@converter("leaky_relu.default")
def leaky_relu(node: Node, x: Tensor, slope: float) -> Tensor:
    """x where x > 0, else slope · x."""
    return node.emitter.emit(relax.op.nn.leakyrelu(x.expr, slope))


@converter("elu.default")
def elu(node: Node, x: Tensor, alpha: float, scale: float, input_scale: float) -> Tensor:
    """scale · x where x > 0, else scale · α (exp(input_scale · x) − 1)."""
    y = exponential_below_zero(x, alpha, input_scale)
    return y if scale == 1 else scale * y


@converter("softplus.default")
def softplus(node: Node, x: Tensor, beta: float, threshold: float) -> Tensor:
    """log(1 + exp(β x)) / β; x itself where β x is above a threshold."""
    scaled = x if beta == 1 else beta * x
    y = softplus_of(op.minimum(scaled, float(threshold)))
    return op.where(op.greater(scaled, float(threshold)), x, y if beta == 1 else y / beta)
