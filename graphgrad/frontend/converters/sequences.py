"""Sequences of tensors, which are tuples at import."""

from __future__ import annotations

from tvm import relax

from ...errors import ModelError
from .node import Node, converter


@converter("SequenceInsert")
def sequence_insert(node: Node) -> relax.Tuple:
    """The sequence with a tensor before a position, or at the end.

    A negative position counts from the end, where TVM's importer is off by one.
    """
    tensors = list(node.inputs[0])
    value = node.constant(2)
    position = len(tensors) if value is None else int(value.item())
    if not -len(tensors) <= position <= len(tensors):
        raise ModelError(f"its position {position} is not in a sequence of {len(tensors)}")
    tensors.insert(position, node.tensor(1).expr)
    return relax.Tuple(tensors)
