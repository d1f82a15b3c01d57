"""Cotangents of what the steps of a scan compute, kept for all times.

A scan in reverse goes from the cotangent of a state to that of the state before by the cotangents
of what lies between them, the stages of a step. From these follow, too, the cotangents of what the
steps read from outside, such as weights: by one contraction over all times. Where it takes more
than a few operations to compute them, the scan in reverse keeps those of the stages that read from
outside, as further states; otherwise they are computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tvm import te
from tvm.ir import prim

from ..backprop import is_float
from ..forms.cost import loop_points
from ..graph import Key, Operation, active_stages, is_reduction, operations, outputs_of, sources
from ..indices.linear_system import element_axes
from ..walk import identity, is_load, postorder, tensor_key

_MAX_REPEATED_OPERATIONS = 12
"""Operations on floats up to which cotangents are computed again. Chosen, not measured: a pass over
memory takes about as long as that many operations on its elements."""

MAX_KEPT_PER_STATE = 8
"""How many elements are kept for each element of the states that are carried, at most."""


def entries(
    order: Sequence[Operation], states: Collection[Key], outside: Collection[Key]
) -> list[Operation]:
    """The stages of a step that depend on states and read what depends on others.

    Parameters
    ----------
    order : sequence of Operation
        The stages of the step.
    states : collection of Key
        The states of floats.
    outside : collection of Key
        The other tensors whose cotangents are asked for.
    """
    inner, inner_stages = active_stages(order, states, is_float)
    outer, _ = active_stages(order, outside, is_float)
    leaving = {*outside, *outer} - inner - set(states)
    return [
        op
        for op in order
        if identity(op) in inner_stages and any(tensor_key(t) in leaving for t in sources(op))
    ]


def worth_keeping(
    kept: Sequence[te.Tensor],
    carried: Iterable[te.Tensor],
    order: Sequence[Operation],
    given: Sequence[te.Tensor],
) -> bool:
    """Whether some cotangents of stages are to be kept by the scan that computes them.

    Parameters
    ----------
    kept : sequence of Tensor
        The cotangents for all times.
    carried : iterable of Tensor
        The cotangents of states that the scan carries.
    order : sequence of Operation
        The stages of the step. Their sums are at hand for all times.
    given : sequence of Tensor
        What is computed outside of the scan in reverse.
    """
    elements = sum(_elements_of_step(tensor) for tensor in kept)
    if not kept or elements > MAX_KEPT_PER_STATE * sum(map(_elements_of_step, carried)):
        return False
    sums = [tensor for op in order if is_reduction(op) for tensor in outputs_of(op)]
    behind = operations(*kept, above=[*given, *sums])
    if any(is_reduction(op) for op in behind):
        return True
    maps = [op for op in behind if isinstance(op, te.ComputeOp)]
    return sum(map(_float_operations, maps)) > _MAX_REPEATED_OPERATIONS


def _float_operations(op: te.ComputeOp) -> int:
    """The operations on floats in the body of a map, each once; those on indices do not count."""
    return sum(
        is_float(str(node.ty)) and not is_load(node) and not isinstance(node, prim.FloatImm)
        for node in postorder(*op.body)
    )


def _elements_of_step(tensor: te.Tensor) -> int:
    return loop_points(element_axes(tensor.shape[1:]))
