"""From a problem to an operation graph of cuDNN, and what a device is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .backend import CROSS_CORRELATION, DATA_TYPES, Attribute, Descriptor, Kind, Type
from .problem import MATMUL, Problem, TensorForm

ALIGNMENT = 16
"""Bytes at whose multiples tensors begin. TVM allocates at larger ones."""

_KINDS = {
    "conv_forward": (Kind.CONVOLUTION_FORWARD, Attribute.FORWARD_ALPHA),
    "conv_data_gradient": (Kind.CONVOLUTION_DATA_GRADIENT, Attribute.DATA_GRADIENT_ALPHA),
    "conv_weight_gradient": (Kind.CONVOLUTION_WEIGHT_GRADIENT, Attribute.WEIGHT_GRADIENT_ALPHA),
}
"""The descriptor of an operation, and the first of its attributes."""


def operation_graph(problem: Problem) -> Descriptor:
    """The graph of one operation that computes a problem; sums are in float32 or wider.

    Raises
    ------
    CudnnError
        cuDNN refuses it.
    """
    tensors = [_tensor(number, form) for number, form in enumerate(problem.tensors, 1)]
    operation = (_product if problem.op == MATMUL else _convolution)(problem, tensors)
    graph = Descriptor(Kind.OPERATION_GRAPH)
    return graph.set(Attribute.GRAPH_OPERATIONS, Type.DESCRIPTOR, [operation]).finish()


def device(properties: Mapping[str, Any]) -> Descriptor:
    """A device by its properties, which need not be there.

    Raises
    ------
    CudnnError
        cuDNN knows no such device.
    """
    text = json.dumps(dict(properties)).encode() + b"\0"
    described = Descriptor(Kind.DEVICE_PROPERTIES)
    return described.set(Attribute.DEVICE_JSON, Type.CHAR, text).finish()


def _tensor(number: int, form: TensorForm) -> Descriptor:
    return (
        Descriptor(Kind.TENSOR)
        .set(Attribute.TENSOR_DATA_TYPE, Type.DATA_TYPE, [DATA_TYPES[form.dtype]])
        .set(Attribute.TENSOR_DIMENSIONS, Type.INT64, form.shape)
        .set(Attribute.TENSOR_STRIDES, Type.INT64, form.strides)
        .set(Attribute.TENSOR_ID, Type.INT64, [number])
        .set(Attribute.TENSOR_ALIGNMENT, Type.INT64, [ALIGNMENT])
        .finish()
    )


def _compute_type(problem: Problem) -> int:
    wide = any(tensor.dtype == "float64" for tensor in problem.tensors)
    return DATA_TYPES["float64" if wide else "float32"]


def _convolution(problem: Problem, tensors: list[Descriptor]) -> Descriptor:
    window = (
        Descriptor(Kind.CONVOLUTION)
        .set(Attribute.CONVOLUTION_COMPUTE_TYPE, Type.DATA_TYPE, [_compute_type(problem)])
        .set(Attribute.CONVOLUTION_MODE, Type.CONVOLUTION_MODE, [CROSS_CORRELATION])
        .set(Attribute.CONVOLUTION_DILATIONS, Type.INT64, problem.dilation)
        .set(Attribute.CONVOLUTION_STRIDES, Type.INT64, problem.strides)
        .set(Attribute.CONVOLUTION_PRE_PADDINGS, Type.INT64, problem.padding_before)
        .set(Attribute.CONVOLUTION_POST_PADDINGS, Type.INT64, problem.padding_after)
        .set(Attribute.CONVOLUTION_SPATIAL_DIMS, Type.INT64, [len(problem.strides)])
        .finish()
    )
    # The attributes of the three kinds have one order: alpha, beta, the window, then the weights,
    # the side of the input channels, and that of the output channels.
    kind, alpha = _KINDS[problem.op]
    operation = (
        Descriptor(kind)
        .set(alpha, Type.FLOAT, [1.0])
        .set(alpha + 1, Type.FLOAT, [0.0])
        .set(alpha + 2, Type.DESCRIPTOR, [window])
    )
    for attribute, form in enumerate((problem.weights, problem.data, problem.result), alpha + 3):
        operation.set(attribute, Type.DESCRIPTOR, [tensors[_place(problem, form)]])
    return operation.finish()


def _place(problem: Problem, form: TensorForm) -> int:
    """The number of a tensor of a problem."""
    return next(place for place, each in enumerate(problem.tensors) if each is form)


def _product(problem: Problem, tensors: list[Descriptor]) -> Descriptor:
    product = Descriptor(Kind.MATMUL)
    product.set(Attribute.MATMUL_COMPUTE_TYPE, Type.DATA_TYPE, [_compute_type(problem)]).finish()
    operation = Descriptor(Kind.MATMUL_OPERATION)
    operands = (Attribute.MATMUL_A, Attribute.MATMUL_B, Attribute.MATMUL_C)
    for attribute, tensor in zip(operands, tensors, strict=True):
        operation.set(attribute, Type.DESCRIPTOR, [tensor])
    return operation.set(Attribute.MATMUL_DESCRIPTOR, Type.DESCRIPTOR, [product]).finish()
