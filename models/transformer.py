"""Transformer encoders (Vaswani et al. 2017), named and laid out as torch's.

The file says what exporters write: products, transpositions and a softmax for attention, and GELU
by its error function.
"""

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .builder import Batch, NetworkBuilder


def transformer_encoder(
    *,
    layers: int = 6,
    width: int = 256,
    heads: int = 8,
    feed_forward: int = 1024,
    sequence: int = 128,
    classes: int = 10,
    norm_first: bool = False,
    dropout: float = 0.0,
    batch: Batch = "N",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a transformer encoder with a classifier of the mean over the sequence.

    Parameters
    ----------
    layers : int
        Number of encoder layers.
    width : int
        Features of each position, a multiple of `heads`.
    heads : int
        Attention heads.
    feed_forward : int
        Features between the two linear maps of a layer.
    sequence : int
        Positions.
    classes : int
        Output classes.
    norm_first : bool
        Whether layers normalize what they take, and the encoder its result (Xiong et al. 2020);
        else layers normalize their sums.
    dropout : float
        The share of what attention and the linear maps give that training drops, before it is
        added.
    batch : int or str
        Batch size; a string makes it symbolic.
    seed : int
        Seed of the initial weights.

    Returns
    -------
    onnx.ModelProto
        From ``input``, embeddings (batch, sequence, width), to ``logits`` (batch, classes), both
        float32.

    Raises
    ------
    ValueError
        `heads` do not divide `width`.
    """
    if width % heads:
        raise ValueError(f"width={width} is no multiple of heads={heads}")
    builder = _EncoderBuilder("transformer_encoder", [batch, sequence, width], seed)
    x = builder.input
    for index in range(layers):
        sizes = width, heads, feed_forward
        x = _layer(builder, x, f"layers.{index}", sizes, norm_first, dropout)
    if norm_first:
        x = builder.layer_norm(x, "norm", width)
    x = builder.mean(x, "mean")
    return builder.finish(builder.linear(x, "classifier", (width, classes)), classes)


def _layer(
    builder: "_EncoderBuilder",
    x: str,
    name: str,
    sizes: tuple[int, int, int],
    norm_first: bool,
    dropout: float,
) -> str:
    """Append an encoder layer; `sizes` are its width, its heads and its features in between."""
    width, heads, feed_forward = sizes

    def attention(x: str) -> str:
        return builder.self_attention(x, f"{name}.self_attn", width, heads)

    def feed(x: str) -> str:
        x = builder.gelu(builder.dense(x, f"{name}.linear1", (width, feed_forward)), f"{name}.gelu")
        return builder.dense(x, f"{name}.linear2", (feed_forward, width))

    for number, part in enumerate((attention, feed), start=1):
        norm = f"{name}.norm{number}"
        y = part(builder.layer_norm(x, norm, width) if norm_first else x)
        y = builder.dropout(y, f"{name}.dropout{number}", dropout)
        x = builder.add(x, y, f"{name}.add{number}")
        if not norm_first:
            x = builder.layer_norm(x, norm, width)
    return x


class _EncoderBuilder(NetworkBuilder):
    """Appends the layers of transformers, on values of shape (batch, sequence, features)."""

    def dense(self, x: str, name: str, features: tuple[int, int], separator: str = ".") -> str:
        """Append ``x @ weight.T + bias``, with weights named by `name`, `separator` and kind."""
        taken, given = features
        # No ReLU follows, which would halve the variance: 1 / fan-in.
        weight = self._normal(f"{name}{separator}weight", (given, taken), 2 * taken)
        bias = self._constant(f"{name}{separator}bias", given, 0.0)
        turned = self._node("Transpose", [weight], f"{name}.transpose", perm=[1, 0])
        return self.add(self._node("MatMul", [x, turned], f"{name}.matmul"), bias, name)

    def layer_norm(self, x: str, name: str, width: int) -> str:
        """Append a normalization of the features of each position."""
        weights = [self._constant(f"{name}.weight", width, 1.0)]
        weights.append(self._constant(f"{name}.bias", width, 0.0))
        return self._node("LayerNormalization", [x, *weights], name, axis=-1, epsilon=1e-5)

    def dropout(self, x: str, name: str, rate: float) -> str:
        """Append a dropout, unless the rate is 0."""
        if not rate:
            return x
        return self._node("Dropout", [x, self._number(f"{name}.rate", rate)], name)

    def gelu(self, x: str, name: str) -> str:
        """Append x · (1 + erf(x / √2)) / 2."""
        scaled = self._node("Div", [x, self._number(f"{name}.root", math.sqrt(2))], f"{name}.div")
        error = self._node("Erf", [scaled], f"{name}.erf")
        shifted = self.add(error, self._number(f"{name}.one", 1.0), f"{name}.add")
        product = self._node("Mul", [x, shifted], f"{name}.mul")
        return self._node("Mul", [product, self._number(f"{name}.half", 0.5)], name)

    def mean(self, x: str, name: str) -> str:
        """Append the mean over the positions, whose dimension is left out."""
        return self._node("ReduceMean", [x], name, axes=[1], keepdims=0)

    def self_attention(self, x: str, name: str, width: int, heads: int) -> str:
        """Append softmax(q kᵀ / √depth) v, head by head, between two linear maps."""
        projected = self.dense(x, f"{name}.in_proj", (width, 3 * width), separator="_")
        query, key, value = self._parts(projected, f"{name}.split", width)
        depth = width // heads
        scale = self._number(f"{name}.scale", 1 / math.sqrt(depth))
        query = self._node("Mul", [query, scale], f"{name}.scaled")
        shape = self._integers(f"{name}.heads", [0, 0, heads, depth])
        rows = [0, 2, 1, 3]
        query = self._heads(query, shape, f"{name}.query", rows)
        key = self._heads(key, shape, f"{name}.key", [0, 2, 3, 1])
        value = self._heads(value, shape, f"{name}.value", rows)
        scores = self._node("MatMul", [query, key], f"{name}.scores")
        weights = self._node("Softmax", [scores], f"{name}.softmax", axis=-1)
        mixed = self._node("MatMul", [weights, value], f"{name}.mixed")
        mixed = self._node("Transpose", [mixed], f"{name}.transpose", perm=rows)
        joined = [mixed, self._integers(f"{name}.joined", [0, 0, width])]
        mixed = self._node("Reshape", joined, f"{name}.join")
        return self.dense(mixed, f"{name}.out_proj", (width, width))

    def _parts(self, x: str, name: str, width: int) -> list[str]:
        """Split (…, 3 · width) in three."""
        sizes = self._integers(f"{name}.sizes", [width] * 3)
        others = [f"{name}.{part}" for part in ("key", "value")]
        return [self._node("Split", [x, sizes], name, others, axis=-1), *others]

    def _heads(self, x: str, shape: str, name: str, order: list[int]) -> str:
        """Give each head its own dimension, which `order` puts where it belongs."""
        split = self._node("Reshape", [x, shape], f"{name}.heads")
        return self._node("Transpose", [split], name, perm=order)

    def _integers(self, name: str, values: list[int]) -> str:
        """Append integers that are part of the computation."""
        tensor = numpy_helper.from_array(np.array(values, np.int64), name)
        self._nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
        return name
