"""Random weights for a network whose weights are made by ConstantOfShape nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_NORM = {1: "scale", 2: "shift", 3: "mean", 4: "variance"}
"""What the inputs of BatchNormalization are."""


def with_random_weights(model: onnx.ModelProto, seed: int) -> tuple[onnx.ModelProto, list[str]]:
    """Return a model whose float constants are random initialisers, and their names.

    Weights of rank 2 and more keep the size of activations behind a ReLU (He et al. 2015; without
    the factor of two where residual sums make up for what ReLUs take, lest the last softmax
    saturates), scales are near 1, variances positive, and all else is small.
    """
    generator = np.random.default_rng(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    shapes = _weight_shapes(graph)
    roles = _roles(graph)
    gain = 1.0 if any(node.op_type == "Sum" for node in graph.node) else 2.0
    nodes = [node for node in graph.node if node.output[0] not in shapes]
    declared = {value.name for value in graph.input}
    kept = [tensor for tensor in graph.initializer if tensor.name not in shapes]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    for name, shape in shapes.items():
        values = _draw(shape, roles.get(name, ""), gain, generator).astype("float32")
        graph.initializer.append(numpy_helper.from_array(values, name))
        if name not in declared:  # until IR version 4 an initialiser is an input, too
            float32 = onnx.TensorProto.FLOAT
            graph.input.append(helper.make_tensor_value_info(name, float32, shape))
    return copy, list(shapes)


def _weight_shapes(graph: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of each float constant that a node reads, by name."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    read = set(chain.from_iterable(node.input for node in graph.node))
    shapes = {
        tensor.name: tuple(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and tensor.name in read
    }
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(numpy_helper.to_array(tensors[node.input[0]]).tolist())
    return shapes


def _roles(graph: Any) -> dict[str, str]:
    """Return what the vectors are for: the scale, shift, mean or variance of a norm."""
    readers = {
        name: (node, slot) for node in graph.node for slot, name in enumerate(node.input) if name
    }

    def role(name: str) -> str:
        node, slot = readers.get(name, (None, 0))
        if node is None:
            return ""
        if node.op_type == "Unsqueeze":
            return role(node.output[0])
        if node.op_type == "BatchNormalization":
            return _NORM.get(slot, "")
        return "scale" if node.op_type == "Mul" else ""

    return {name: role(name) for name in readers}


def _draw(
    shape: tuple[int, ...], role: str, gain: float, generator: np.random.Generator
) -> np.ndarray:
    draws: dict[str, Callable[[], np.ndarray]] = {
        "scale": lambda: generator.uniform(0.8, 1.2, shape),
        "variance": lambda: generator.uniform(0.7, 1.4, shape),
    }
    if role in draws:
        return draws[role]()
    extents = [extent for extent in shape if extent > 1]
    fan_in = math.prod(extents[1:])  # what remains of Conv's (out, in, kernel…), Gemm's (out, in)
    return generator.standard_normal(shape) * (0.1 if len(extents) < 2 else (gain / fan_in) ** 0.5)
