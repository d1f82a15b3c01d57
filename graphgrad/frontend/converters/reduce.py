"""Reductions of any opset, with the axes as an attribute or as an input."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.tensor import Tensor, is_float
from ...ops import functional as op
from .node import Node, converter

Reduction = Callable[[Tensor, "list[int] | None", bool], Tensor]
"""Reduces a tensor over axes, all of them where they are None; keeps them with extent 1 or not."""


_ELEMENTWISE_PARTS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")
"""Reductions whose result for a single element is not that element."""


def _reduction(op_type: str) -> Callable[[Reduction], Reduction]:
    """Register a converter of a reduction."""

    def register(function: Reduction) -> Reduction:
        @converter(op_type)
        def convert(node: Node) -> Tensor:
            x, keepdims = node.tensor(0), bool(node.attribute("keepdims", 1))
            axes = _axes(node)
            if not axes and node.attribute("noop_with_empty_axes", 0):
                # Nothing is added up, but what the operator does to each element stays.
                return function(x, [], keepdims) if op_type in _ELEMENTWISE_PARTS else x
            return function(x, axes or None, keepdims)

        return function

    return register


def _axes(node: Node) -> list[int]:
    """The axes, an attribute at first and an input since opset 13 or 18; empty if left out."""
    axes = node.constant(1) if node.has(1) else node.attribute("axes", ())
    return [] if axes is None else [int(axis) for axis in axes]


def _in_float(function: Reduction) -> Reduction:
    """The reduction, computed in float64 for integers and in float32 for half precision."""

    def computed(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
        wide = op.widen(x) if is_float(x.dtype) else x.astype("float64")
        return function(wide, axes, keepdims).astype(x.dtype)

    return computed


@_reduction("ReduceL1")
def l1(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
    """Σ |x|."""
    return op.reduce_sum(op.abs(x), axes, keepdims)


@_reduction("ReduceL2")
@_in_float
def l2(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
    """√ Σ x², with slope 0 at 0."""
    total = op.reduce_sum(x * x, axes, keepdims)
    # The root is taken of 1 there: its infinite slope would make the gradient NaN.
    is_zero = op.equal(total, 0.0)
    return op.where(is_zero, 0.0, op.sqrt(op.where(is_zero, 1.0, total)))


@_reduction("ReduceLogSum")
@_in_float
def log_sum(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
    """Log Σ x."""
    return op.log(op.reduce_sum(x, axes, keepdims))


@_reduction("ReduceLogSumExp")
@_in_float
def log_sum_exp(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
    """Log Σ exp x, with the largest x taken out of the sum."""
    largest = op.maximum_of(x, axis=axes, keepdims=True)
    largest = op.where(op.isfinite(largest), largest, 0.0)  # ∞ − ∞ would be NaN
    total = op.log(op.reduce_sum(op.exp(x - largest), axes, keepdims=True)) + largest
    return op.reshape(total, op.reduced_shape(x.shape, axes, keepdims))


@_reduction("ReduceMax")
def largest(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
    """The largest x; equal ones share the gradient."""
    return op.maximum_of(x, axis=axes, keepdims=keepdims)


@_reduction("ReduceMean")
def mean(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
    """Σ x / n; of nothing NaN, or 0 where that is an integer."""
    if is_float(x.dtype):
        return op.mean(op.widen(x), axis=axes, keepdims=keepdims).astype(x.dtype)
    result = op.mean(x.astype("float64"), axis=axes, keepdims=keepdims)
    return op.where(op.isfinite(result), result, 0.0).astype(x.dtype)


@_reduction("ReduceMin")
def smallest(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
    """The smallest x; equal ones share the gradient."""
    return op.minimum_of(x, axis=axes, keepdims=keepdims)


@_reduction("ReduceProd")
def product(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
    """Π x."""
    return op.prod(x, axis=axes, keepdims=keepdims)


@_reduction("ReduceSum")
def total(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
    """Σ x."""
    return op.reduce_sum(x, axes, keepdims)


@_reduction("ReduceSumSquare")
def sum_square(x: Tensor, axes: list[int] | None, keepdims: bool) -> Tensor:
    """Σ x²."""
    wide = op.widen(x)
    return op.reduce_sum(wide * wide, axes, keepdims).astype(x.dtype)
