"""Rules of ops that cut tensors and join them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import tvm
from tvm import tirx

from ..ir.tensor import Dimension, Tensor
from ..ops import functional as op
from ..ops.movement import slice_from
from ..ops.movement import unslice as place
from .rule import linear, register_gradient
from .sample import sample, static


@linear(
    "relax.concat",
    samples=[
        sample([(2, 3), (4, 3)], axis=0),
        sample([(2, 1), (2, 3), (2, 2)], axis=-1),
        sample([("n", 3), ("n", 2)], axis=1),
        sample([("n", 3), (2, 3), ("m", 3)], axis=0),
        sample([(0, 2), (3, 2)], axis=0),
        sample([(2, 2)], axis=1),
    ],
)
def concat(parts: list[Tensor], ct: Tensor, attrs: Any) -> list[Tensor]:
    """x̄ᵢ = the slice of ȳ that xᵢ became"""
    axis = (attrs.axis or 0) % ct.ndim
    extents = [part.shape[axis] for part in parts]
    stops = list(accumulate(extents))
    if 0 not in extents and all(isinstance(stop, int) for stop in stops):
        return op.split(ct, stops[:-1], axis=axis)
    starts = [0, *stops[:-1]]
    return [
        slice_from(ct, [axis], [start], [1], part.shape)
        for start, part in zip(starts, parts, strict=True)
    ]


@linear(
    "relax.slice_scatter",
    samples=[
        sample((2, 5), (2, 2), 1, 3, 1, axis=1),
        sample((7, 2), (3, 2), 0, 5, 2, axis=0),
        sample((2, 5), (2, 2), 0, 4, 2, axis=-1),
        sample((3,), (3,), 0, 3, 1),
        sample(("n", 4), ("n", 2), 1, 4, 2, axis=1),
    ],
)
def slice_scatter(
    x: Tensor, source: Tensor, start: Any, end: Any, step: Any, ct: Tensor, attrs: Any
) -> tuple[Any, ...]:
    """x̄ = ȳ with zeros in the slice,  s̄ = the slice of ȳ"""
    axis = attrs.axis % ct.ndim
    zeros = ct.emitter.full(0.0, source.shape, ct.dtype)
    kept = op.slice_scatter(ct, zeros, start, end, step, axis=axis)
    part = slice_from(ct, [axis], [start], [int(step)], source.shape)
    return kept, part, None, None, None


@register_gradient(
    "relax.split",
    samples=[
        sample((2, 6), indices_or_sections=3, axis=1),
        sample((7, 2), indices_or_sections=[2, 5], axis=0),
        sample((2, 6), indices_or_sections=2, axis=-1),
        sample((7,), indices_or_sections=3, axis=0),
        sample((2, 3), indices_or_sections=1, axis=0),
        sample(("n", 4), indices_or_sections=[1, 3], axis=1),
        sample(("n", 2), indices_or_sections=[2], axis=0),
        sample(("n", 2), indices_or_sections=2, axis=0),
    ],
)
def split(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[Tensor]:
    """x̄ = the ȳᵢ joined"""
    (x,) = inputs
    # The extents of parts of a symbolic axis do not provably add up to it.
    return (op.reshape(op.concat(cotangents, axis=attrs.axis), x.shape),)


@register_gradient(
    "relax.stack",
    samples=[
        sample([(2, 3), (2, 3)], axis=0),
        sample([(2,), (2,), (2,)], axis=-1),
        sample([(2, 3)], axis=1),
        sample([(), ()], axis=0),
        sample([("n", 2), ("n", 2)], axis=1),
    ],
)
def stack(inputs: Any, outputs: Any, cotangents: Any, attrs: Any) -> tuple[list[Tensor]]:
    """x̄ᵢ = ȳ at i"""
    ((parts,), (ct,)) = inputs, cotangents
    if ct.fill is not None:
        return ([ct.emitter.full(ct.fill, part.shape, ct.dtype) for part in parts],)
    axis = (attrs.axis or 0) % ct.ndim
    slices = op.split(ct, len(parts), axis=axis) if len(parts) > 1 else [ct]
    return ([op.reshape(s, part.shape) for s, part in zip(slices, parts, strict=True)],)


@linear(
    "relax.strided_slice",
    samples=[
        sample((7,), [0], [1], [6]),
        sample((7,), [0], [1], [7], [2]),
        sample((7, 2), [0], [-1], [-100], [-1]),
        sample((8, 2), [0], [6], [0], [-2]),
        sample((3, 7), [-1], [100], [-100], [-3]),
        sample((4, 3, 5), [-1, 0], [-3, 1], [100, 3], [1, 1]),
        sample((4, 6), [0, 1], [0, 5], [4, 0], [3, -2]),
        sample((5, 2), [0], [3], [3], [1]),
        sample((0, 3), [1], [1], [3]),
        sample((7,), [0], [1], [5], [2], assume_inbound=True),
        sample(("n", 6), [1], [4], [1], [-2]),
        sample(("n", 2), [0], [1], [-1]),
        sample(("n", 2), [0], [-2], [2**31 - 1], [1]),
        sample(("n", 2), [0], [-5], [2], [1]),
        sample(("n", 2), [0], [-1], [-(2**31)], [-2]),
        sample(("n",), [0], [5], [7]),
    ],
)
def strided_slice(
    x: Tensor, axes: Any, begin: Any, end: Any, *strides_and_ct: Any, attrs: Any
) -> tuple[Any, ...]:
    """x̄ = ȳ in the elements that the slice read, zero elsewhere"""
    *given, ct = strides_and_ct
    axes = [int(axis) % x.ndim for axis in axes]
    strides = [int(stride) for stride in given[0]] if given else [1] * len(axes)
    clip = not attrs.assume_inbound
    first = [
        _first(start, x.shape[axis], stride) if clip else start
        for start, axis, stride in zip(begin, axes, strides, strict=True)
    ]
    return place(ct, axes, first, strides, x.shape), None, None, None, *([None] * len(given))


def _first(begin: Any, extent: Dimension, stride: int) -> Dimension:
    """The index that a slice reads first, if it reads any."""
    if isinstance(begin, tirx.IntImm | int) and isinstance(extent, int):
        return slice(int(begin), None, stride).indices(extent)[0]
    at = tirx.Select(begin < 0, begin + extent, begin)
    inside = tirx.max(at, 0) if stride > 0 else tirx.min(at, extent - 1)
    return tvm.sym.Analyzer().simplify(inside)


@linear(
    "relax.tril",
    samples=[
        sample((3, 3), 0),
        sample((2, 3, 4), -1),
        sample((2, 4, 2), 1),
        sample(("n", 3), -7),
        sample((0, 3), 1),
    ],
)
def tril(x: Tensor, k: Any, ct: Tensor) -> tuple[Tensor, None]:
    """x̄ = the lower triangle of ȳ"""
    return op.tril(ct, k), None


@linear(
    "relax.triu",
    samples=[
        sample((3, 3), 0),
        sample((2, 3, 4), -1),
        sample((2, 4, 2), 1),
        sample(("n", 3), 7),
        sample((0, 3), 1),
    ],
)
def triu(x: Tensor, k: Any, ct: Tensor) -> tuple[Tensor, None]:
    """x̄ = the upper triangle of ȳ"""
    return op.triu(ct, k), None


@linear(
    "graphgrad.unslice",
    samples=[
        sample((3, 2), static((1, 0)), static((7, 2)), axes=[0, 1], strides=[2, 1]),
        sample((3, 2), static((6,)), static((7, 2)), axes=[0], strides=[-3]),
        sample((0, 2), static((2,)), static((3, 2)), axes=[0], strides=[2]),
        sample((2, 2), static((1, 3)), static((4, 4)), axes=[0, 1], strides=[-1, -2]),
    ],
)
def unslice(x: Tensor, begin: Any, shape: Any, ct: Tensor, attrs: Any) -> tuple[Any, ...]:
    """x̄ = the slice of ȳ"""
    return slice_from(ct, attrs.axes, list(begin), attrs.strides, x.shape), None, None
