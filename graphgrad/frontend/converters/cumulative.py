"""Cumulative sums and products."""

from __future__ import annotations

from ...errors import ModelError
from ...ir.tensor import Tensor
from ...ops import functional as op
from ...ops.cumulative import reverse_cumsum
from .node import Node, converter


@converter("CumSum")
def cum_sum(node: Node) -> Tensor:
    """The sums of the elements up to each one along an axis, or from each one on."""
    x, axis, exclusive = node.tensor(0), _axis(node), bool(node.attribute("exclusive", 0))
    if node.attribute("reverse", 0):
        return reverse_cumsum(x, axis, exclusive)
    return op.cumsum(x, axis, exclusive=exclusive)


@converter("CumProd")
def cum_prod(node: Node) -> Tensor:
    """The products of the elements up to each one along an axis, or from each one on."""
    x, axis, exclusive = node.tensor(0), _axis(node), bool(node.attribute("exclusive", 0))
    if node.attribute("reverse", 0):
        return op.flip(op.cumprod(op.flip(x, axis), axis, exclusive=exclusive), axis)
    return op.cumprod(x, axis, exclusive=exclusive)


def _axis(node: Node) -> int:
    """The axis, counted from the front."""
    axis, rank = node.constant(1), node.tensor(0).ndim
    if axis is None or axis.size != 1:
        raise ModelError("its axis must be one number")
    number = int(axis.reshape(()))
    if not -rank <= number < rank:
        raise ModelError(f"its axis {number} does not exist in a tensor of rank {rank}")
    return number % rank
