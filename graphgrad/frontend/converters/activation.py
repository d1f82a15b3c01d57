"""Activations that TVM's importer has not, or writes so that a derivative is wrong."""

from __future__ import annotations

from ...ops import functional as op
from ...ops.tensor import Tensor
from .node import Node, converter


@converter("Elu")
def elu(node: Node) -> Tensor:
    """x where x > 0, else α (exp x − 1); the slope at 0 is α."""
    x = node.tensor(0)
    positive = op.greater(x, 0.0)
    # The exponential is kept from the positive side, where it may overflow.
    negative = op.exp(op.where(positive, 0.0, x)) - 1.0
    return op.where(positive, x, node.attribute("alpha", 1.0) * negative)
