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
    """Return the block outside which the guards of an inversion let no element pass.

    None if that is nearly the whole tensor, or its shape is not constant.
    """
    if not all(isinstance(axis.extent, prim.IntImm) for axis in element):
        return None
    block = Block([0] * len(element), [int(axis.extent) - 1 for axis in element])
    axes = [*element, *inversion.loops]
    for guard in inversion.guards:
        for form in nonnegative_expressions(guard):
            found = coefficients(form, axes) if form is not None else None
            if found is None or not isinstance(found[1], prim.IntImm):
                continue
            numbers = [number for number, factor in enumerate(found[0]) if factor]
            if len(numbers) != 1 or numbers[0] >= len(element):
                continue
            (number,) = numbers
            edge = -int(found[1]) / found[0][number]
            if found[0][number] > 0:
                block.first[number] = max(block.first[number], ceil(edge))
            else:
                block.last[number] = min(block.last[number], floor(edge))
    sizes = [last - first + 1 for first, last in zip(block.first, block.last, strict=True)]
    whole = prod(int(axis.extent) for axis in element)
    return (
        block if min(sizes, default=0) > 0 and prod(sizes) <= _MAX_BLOCK_FRACTION * whole else None
    )


def narrowed(contribution: Contribution, block: Block) -> Contribution:
    """Return a contribution to a tensor that is only a block of the one that is read."""
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
    """Return a tensor of some shape with a block in it, and zeros elsewhere."""

    def body(*position: Any) -> Expr:
        conditions = []
        for place, first, last, extent in zip(
            position, block.first, block.last, shape, strict=True
        ):
            if first > 0:
                conditions.append(place >= first)
            if last < int(extent) - 1:
                conditions.append(place <= last)
        value = stage(*(p - f if f else p for p, f in zip(position, block.first, strict=True)))
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0.0, str(stage.dtype)))

    name = f"{stage.op.name}_placed"
    return te.compute(tuple(shape), body, name=name, attrs=marked(Kind.PAD))
