"""Dropout. Whether it drops values, and which, is chosen when the model is used."""

from __future__ import annotations

from typing import Any

from .node import Node, converter


@converter("Dropout")
def dropout(node: Node) -> tuple[Any, ...]:
    """TVM's translation; its mask is boolean from opset 10 on, where TVM gives numbers."""
    outputs = node.by_tvm()
    if len(outputs) == 1 or node.opset < 10:
        return outputs
    mask = node.emitter.lift(node.emitter.builder.emit(outputs[1]))
    return outputs[0], mask.astype("bool")
