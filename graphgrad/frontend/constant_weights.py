"""Lifting of weights that nodes of a graph hold, so that they are initializers like any other."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import ModelError
from .onnx_graph import attribute, is_float, output_names, remove_nodes
from .weight_roles import Judge

_MOST_BYTES = 2**31 - 1
"""What the weights may take up that a file only describes: one message of protocol buffers holds
no more, and a few bytes could ask for terabytes. Those of VGG-19 are 575 MB.
"""


def lift_constant_weights(graph: onnx.GraphProto) -> list[str]:
    """Make the weights that nodes of a graph hold initializers, in place.

    Those are the float tensors of Constant nodes, and of ConstantOfShape nodes whose shape is
    constant, that a layer reads as its weights. Running statistics made by ConstantOfShape become
    initializers, too.

    Returns
    -------
    list of str
        Notes on what was lifted, and on what stays constant.

    Raises
    ------
    ModelError
        ConstantOfShape nodes describe more than one message of protocol buffers holds.
    """
    judge = Judge(graph)
    producers = {name: node for node in graph.node for name in node.output}
    graph_outputs = output_names(graph)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    lifted, constant = [], []
    lifted_bytes = 0
    for node in graph.node:
        array = _held(node, producers, tensors)
        if array is None:
            continue
        name = node.output[0]
        is_statistic = judge.is_statistic(name)
        if is_statistic and node.op_type == "Constant":
            continue  # made an initializer, named after its layer, where statistics are split
        is_weight = is_statistic or judge.is_layer_weight(name, array)
        if is_weight and name not in graph_outputs:
            lifted_bytes += array.nbytes
            _check_bytes(name, lifted_bytes)
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
            lifted.append(name)
        elif node.op_type == "Constant" and array.size > 1:
            constant.append(name)
    remove_nodes(graph, set(lifted))
    notes = []
    if lifted:
        notes.append(f"weights held by Constant or ConstantOfShape nodes made parameters: {lifted}")
    if constant:
        notes.append(f"float tensors of Constant nodes stay constant: {constant}")
    return notes


def _held(
    node: onnx.NodeProto,
    producers: Mapping[str, onnx.NodeProto],
    tensors: Mapping[str, onnx.TensorProto],
) -> np.ndarray | None:
    """The float array, of one axis or more, that a Constant or ConstantOfShape node gives.

    None if the node gives anything else, or an array of a shape that is computed. The array of a
    ConstantOfShape is one number broadcast, so that it takes no memory until it is lifted.
    """
    value = attribute(node, "value", None)
    if node.op_type == "Constant":
        return numpy_helper.to_array(value) if is_float(value) and value.dims else None
    if node.op_type != "ConstantOfShape":
        return None
    shape_name = node.input[0]
    shape_producer = producers.get(shape_name)
    shape_tensor = tensors.get(shape_name)
    if shape_producer is not None and shape_producer.op_type == "Constant":
        shape_tensor = attribute(shape_producer, "value", None)
    if (
        shape_tensor is None
        or not (value is None or is_float(value))
        or not math.prod(shape_tensor.dims)
    ):
        return None
    fill = np.zeros(1, "float32") if value is None else numpy_helper.to_array(value)
    shape = numpy_helper.to_array(shape_tensor).reshape(-1).tolist()
    if fill.size != 1 or min(shape) < 0:
        return None  # what is no size stays a node
    _check_bytes(node.output[0], math.prod(shape) * fill.itemsize)
    return np.broadcast_to(fill.reshape(()), shape)


def _check_bytes(name: str, byte_count: int) -> None:
    """Raise a `ModelError` if the tensors up to one of a name take too much."""
    if byte_count > _MOST_BYTES:
        raise ModelError(
            f"tensor {name!r} and the weights before it, which nodes describe by a shape, take "
            f"{byte_count:,} bytes, and {_MOST_BYTES:,} are served: store them as initializers"
        )
