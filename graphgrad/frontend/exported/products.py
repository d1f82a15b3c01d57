"""Products of matrices; TVM's importer computes all of them in float32, whatever the operands."""

from __future__ import annotations

from typing import Any

from ...ir.tensor import Tensor
from .node import Node, converter


@converter(
    "mm.default",
    "bmm.default",
)
def product(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """x y, added up in float32 of half precision."""
    return (x @ y).astype(node.dtype)


@converter("addmm.default", "addmv.default")
def sum_with_product(
    node: Node, bias: Tensor, x: Tensor, y: Tensor, beta: Any, alpha: Any
) -> Tensor:
    """β b + α x y"""
    result = (x @ y).astype(node.dtype)
    result = result if alpha == 1 else alpha * result
    return result + bias if beta == 1 else result + beta * bias
