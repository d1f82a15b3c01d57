"""Tensors seen as others of the same elements, in row-major order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any

import tvm
from tvm import te, tirx

from ..constants import integer_value
from ..kinds import map_stage
from ..walk import Expr


def element_count(extents: Sequence[Expr]) -> Expr:
    """The number of elements of a shape; 1 for that of a scalar."""
    if not extents:
        return tirx.const(1, "int32")
    return fold(lambda a, b: a * b, extents)


def raveled(position: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """The place of an element among all those of a shape."""
    total: Expr = tirx.const(0, "int32")
    for index, extent in zip(position, shape, strict=True):
        total = total * extent + index
    return total


def unraveled(offset: Expr, shape: Sequence[Expr]) -> list[Expr]:
    """The indices of the element at a place; zeros if the shape has no elements."""
    if any(integer_value(extent) == 0 for extent in shape):
        return [tirx.const(0, str(offset.ty)) for _ in shape]
    position: list[Expr] = []
    for i in range(len(shape)):
        index = (
            tirx.floordiv(offset, element_count(shape[i + 1 :])) if i + 1 < len(shape) else offset
        )
        # The first index needs no remainder: places end where the shape does.
        position.append(tirx.floormod(index, shape[i]) if i else index)
    return position


def reshaped(tensor: te.Tensor, shape: Sequence[Expr]) -> te.Tensor:
    """The first elements of a tensor as one of another shape; itself if it has that shape.

    Parameters
    ----------
    tensor : Tensor
    shape : sequence of Expr
        Of no more elements than the tensor has.
    """
    analyzer = tvm.sym.Analyzer()
    if len(shape) == len(tensor.shape) and all(
        analyzer.can_prove_equal(a, b) for a, b in zip(shape, tensor.shape, strict=True)
    ):
        return tensor

    def element(*position: Any) -> Expr:
        offset = analyzer.simplify(raveled(position, shape))
        return tensor(*unraveled(offset, tensor.shape))

    return map_stage(shape, element, name=f"{tensor.op.name}_reshaped")
