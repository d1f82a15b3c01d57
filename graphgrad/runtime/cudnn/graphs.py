"""From a problem to an operation graph of cuDNN, and what a device is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .backend import CROSS_CORRELATION, DATA_TYPES, Attribute, Descriptor, Kind, Type
from .problem import CONTRACTED, MATMUL, Problem, TensorForm

ALIGNMENT = 16
"""Bytes at whose multiples tensors begin. TVM allocates at larger ones."""

_KINDS = {
    "conv_forward": (Kind.CONVOLUTION_FORWARD, Attribute.FORWARD_ALPHA),
    "conv_data_gradient": (Kind.CONVOLUTION_DATA_GRADIENT, Attribute.DATA_GRADIENT_ALPHA),
    "conv_weight_gradient": (Kind.CONVOLUTION_WEIGHT_GRADIENT, Attribute.WEIGHT_GRADIENT_ALPHA),
}
"""The descriptor of an operation, and the first of its attributes."""

COMPARISONS = {
    "equal": 300,
    "not_equal": 301,
    "greater": 302,
    "greater_equal": 303,
    "less": 304,
    "less_equal": 305,
}
"""Modes of operations that give truth values."""

POINTWISE = {
    "add": 0,
    "multiply": 1,
    "sqrt": 4,
    "divide": 6,
    "subtract": 9,
    "abs": 10,
    "exp": 13,
    "log": 15,
    "negative": 16,
    "rsqrt": 17,
    "erf": 20,
    "identity": 21,
    "tanh": 101,
    "sigmoid": 102,
    "select": 601,
    **COMPARISONS,
}
"""Modes of operations on elements. None of them loses a NaN, as cuDNN's maximum and ReLU do."""


@dataclass(frozen=True)
class Graph:
    """A graph that computes a problem, and what it reads beside the tensors of that.

    Attributes
    ----------
    descriptor : Descriptor
    constants : dict of int to float
        Numbers that are given where it is executed, by their tensors' numbers.
    """

    descriptor: Descriptor
    constants: dict[int, float]


def operation_graph(problem: Problem) -> Graph:
    """The graph that computes a problem; sums, and epilogues, are in float32 or wider.

    Raises
    ------
    CudnnError
        cuDNN refuses it.
    """
    nodes = _Nodes(problem)
    _add_contraction(nodes, problem)
    graph = Descriptor(Kind.OPERATION_GRAPH)
    graph.set(Attribute.GRAPH_OPERATIONS, Type.DESCRIPTOR, nodes.operations).finish()
    return Graph(graph, nodes.constants)


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


class _Nodes:
    """The tensors and the operations of a graph, while it is made."""

    def __init__(self, problem: Problem):
        self.operations: list[Descriptor] = []
        self.constants: dict[int, float] = {}
        self._count = 0
        self.tensors = [self.tensor(form) for form in problem.tensors]

    def tensor(self, form: TensorForm, held: Attribute | None = None) -> Descriptor:
        """The next tensor: in memory, or held elsewhere, as an attribute of it says."""
        self._count += 1
        tensor = Descriptor(Kind.TENSOR)
        tensor.set(Attribute.TENSOR_DATA_TYPE, Type.DATA_TYPE, [DATA_TYPES[form.dtype]])
        tensor.set(Attribute.TENSOR_DIMENSIONS, Type.INT64, form.shape)
        tensor.set(Attribute.TENSOR_STRIDES, Type.INT64, form.strides)
        tensor.set(Attribute.TENSOR_ID, Type.INT64, [self._count])
        tensor.set(Attribute.TENSOR_ALIGNMENT, Type.INT64, [ALIGNMENT])
        if held is not None:
            tensor.set(held, Type.BOOLEAN, [True])
        return tensor.finish()

    def between(self, form: TensorForm, dtype: str = "float32") -> Descriptor:
        """A tensor between operations, which is not in memory."""
        return self.tensor(replace(form, dtype=dtype), Attribute.TENSOR_IS_VIRTUAL)

    def constant(self, value: float, rank: int) -> Descriptor:
        """A tensor of one number."""
        form = TensorForm((1,) * rank, (1,) * rank, "float32")
        tensor = self.tensor(form, Attribute.TENSOR_IS_BY_VALUE)
        self.constants[self._count] = value
        return tensor

    def pointwise(self, op: str, operands: Sequence[Descriptor], result: Descriptor) -> None:
        """An operation on each element of tensors, whose axes are the result's, or 1."""
        mode = Descriptor(Kind.POINTWISE)
        mode.set(Attribute.POINTWISE_MODE, Type.POINTWISE_MODE, [POINTWISE[op]])
        mode.set(Attribute.POINTWISE_COMPUTE_TYPE, Type.DATA_TYPE, [DATA_TYPES["float32"]])
        operation = Descriptor(Kind.POINTWISE_OPERATION)
        operation.set(Attribute.POINTWISE_DESCRIPTOR, Type.DESCRIPTOR, [mode.finish()])
        # A choice has its condition first, as `where` has; for cuDNN it is the last.
        order = (*operands[1:], operands[0]) if op == "select" else operands
        places = (Attribute.POINTWISE_X, Attribute.POINTWISE_B, Attribute.POINTWISE_T)
        for place, operand in zip(places, order, strict=False):
            operation.set(place, Type.DESCRIPTOR, [operand])
        operation.set(Attribute.POINTWISE_Y, Type.DESCRIPTOR, [result])
        self.operations.append(operation.finish())


def _add_contraction(nodes: _Nodes, problem: Problem) -> None:
    """A contraction and its epilogue."""
    # What the last operation gives is rounded where it is written; all else stays in float32.
    last = len(problem.inputs) - CONTRACTED + len(problem.epilogue)
    direct = problem.results.index(last) if problem.results.count(last) == 1 else None
    outputs, rank = nodes.tensors[len(problem.inputs) :], len(problem.output.shape)

    def result(number: int, dtype: str = "float32") -> Descriptor:
        if number == last and direct is not None:
            return outputs[direct]
        return nodes.between(problem.output, dtype)

    contract = _product if problem.op == MATMUL else _convolution
    first = result(0 if problem.epilogue else last)
    nodes.operations.append(contract(problem, [*nodes.tensors[:CONTRACTED], first]))
    values = [first, *nodes.tensors[CONTRACTED : len(problem.inputs)]]
    for step in problem.epilogue:
        operands = [
            values[each] if isinstance(each, int) else nodes.constant(each, rank)
            for each in step.operands
        ]
        values.append(result(len(values), "bool" if step.op in COMPARISONS else "float32"))
        nodes.pointwise(step.op, operands, values[-1])
    for place, number in enumerate(problem.results):
        if place != direct:
            nodes.pointwise("identity", [values[number]], outputs[place])


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
    """Which of a contraction's tensors has a form: an operand, or the result."""
    contracted = (*problem.inputs[:CONTRACTED], problem.output)
    return next(place for place, each in enumerate(contracted) if each is form)


def _product(problem: Problem, tensors: list[Descriptor]) -> Descriptor:
    product = Descriptor(Kind.MATMUL)
    product.set(Attribute.MATMUL_COMPUTE_TYPE, Type.DATA_TYPE, [_compute_type(problem)]).finish()
    operation = Descriptor(Kind.MATMUL_OPERATION)
    operands = (Attribute.MATMUL_A, Attribute.MATMUL_B, Attribute.MATMUL_C)
    for attribute, tensor in zip(operands, tensors, strict=True):
        operation.set(attribute, Type.DESCRIPTOR, [tensor])
    return operation.set(Attribute.MATMUL_DESCRIPTOR, Type.DESCRIPTOR, [product]).finish()
