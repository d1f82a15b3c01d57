"""Tensor expressions for many values of some placeholders at once: along one more axis, in front.

A stage that depends on such a placeholder gets the axis, as one of its loops; what depends on none
is computed once. A reduction reduces what it did before, so contractions stay contractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tirx

from ..errors import GraphGradError
from ..tvm_fixes.hooks import compute_stage
from .graph import STOP_GRADIENT, map_bodies, operations, outputs_of, sources
from .kinds import map_stage
from .walk import Expr, is_load, loaded, tensor_key, transformed


class UnbatchableError(GraphGradError):
    """A stage is written by hand, or carries states, so that it gets no further axis."""


def batch_expressions(
    outputs: Sequence[te.Tensor], inputs: Sequence[te.Tensor], extent: int
) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """Outputs along one more axis, for placeholders that have it.

    Parameters
    ----------
    outputs : sequence of Tensor
    inputs : sequence of Tensor
        Placeholders among what they depend on.
    extent : int
        Of the axis.

    Returns
    -------
    outputs, inputs : list of Tensor
        With the axis in front: every output, also one that depends on no input; and a new
        placeholder in the place of each input.

    Raises
    ------
    UnbatchableError
        Among the stages is a scan, or an extern stage.
    """
    placeholders = [
        te.placeholder([extent, *tensor.shape], str(tensor.dtype), name=tensor.op.name)
        for tensor in inputs
    ]
    table = {tensor_key(old): new for old, new in zip(inputs, placeholders, strict=True)}
    for op in operations(*outputs):
        if any(tensor_key(tensor) in table for tensor in sources(op)):
            for old, new in zip(outputs_of(op), _batched(op, table, extent), strict=True):
                table[tensor_key(old)] = new
    return [_of_all(tensor, table, extent) for tensor in outputs], placeholders


def _batched(op: Any, table: dict[Any, te.Tensor], extent: int) -> list[te.Tensor]:
    """The outputs of a stage that reads tensors with the axis."""
    if not isinstance(op, te.ComputeOp):
        raise UnbatchableError(f"the stage {op.name} is a {type(op).__name__}")
    variable = tirx.Var("batch", str(op.axis[0].var.ty) if len(op.axis) else "int32")
    axis = tirx.IterVar(
        tvm.ir.Range(tirx.const(0, variable.ty), tirx.const(extent, variable.ty)),
        variable,
        tirx.IterVar.DataPar,
    )

    def read(node: Expr) -> Expr:
        if not is_load(node):
            return node
        tensor, indices = loaded(node)
        replacement = table.get(tensor_key(tensor))
        return node if replacement is None else replacement(variable, *indices)

    bodies = map_bodies(op.body, lambda expr: transformed(expr, read))
    # Other attributes tell of the axes that a stage had, or name tensors.
    attrs = {key: value for key, value in op.attrs.items() if key == STOP_GRADIENT}
    stage = compute_stage(op.name, op.tag, attrs, [axis, *op.axis], bodies)
    return outputs_of(stage)


def _of_all(tensor: te.Tensor, table: dict[Any, te.Tensor], extent: int) -> te.Tensor:
    """A tensor with the axis: repeated along it if it depends on no input."""
    batched = table.get(tensor_key(tensor))
    if batched is not None:
        return batched
    return map_stage([extent, *tensor.shape], lambda _, *at: tensor(*at), tensor.op.name)
