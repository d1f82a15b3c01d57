"""Gathers, scatters, and operators that find positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Tensor
from ...ops import functional as op
from .node import Node, converter

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


@converter("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node) -> Tensor:
    """The chosen indices of the last axis; a vector counts as a row."""
    x = node.tensor(0)
    rows = op.reshape(x, [1, *x.shape]) if x.ndim == 1 else x
    return op.take(rows, _flat(node.tensor(1)), rows.ndim - 1)


@converter("Compress")
def compress(node: Node) -> Tensor:
    """The slices of x, or its elements where no axis is given, for which the condition holds."""
    x, axis = node.tensor(0), node.attribute("axis", None)
    if axis is None:
        x, axis = _flat(x), 0
    return op.take(x, _flat(_nonzero(node, 1, rank=1)), axis)


@converter("NonZero")
def non_zero(node: Node) -> Tensor:
    """The indices of the elements that are not zero, a column for each."""
    return _nonzero(node, 0, rank=max(node.tensor(0).ndim, 1))


@converter("OneHot")
def one_hot(node: Node) -> Tensor:
    """The value `off` everywhere but where the new axis has the index, which gets the value `on`.

    A negative index counts from the end.
    """
    index, values = node.tensor(0).astype("int64"), node.tensor(2)
    classes = _number(node, 1, "depth")
    axis = node.attribute("axis", -1) % (index.ndim + 1)
    # An index that is out of range after this matches no class, and gives `off` everywhere.
    index = op.where(op.less(index, 0), index + classes, index)
    along_axis = [classes if dim == axis else 1 for dim in range(index.ndim + 1)]
    numbers = op.reshape(op.indices(node.emitter, classes), along_axis)
    off, on = (op.reshape(value, []) for value in op.split(values, 2, axis=0))
    return op.where(op.equal(op.expand_dims(index, [axis]), numbers), on, off)


@converter("ReverseSequence")
def reverse_sequence(node: Node) -> Tensor:
    """x with the first elements of each sequence, as many as its length says, in reverse order."""
    time, batch = node.attribute("time_axis", 0), node.attribute("batch_axis", 1)
    return op.reverse_sequence(node.tensor(0), node.tensor(1), time, batch)


@converter("Scatter", "ScatterElements")
def scatter_elements(node: Node) -> Tensor:
    """x with updates combined at indices along an axis."""
    axis, reduction = node.attribute("axis", 0), _reduction(node)
    return op.scatter_elements(*(node.tensor(k) for k in range(3)), axis, reduction)


@converter("ScatterND")
def scatter_nd(node: Node) -> Tensor:
    """x with updates combined at coordinates."""
    return op.scatter_nd(*(node.tensor(k) for k in range(3)), _reduction(node))


def _reduction(node: Node) -> str:
    reduction = node.attribute("reduction", "none")
    reduction = reduction.decode() if isinstance(reduction, bytes) else reduction
    if reduction not in _REDUCTIONS:
        raise ModelError(f"its reduction {reduction!r} is none of {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[reduction]


@converter("TensorScatter")
def tensor_scatter(node: Node) -> Tensor:
    """A cache with the update written into it along an axis, from an index of each sequence on."""
    past, update = node.tensor(0), node.tensor(1)
    axis, mode = node.attribute("axis", -2) % past.ndim, node.attribute("mode", "linear")
    steps = op.indices(node.emitter, update.shape[axis])
    positions = op.reshape(steps, [d if k == axis else 1 for k, d in enumerate(update.shape)])
    if node.has(2):
        start = node.tensor(2).astype("int64")
        positions = positions + op.reshape(start, [*start.shape, *[1] * (past.ndim - 1)])
    if mode in ("circular", b"circular"):
        extent = relax.op.shape_to_tensor(relax.ShapeExpr([past.shape[axis]]))
        positions = node.emitter.emit(relax.op.floor_mod(positions.expr, extent))
    return op.scatter_elements(past, op.broadcast_to(positions, update.shape), update, axis)


@converter("TopK")
def top_k(node: Node) -> tuple[Tensor, Tensor]:
    """The k largest or smallest elements along an axis in their order, and their indices."""
    k = node.attribute("k") if node.opset < 10 else _number(node, 1, "k")
    axis = node.attribute("axis", -1)
    if k < 1:
        raise ModelError(f"its k must be positive; it is {k}")
    largest = bool(node.attribute("largest", 1))
    values, index = op.topk(node.tensor(0), k, axis, "both", largest, "int64")
    return values, index


def _number(node: Node, index: int, name: str) -> int:
    """An input that is one number, known at import."""
    value = node.constant(index)
    if value is None or value.size != 1:
        raise ModelError(f"its {name} must be one number")
    return int(value.reshape(()))


def _flat(x: Tensor) -> Tensor:
    return op.reshape(x, [math.prod(x.shape)])


def _nonzero(node: Node, index: int, rank: int) -> Tensor:
    """The indices of an input's nonzero elements: a row for each axis, a column per element.

    Where the input is known there is nothing that depends on data.
    """
    try:
        constant = node.constant(index)
    except ModelError:
        constant = None
    if constant is not None and constant.any():
        indices = np.array(np.nonzero(constant if constant.ndim else constant.reshape(1)))
        return node.emitter.emit(relax.const(indices, "int64"))
    indices = node.emitter.emit(relax.op.nonzero(node.tensor(index).expr))
    return _known_shape(node, indices, [rank, tvm.tirx.Var("nonzero", "int64")])


def _known_shape(node: Node, x: Tensor, shape: list[Any]) -> Tensor:
    """A tensor whose shape depends on data, with variables for the extents that are not known."""
    ty = relax.TensorType(shape, x.dtype)
    return node.emitter.lift(node.emitter.builder.match_cast(x.expr, ty))
