"""What function an extern stage is: proved by calling it again."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import te, tirx

from ...ir.visits import nodes_in
from ..walk import tensor_key


def same_stage(op: Any, other: te.Tensor | list[te.Tensor]) -> bool:
    """Whether two extern stages do the same with the same tensors.

    Parameters
    ----------
    op : ExternOp
    other : Tensor or list of Tensor
        The outputs of the other one.
    """
    other_op = (other if isinstance(other, te.Tensor) else other[0]).op
    return [tensor_key(t) for t in op.inputs] == [
        tensor_key(t) for t in other_op.inputs
    ] and tvm_ffi.structural_equal(function_of(op), function_of(other_op), map_free_vars=True)


def nodes(root: Any, kind: Any) -> list[Any]:
    """The statements or expressions of a kind, those outside before those inside."""
    # The order counts: callers take the outermost match, or the last.
    return nodes_in(root, kind, outer_first=True)


def function_of(op: Any) -> tirx.PrimFunc:
    """The loops of an extern stage as a function of its inputs and its outputs."""
    # As parameters, so that each buffer corresponds to the one in its place.
    return tirx.PrimFunc([*op.input_placeholders, *op.output_placeholders], op.body)
