"""The gradient of a residual network in inference form as an ONNX graph, written by hand.

One formula for each operator of the network, in the fewest nodes and in the forms of products that
runtimes compute fastest: what somebody who knows both would write, and what ours is timed beside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

SPATIAL = (2, 3)
CHANNELS = (1, -1, 1, 1)
"""The shape of one number for each channel."""


def gradient_by_hand(proto: onnx.ModelProto, weights: list[str]) -> onnx.ModelProto:
    """Return the network with `logits.cotangent` as an input, and `x.grad` for each weight."""
    return _Gradient(proto).model(weights)


class _Gradient:
    """The nodes of a gradient, behind those of the network."""

    def __init__(self, proto: onnx.ModelProto):
        self._proto = shape_inference.infer_shapes(proto)
        graph = self._proto.graph
        self._values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        typed = [*graph.value_info, *graph.input, *graph.output]
        self._shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in typed
        } | {name: list(array.shape) for name, array in self._values.items()}
        self._nodes = list(graph.node)
        self._constants: dict[str, onnx.TensorProto] = {}
        self._count = 0
        self._gradients: dict[str, str] = {}

    def model(self, weights: list[str]) -> onnx.ModelProto:
        graph = self._proto.graph
        (output,) = graph.output
        cotangent = f"{output.name}.cotangent"
        self._gradients[output.name] = cotangent
        for node in reversed(graph.node):
            _RULES[node.op_type](self, node, self._gradients[node.output[0]])
        for name in weights:
            self._nodes.append(
                helper.make_node("Identity", [self._gradients[name]], [f"{name}.grad"])
            )
        inputs = [*graph.input, helper.make_tensor_value_info(cotangent, 1, self._of(output.name))]
        inputs += [helper.make_tensor_value_info(name, 1, self._of(name)) for name in weights]
        outputs = [
            helper.make_tensor_value_info(f"{name}.grad", 1, self._of(name)) for name in weights
        ]
        initializers = [*graph.initializer, *self._constants.values()]
        body = helper.make_graph(self._nodes, "by_hand", inputs, [output, *outputs], initializers)
        made = helper.make_model(body, opset_imports=self._proto.opset_import)
        made.ir_version = self._proto.ir_version
        onnx.checker.check_model(made, full_check=True)
        return made

    def convolution(self, node: Any, ct: str) -> None:
        """By the data a convolution with the kernel turned, by the weight a product a tap."""
        (x, w), attributes = node.input, _attributes(node)
        strides, pads = attributes["strides"], attributes["pads"]
        kernel = self._of(w)[2:]
        if x in self._producers():
            self._add(x, self._data_gradient(x, w, ct, strides, pads, kernel))
        batch, outputs, *steps = self._of(node.output[0])
        rows = self._node("Transpose", ct, perm=[1, 0, 2, 3])
        rows = self._node("Reshape", rows, self._ints(outputs, -1))
        around = self._ints(0, 0, *pads[:2], 0, 0, *pads[2:])
        padded = self._node("Pad", x, around) if any(pads) else x
        last = self._node("Transpose", padded, perm=[0, 2, 3, 1])
        products = []
        for tap in np.ndindex(*kernel):
            reach = zip(tap, steps, strides, strict=True)
            ends = [first + (count - 1) * step + 1 for first, count, step in reach]
            bounds = self._ints(*tap), self._ints(*ends), self._ints(1, 2), self._ints(*strides)
            read = self._node("Slice", last, *bounds)
            columns = self._ints(batch * math.prod(steps), self._of(x)[1])
            products.append(self._node("MatMul", rows, self._node("Reshape", read, columns)))
        if len(products) > 1:
            apart = [self._node("Unsqueeze", product, self._ints(2)) for product in products]
            products = [self._node("Concat", *apart, axis=2)]
        self._add(w, self._node("Reshape", products[0], self._ints(*self._of(w))))

    def _data_gradient(
        self, x: str, w: str, ct: str, strides: Any, pads: Any, kernel: list[int]
    ) -> str:
        if any(step > 1 for step in strides):
            behind = [
                extent + sum(pads[axis::2]) - (count - 1) * step - size
                for axis, (extent, count, step, size) in enumerate(
                    zip(self._of(x)[2:], self._spatial(x, strides), strides, kernel, strict=True)
                )
            ]
            settings = {"strides": strides, "pads": pads, "output_padding": behind}
            return self._node("ConvTranspose", ct, w, **settings)
        turned = self._node("Transpose", w, perm=[1, 0, 2, 3])
        if math.prod(kernel) > 1:
            far = self._ints(*[np.iinfo("int64").min] * 2)
            axes, back = self._ints(*SPATIAL), self._ints(-1, -1)
            turned = self._node("Slice", turned, back, far, axes, back)
        far_pads = [size - 1 - pad for size, pad in zip([*kernel, *kernel], pads, strict=True)]
        return self._node("Conv", ct, turned, pads=far_pads)

    def _spatial(self, x: str, strides: Any) -> list[int]:
        """How many windows there are: of the networks here, one for each stride."""
        return [-(-extent // step) for extent, step in zip(self._of(x)[2:], strides, strict=True)]

    def batch_norm(self, node: Any, ct: str) -> None:
        """Statistics are constants: a product and a sum for each channel."""
        x, scale, bias, mean, variance = node.input
        root = np.sqrt(self._values[variance] + np.float32(_attributes(node)["epsilon"]))
        inverse = self._constant((1 / root).reshape(CHANNELS))
        factor = self._node("Mul", self._node("Reshape", scale, self._ints(*CHANNELS)), inverse)
        self._add(x, self._node("Mul", ct, factor))
        axes = self._ints(0, *SPATIAL)
        self._add(bias, self._node("ReduceSum", ct, axes, keepdims=0))
        centered = self._node("Sub", x, self._constant(self._values[mean].reshape(CHANNELS)))
        product = self._node("ReduceSum", self._node("Mul", ct, centered), axes, keepdims=0)
        self._add(scale, self._node("Mul", product, self._constant(1 / root)))

    def relu(self, node: Any, ct: str) -> None:
        zero = self._constant(np.float32(0))
        (y,) = node.output
        self._add(node.input[0], self._node("Where", self._node("Greater", y, zero), ct, zero))

    def add(self, node: Any, ct: str) -> None:
        for name in node.input:
            self._add(name, ct)

    def global_average(self, node: Any, ct: str) -> None:
        (x,) = node.input
        count = np.float32(math.prod(self._of(x)[2:]))
        share = self._node("Div", ct, self._constant(count))
        self._add(x, self._node("Expand", share, self._ints(*self._of(x))))

    def flatten(self, node: Any, ct: str) -> None:
        (x,) = node.input
        self._add(x, self._node("Reshape", ct, self._ints(*self._of(x))))

    def gemm(self, node: Any, ct: str) -> None:
        """y = x wᵀ + b"""
        x, w, b = node.input
        self._add(x, self._node("MatMul", ct, w))
        self._add(w, self._node("Gemm", ct, x, transA=1))
        self._add(b, self._node("ReduceSum", ct, self._ints(0), keepdims=0))

    def _producers(self) -> set[str]:
        return {name for node in self._proto.graph.node for name in node.output}

    def _of(self, name: str) -> list[int]:
        return list(self._shapes[name])

    def _add(self, name: str, ct: str) -> None:
        """Add a contribution to what the cotangent of a value is."""
        known = self._gradients.get(name)
        self._gradients[name] = ct if known is None else self._node("Add", known, ct)

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        self._count += 1
        name = f"by_hand_{self._count}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def _ints(self, *values: int) -> str:
        return self._constant(np.array(values, "int64"))

    def _constant(self, array: Any) -> str:
        array = np.asarray(array)
        name = f"constant_{array.dtype}_{array.shape}_{hash(array.tobytes())}"
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(array, name)
        return name


def _attributes(node: Any) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


_RULES: dict[str, Callable[[_Gradient, Any, str], None]] = {
    "Add": _Gradient.add,
    "BatchNormalization": _Gradient.batch_norm,
    "Conv": _Gradient.convolution,
    "Flatten": _Gradient.flatten,
    "Gemm": _Gradient.gemm,
    "GlobalAveragePool": _Gradient.global_average,
    "Relu": _Gradient.relu,
}
