"""Sums, means, extrema and positions along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Tensor
from ...ops import functional as op
from ..converters.reduce import l1, l2
from .node import Node, converter


def _axes(dims: int | Sequence[int] | None) -> list[int] | None:
    """Axes as functions take them; None, and in PyTorch an empty list too, are all."""
    dims = [dims] if isinstance(dims, int) else dims
    return list(dims) if dims else None


@converter("sum.dim_IntList")
def sums(node: Node, x: Tensor, dims: Any, keepdims: bool, dtype: Any) -> Tensor:
    """Σ x along axes."""
    return op.reduce_sum(x.astype(node.dtype), _axes(dims), keepdims)


@converter("mean.default")
def mean(node: Node, x: Tensor, dtype: Any) -> Tensor:
    """The mean of all elements."""
    return op.mean(x.astype(node.dtype))


@converter("mean.dim")
def means(node: Node, x: Tensor, dims: Any, keepdims: bool, dtype: Any) -> Tensor:
    """Means along axes."""
    return op.mean(x.astype(node.dtype), _axes(dims), keepdims)


@converter("var.correction")
def variance(node: Node, x: Tensor, dims: Any, correction: Any, keepdims: bool) -> Tensor:
    """Σ (x − μ)² / (n − correction) along axes."""
    axes = _axes(dims)
    centered = x - op.mean(x, axes, True)
    extents = [x.shape[axis] for axis in op.normalize_axes(axes, x.ndim)]
    total = op.reduce_sum(centered * centered, axes, keepdims)
    correction = 1 if correction is None else correction
    count: Any = 1
    for extent in extents:
        count = count * extent
    if isinstance(count, int):
        return total / float(max(count - correction, 0))
    mean = op.divide_by_count(total, extents)
    if not correction:
        return mean
    size = node.emitter.emit(relax.op.shape_to_tensor(relax.ShapeExpr([count])))
    size = op.reshape(size, []).astype(x.dtype)
    return mean * (size / (size - float(correction)))


@converter("amax.default")
def largest(node: Node, x: Tensor, dims: Any, keepdims: bool) -> Tensor:
    """The maximum along axes; equal ones share the cotangent."""
    return op.maximum_of(x, _axes(dims), keepdims)


@converter("amin.default")
def smallest(node: Node, x: Tensor, dims: Any, keepdims: bool) -> Tensor:
    """The minimum along axes."""
    return op.minimum_of(x, _axes(dims), keepdims)


@converter("max.dim")
def first_largest(node: Node, x: Tensor, dim: int, keepdims: bool) -> list[Tensor]:
    """The maximum along an axis, and where it first is; it has all of the cotangent."""
    return _first(x, dim, keepdims, relax.op.argmax)


@converter("min.dim")
def first_smallest(node: Node, x: Tensor, dim: int, keepdims: bool) -> list[Tensor]:
    """The minimum along an axis, and where it first is."""
    return _first(x, dim, keepdims, relax.op.argmin)


def _first(x: Tensor, dim: int, keepdims: bool, position: Any) -> list[Tensor]:
    index = x.emitter.emit(position(x.expr, dim, True))
    value = op.gather_elements(x, index, dim % x.ndim)
    if keepdims:
        return [value, index]
    shape = op.reduced_shape(x.shape, [dim], keepdims=False)
    return [op.reshape(result, shape) for result in (value, index)]


@converter("prod.default")
def product_of_all(node: Node, x: Tensor, dtype: Any) -> Tensor:
    """Π x"""
    return op.prod(x.astype(node.dtype))


@converter("prod.dim_int")
def product(node: Node, x: Tensor, dim: int, keepdims: bool, dtype: Any) -> Tensor:
    """Π x along an axis."""
    return op.prod(x.astype(node.dtype), [dim], keepdims)


@converter("sort.default")
def ordered(node: Node, x: Tensor, dim: int, descending: bool) -> list[Tensor]:
    """x in order along an axis, and where its elements were; of equal ones the first is first."""
    index = op.argsort(x, dim % x.ndim, descending, "int64")
    return [op.gather_elements(x, index, dim % x.ndim), index]


@converter("sort.stable")
def stably_ordered(
    node: Node, x: Tensor, stable: bool | None, dim: int, descending: bool
) -> list[Tensor]:
    """As sort, which is stable."""
    return ordered(node, x, dim, descending)


@converter("argmax.default", "argmin.default")
def position(node: Node, x: Tensor, dim: int | None, keepdims: bool) -> Tensor:
    """Where the extremum along an axis, or of all elements, first is."""
    name = node.node.target.__name__.partition(".")[0]
    function = {"argmax": relax.op.argmax, "argmin": relax.op.argmin}[name]
    if dim is None:
        # Of a symbolic extent TVM cannot infer what is left for -1.
        x, dim, keepdims = op.reshape(x, [math.prod(x.shape)]), 0, False
    return node.emitter.emit(function(x.expr, dim, keepdims))


@converter("max.default")
def largest_of_all(node: Node, x: Tensor) -> Tensor:
    """The maximum of all elements; equal ones share the cotangent."""
    return op.maximum_of(x)


@converter("min.default")
def smallest_of_all(node: Node, x: Tensor) -> Tensor:
    """The minimum of all elements."""
    return op.minimum_of(x)


@converter("linalg_vector_norm.default")
def norm(node: Node, x: Tensor, p: float, dims: Any, keepdims: bool, dtype: Any) -> Tensor:
    """(Σ |x|ᵖ)^(1/p) along axes."""
    x, axes = x.astype(node.dtype), _axes(dims)
    if p == 2:
        return l2(x, axes, keepdims)
    if p == 1:
        return l1(x, axes, keepdims)
    if abs(p) == math.inf:
        return (op.maximum_of if p > 0 else op.minimum_of)(op.abs(x), axes, keepdims)
    if p == 0:
        raise ModelError("its order is 0, a count, which has no gradient; use ne and sum")
    return op.power(op.reduce_sum(op.power(op.abs(x), float(p)), axes, keepdims), 1.0 / p)


@converter("any.default", "any.dim", "any.dims")
def holds_somewhere(node: Node, x: Tensor, dims: Any = None, keepdims: bool = False) -> Tensor:
    """Whether something along axes is not zero."""
    count = op.not_equal(x, 0).astype("int32") if x.dtype != "bool" else x.astype("int32")
    return op.maximum_of(count, _axes(dims), keepdims).astype("bool")


@converter("cumsum.default")
def running_sums(node: Node, x: Tensor, dim: int, dtype: Any) -> Tensor:
    """Sums of what is up to each element."""
    return op.cumsum(x.astype(node.dtype), dim)


@converter("topk.default")
def top(node: Node, x: Tensor, k: int, dim: int, largest: bool, is_sorted: bool) -> list[Tensor]:
    """The largest or smallest elements along an axis, and where they are."""
    return op.topk(x, k, dim, "both", largest, "int64")
