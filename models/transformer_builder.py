"""The layers of transformers, as exporters write them.

Attention is products, transpositions and a softmax; a mask is added; GELU is written by its error
function or by tanh; what one operator of opset 17 does not compute is written out.
"""

import math
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper

from .builder import NetworkBuilder

Gelu = Literal["erf", "tanh"]

EMBEDDED = 5000
"""The fan of weights that are drawn with a deviation of 0.02, as embeddings are."""

_ROWS, _COLUMNS = [0, 2, 1, 3], [0, 2, 3, 1]
"""What puts heads in front of positions, and features in front of those."""


class TransformerBuilder(NetworkBuilder):
    """Appends the layers of transformers, on values of shape (batch, sequence, features)."""

    def dense(
        self,
        x: str,
        name: str,
        features: tuple[int, int],
        separator: str = ".",
        bias: bool = True,
    ) -> str:
        """Append ``x @ weight.T + bias``, with weights named by `name`, `separator` and kind."""
        taken, given = features
        # No ReLU follows, which would halve the variance: 1 / fan-in.
        weight = self._normal(f"{name}{separator}weight", (given, taken), 2 * taken)
        if not bias:
            return self.tied(x, name, weight)
        shift = self._constant(f"{name}{separator}bias", given, 0.0)
        return self.add(self.tied(x, f"{name}.matmul", weight), shift, name)

    def tied(self, x: str, name: str, weight: str) -> str:
        """Append ``x @ weight.T``, with a weight that is there already."""
        turned = self._node("Transpose", [weight], f"{name}.transpose", perm=[1, 0])
        return self._node("MatMul", [x, turned], name)

    def embedding(self, tokens: str, name: str, words: int, width: int) -> str:
        """Append a row of the weight for each token."""
        weight = self._normal(f"{name}.weight", (words, width), EMBEDDED)
        return self._node("Gather", [weight, tokens], name)

    def positions(self, x: str, name: str, length: int, width: int) -> str:
        """Append the sum with a weight of each position."""
        weight = self._normal(f"{name}.weight", (length, width), EMBEDDED)
        return self.add(x, weight, name)

    def layer_norm(self, x: str, name: str, width: int) -> str:
        """Append a normalization of the features of each position."""
        weights = [self._constant(f"{name}.weight", width, 1.0)]
        weights.append(self._constant(f"{name}.bias", width, 0.0))
        return self._node("LayerNormalization", [x, *weights], name, axis=-1, epsilon=1e-5)

    def rms_norm(self, x: str, name: str, width: int) -> str:
        """Append x / √(mean(x²) + 1e-5), weighted (Zhang and Sennrich, 2019)."""
        square = self._node("Pow", [x, self._number(f"{name}.two", 2.0)], f"{name}.square")
        mean = self._node("ReduceMean", [square], f"{name}.mean", axes=[-1], keepdims=1)
        shifted = self.add(mean, self._number(f"{name}.epsilon", 1e-5), f"{name}.add")
        root = self._node("Sqrt", [shifted], f"{name}.sqrt")
        inverse = self._node("Reciprocal", [root], f"{name}.reciprocal")
        normal = self._node("Mul", [x, inverse], f"{name}.normal")
        return self._node("Mul", [self._constant(f"{name}.weight", width, 1.0), normal], name)

    def dropout(self, x: str, name: str, rate: float) -> str:
        """Append a dropout, unless the rate is 0."""
        if not rate:
            return x
        return self._node("Dropout", [x, self._number(f"{name}.rate", rate)], name)

    def gelu(self, x: str, name: str, form: Gelu = "erf") -> str:
        """Append x · (1 + erf(x / √2)) / 2, or its approximation by tanh."""
        inner = self._node("Div", [x, self._number(f"{name}.root", math.sqrt(2))], f"{name}.div")
        if form == "tanh":
            cube = self._node("Pow", [x, self._number(f"{name}.three", 3.0)], f"{name}.cube")
            scaled = self._node(
                "Mul", [cube, self._number(f"{name}.cubic", 0.044715)], f"{name}.scaled"
            )
            inner = self.add(x, scaled, f"{name}.inner")
            scale = self._number(f"{name}.scale", math.sqrt(2 / math.pi))
            inner = self._node("Mul", [inner, scale], f"{name}.outer")
        sigmoid = self._node("Erf" if form == "erf" else "Tanh", [inner], f"{name}.{form}")
        shifted = self.add(sigmoid, self._number(f"{name}.one", 1.0), f"{name}.add")
        product = self._node("Mul", [x, shifted], f"{name}.mul")
        return self._node("Mul", [product, self._number(f"{name}.half", 0.5)], name)

    def tanh(self, x: str, name: str) -> str:
        """Append the hyperbolic tangent."""
        return self._node("Tanh", [x], name)

    def gated(self, x: str, name: str, width: int, feed_forward: int) -> str:
        """Append silu(gate(x)) · up(x), mapped down again (Shazeer, 2020)."""
        gate, up = (
            self.dense(x, f"{name}.{part}_proj", (width, feed_forward), bias=False)
            for part in ("gate", "up")
        )
        sigmoid = self._node("Sigmoid", [gate], f"{name}.sigmoid")
        silu = self._node("Mul", [gate, sigmoid], f"{name}.silu")
        product = self._node("Mul", [silu, up], f"{name}.product")
        return self.dense(product, f"{name}.down_proj", (feed_forward, width), bias=False)

    def mean(self, x: str, name: str) -> str:
        """Append the mean over the positions, whose dimension is left out."""
        return self._node("ReduceMean", [x], name, axes=[1], keepdims=0)

    def first(self, x: str, name: str) -> str:
        """Append the first position, whose dimension is left out."""
        return self._node("Gather", [x, self._integers(f"{name}.zero", 0)], name, axis=1)

    def rows(self, x: str, name: str, width: int) -> str:
        """Append a row for each position of each example."""
        return self._node("Reshape", [x, self._integers(f"{name}.shape", [-1, width])], name)

    def patches(self, x: str, name: str, channels: tuple[int, int], patch: int) -> str:
        """Append square patches of an image as positions: linear maps of their channels."""
        x = self.convolution(x, name, channels, kernel=patch, stride=patch, bias=True)
        shape = self._integers(f"{name}.shape", [0, 0, -1])
        x = self._node("Reshape", [x, shape], f"{name}.flat")
        return self._node("Transpose", [x], f"{name}.transpose", perm=[0, 2, 1])

    def prepend(self, x: str, name: str, width: int) -> str:
        """Append the values with one more position in front, which is a weight."""
        token = self._normal(name, (1, 1, width), EMBEDDED)
        batch = self._node("Shape", [x], f"{name}.batch", start=0, end=1)
        shape = [batch, self._integers(f"{name}.rest", [1, width])]
        shape = self._node("Concat", shape, f"{name}.shape", axis=0)
        token = self._node("Expand", [token, shape], f"{name}.expand")
        return self._node("Concat", [token, x], f"{name}.concat", axis=1)

    def finish_tokens(self, x: str, classes: int) -> onnx.ModelProto:
        """Return the checked model whose logits have a row for each token of each example."""
        batch, length = self._input_shape
        rows = f"{batch} * {length}" if isinstance(batch, str) else batch * length
        return self.finish(x, classes, rows)

    def causal_mask(self, name: str, length: int) -> str:
        """Append what attention adds so that no position sees a later one."""
        return self._number(name, np.triu(np.full((length, length), -np.inf), 1))

    def self_attention(
        self, x: str, name: str, width: int, heads: int, mask: str | None = None
    ) -> str:
        """Append softmax(q kᵀ / √depth + mask) v, head by head, between two linear maps."""
        projected = self.dense(x, f"{name}.in_proj", (width, 3 * width), separator="_")
        query, key, value = self._split(projected, f"{name}.split", [width] * 3)
        depth = width // heads
        query = self._scaled(query, name, depth)
        shape = self._integers(f"{name}.heads", [0, 0, heads, depth])
        query = self._heads(query, shape, f"{name}.query", _ROWS)
        key = self._heads(key, shape, f"{name}.key", _COLUMNS)
        value = self._heads(value, shape, f"{name}.value", _ROWS)
        mixed = self._mixed(query, key, value, name, width, mask)
        return self.dense(mixed, f"{name}.out_proj", (width, width))

    def grouped_attention(
        self,
        x: str,
        name: str,
        width: int,
        heads: tuple[int, int],
        mask: str,
        angles: tuple[str, str],
    ) -> str:
        """Append attention in which several query heads share one of keys and values.

        As Ainslie et al. (2023): `heads` are those of queries and of keys. Queries and keys are
        rotated by `angles`, the cosines and sines of each position (Su et al., 2021).
        """
        depth = width // heads[0]
        shapes = [self._integers(f"{name}.heads", [0, 0, heads[0], depth])]
        shapes.append(self._integers(f"{name}.groups", [0, 0, heads[1], depth]))
        given = []
        for part, group in (("q", 0), ("k", 1), ("v", 1)):
            own = f"{name}.{part}_proj"
            y = self.dense(x, own, (width, heads[group] * depth), bias=False)
            given.append(self._heads(y, shapes[group], f"{own}.turned", _ROWS))
        query, key = (
            self._rotated(y, f"{name}.{part}_rotated", depth, angles)
            for y, part in zip(given[:2], "qk", strict=True)
        )
        query = self._scaled(query, name, depth)
        shared = heads[0] // heads[1]
        key, value = (
            self._repeated(y, f"{name}.{part}_repeated", shared, heads[0], depth)
            for y, part in ((key, "k"), (given[2], "v"))
        )
        key = self._node("Transpose", [key], f"{name}.key", perm=[0, 1, 3, 2])
        mixed = self._mixed(query, key, value, name, width, mask)
        return self.dense(mixed, f"{name}.o_proj", (width, width), bias=False)

    def angles(self, name: str, length: int, depth: int, base: float) -> tuple[str, str]:
        """Append cosines and sines of position · base^(-2i / depth), for each half of the depth."""
        frequencies = base ** (-np.arange(0, depth, 2) / depth)
        angles = np.tile(np.outer(np.arange(length), frequencies), 2)
        cosines = self._number(f"{name}.cos", np.cos(angles))
        return cosines, self._number(f"{name}.sin", np.sin(angles))

    def _rotated(self, x: str, name: str, depth: int, angles: tuple[str, str]) -> str:
        """Turn the two halves of each head's features by the angles of their position."""
        low, high = self._split(x, f"{name}.halves", [depth // 2] * 2)
        turned = [self._node("Neg", [high], f"{name}.neg"), low]
        turned = self._node("Concat", turned, f"{name}.concat", axis=-1)
        along = self._node("Mul", [x, angles[0]], f"{name}.along")
        across = self._node("Mul", [turned, angles[1]], f"{name}.across")
        return self.add(along, across, name)

    def _repeated(self, x: str, name: str, count: int, heads: int, depth: int) -> str:
        """Repeat each head for the queries that share it."""
        x = self._node("Unsqueeze", [x, self._integers(f"{name}.axis", [2])], f"{name}.unsqueeze")
        shape = self._integers(f"{name}.expanded", [1, 1, count, 1, 1])
        x = self._node("Expand", [x, shape], f"{name}.expand")
        shape = self._integers(f"{name}.joined", [0, heads, -1, depth])
        return self._node("Reshape", [x, shape], name)

    def _scaled(self, query: str, name: str, depth: int) -> str:
        """Divide queries by √depth."""
        scale = self._number(f"{name}.scale", 1 / math.sqrt(depth))
        return self._node("Mul", [query, scale], f"{name}.scaled")

    def _mixed(
        self, query: str, key: str, value: str, name: str, width: int, mask: str | None
    ) -> str:
        """Append softmax(query key + mask) value, with the heads joined again."""
        scores = self._node("MatMul", [query, key], f"{name}.scores")
        if mask is not None:
            scores = self.add(scores, mask, f"{name}.masked")
        weights = self._node("Softmax", [scores], f"{name}.softmax", axis=-1)
        mixed = self._node("MatMul", [weights, value], f"{name}.mixed")
        mixed = self._node("Transpose", [mixed], f"{name}.transpose", perm=_ROWS)
        joined = [mixed, self._integers(f"{name}.joined", [0, 0, width])]
        return self._node("Reshape", joined, f"{name}.join")

    def _split(self, x: str, name: str, sizes: list[int]) -> list[str]:
        """Split the features."""
        told = self._integers(f"{name}.sizes", sizes)
        others = [f"{name}.output{index}" for index in range(1, len(sizes))]
        return [self._node("Split", [x, told], name, others, axis=-1), *others]

    def _heads(self, x: str, shape: str, name: str, order: list[int]) -> str:
        """Give each head its own dimension, which `order` puts where it belongs."""
        split = self._node("Reshape", [x, shape], f"{name}.heads")
        return self._node("Transpose", [split], name, perm=order)

    def _integers(self, name: str, values: int | list[int]) -> str:
        """Append integers that are part of the computation."""
        tensor = numpy_helper.from_array(np.array(values, np.int64), name)
        return self._tensor(name, tensor)
