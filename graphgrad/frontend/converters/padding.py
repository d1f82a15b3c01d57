"""Padding; TVM's importer writes it as a kernel, of which no gradient rule knows what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ModelError
from ...ir.tensor import Dimension, Tensor
from ...ops import functional as op
from ...ops.movement import slice_from, unslice
from ...ops.padding import check_border
from .node import Node, converter
from .shape import axes_of, normalized

_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


@converter("Pad")
def pad(node: Node) -> Tensor:
    """x with a border: of a constant, or of copies of its elements; negative widths cut."""
    x, mode = node.tensor(0), node.attribute("mode", b"constant").decode()
    if mode not in _MODES:
        raise ModelError(f"its mode {mode!r} is none of {', '.join(_MODES)}")
    before, after = _widths(node, x.ndim)
    if mode != "constant":
        return _copied(x, before, after, _MODES[mode])
    value = _value(node)
    if isinstance(value, float):
        return _constant(x, before, after, value)
    # A computed value cannot be an attribute of the pad: ones, padded by zeros, say where it goes.
    inside = _constant(x.emitter.full(1.0, x.shape, x.dtype), before, after, 0.0)
    return op.where(op.not_equal(inside, 0.0), _constant(x, before, after, 0.0), value)


def _widths(node: Node, rank: int) -> tuple[list[Dimension], list[Dimension]]:
    """The widths of the border before and after each axis."""
    widths = node.dimensions(1)
    pads = list(node.attribute("pads") if widths is None else widths)
    axes = axes_of(node, 3)
    axes = list(range(rank)) if axes is None else normalized(axes, rank)
    if len(pads) != 2 * len(axes):
        raise ModelError(f"it gives {len(pads)} pads for {len(axes)} axes")
    before: list[Dimension] = [0] * rank
    after: list[Dimension] = [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[position + len(axes)]
    return before, after


def _value(node: Node) -> float | Tensor:
    """The fill of a constant border; a tensor where the model computes it."""
    if not node.has(2):
        return float(node.attribute("value", 0.0))
    try:
        constant = node.constant(2)
    except ModelError:
        return op.reshape(node.tensor(2), [])
    return float(np.asarray(constant).reshape(()))


def _constant(
    x: Tensor, before: Sequence[Dimension], after: Sequence[Dimension], value: float
) -> Tensor:
    """x with a border of a number, cut where a width is negative."""
    if all(isinstance(width, int) for width in [*before, *after]):
        return op.pad(x, _pairs(before, after), pad_value=value)
    if value != 0.0:
        raise ModelError("its pads depend on symbolic extents and its value is not 0")
    # Symbolic widths: the elements are written into zeros, whose shape is an expression.
    axes = list(range(x.ndim))
    shape = [
        width_before + extent + width_after
        for width_before, extent, width_after in zip(before, x.shape, after, strict=True)
    ]
    return unslice(x, axes, before, [1] * x.ndim, shape)


def _copied(x: Tensor, before: Sequence[Any], after: Sequence[Any], mode: str) -> Tensor:
    """Cut what negative widths cut, and repeat the elements that are left."""
    if not all(isinstance(width, int) for width in [*before, *after]):
        raise ModelError("its pads depend on symbolic extents: give the model's input shapes")
    cut_before = [max(-width, 0) for width in before]
    cut_after = [max(-width, 0) for width in after]
    if any(cut_before) or any(cut_after):
        shape = [
            extent - first_cut - last_cut
            for extent, first_cut, last_cut in zip(x.shape, cut_before, cut_after, strict=True)
        ]
        x = slice_from(x, list(range(x.ndim)), cut_before, [1] * x.ndim, shape)
    borders = _pairs([max(width, 0) for width in before], [max(width, 0) for width in after])
    check_border(x.shape, borders, mode)
    return op.pad(x, borders, pad_mode=mode)


def _pairs(before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Widths in the order of Relax: before and after the first axis, then the second, …"""
    return [width for pair in zip(before, after, strict=True) for width in pair]
