"""The recurrent networks and scans that `loops.py` trains, and how their workloads are written.

A workload of ONNX is a folder with ``model.onnx`` and ``batch.npz``, as `workload.py` reads them,
with the tokens in the place of images. Of the others, ``arrays.npz`` has what the function takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from workload import Workload

LANGUAGE_MODEL = "language model"
LAYER = "layer"
LAYER_NORM_CELL = "layer norm cell"
SELECTIVE_SCAN = "selective scan"

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LAYERS = 2
"""Of a language model."""

_OPSET = 17
_LOSS = "loss"


@dataclass(frozen=True)
class Loop:
    """A network or function with a loop in it.

    Attributes
    ----------
    kind : str
        `LANGUAGE_MODEL`, with an embedding, layers and a projection, trains by steps of SGD. Of
        the others the mean square of what they compute is taken, and its gradients by all inputs:
        `LAYER`, an ONNX layer; `LAYER_NORM_CELL`, an LSTM with norms in its cell, which has the
        multiply-adds of the layer; `SELECTIVE_SCAN`, that of Mamba.
    operator : str
        The ONNX operator of layers.
    directions : int
    batch, steps, width, vocabulary : int
        The width is that of embeddings and states; of a selective scan, its channels.
    states : int
        Of each channel of a selective scan.
    """

    kind: str
    operator: str = "LSTM"
    directions: int = 1
    batch: int = 16
    steps: int = 64
    width: int = 512
    vocabulary: int = 4000
    states: int = 16

    def write(self, folder: Path) -> Workload:
        """Write the workload, with seeded weights and data."""
        (folder / "loop.json").write_text(json.dumps(asdict(self)))
        if self.kind == LANGUAGE_MODEL:
            onnx.save(self.language_model(), folder / "model.onnx")
            shape = self.steps, self.batch
            generator = np.random.default_rng(1)
            tokens, labels = generator.integers(0, self.vocabulary, (2, *shape))
            np.savez(folder / "batch.npz", images=tokens, labels=labels.reshape(-1))
            return Workload(folder)
        if self.kind == LAYER:
            onnx.save(self._layer(), folder / "model.onnx")
        np.savez(folder / "arrays.npz", **self._arrays())
        return Workload(folder)

    def language_model(self) -> onnx.ModelProto:
        """Return the file of a language model, as PyTorch's exporter writes one."""
        generator = np.random.default_rng(0)
        scale = self.width**-0.5
        out_width = self.directions * self.width
        arrays = {
            "embedding": generator.standard_normal((self.vocabulary, self.width), np.float32),
            "zero_shape": np.array([self.directions, self.batch, self.width]),
            "joined": np.array([0, 0, -1]),
            "rows": np.array([-1, self.vocabulary]),
        }
        nodes = [
            helper.make_node("Gather", ["embedding", "tokens"], ["x0"]),
            helper.make_node("ConstantOfShape", ["zero_shape"], ["zero"]),
        ]
        for number in range(LAYERS):
            weights = self._layer_weights(generator, self.width if number == 0 else out_width)
            arrays |= {f"layer{number}.{name}": array for name, array in weights.items()}
            names = [f"layer{number}.{name}" for name in weights]
            states = ["zero"] * (2 if self.operator == "LSTM" else 1)
            inputs = [f"x{number}", *names, "", *states]
            nodes += [
                helper.make_node(self.operator, inputs, [f"y{number}"], **self._attributes()),
                helper.make_node("Transpose", [f"y{number}"], [f"t{number}"], perm=[0, 2, 1, 3]),
                helper.make_node("Reshape", [f"t{number}", "joined"], [f"x{number + 1}"]),
            ]
        shape = out_width, self.vocabulary
        arrays["projection"] = generator.uniform(-scale, scale, shape).astype("float32")
        arrays["bias"] = generator.uniform(-scale, scale, self.vocabulary).astype("float32")
        nodes += [
            helper.make_node("MatMul", [f"x{LAYERS}", "projection"], ["products"]),
            helper.make_node("Add", ["products", "bias"], ["scores"]),
            helper.make_node("Reshape", ["scores", "rows"], ["logits"]),
        ]
        logits = [self.steps * self.batch, self.vocabulary]
        return _model(
            nodes,
            [_value("tokens", [self.steps, self.batch], TensorProto.INT64)],
            _value("logits", logits),
            arrays,
        )

    def _layer(self) -> onnx.ModelProto:
        """The file of one layer, whose weights are inputs, and of the mean square of its states."""
        arrays = self._arrays()
        nodes = [
            helper.make_node(self.operator, list(arrays), ["y"], **self._attributes()),
            helper.make_node("Mul", ["y", "y"], ["squares"]),
            helper.make_node("ReduceMean", ["squares"], [_LOSS], keepdims=0),
        ]
        inputs = [_value(name, array.shape) for name, array in arrays.items()]
        return _model(nodes, inputs, _value(_LOSS, []), {})

    def _attributes(self) -> dict[str, Any]:
        attributes: dict[str, Any] = {"hidden_size": self.width}
        if self.directions == 2:
            attributes["direction"] = "bidirectional"
        if self.operator == "GRU":
            attributes["linear_before_reset"] = 1
        return attributes

    def _layer_weights(
        self, generator: np.random.Generator, in_width: int
    ) -> dict[str, np.ndarray]:
        """The weights of a layer, in the order of its operator's inputs."""
        rows, scale = GATES[self.operator] * self.width, self.width**-0.5
        shapes = {"w": (rows, in_width), "r": (rows, self.width), "b": (2 * rows,)}
        return {
            name: generator.uniform(-scale, scale, (self.directions, *shape)).astype("float32")
            for name, shape in shapes.items()
        }

    def _arrays(self) -> dict[str, np.ndarray]:
        """What a function takes, in order."""
        generator = np.random.default_rng(0)
        times, width = (self.steps, self.batch), self.width
        x = generator.standard_normal((*times, width), np.float32)
        if self.kind == LAYER:
            return {"x": x, **self._layer_weights(generator, width)}
        if self.kind == LAYER_NORM_CELL:
            scale = width**-0.5
            w, r = generator.uniform(-scale, scale, (2, width, 4 * width)).astype("float32")
            gains = {f"{name}_gain": np.full(4 * width, 0.5, np.float32) for name in ("x", "h")}
            offsets = {"bias": np.zeros(4 * width, np.float32)}
            gains["c_gain"], offsets["c_bias"] = np.ones(width), np.zeros(width)
            return {"x": x, "w": w, "r": r} | {
                name: array.astype("float32") for name, array in (gains | offsets).items()
            }
        states = np.arange(1, self.states + 1, dtype=np.float32)
        b, c = generator.standard_normal((2, *times, self.states), np.float32)
        return {
            "u": x,
            "delta": generator.uniform(0.001, 0.1, (*times, width)).astype("float32"),
            "a": -np.tile(states, (width, 1)),
            "b": b,
            "c": c,
            "d": np.ones(width, np.float32),
        }


def read(workload: Workload) -> Loop:
    """Return the loop that a workload is of."""
    return Loop(**json.loads((workload.folder / "loop.json").read_text()))


def arrays_of(workload: Workload) -> dict[str, np.ndarray]:
    """Return what the function of a workload takes, in order."""
    with np.load(workload.folder / "arrays.npz") as arrays:
        return dict(arrays)


LOOPS: dict[str, Loop] = {
    "lstm": Loop(LANGUAGE_MODEL),
    "gru": Loop(LANGUAGE_MODEL, "GRU"),
    "rnn": Loop(LANGUAGE_MODEL, "RNN"),
    "bidirectional_lstm": Loop(LANGUAGE_MODEL, directions=2),
    "bidirectional_gru": Loop(LANGUAGE_MODEL, "GRU", directions=2),
    "bidirectional_rnn": Loop(LANGUAGE_MODEL, "RNN", directions=2),
    "lstm_layer": Loop(LAYER),
    "layer_norm_cell": Loop(LAYER_NORM_CELL),
    "selective_scan": Loop(SELECTIVE_SCAN, batch=4, steps=1024, width=256),
}


def _value(name: str, shape: Any, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    output: onnx.ValueInfoProto,
    arrays: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "loop", inputs, [output], weights)
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
