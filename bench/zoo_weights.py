"""Random weights for a network whose weights are made by ConstantOfShape nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

_NORM = {1: "scale", 2: "shift", 3: "mean", 4: "variance"}
"""What the inputs of BatchNormalization are."""


def random_weights(graph: onnx.GraphProto, seed: int) -> dict[str, np.ndarray]:
    """Return random float64 values for every float constant that a node of a graph reads, by name.

    Weights of rank 2 and more keep the size of activations behind a ReLU (He et al. 2015; without
    the factor of two where residual sums make up for what ReLUs take, lest the last softmax
    saturates), scales are near 1, variances positive, and all else is small.
    """
    generator = np.random.default_rng(seed)
    gain = 1.0 if any(node.op_type == "Sum" for node in graph.node) else 2.0
    roles = _roles(graph)
    return {
        name: _draw(shape, roles.get(name, ""), gain, generator)
        for name, shape in _weight_shapes(graph).items()
    }


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
