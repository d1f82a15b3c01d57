"""Products of matrices."""

from __future__ import annotations

from tvm import relax

from ...ops.einsum import parse
from ...ops.tensor import Tensor
from .node import Node, converter


@converter("Einsum")
def einsum(node: Node) -> Tensor:
    """Keep the summation as one op; TVM's importer makes it a kernel, which has no gradient."""
    equation = node.attribute("equation").decode()
    operands = [node.tensor(i) for i in range(len(node.inputs))]
    parse(equation, [t.ndim for t in operands])
    return node.emitter.emit(relax.op.einsum([t.expr for t in operands], equation))
