"""A U-Net with batch norms, as an ONNX model (Ronneberger et al., 2015)."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def unet(channels: int = 32, levels: int = 4, size: int = 256) -> onnx.ModelProto:
    """Return a U-Net for images of three channels, with one output for each pixel.

    Parameters
    ----------
    channels : int
        Of the first level; each level has twice as many as the one before.
    levels : int
        How often the image is halved.
    size : int
        Of the images, a multiple of 2 to the power of `levels`.
    """
    return _Builder().model(channels, levels, size)


class _Builder:
    def __init__(self) -> None:
        self._generator = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}

    def model(self, channels: int, levels: int, size: int) -> onnx.ModelProto:
        widths = [channels * 2**level for level in range(levels + 1)]
        x, before, skips = "x", 3, []
        for level, width in enumerate(widths):
            x = self._double(x, before, width, f"down{level}")
            before = width
            if level < levels:
                skips.append(x)
                halves = {"kernel_shape": [2, 2], "strides": [2, 2]}
                x = self._node("MaxPool", [x], f"pool{level}", **halves)
        for level in reversed(range(levels)):
            width, name = widths[level], f"up{level}"
            weight = self._weight(f"{name}.weight", (before, width, 2, 2))
            doubles = {"kernel_shape": [2, 2], "strides": [2, 2]}
            x = self._node("ConvTranspose", [x, weight], name, **doubles)
            x = self._node("Concat", [x, skips[level]], f"{name}.concat", axis=1)
            x = self._double(x, 2 * width, width, f"right{level}")
            before = width
        weight = self._weight("head.weight", (1, before, 1, 1))
        self._node("Conv", [x, weight], "y", kernel_shape=[1, 1])
        shape = ["N", 3, size, size]
        graph = helper.make_graph(
            self._nodes,
            "unet",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1, size, size])],
            [numpy_helper.from_array(array, name) for name, array in self._weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _double(self, x: str, before: int, width: int, name: str) -> str:
        """Two convolutions, each with a batch norm and an activation."""
        for part in "ab":
            own = f"{name}.{part}"
            weight = self._weight(f"{own}.weight", (width, before, 3, 3))
            same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
            x = self._node("Conv", [x, weight], f"{own}.conv", **same)
            starts = {"scale": 1, "bias": 0, "mean": 0, "var": 1}
            for key, start in starts.items():
                self._weights[f"{own}.{key}"] = np.full(width, start, np.float32)
            norm = [x, *(f"{own}.{key}" for key in starts)]
            x = self._node("Relu", [self._node("BatchNormalization", norm, f"{own}.norm")], own)
            before = width
        return x

    def _weight(self, name: str, shape: tuple[int, ...]) -> str:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        normal = self._generator.standard_normal(shape, dtype=np.float32)
        self._weights[name] = (scale * normal).astype(np.float32)
        return name

    def _node(self, op_type: str, inputs: list[str], name: str, **attributes: object) -> str:
        self._nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name
