"""Elementwise operators that TVM's importer hides from gradients, or gets wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from ...errors import ModelError
from ...ir.tensor import Tensor, broadcast_shape, is_float
from ...ops import functional as op
from .node import Node, converter


@converter("Clip")
def clip(node: Node) -> Tensor:
    """x between two bounds; above the upper one where they are crossed."""
    x = node.tensor(0)
    low, high = _bound(node, 1, "min"), _bound(node, 2, "max")
    if is_float(x.dtype) and not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return op.clip(x, -np.inf if low is None else low, np.inf if high is None else high)
    # By choices, not by minimum and maximum: at a bound the gradient is that of x.
    if low is not None:
        x = op.where(op.less(x, low), low, x)
    return x if high is None else op.where(op.greater(x, high), high, x)


def _bound(node: Node, index: int, name: str) -> Tensor | float | None:
    """A bound: an attribute before opset 11, then an input; None if it bounds nothing, as NaN."""
    if node.opset < 11:
        return node.attribute(name, None)
    constant = _known(node, index)
    if constant is None:
        return op.reshape(node.tensor(index), []) if node.has(index) else None
    value = constant.reshape(-1)[0].item()
    return None if math.isnan(value) else value


def _known(node: Node, index: int) -> np.ndarray | None:
    """An input's value; None if it is left out, or known at run time only."""
    try:
        return node.constant(index)
    except ModelError:
        return None


@converter("IsInf")
def isinf(node: Node) -> Tensor:
    """Whether x is ∞ or −∞; an attribute can leave each of the two out."""
    x = node.tensor(0)
    infinite = op.isinf(x)
    if not node.attribute("detect_negative", 1):
        infinite = op.logical_and(infinite, op.greater(x, 0.0))
    if not node.attribute("detect_positive", 1):
        infinite = op.logical_and(infinite, op.less(x, 0.0))
    return infinite


@converter("Max")
def maximum(node: Node) -> Tensor:
    """The largest of the inputs; equal ones share the gradient."""
    return _extremum(node, op.maximum, op.maximum_of)


@converter("Mean")
def mean(node: Node) -> Tensor:
    """The mean of the inputs."""
    inputs = _inputs(node)
    total = reduce(Tensor.__add__, map(op.widen, inputs)) / float(len(inputs))
    return total.astype(inputs[0].dtype)


@converter("Min")
def minimum(node: Node) -> Tensor:
    """The smallest of the inputs; equal ones share the gradient."""
    return _extremum(node, op.minimum, op.minimum_of)


@converter("Sign")
def sign(node: Node) -> Tensor:
    """1, 0 or −1, and NaN of NaN, of which the op, as PyTorch's, makes 0."""
    x = node.tensor(0)
    return op.where(op.isnan(x), math.nan, op.sign(x)) if is_float(x.dtype) else op.sign(x)


@converter("Sum")
def total(node: Node) -> Tensor:
    """The sum of the inputs."""
    inputs = _inputs(node)
    return reduce(Tensor.__add__, map(op.widen, inputs)).astype(inputs[0].dtype)


def _inputs(node: Node) -> list[Tensor]:
    return [node.tensor(index) for index in range(len(node.inputs))]


def _extremum(
    node: Node, of_two: Callable[[Tensor, Tensor], Tensor], of_axis: Callable[..., Tensor]
) -> Tensor:
    inputs = _inputs(node)
    if len(inputs) <= 2:
        return reduce(of_two, inputs)
    # One after the other, three equal inputs would not get the same share.
    shape = reduce(broadcast_shape, [x.shape for x in inputs])
    stacked = [op.expand_dims(op.broadcast_to(x, shape), [0]) for x in inputs]
    return of_axis(op.concat(stacked, axis=0), axis=[0])


@converter("Pow")
def power(node: Node) -> Tensor:
    """xʸ in the dtype of x, computed in float64 if only y is a float: float32 is no integer's."""
    x, exponent = node.tensor(0), _known(node, 1)
    scalar_exponent = exponent.item() if exponent is not None and exponent.ndim == 0 else None
    if scalar_exponent == 2:
        return x * x
    if is_float(x.dtype) and scalar_exponent is not None:
        return op.sqrt(x) if scalar_exponent == 0.5 else op.power(x, scalar_exponent)
    y = node.tensor(1)
    if is_float(x.dtype) or not is_float(y.dtype):
        return op.power(x, y.astype(x.dtype))
    return op.power(x.astype("float64"), y.astype("float64")).astype(x.dtype)
