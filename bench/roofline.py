"""The least time of a training step: its operations at the machine's peak, and its bytes.

Operations are those of contractions in their direct form: forward, and in the gradients of both
operands, but for that of the model's own input. Bytes: each contraction reads its operands and
writes its result once, each of the three times; the optimizer reads weight, gradient and momentum,
and writes two of them. All else counts as fused into these, and so do the scores of attention: of
a product of two activations, the largest of the three tensors need not leave the cache.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

_PEAK = Path(__file__).with_name("peak.py")
_FLOAT = 4
_SMALL = 256
"""Elements of initializers that may be shapes, which inference reads."""


@dataclass(frozen=True)
class Contraction:
    """A convolution or a product of matrices.

    Attributes
    ----------
    multiplications : int
        Forward.
    elements : tuple of int
        Of its operands and its result.
    of_input, of_weight : bool
        Whether it takes the model's input; whether it takes a weight.
    """

    multiplications: int
    elements: tuple[int, int, int]
    of_input: bool
    of_weight: bool

    @property
    def operations(self) -> int:
        """Of a training step: two for each multiplication, forward and in each gradient."""
        return 2 * self.multiplications * (2 if self.of_input else 3)

    @property
    def bytes(self) -> int:
        """Of a training step."""
        moved = self.elements if self.of_weight else sorted(self.elements)[:2]
        return _FLOAT * sum(moved) * (2 if self.of_input else 3)


def contractions(proto: onnx.ModelProto) -> Iterator[Contraction]:
    """The contractions of a file with fixed shapes, in order."""
    graph = onnx.shape_inference.infer_shapes(_light(proto), data_prop=True).graph
    shapes = {
        value.name: [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.input, *graph.output)
    }
    weights = {tensor.name for tensor in proto.graph.initializer}
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in weights:
            weights.add(node.output[0])
        if node.op_type not in _SUMMED:
            continue
        names = (*node.input[:2], node.output[0])
        elements = [math.prod(shapes[name]) for name in names]
        yield Contraction(
            _SUMMED[node.op_type](node, [shapes[name] for name in names]),
            (elements[0], elements[1], elements[2]),
            node.input[0] == graph.input[0].name,
            not weights.isdisjoint(node.input[:2]),
        )


def least_milliseconds(proto: onnx.ModelProto, peaks: dict[str, float]) -> float:
    """The least time of a training step of a file with fixed shapes, by SGD with momentum."""
    found = list(contractions(proto))
    updated = 5 * _FLOAT * sum(math.prod(tensor.dims) for tensor in proto.graph.initializer)
    moved = updated + sum(each.bytes for each in found)
    operations = sum(each.operations for each in found)
    return operations / peaks["gflops"] / 1e6 + moved / peaks["gb_per_s"] / 1e6


def peak(threads: int, clock: str) -> dict[str, float]:
    """Return the machine's GFLOP/s and GB/s, measured in a process of its own."""
    environment = os.environ | {"TVM_NUM_THREADS": str(threads)}
    command = [sys.executable, str(_PEAK), str(threads), clock]
    found: dict[str, float] = json.loads(subprocess.check_output(command, env=environment))
    return found


def peak_again(peaks: dict[str, float], threads: int, clock: str) -> dict[str, float]:
    """The better of what was measured and what is measured now.

    Whoever kept the machine busy the first time may have gone.
    """
    return {name: max(peaks[name], value) for name, value in peak(threads, clock).items()}


def _light(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A file without its weights, which become inputs behind its own."""
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    del light.graph.initializer[:]
    for tensor in proto.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL:
            light.graph.initializer.append(tensor)
        light.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    return light


def _convolution(node: onnx.NodeProto, shapes: list[list[int]]) -> int:
    return math.prod(shapes[2]) * math.prod(shapes[1][1:])


def _transposed(node: onnx.NodeProto, shapes: list[list[int]]) -> int:
    return math.prod(shapes[0]) * math.prod(shapes[1][1:])


def _product(node: onnx.NodeProto, shapes: list[list[int]]) -> int:
    is_turned = any(each.name == "transA" and each.i for each in node.attribute)
    return math.prod(shapes[2]) * shapes[0][0 if is_turned else -1]


_SUMMED = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "Gemm": _product,
    "MatMul": _product,
}
"""How many multiplications a contraction has, by the shapes of its operands and its result."""
