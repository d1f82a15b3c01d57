"""Programs that stress compilation: long chains, and indices that are written out."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHAIN = ("Tanh", "Mul", "Sigmoid", "Add", "Neg", "Sub", "Abs")
"""The operators of a chain, again and again; those of two operands read a constant or the input."""

OPSET = 17


class Graph:
    """An ONNX graph while it is written; values are float32 unless an operator makes others."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def __call__(
        self, operator: str, *inputs: str | float | np.ndarray, **attributes: object
    ) -> str:
        """Add a node, and return the name of its output; numbers and arrays become constants."""
        name = f"v{len(self._nodes)}"
        names = [value if isinstance(value, str) else self._constant(value) for value in inputs]
        self._nodes.append(helper.make_node(operator, names, [name], **attributes))
        return name

    def model(self, inputs: dict[str, list[int]], output: str, shape: list[int]) -> onnx.ModelProto:
        """Return the model of the nodes so far."""
        self._nodes.append(helper.make_node("Identity", [output], ["y"]))
        infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self._nodes, "graph", infos, [result], self._constants)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def _constant(self, value: float | np.ndarray) -> str:
        array = np.float32(value) if isinstance(value, float) else np.asarray(value)
        name = f"onnx::Constant_{len(self._constants)}"  # exporters name literals so
        self._constants.append(numpy_helper.from_array(array, name))
        return name


def chain(length: int) -> onnx.ModelProto:
    """Return a chain of elementwise operators."""
    graph, value = Graph(), "x"
    for position in range(length):
        operator = CHAIN[position % len(CHAIN)]
        others = ("x" if position % 2 else 1.01,) if operator in ("Mul", "Add", "Sub") else ()
        value = graph(operator, value, *others)
    return graph.model({"x": [2, 3]}, value, [2, 3])


def grid_sample(size: int, corners: int) -> onnx.ModelProto:
    """Return a grid sample of an image of size × size, written out: at the nearest, or bilinear.

    Parameters
    ----------
    size : int
    corners : int
        1 for the nearest pixel, 2 for the four around a point.
    """
    graph, points = Graph(), 12
    image = graph("Reshape", "image", np.array([3, size * size]))
    axes = []
    for axis in range(2):
        position = graph("Gather", "grid", np.array(axis), axis=1)
        position = graph("Mul", graph("Add", position, 1.0), size / 2 - 0.5)
        first = graph("Round" if corners == 1 else "Floor", position)
        axes.append((position, [first, graph("Add", first, 1.0)][:corners]))
    total = None
    for row in axes[0][1]:
        for column in axes[1][1]:
            index = graph("Mul", _inside(graph, row, size), np.array(size))
            index = graph("Add", index, _inside(graph, column, size))
            value = graph("Gather", image, index, axis=1)
            for position, corner in ((axes[0][0], row), (axes[1][0], column)):
                if corners == 2:
                    distance = graph("Abs", graph("Sub", position, corner))
                    value = graph("Mul", value, graph("Sub", 1.0, distance))
            total = value if total is None else graph("Add", total, value)
    assert total is not None
    return graph.model({"image": [3, size, size], "grid": [points, 2]}, total, [3, points])


def _inside(graph: Graph, index: str, size: int) -> str:
    """Return an index, mirrored where it lies outside, clamped and cast."""
    low, high = graph("Less", index, 0.0), graph("Greater", index, size - 1.0)
    clamped = graph("Clip", index, 0.0, size - 1.0)
    mirrored = graph("Where", low, graph("Neg", index), index)
    chosen = graph("Where", graph("Or", low, high), graph("Min", clamped, mirrored), index)
    return graph("Cast", graph("Clip", chosen, 0.0, size - 1.0), to=TensorProto.INT64)
