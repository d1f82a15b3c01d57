"""Operators between floats and quantized integers, in terms of ops with gradients.

What is rounded has no gradient; the scales by which integers become floats again have one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Tensor
from ...ops import functional as op
from .node import Node, converter

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
"""The dtypes that are dequantized here; those of fewer bits, and floats of 8 bits, by TVM."""

_BOUNDS = {
    dtype: (float(np.iinfo(dtype).min), float(np.iinfo(dtype).max))
    for dtype in ("int8", "uint8", "int16", "uint16")
}
"""The least and the largest number of each dtype that floats are quantized to here."""


@converter("DequantizeLinear")
def dequantize_linear(node: Node) -> Any:
    """(x − zero point) · scale; both for all, for each element of an axis, or for blocks of it."""
    x, scale = node.tensor(0), node.tensor(1)
    if x.dtype not in _INTEGERS:
        return tuple(node.stock())
    axis = int(node.attribute("axis", 1))
    block = int(node.attribute("block_size", 0))
    difference = x.astype("int32")
    if node.has(2):
        zero_point = node.tensor(2).astype("int32")
        difference = difference - _along(zero_point, x, axis, block)
    # In float32, as integers of 16 bits do not fit into half precision.
    value = difference.astype("float32") * _along(scale.astype("float32"), x, axis, block)
    return value.astype(scale.dtype)


@converter("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: Node) -> tuple[Tensor, ...]:
    """Unsigned bytes, their scale and their zero point, by the range of the values and 0."""
    x = node.tensor(0)
    low, high = op.minimum(op.minimum_of(x), 0.0), op.maximum(op.maximum_of(x), 0.0)
    scale = (high - low) / 255.0
    # Of zeros alone the scale is 0, and what is divided by it does not matter.
    divisor = op.where(op.equal(scale, 0.0), 1.0, scale)
    zero_point = op.clip(op.round(low * -1.0 / divisor), 0.0, 255.0)
    y = op.clip(op.round(x / divisor) + zero_point, 0.0, 255.0)
    return y.astype("uint8"), scale, zero_point.astype("uint8")


@converter("QuantizeLinear")
def quantize_linear(node: Node) -> Any:
    """x / scale, rounded, + zero point; numbers that the integers do not have are clipped."""
    x, scale = node.tensor(0), node.tensor(1)
    dtype = _quantized_dtype(node)
    if dtype not in _BOUNDS:
        return tuple(node.stock())
    axis = int(node.attribute("axis", 1))
    block = int(node.attribute("block_size", 0))
    value = op.round(x.astype("float32") / _along(scale.astype("float32"), x, axis, block))
    if node.has(2):
        value = value + _along(node.tensor(2).astype("float32"), x, axis, block)
    return op.clip(value, *_BOUNDS[dtype]).astype(dtype)


def _quantized_dtype(node: Node) -> str:
    """The dtype of what a node quantizes: that of the zero point, else of the attribute."""
    if node.has(2):
        return node.tensor(2).dtype
    number = int(node.attribute("output_dtype", 0)) or int(onnx.TensorProto.UINT8)
    return str(onnx.helper.tensor_dtype_to_np_dtype(number))


def _along(parameter: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """A scale or a zero point in a shape that is broadcast to that of the data.

    Raises
    ------
    ModelError
        Its shape is not one that the data have.
    """
    rank, axis = len(x.shape), axis % max(len(x.shape), 1)
    if block > 0:
        if len(parameter.shape) != rank:
            raise ModelError(
                f"blocks of {block} along axis {axis} need a scale of rank {rank}, given "
                f"{parameter.shape}"
            )
        repeated = parameter.emitter.emit(relax.op.repeat(parameter.expr, block, axis))
        return op.strided_slice(repeated, [axis], [0], [x.shape[axis]], assume_inbound=True)
    if len(parameter.shape) != 1 or parameter.shape == [1]:
        return op.reshape(parameter, [])
    return op.reshape(parameter, [parameter.shape[0] if i == axis else 1 for i in range(rank)])
