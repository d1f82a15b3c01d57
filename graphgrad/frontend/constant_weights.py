"""The decision which float constants of a file are weights, and which belong to the computation.

A file says only that a tensor is a constant. What it is *for* shows in where it is read and, for
single numbers, in its name: exporters name a parameter after its module (``head.temperature``) and
a literal after the operation that reads it (``onnx::Mul_12``, ``/Constant_output_0``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from .onnx_graph import Reader, attribute, is_float, output_names, readers, remove_nodes

# Inputs, by operator and index, that hold the weights of a layer.
WEIGHT_SLOTS = frozenset(
    {
        ("BatchNormalization", 1),
        ("BatchNormalization", 2),
        ("Conv", 1),
        ("Conv", 2),
        ("ConvTranspose", 1),
        ("ConvTranspose", 2),
        ("DeformConv", 1),
        ("DeformConv", 3),
        ("Gather", 0),
        ("Gemm", 1),
        ("Gemm", 2),
        ("GroupNormalization", 1),
        ("GroupNormalization", 2),
        ("InstanceNormalization", 1),
        ("InstanceNormalization", 2),
        ("LayerNormalization", 1),
        ("LayerNormalization", 2),
        ("MatMul", 1),
        ("PRelu", 1),
        ("RMSNormalization", 1),
    }
)

# A vector that scales or shifts the output of one of these is a weight as well.
_LAYERS = frozenset({"BatchNormalization", "Conv", "ConvTranspose", "Gemm", "MatMul"})

# What a weight may pass through on its way to its layer.
_VIEWS = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})

# Names that exporters and optimizers of graphs give to literals.
_LITERAL_NAME = re.compile(
    r"""^\d+$                                       # 12
    | ^/                                            # /block/Constant_output_0
    | ::                                            # onnx::Mul_12
    | (^|_)(constant|const)(_\w*)?_?\d+$            # const_fold_opt__7, _tensor_constant0
    | (^|_)(tmp|val)_\d+$                           # val_3
    | (lifted|scalar)_tensor                        # scalar_tensor_default
    | /[xy]:\d+$                                    # model/mul/y:0
    """,
    re.VERBOSE | re.IGNORECASE,
)


def lift_constant_weights(graph: onnx.GraphProto) -> list[str]:
    """Make the weights that nodes of a graph hold initializers, in place.

    Those are the float tensors of Constant nodes, and of ConstantOfShape nodes whose shape is
    constant, that feed the weights of a layer. Running statistics made by ConstantOfShape become
    initializers, too.

    Returns
    -------
    list of str
        Notes on what was lifted, and on what stays constant.
    """
    readers_by_name = readers(graph)
    producers = {name: node for node in graph.node for name in node.output}
    graph_outputs = output_names(graph)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    lifted, constant = [], []
    for node in graph.node:
        array = _held(node, producers, tensors)
        if array is None:
            continue
        name = node.output[0]
        is_statistic = any(reader.is_statistic for reader in readers_by_name.get(name, []))
        if is_statistic and node.op_type == "Constant":
            continue  # made an initializer, named after its layer, where statistics are split
        is_weight = is_statistic or _feeds_a_layer(name, array.shape, readers_by_name, producers)
        if is_weight and name not in graph_outputs:
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


def is_literal(tensor: onnx.TensorProto, readers: Sequence[Reader]) -> bool:
    """Whether a float initializer is a single number with a name as exporters give to literals.

    `readers` are the uses of the initializer. The one number of a layer's weights is a parameter
    whatever its name.
    """
    return (
        math.prod(tensor.dims) == 1
        and _LITERAL_NAME.search(tensor.name) is not None
        and not any(_is_weight_slot(reader) for reader in readers)
    )


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
    return np.broadcast_to(fill.reshape(()), tuple(numpy_helper.to_array(shape_tensor)))


def _is_weight_slot(reader: Reader) -> bool:
    """Whether a layer reads its weights here."""
    return (reader.node.op_type, reader.index) in WEIGHT_SLOTS


def _feeds_a_layer(
    name: str,
    shape: Sequence[int],
    readers_by_name: Mapping[str, Sequence[Reader]],
    producers: Mapping[str, onnx.NodeProto],
) -> bool:
    """Whether a constant is the weight of a layer, which it may reach through views."""
    # One axis may be longer than 1: (1, C, 1, 1) scales channels just as (C,) does.
    is_vector = math.prod(shape) > 1 and max(shape) == math.prod(shape)
    worklist = [name]
    while worklist:
        for reader in readers_by_name.get(worklist.pop(), []):
            if _is_weight_slot(reader) or (is_vector and _is_affine(reader, producers)):
                return True
            # Input 0 has the elements; others say the shape or the axes.
            if reader.node.op_type in _VIEWS and reader.index == 0:
                worklist.append(reader.node.output[0])
    return False


def _is_affine(reader: Reader, producers: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether an Add or Mul scales or shifts the output of a layer.

    A Mul may stand between the two: scale and shift are often written one after the other.
    """
    if reader.node.op_type not in ("Add", "Mul"):
        return False
    # Of the two inputs, 0 and 1, the one that is not the constant.
    other_producer = producers.get(reader.node.input[1 - reader.index])
    if other_producer is not None and other_producer.op_type == "Mul":
        return any(
            name in producers and producers[name].op_type in _LAYERS
            for name in other_producer.input
        )
    return other_producer is not None and other_producer.op_type in _LAYERS
