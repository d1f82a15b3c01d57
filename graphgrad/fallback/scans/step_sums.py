"""What the steps of a scan have computed, read by its gradient instead of computed again.

The states are at hand. What else a step computes on its way is not kept: a gradient evaluates it
for all times at once, from the states. Where that is a sum, such as the product of a state with a
weight, to keep it as a further state takes much less work. Where the gradient reads a sum for what
one map makes of it, such as its total with the product of an input, the map is kept: what else it
reads need not be kept besides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import te, tirx

from ..graph import (
    Key,
    Operation,
    is_reduction,
    operations,
    outputs_of,
    rebuild_scan,
    rewritten,
    state_extents,
)
from ..kinds import map_stage
from ..walk import Expr, identity, tensor_key
from .scan import StackedStep, step, step_time
from .stacks import Stacking


def read_states(gradients: Sequence[te.Tensor], steps: Sequence[StackedStep]) -> list[te.Tensor]:
    """Gradients that read the states of scans where they would compute steps again."""
    table = {
        tensor_key(update): _rows(state, update, step.low)
        for step in steps
        for update, state in zip(step.updates, outputs_of(step.scan), strict=True)
    }
    return rewritten(gradients, lambda op: None, table)


def keep_step_sums(
    tensors: Sequence[te.Tensor],
    given: Sequence[te.Tensor],
    steps: Sequence[StackedStep],
    is_worth_keeping: Callable[[te.Tensor], bool],
) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """Outputs and gradients of scans that keep the sums of their steps which the gradients read.

    Behind them these sums, as states of the scans.

    Parameters
    ----------
    tensors : sequence of Tensor
        Some outputs and their gradients.
    given : sequence of Tensor
        The outputs.
    steps : sequence of StackedStep
        As the derivation of the gradients has noted.
    is_worth_keeping : callable
        Whether a sum for all times is to be kept.
    """
    read = {identity(op): op for op in operations(*tensors, above=given)}
    forward = {identity(op) for op in operations(*given)}
    table: dict[Key, te.Tensor] = {}
    kept: list[te.Tensor] = []
    for noted in steps:
        if identity(noted.scan) not in forward:
            continue
        sums = [
            tensor
            for tensor in noted.stages
            if tensor is not None
            and identity(tensor.op) in read
            and is_reduction(tensor.op)
            and is_worth_keeping(tensor)
        ]
        values = _in_their_place(sums, noted, list(read.values()))
        if values:
            keeping = _keeping(noted.scan, list(values))
            states = outputs_of(keeping)
            table |= zip(map(tensor_key, outputs_of(noted.scan)), states, strict=False)
            kept += states[-len(values) :]
            for tensor, state in zip(values.values(), kept[-len(values) :], strict=True):
                table[tensor_key(tensor)] = _rows(state, tensor, noted.low)
    return rewritten(tensors, lambda op: None, table), kept


def _in_their_place(
    sums: Sequence[te.Tensor], noted: StackedStep, read: Sequence[Operation]
) -> dict[int, te.Tensor]:
    """Sums of a step by their numbers; or what maps of the step make of one, if all read that."""
    numbers = {tensor_key(t): n for n, t in enumerate(noted.stages) if t is not None}

    def made_of(tensor: te.Tensor) -> te.Tensor:
        key = tensor_key(tensor)
        readers = [op for op in read if any(tensor_key(t) == key for t in op.input_tensors)]
        made = outputs_of(readers[0]) if len(readers) == 1 else []
        if len(made) == 1 and _may_stand_for(made[0], tensor) and tensor_key(made[0]) in numbers:
            return made_of(made[0])
        return tensor

    values = map(made_of, sums)
    return {numbers[tensor_key(value)]: value for value in values}


def _may_stand_for(value: te.Tensor, tensor: te.Tensor) -> bool:
    """Whether a map's result takes no more room than the sum that it reads."""
    return (
        isinstance(value.op, te.ComputeOp)
        and not is_reduction(value.op)
        and str(value.dtype) == str(tensor.dtype)
        and tvm_ffi.structural_equal(list(value.shape), list(tensor.shape))
    )


def _keeping(scan: Any, numbers: Sequence[int]) -> Operation:
    """A scan that keeps what some stages of its step compute."""
    time = step_time(scan)
    rows, stages = step(scan, time, {})
    kept = [stages[number].output(0) for number in numbers]
    stacked = Stacking(time).tensors([*rows, *kept], stages)
    states, inits = list(scan.state_placeholder), list(scan.init)
    length, start = states[0].shape[0], inits[0].shape[0]
    for tensor in kept:
        extents, name = state_extents(tensor.shape), f"{tensor.op.name}_state"
        states.append(te.placeholder([length, *extents], str(tensor.dtype), name=name))
        inits.append(_zeros([start, *extents], tensor))
    updates = [_later(tensor, length, time.low) for tensor in stacked]
    return rebuild_scan(scan, inits, updates, states, scan.inputs)


def _zeros(shape: Sequence[Expr], like: te.Tensor) -> te.Tensor:
    zero = tirx.const(0, str(like.dtype))
    return map_stage(shape, lambda *_: zero, name=f"{like.op.name}_first")


def _later(tensor: te.Tensor, length: Expr, low: Expr) -> te.Tensor:
    """The rows of a tensor from a time on, behind zeros that nobody reads."""
    zero = tirx.const(0, str(tensor.dtype))

    def body(t: Any, *indices: Any) -> Any:
        return tirx.if_then_else(t >= low, tensor(t - low, *indices), zero)

    return map_stage((length, *state_extents(tensor.shape[1:])), body, name="next")


def _rows(state: te.Tensor, like: te.Tensor, low: Expr) -> te.Tensor:
    """The rows of a state from a time on."""
    return map_stage(
        like.shape, lambda t, *indices: state(t + low, *indices), name=f"{like.op.name}_kept"
    )
