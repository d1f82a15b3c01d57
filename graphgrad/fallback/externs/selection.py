"""Selections whose places the forward pass itself gives out."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx, topi
from tvm.ir import prim

from ..kinds import map_stage
from ..walk import Expr
from .match import nodes, same_stage


def get_valid_counts(op: Any) -> list[te.Tensor | None] | None:
    """y[i, j] = x[i, indices[i, j]] for j < count[i], else -1"""
    data = op.inputs[0]  # TVM cannot build the stage with a threshold that is a tensor
    condition = nodes(op.body, tirx.IfThenElse)[0].condition
    columns = [load.indices[-1] for load in nodes(condition, tvm.ir.TensorLoad)]
    # Without labels the condition reads the score alone; the function is then called with -1.
    score, label = (*columns, -1)[:2]
    # The threshold is one of the constants of the condition; the match tells which.
    for limit in nodes(condition, prim.FloatImm):
        candidate = topi.vision.get_valid_counts(data, limit.value, int(label), int(score))
        if same_stage(op, list(candidate)):
            return [None, _compacted(data, op.output(0), op.output(2)), None]
    return None


def _compacted(data: te.Tensor, counts: te.Tensor, positions: te.Tensor) -> te.Tensor:
    def body(i: Any, j: Any, k: Any) -> Expr:
        filler = tirx.const(-1.0, str(data.dtype))
        return tirx.if_then_else(j < counts[i], data(i, positions(i, j), k), filler)

    return map_stage(data.shape, body, name=f"{data.op.name}_valid")
