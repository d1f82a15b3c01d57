"""Sums of products to differentiate: convolutions of all kinds and einsums, written in TE."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import te, tirx

from graphgrad.fallback.gradient import te_gradient
from tests.fallback.interpreter import evaluate


@dataclass(frozen=True)
class Convolution:
    """A convolution of N·C·H… data with K·C·R… weights, every dimension of an image alike.

    Padding is a condition around the read of the data. A transposed one spreads each element of
    the data over the output instead.
    """

    rank: int = 2
    batch: int = 2
    channels: int = 3
    size: int = 8
    filters: int = 4
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    dtype: str = "float64"

    def __str__(self) -> str:
        kind = "transposed" if self.transposed else "conv"
        return (
            f"{kind}{self.rank}d-{self.size}-k{self.kernel}-s{self.stride}-p{self.padding}"
            f"-d{self.dilation}-g{self.groups}"
        )

    @property
    def output_size(self) -> int:
        """The extent of each dimension of the output image."""
        window = self.dilation * (self.kernel - 1) + 1
        if self.transposed:
            return (self.size - 1) * self.stride + window - 2 * self.padding
        return (self.size + 2 * self.padding - window) // self.stride + 1

    @property
    def points(self) -> int:
        """Multiply-adds of the forward pass, where no zero between strides is among them."""
        image = self.size if self.transposed else self.output_size
        channels = self.channels // self.groups
        return self.batch * self.filters * channels * (image * self.kernel) ** self.rank

    @property
    def data_points(self) -> int:
        """Multiply-adds of the data gradient: for each position the kernel's elements that fit.

        Those on a border of zeros count: only the stride decides what fits.
        """
        if self.transposed:
            return self.points
        fitting = sum(
            (position + self.padding - self.dilation * offset) % self.stride == 0
            for position in range(self.size)
            for offset in range(self.kernel)
        )
        return self.batch * self.filters * (self.channels // self.groups) * fitting**self.rank

    def tensors(self) -> tuple[te.Tensor, list[te.Tensor]]:
        """Return the output, and the data and the weights."""
        image = (self.size,) * self.rank
        window = (self.kernel,) * self.rank
        data = te.placeholder((self.batch, self.channels, *image), self.dtype, name="X")
        shape = (self.filters, self.channels // self.groups, *window)
        weights = te.placeholder(shape, self.dtype, name="W")
        output = (self.batch, self.filters, *(self.output_size,) * self.rank)
        channel = te.reduce_axis((0, self.channels // self.groups), "c")
        offsets = [te.reduce_axis((0, self.kernel), f"r{i}") for i in range(self.rank)]

        def body(n, k, *positions):
            group = tirx.floordiv(k, self.filters // self.groups)
            c = group * (self.channels // self.groups) + channel
            places, conditions = self._places(positions, offsets)
            value = data(n, c, *places)
            if conditions:
                zero = tirx.const(0.0, self.dtype)
                value = tirx.if_then_else(tirx.all(*conditions), value, zero)
            return te.sum(value * weights(k, channel, *offsets), axis=[channel, *offsets])

        return te.compute(output, body, name="conv"), [data, weights]

    def _places(self, positions, offsets):
        """Return where the data is read, and under which conditions."""
        pairs = list(zip(positions, offsets, strict=True))
        if self.transposed:
            far = [p + self.padding - self.dilation * r for p, r in pairs]
            places = [tirx.floordiv(f, self.stride) for f in far]
            fits = [tirx.EQ(tirx.floormod(f, self.stride), 0) for f in far if self.stride > 1]
        else:
            places = [self.stride * p + self.dilation * r - self.padding for p, r in pairs]
            fits = []
        if self.transposed or self.padding:
            fits += [place >= 0 for place in places] + [place < self.size for place in places]
        return places, fits


def einsum(spec: str, dtype: str = "float64", **extents: int) -> tuple[te.Tensor, list[te.Tensor]]:
    """Return a sum of products by numpy's notation, and its operands."""
    operands, result = spec.split("->")
    terms = operands.split(",")
    inputs = [
        te.placeholder([extents[letter] for letter in term], dtype, name=name)
        for term, name in zip(terms, "ABC", strict=False)
    ]
    summed = dict.fromkeys(letter for term in terms for letter in term if letter not in result)
    axes = {letter: te.reduce_axis((0, extents[letter]), letter) for letter in summed}

    def body(*position):
        at = {**axes, **dict(zip(result, position, strict=True))}
        pairs = zip(inputs, terms, strict=True)
        value = prod(
            (tensor(*(at[letter] for letter in term)) for tensor, term in pairs),
            start=tirx.const(1.0, dtype),
        )
        return te.sum(value, axis=list(axes.values())) if axes else value

    return te.compute([extents[letter] for letter in result], body, name="einsum"), inputs


def gradients_of(output, inputs, **options):
    """Return a placeholder for the cotangent of an output, and the gradients."""
    head = te.placeholder(output.shape, str(output.dtype), name="ct")
    return head, te_gradient(output, inputs, head, **options)


def check_values(output, inputs, head, gradients, seed=0):
    """Compare gradients with differences along a random direction for each input.

    The output is a polynomial of degree 2 at most in each, so that they are exact but for rounding.
    """
    generator = np.random.default_rng(seed)
    tensors = [*inputs, head]
    known = {t.op.name: generator.standard_normal([int(e) for e in t.shape]) for t in tensors}

    def values(results, **changed):
        arrays = {**known, **changed}
        return evaluate(results, [(t, arrays[t.op.name]) for t in tensors])

    for tensor, gradient in zip(inputs, values(gradients), strict=True):
        name = tensor.op.name
        direction = generator.standard_normal(known[name].shape)
        (ahead,) = values([output], **{name: known[name] + direction})
        (behind,) = values([output], **{name: known[name] - direction})
        expected = ((ahead - behind) / 2 * known[head.op.name]).sum()
        scale = np.abs(gradient * direction).sum() + 1e-3
        assert gradient.shape == direction.shape
        assert abs((gradient * direction).sum() - expected) < 1e-11 * scale, name
