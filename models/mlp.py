"""A multi-layer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

import onnx

from .builder import Activation, Batch, NetworkBuilder


def mlp(
    features: Sequence[int] = (64, 32, 10),
    *,
    batch: Batch = "N",
    activation: Activation = "relu",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a perceptron with ``len(features) - 1`` linear layers.

    Parameters
    ----------
    features : sequence of int
        Widths: of the input, of each hidden layer, of the output.
    batch : int or str
        Batch size; a string makes it symbolic.
    activation : 'relu', 'relu6' or 'silu'
        Between the layers.
    seed : int
        Seed of the initial weights.

    Returns
    -------
    onnx.ModelProto
        From ``input`` (batch, features[0]) to ``logits`` (batch, features[-1]), both float32.
    """
    if len(features) < 2:
        raise ValueError(f"a perceptron has at least an input and an output width: {features}")
    builder = NetworkBuilder("mlp", [batch, features[0]], seed, activation)
    x = builder.input
    last = len(features) - 2
    for layer, widths in enumerate(pairwise(features)):
        x = builder.linear(x, f"fc{layer + 1}", widths)
        if layer < last:
            x = builder.activate(x, f"activation{layer + 1}")
    return builder.finish(x, features[-1])
