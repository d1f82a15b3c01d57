"""Tensors of which only a block is read: the gradient of the block, inside a border of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, prod
from typing import Any

from tvm import te, tirx
from tvm.ir import prim

from ..contribution import Contribution
from ..indices.affine import coefficients, nonnegative_expressions
from ..indices.index_system import Axis, Inversion
from ..kinds import Kind, marked
from ..walk import Expr

_MAX_BLOCK_FRACTION = 0.75
"""Largest part of a tensor that is put in place by a stage of its own; chosen, not measured."""


@dataclass(frozen=True)
class Block:
    """A part of a tensor, from `first` to `last` in each dimension, both inclusive."""

    first: list[int]
    last: list[int]


def block_read(inversion: Inversion, element: Sequence[Axis]) -> Block | None:
    """The block outside which the guards of an inversion let no element pass.

    None if that is nearly the whole tensor, or its shape is not constant.
    """
    if not all(isinstance(axis.extent, prim.IntImm) for axis in element):
        return None
    block = Block([0] * len(element), [int(axis.extent) - 1 for axis in element])
    axes = [*element, *inversion.loops]
    for guard in inversion.guards:
        for form in nonnegative_expressions(guard):
            affine = coefficients(form, axes) if form is not None else None
            if affine is None or not isinstance(affine[1], prim.IntImm):
                continue
            dimensions = [dimension for dimension, factor in enumerate(affine[0]) if factor]
            # Only a bound on one dimension alone is an edge of a block.
            if len(dimensions) != 1 or dimensions[0] >= len(element):
                continue
            (dimension,) = dimensions
            # factor · x + rest ≥ 0 bounds x from below for a positive factor, else from above.
            edge = -int(affine[1]) / affine[0][dimension]
            if affine[0][dimension] > 0:
                block.first[dimension] = max(block.first[dimension], ceil(edge))
            else:
                block.last[dimension] = min(block.last[dimension], floor(edge))
    sizes = [last - first + 1 for first, last in zip(block.first, block.last, strict=True)]
    elements = prod(int(axis.extent) for axis in element)
    return (
        block
        if min(sizes, default=0) > 0 and prod(sizes) <= _MAX_BLOCK_FRACTION * elements
        else None
    )


def narrowed(contribution: Contribution, block: Block) -> Contribution:
    """A contribution to a tensor that is only a block of the one that is read."""
    tensor = contribution.tensor
    shape = [
        tirx.const(last - first + 1, str(extent.ty))
        for first, last, extent in zip(block.first, block.last, tensor.shape, strict=True)
    ]
    return replace(
        contribution,
        tensor=te.placeholder(shape, str(tensor.dtype), name=tensor.op.name),
        indices=[
            index - first for index, first in zip(contribution.indices, block.first, strict=True)
        ],
    )


def placed(stage: te.Tensor, block: Block, shape: Sequence[Expr]) -> te.Tensor:
    """A tensor of some shape with a block in it, and zeros elsewhere."""

    def body(*position: Any) -> Expr:
        conditions = []
        for index, first, last, extent in zip(
            position, block.first, block.last, shape, strict=True
        ):
            if first > 0:
                conditions.append(index >= first)
            if last < int(extent) - 1:
                conditions.append(index <= last)
        value = stage(*(p - f if f else p for p, f in zip(position, block.first, strict=True)))
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0.0, str(stage.dtype)))

    name = f"{stage.op.name}_placed"
    return te.compute(tuple(shape), body, name=name, attrs=marked(Kind.PAD))
