"""Activations that TVM's importer lacks, or writes so that a derivative or a dtype is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax

from ...ir.tensor import Tensor, is_float
from ...ops import functional as op
from ...ops.losses import softplus as softplus_of
from .node import Node, converter


@converter("Celu")
def celu(node: Node) -> Tensor:
    """x where x > 0, else α (exp(x / α) − 1)."""
    x, alpha = node.tensor(0), node.attribute("alpha", 1.0)
    return exponential_below_zero(x, alpha, 1.0 / alpha)


@converter("Elu")
def elu(node: Node) -> Tensor:
    """x where x > 0, else α (exp x − 1); the slope at 0 is α."""
    return exponential_below_zero(node.tensor(0), node.attribute("alpha", 1.0), 1.0)


@converter("Selu")
def selu(node: Node) -> Tensor:
    """γ x where x > 0, else γ α (exp x − 1); the slope at 0 is γ α."""
    alpha = node.attribute("alpha", 1.67326319217681884765625)
    gamma = node.attribute("gamma", 1.05070102214813232421875)
    return gamma * exponential_below_zero(node.tensor(0), alpha, 1.0)


def exponential_below_zero(x: Tensor, alpha: float, scale: float) -> Tensor:
    """x where x > 0, else α (exp(scale · x) − 1)."""
    negative = op.less_equal(x, 0.0)
    # The exponential is kept from the positive side, where it may overflow.
    return op.where(negative, alpha * _expm1(scale * op.where(negative, x, 0.0)), x)


def _expm1(x: Tensor) -> Tensor:
    """exp(x) − 1 of an x that is not positive; near 0 too, where the subtraction loses digits."""
    is_near = op.greater(x, -0.5)
    t = op.tanh(0.5 * op.where(is_near, x, 0.0))
    return op.where(is_near, 2.0 * t / (1.0 - t), op.exp(x) - 1.0)


@converter("HardSigmoid")
def hard_sigmoid(node: Node) -> Tensor:
    """α x + β, kept between 0 and 1."""
    return unit_ramp(node.attribute("alpha", 0.2) * node.tensor(0) + node.attribute("beta", 0.5))


def unit_ramp(x: Tensor) -> Tensor:
    """x, kept between 0 and 1, with slope 0 at both."""
    return op.where(op.less_equal(x, 0.0), 0.0, op.where(op.greater_equal(x, 1.0), 1.0, x))


@converter("HardSwish")
def hard_swish(node: Node) -> Tensor:
    """x · HardSigmoid(x) with α = 1/6 and β = 1/2."""
    x = node.tensor(0)
    return x * unit_ramp(x / 6.0 + 0.5)


@converter("Mish")
def mish(node: Node) -> Tensor:
    """x · tanh(log(1 + exp x))."""
    x = node.tensor(0)
    return x * op.tanh(softplus_of(x))


@converter("PRelu")
def prelu(node: Node) -> Tensor:
    """x where x > 0, else slope · x; the slope broadcasts to the shape of x."""
    x = node.tensor(0)
    slopes = op.broadcast_to(node.tensor(1), x.shape)
    return op.where(op.greater(x, 0.0), x, slopes * x)


@converter("Shrink")
def shrink(node: Node) -> Tensor:
    """x + bias where x < −λ, x − bias where x > λ, else 0."""
    x, bias, bound = node.tensor(0), node.attribute("bias", 0.0), node.attribute("lambd", 0.5)
    # Integers are compared with a bound, and moved by a bias, that may not be integers.
    value = x if is_float(x.dtype) else x.astype("float64")
    inner = op.where(op.less_equal(value, bound), 0.0, value - bias)
    return op.where(op.less(value, -bound), value + bias, inner).astype(x.dtype)


@converter("Softplus")
def softplus(node: Node) -> Tensor:
    """log(1 + exp x), without overflow."""
    return softplus_of(node.tensor(0))


@converter("Softsign")
def softsign(node: Node) -> Tensor:
    """x / (1 + |x|)."""
    x = node.tensor(0)
    return x / (1.0 + op.abs(x))


@converter("Swish")
def swish(node: Node) -> Tensor:
    """x · σ(α x)."""
    x = node.tensor(0)
    return x * op.sigmoid(node.attribute("alpha", 1.0) * x)


@converter("ThresholdedRelu")
def thresholded_relu(node: Node) -> Tensor:
    """x where x > α, else 0."""
    x = node.tensor(0)
    return op.where(op.less_equal(x, node.attribute("alpha", 1.0)), 0.0, x)


@converter("Hardmax")
def hardmax(node: Node) -> Tensor:
    """1 at the first maximum of each row, else 0."""
    return _along_axis(node, _hardmax)


@converter("LogSoftmax")
def log_softmax(node: Node) -> Tensor:
    """x − log Σ exp x."""
    return _along_axis(node, op.log_softmax)


@converter("Softmax")
def softmax(node: Node) -> Tensor:
    """exp x / Σ exp x."""
    return _along_axis(node, op.softmax)


def _along_axis(node: Node, function: Callable[..., Tensor]) -> Tensor:
    """Apply a function along an axis; before opset 13, to all axes from there on as if one."""
    x = node.tensor(0)
    axis = node.attribute("axis", 1 if node.opset < 13 else -1)
    axis += x.ndim if axis < 0 else 0
    if node.opset >= 13 or axis == x.ndim - 1:
        return function(x, axis=axis)
    matrix = op.reshape(x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])
    return op.reshape(function(matrix, axis=1), x.shape)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    """1 at the first maximum along an axis, else 0."""
    first_maximum = x.emitter.emit(relax.op.argmax(x.expr, axis=axis, keepdims=True))
    extent = x.shape[axis]
    indices = x.emitter.emit(relax.op.arange(0, extent, 1, "int64"))
    positions = op.reshape(indices, [extent if number == axis else 1 for number in range(x.ndim)])
    return op.equal(positions, first_maximum).astype(x.dtype)
