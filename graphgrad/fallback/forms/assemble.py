"""The cotangent of a tensor from everything that is added to it: which form each part takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any

from tvm import te

from ..contribution import Contribution
from ..graph import Operation, is_reduction
from ..guarded import Guarded, joined
from ..kinds import Kind, marked
from ..scatter import Scatter, scatter_add
from ..walk import Expr, dtype_name
from .cancellation import drop_canceling
from .derive import derived
from .piecewise import affine_pieces
from .rolled import rolled

_MAX_MAPS_BEHIND = 2
"""Maps that may stand behind a reduction: of a mean a division and a cast."""


def assembled(
    tensor: te.Tensor, parts: Sequence[Contribution | te.Tensor], pads: bool = True
) -> te.Tensor | None:
    """The cotangent of a tensor, of its shape and dtype; None if it is zero by algebra.

    That is looked for in stages that follow a reduction (see `cancellation`).

    Parameters
    ----------
    tensor : Tensor
    parts : non-empty sequence of Contribution or Tensor
        What is to be summed; tensors are of the tensor's shape.
    pads : bool
        Whether conditions of contractions may become borders of zeros, see `pads`, and what is zero
        by algebra may be left out.
    """
    stages: list[te.Tensor] = []
    scatters: list[Scatter] = []
    for part in rolled(parts):
        if isinstance(part, te.Tensor):
            stages.append(part)
            continue
        for piece in affine_pieces(part):
            stage = derived(piece, pads)
            if stage is None:
                scatters.append(_scatter(piece))
            else:
                stages.append(stage)
    if pads and not scatters and _follows_reduction(tensor.op):
        stages = drop_canceling(stages)
        if not stages:
            return None
    if scatters:
        # All into one: each tensor of its own would be filled with zeros, and summed.
        wide = dtype_name(scatters[0].value.ty)
        stages.append(scatter_add(tensor.shape, wide, scatters, f"{tensor.op.name}_scat"))
    dtype = dtype_name(tensor.dtype)
    if len(stages) == 1 and dtype_name(stages[0].dtype) == dtype:
        return stages[0]

    def total(*position: Any) -> Expr:
        value = fold(lambda a, b: a + b, (stage(*position) for stage in stages))
        return value.astype(dtype)

    return te.compute(tensor.shape, total, name=f"{tensor.op.name}_ct", attrs=marked(Kind.MAP))


def _follows_reduction(op: Operation) -> bool:
    """Whether a stage is a reduction, or a map of one or a few levels that reads one.

    Cotangents of others cancel only if somebody has subtracted what is read from itself.
    """
    stages = [op]
    for _ in range(_MAX_MAPS_BEHIND + 1):
        if any(map(is_reduction, stages)):
            return True
        maps = [stage for stage in stages if isinstance(stage, te.ComputeOp)]
        stages = [tensor.op for stage in maps for tensor in stage.input_tensors]
    return False


def _scatter(part: Contribution) -> Scatter:
    """The stage that adds one contribution where it was read from."""
    term = joined(part.terms) if len(part.terms) > 1 else part.terms[0]
    guards = (*((condition, True) for condition in part.conditions), *term.guards)
    return Scatter.of(part.axes, part.indices, Guarded(guards, term.value))
