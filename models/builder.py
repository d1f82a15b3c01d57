"""A small writer of ONNX graphs whose weights are named as torch names them."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8

Activation = Literal["relu", "relu6", "silu"]
Batch = int | str

FLOAT = np.dtype(np.float32)
"""The dtype of weights, numbers, and inputs that are no tokens."""

_RELU6 = {"min": 0.0, "max": 6.0}


class NetworkBuilder:
    """Appends layers to one ONNX graph with one image (or vector) input and one output.

    Layers take and return ONNX value names. Convolution and linear weights are drawn from He
    normal distributions, from one generator: equal seeds give equal files.

    Parameters
    ----------
    name : str
        Name of the graph.
    input_shape : sequence of int or str
        Shape of the input ``input``; a string makes that dimension symbolic.
    seed : int
        Seed of the initial weights.
    activation : 'relu', 'relu6' or 'silu'
        What `activate` appends.
    training : bool
        Whether batch normalization is written in training form.
    tokens : bool
        Whether the input consists of integers, int64, in place of float32.
    """

    def __init__(
        self,
        name: str,
        input_shape: Sequence[Batch],
        seed: int,
        activation: Activation = "relu",
        training: bool = True,
        tokens: bool = False,
    ):
        if activation not in ("relu", "relu6", "silu"):
            raise ValueError(f"activation is 'relu', 'relu6' or 'silu', given {activation!r}")
        self.name = name
        self.input = "input"
        self._input_shape = list(input_shape)
        self._generator = np.random.default_rng(seed)
        self._activation = activation
        self._training = training
        self._input_type = TensorProto.INT64 if tokens else _code()
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []

    def convolution(
        self,
        x: str,
        name: str,
        channels: tuple[int, int],
        *,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = False,
    ) -> str:
        """Append a square convolution from ``channels[0]`` to ``channels[1]`` channels."""
        shape = (channels[1], channels[0] // groups, kernel, kernel)
        fan_out = channels[1] // groups * kernel * kernel
        weights = [self._normal(f"{name}.weight", shape, fan_out)]
        if bias:
            weights.append(self._constant(f"{name}.bias", channels[1], 0.0))
        return self._node(
            "Conv",
            [x, *weights],
            name,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[padding] * 4,
            group=groups,
        )

    def batch_norm(self, x: str, name: str, channels: int, scale: float = 1.0) -> str:
        """Append a batch normalization over ``channels`` channels, with `scale` as its weight."""
        inputs = [
            x,
            self._constant(f"{name}.weight", channels, scale),
            self._constant(f"{name}.bias", channels, 0.0),
            self._constant(f"{name}.running_mean", channels, 0.0),
            self._constant(f"{name}.running_var", channels, 1.0),
        ]
        if not self._training:
            return self._node("BatchNormalization", inputs, name, epsilon=1e-5)
        statistics = [f"{name}.new_running_mean", f"{name}.new_running_var"]
        return self._node(
            "BatchNormalization", inputs, name, statistics, epsilon=1e-5, training_mode=1
        )

    def linear(self, x: str, name: str, features: tuple[int, int]) -> str:
        """Append ``x @ weight.T + bias`` from ``features[0]`` to ``features[1]`` features."""
        weight = self._normal(f"{name}.weight", (features[1], features[0]), features[0])
        bias = self._constant(f"{name}.bias", features[1], 0.0)
        return self._node("Gemm", [x, weight, bias], name, transB=1)

    def activate(self, x: str, name: str) -> str:
        """Append the network's activation."""
        if self._activation == "relu":
            return self._node("Relu", [x], name)
        if self._activation == "relu6":
            bounds = [self._number(f"{name}.{bound}", value) for bound, value in _RELU6.items()]
            return self._node("Clip", [x, *bounds], name)
        return self._node("Mul", [x, self._node("Sigmoid", [x], f"{name}.sigmoid")], name)

    def max_pool(self, x: str, name: str, kernel: int, stride: int, padding: int = 0) -> str:
        """Append a square maximum pooling."""
        return self._node(
            "MaxPool",
            [x],
            name,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[padding] * 4,
        )

    def global_average_pool(self, x: str, name: str) -> str:
        """Append the mean over height and width, which stay as dimensions of extent one."""
        return self._node("GlobalAveragePool", [x], name)

    def flatten(self, x: str, name: str) -> str:
        """Append a flattening of all dimensions but the first."""
        return self._node("Flatten", [x], name, axis=1)

    def add(self, x: str, y: str, name: str) -> str:
        """Append the sum of two values."""
        return self._node("Add", [x, y], name)

    def finish(self, x: str, classes: int, rows: Batch | None = None) -> onnx.ModelProto:
        """Return the checked model whose output ``logits`` is `x`, of shape (rows, classes).

        There are as many rows as examples, unless `rows` says otherwise.
        """
        for node in self._nodes:
            node.output[:] = ["logits" if output == x else output for output in node.output]
        rows = self._input_shape[0] if rows is None else rows
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_tensor_value_info(self.input, self._input_type, self._input_shape)],
            [helper.make_tensor_value_info("logits", _code(), [rows, classes])],
            self._initializers,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="graphgrad"
        )
        model.ir_version = IR_VERSION
        onnx.checker.check_model(model, full_check=True)
        return model

    def _node(
        self,
        op_type: str,
        inputs: list[str],
        name: str,
        extra: Sequence[str] = (),
        **attributes: int | float | list[int],
    ) -> str:
        output = f"{name}.output"
        self._nodes.append(
            helper.make_node(op_type, inputs, [output, *extra], name=name, **attributes)
        )
        return output

    def _number(self, name: str, value: float | np.ndarray) -> str:
        """Append numbers that are part of the computation: they are no weight, and never train."""
        return self._tensor(name, numpy_helper.from_array(np.array(value, FLOAT), name))

    def _tensor(self, name: str, tensor: onnx.TensorProto) -> str:
        """Append a constant."""
        self._nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
        return name

    def _normal(self, name: str, shape: tuple[int, ...], fan: int) -> str:
        """Add a weight with variance 2 / fan (He et al. 2015)."""
        values = self._generator.standard_normal(shape) * np.sqrt(2.0 / fan)
        return self._initializer(name, values)

    def _constant(self, name: str, length: int, value: float) -> str:
        return self._initializer(name, np.full(length, value))

    def _initializer(self, name: str, values: np.ndarray) -> str:
        self._initializers.append(numpy_helper.from_array(values.astype(FLOAT), name))
        return name


def _code() -> int:
    return helper.np_dtype_to_tensor_dtype(FLOAT)
