"""From a problem to an operation graph of cuDNN, and what a device is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .attention import attention_nodes
from .backend import CROSS_CORRELATION, DATA_TYPES, Attribute, Descriptor, Kind, Type
from .nodes import COMPARISONS, Nodes
from .problem import ATTENTION, ATTENTION_GRADIENT, CONTRACTED, MATMUL, Problem, TensorForm

_KINDS = {
    "conv_forward": (Kind.CONVOLUTION_FORWARD, Attribute.FORWARD_ALPHA),
    "conv_data_gradient": (Kind.CONVOLUTION_DATA_GRADIENT, Attribute.DATA_GRADIENT_ALPHA),
    "conv_weight_gradient": (Kind.CONVOLUTION_WEIGHT_GRADIENT, Attribute.WEIGHT_GRADIENT_ALPHA),
}
"""The descriptor of an operation, and the first of its attributes."""


@dataclass(frozen=True)
class Graph:
    """A graph that computes a problem, and what it reads beside the tensors of that.

    Attributes
    ----------
    descriptor : Descriptor
    constants : dict of int to float
        Numbers that are given where it is executed, by their tensors' numbers.
    scratches : dict of int to int
        Where in the workspace further tensors begin, in bytes, by their numbers.
    scratch_bytes : int
        What these take; cuDNN's own workspace is behind it.
    """

    descriptor: Descriptor
    constants: dict[int, float]
    scratches: dict[int, int]
    scratch_bytes: int


def operation_graph(problem: Problem) -> Graph:
    """The graph that computes a problem; sums, and epilogues, are in float32 or wider.

    Raises
    ------
    CudnnError
        cuDNN refuses it.
    """
    attends = problem.op in (ATTENTION, ATTENTION_GRADIENT)
    nodes = attention_nodes(problem) if attends else _contraction_nodes(problem)
    graph = Descriptor(Kind.OPERATION_GRAPH)
    graph.set(Attribute.GRAPH_OPERATIONS, Type.DESCRIPTOR, nodes.operations).finish()
    return Graph(graph, nodes.constants, nodes.scratches, nodes.scratch_bytes)


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


def _contraction_nodes(problem: Problem) -> Nodes:
    """The graph of a contraction and its epilogue."""
    nodes = Nodes(problem.tensors)
    # What the last operation gives is rounded where it is written; all else stays in float32.
    last = len(problem.inputs) - CONTRACTED + len(problem.epilogue)
    direct = problem.results.index(last) if problem.results.count(last) == 1 else None
    outputs, rank = nodes.tensors[len(problem.inputs) :], len(problem.output.shape)

    def result(number: int, dtype: str = "float32") -> Descriptor:
        if number == last and direct is not None:
            return outputs[direct]
        return nodes.between(problem.output, dtype)

    first = result(0 if problem.epilogue else last)
    a, b = nodes.tensors[:CONTRACTED]
    if problem.op == MATMUL:
        nodes.product(a, b, first, _compute_type(problem))
    else:
        nodes.operations.append(_convolution(problem, [a, b, first]))
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
    return nodes


def _compute_type(problem: Problem) -> str:
    wide = any(tensor.dtype == "float64" for tensor in problem.tensors)
    return "float64" if wide else "float32"


def _convolution(problem: Problem, tensors: list[Descriptor]) -> Descriptor:
    compute_type = DATA_TYPES[_compute_type(problem)]
    window = (
        Descriptor(Kind.CONVOLUTION)
        .set(Attribute.CONVOLUTION_COMPUTE_TYPE, Type.DATA_TYPE, [compute_type])
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
