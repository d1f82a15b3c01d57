"""The axis of a call, checked before anything is lowered with it."""

from __future__ import annotations

from tvm import relax

from ...errors import GraphGradError


def checked_axis(call: relax.Call) -> int:
    """The attribute ``axis`` of a call on its first argument, counted from the front.

    Raises
    ------
    GraphGradError
        The tensor has no such axis.
    """
    axis, rank = int(call.attrs.axis), len(call.args[0].ty.shape)
    if not -rank <= axis < rank:
        raise GraphGradError(
            f"{call.op.name}: axis {axis} of a tensor of rank {rank} does not exist; it is between "
            f"{-rank} and {rank - 1}"
        )
    return axis % rank
