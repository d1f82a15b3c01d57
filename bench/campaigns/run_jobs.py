"""Jobs of ``graphgrad train`` that take a second: networks, data, and arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import paths  # noqa: F401 (where the modules of `bench` are found)
from onnx import numpy_helper, parser

from graphgrad.models import transformer_encoder

_EXAMPLES, _HELD_OUT = 48, 10
_HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


@dataclass(frozen=True)
class Job:
    """A job: what a run is started with.

    Attributes
    ----------
    arguments : tuple of str
        All but those that are drawn.
    network : callable or None
        Makes the ONNX file; None: the built-in network, on the built-in data.
    shape : tuple of int
        Of an example.
    has_labels : bool
        Else there are values for targets.
    """

    arguments: tuple[str, ...]
    network: Callable[[], onnx.ModelProto] | None = None
    shape: tuple[int, ...] = (6,)
    has_labels: bool = True

    def prepare(self, folder: Path) -> list[str]:
        """Write the network and the data to a folder; the arguments that name them, and others."""
        if self.network is None:
            return list(self.arguments)
        rng = np.random.default_rng(0)
        x = rng.standard_normal((_EXAMPLES + _HELD_OUT, *self.shape)).astype("float32")
        means = x.reshape(len(x), -1)[:, :3]
        y = means.argmax(axis=1) if self.has_labels else means
        np.savez(
            folder / "data.npz",
            x=x[_HELD_OUT:],
            y=y[_HELD_OUT:],
            x_test=x[:_HELD_OUT],
            y_test=y[:_HELD_OUT],
        )
        onnx.save(self.network(), folder / "net.onnx")
        files = [str(folder / "net.onnx"), "--data", str(folder / "data.npz")]
        return [*files, *self.arguments]


def _network(text: str, ones: tuple[str, ...] = (), **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """A network from its text, with random weights of some shapes, and some that are ones."""
    model = parser.parse_model(_HEADER + text)
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = np.ones(shape) if name in ones else rng.standard_normal(shape) / 2
        model.graph.initializer.append(numpy_helper.from_array(values.astype("float32"), name))
    return model


def dense() -> onnx.ModelProto:
    """Two linear layers, a batch norm, and a dropout."""
    return _network(
        """
        dense (float[N, 6] input) => (float[N, 3] output) <float ratio = {0.25}> {
            h = Gemm <transB = 1> (input, w1, b1)
            n = BatchNormalization (h, scale, shift, mean, var)
            t = Tanh (n)
            d = Dropout (t, ratio)
            output = Gemm <transB = 1> (d, w2, b2)
        }
        """,
        ones=("scale", "var"),
        **{"w1": (8, 6), "b1": (8,), "w2": (3, 8), "b2": (3,)},
        **dict.fromkeys(("scale", "shift", "mean", "var"), (8,)),
    )


def convolution() -> onnx.ModelProto:
    """A convolution, a batch norm that writes its statistics, and a linear layer."""
    return _network(
        """
        convolution (float[N, 2, 6, 6] input) => (float[N, 3] output) <bool training = {1}> {
            c = Conv <kernel_shape = [3, 3]> (input, kernel)
            n, new_mean, new_var =
                BatchNormalization <training_mode = 1> (c, scale, shift, mean, var)
            r = Relu (n)
            p = GlobalAveragePool (r)
            f = Flatten (p)
            d = Dropout (f, , training)
            output = Gemm <transB = 1> (d, w, b)
        }
        """,
        ones=("scale", "var"),
        **{"kernel": (4, 2, 3, 3), "w": (3, 4), "b": (3,)},
        **dict.fromkeys(("scale", "shift", "mean", "var"), (4,)),
    )


def recurrent() -> onnx.ModelProto:
    """An LSTM and a linear layer of its last state."""
    return _network(
        """
        recurrent (float[N, 4, 6] input) => (float[N, 3] output) <int64[1] first = {0}> {
            steps = Transpose <perm = [1, 0, 2]> (input)
            all, last = LSTM <hidden_size = 5> (steps, w, r, b)
            h = Squeeze (last, first)
            output = Gemm <transB = 1> (h, w2, b2)
        }
        """,
        **{"w": (1, 20, 6), "r": (1, 20, 5), "b": (1, 40), "w2": (3, 5), "b2": (3,)},
    )


def attention() -> onnx.ModelProto:
    """A transformer of one layer."""
    return transformer_encoder(layers=1, width=8, heads=2, feed_forward=8, sequence=4, classes=3)


JOBS = {
    "momentum": Job(("--batch", "8", "--momentum", "0.9", "--lr", "0.1"), dense),
    "adam": Job(("--batch", "8", "--optimizer", "adam", "--clip-norm", "0.5"), dense),
    "accumulating": Job(
        ("--batch", "4", "--optimizer", "adamw", "--accumulate", "3", "--lr", "0.02"), dense
    ),
    "values": Job(
        ("--batch", "16", "--loss", "mse", "--optimizer", "rmsprop", "--momentum", "0.5"),
        dense,
        has_labels=False,
    ),
    "convolution": Job(("--batch", "8", "--optimizer", "adamw"), convolution, (2, 6, 6)),
    "frozen twin": Job(("--batch", "8", "--compare-frozen"), convolution, (2, 6, 6)),
    "recurrent": Job(("--batch", "8", "--optimizer", "adagrad"), recurrent, (4, 6)),
    "attention": Job(("--batch", "8", "--optimizer", "adam"), attention, (4, 8)),
    "digits": Job(
        (
            "--batch",
            "16",
        )
    ),
}
