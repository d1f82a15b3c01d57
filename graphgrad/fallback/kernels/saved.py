"""Which intermediates of a forward kernel its gradient is given, and which it computes again.

What costs memory is weighed against what costs work, stage by stage, what is read first coming
first. A tensor is saved if computing it again, from what is saved already, evaluates at least
`_EVALUATIONS_PER_STORE` bodies for each of its elements: a sum, a mean, the states of a recurrence.
An elementwise map does not: it is computed again, in the kernel that reads it. Beside a recurrence
a whole chain of maps is: the steps of the loop backwards compute of it what they read, and a tensor
for all times would stand beside all others of these while that loop runs. Nothing is saved that is
larger than the largest tensor that the forward kernel takes or gives; or, beside the states of a
recurrence, than a few times these: the gates of a cell are as large as several states.

What a reduction of float16 or bfloat16 adds up in float32 is saved in float32. Other intermediates
of these dtypes are not saved: kernels keep those of bfloat16 in float32, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te

from ..forms.cost import loop_points
from ..graph import (
    Key,
    Operation,
    is_reduction,
    operations,
    outputs_of,
    rewritten,
    scan_body,
    sources,
)
from ..indices.linear_system import element_axes
from ..lowering.wide_reductions import widen_reduction
from ..reductions.reduce import stage_axes
from ..scans.kept import MAX_KEPT_PER_STATE
from ..walk import identity, tensor_key

_EVALUATIONS_PER_STORE = 4
"""Evaluations that one element in memory is worth: it is written, kept and read. Chosen, not
measured."""

_EVALUATIONS_PER_EXTERN = 8
"""What an element of an extern stage counts as: a sort or a search, not taken apart here."""

NARROW_DTYPES = ("float16", "bfloat16")


def worth_saving(
    outputs: Sequence[te.Tensor], gradients: Sequence[te.Tensor], arguments: Sequence[te.Tensor]
) -> list[te.Tensor]:
    """Intermediates of a forward kernel that are to be handed to the kernels of a gradient.

    Parameters
    ----------
    outputs : sequence of Tensor
        What the forward kernel returns. The gradient is given these in any case.
    gradients : sequence of Tensor
        They read the forward kernel's own stages.
    arguments : sequence of Tensor
        What the forward kernel takes.

    Returns
    -------
    list of Tensor
        Each after those that it depends on.
    """
    forward = {identity(op) for op in operations(*outputs)}
    recomputed = [
        op
        for op in operations(*gradients, above=outputs)
        if identity(op) in forward and not isinstance(op, te.PlaceholderOp)
    ]
    most = most_elements(outputs, arguments)
    has_loop = any(isinstance(tensor.op, te.ScanOp) for tensor in outputs)
    at_hand = {tensor_key(tensor) for tensor in outputs}
    work = Work(at_hand)
    chosen: list[te.Tensor] = []
    for op in recomputed:
        evaluations = work.again(op)
        if has_loop and is_pass(op):
            continue
        for tensor in outputs_of(op):
            if tensor_key(tensor) in at_hand:
                continue
            size = elements(tensor)
            if _may_be_stored(tensor) and size <= most and is_worth(evaluations, size):
                chosen.append(tensor)
                at_hand.add(tensor_key(tensor))
    # What is behind a tensor that was chosen later may be read no more.
    still_read = _read(gradients, [*outputs, *chosen])
    return [tensor for tensor in chosen if tensor_key(tensor) in still_read]


def most_elements(outputs: Sequence[te.Tensor], arguments: Sequence[te.Tensor]) -> int:
    """How many elements a tensor that is saved has at most.

    Parameters
    ----------
    outputs : sequence of Tensor
        What the forward kernel returns.
    arguments : sequence of Tensor
        What it takes.
    """
    states = [tensor for tensor in outputs if isinstance(tensor.op, te.ScanOp)]
    largest = max(elements(tensor) for tensor in [*outputs, *arguments])
    return max(largest, MAX_KEPT_PER_STATE * sum(map(elements, states)))


def is_pass(op: Operation) -> bool:
    """Whether a stage is no more than a pass over memory: a map."""
    if isinstance(op, te.ComputeOp):
        return not is_reduction(op)
    return isinstance(op, te.PlaceholderOp)


class Work:
    """How much work it takes to compute stages again.

    Parameters
    ----------
    at_hand : set of Key
        The tensors that need not be computed; what is added to it later counts from then on.
    """

    def __init__(self, at_hand: set[Key]):
        self._at_hand = at_hand
        # By stage: the work of each stage that it takes, itself among them. A stage that several
        # read counts once.
        self._behind: dict[int, dict[int, int]] = {}

    def again(self, op: Operation) -> int:
        """The evaluations of bodies for a stage and what is behind it, which was asked before."""
        work = {identity(op): work_of(op)}
        for tensor in sources(op):
            if tensor_key(tensor) not in self._at_hand:
                work |= self._behind.get(identity(tensor.op), {})
        self._behind[identity(op)] = work
        return sum(work.values())


def is_worth(evaluations: int, elements: int) -> bool:
    """Whether so many elements in memory are worth not to evaluate so many bodies again."""
    return evaluations >= _EVALUATIONS_PER_STORE * elements


def widen_saved(
    tensors: Sequence[te.Tensor], saved: Sequence[te.Tensor]
) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """Tensors, and intermediates of theirs as they are to be saved, sums in float32.

    Parameters
    ----------
    tensors : sequence of Tensor
    saved : sequence of Tensor
        Each after those that it depends on.
    """
    readers, wide = list(tensors), list(saved)
    for number in range(len(wide)):
        rounded = widen_reduction(wide[number].op)
        if rounded is None:
            continue
        # All components of a reduction at once, so that it stays one.
        replacements = dict(zip(map(tensor_key, outputs_of(wide[number].op)), rounded, strict=True))
        renewed = rewritten([*readers, *wide], lambda op: None, replacements)
        readers, wide = renewed[: len(readers)], renewed[len(readers) :]
    return readers, [_before_rounding(tensor) for tensor in wide]


def _before_rounding(tensor: te.Tensor) -> te.Tensor:
    """The value that a stage rounds which stands for a reduction of narrow floats."""
    return tensor if _may_be_stored(tensor) else sources(tensor.op)[0]


def _read(gradients: Sequence[te.Tensor], available: Sequence[te.Tensor]) -> set[Key]:
    """The tensors that gradients read, directly or by what is not given to them."""
    order = operations(*gradients, above=available)
    read = [*gradients, *(tensor for op in order for tensor in sources(op))]
    return set(map(tensor_key, read))


def _may_be_stored(tensor: te.Tensor) -> bool:
    return str(tensor.dtype) not in NARROW_DTYPES or is_reduction(tensor.op)


def work_of(op: Operation) -> int:
    """How often a stage evaluates its bodies; symbolic extents are taken for typical."""
    if isinstance(op, te.PlaceholderOp):
        return 0
    if isinstance(op, te.ComputeOp):
        return loop_points(stage_axes(op))
    if isinstance(op, te.ScanOp):
        return sum(map(work_of, scan_body(op)))
    return _EVALUATIONS_PER_EXTERN * sum(map(elements, outputs_of(op)))


def elements(tensor: Any) -> int:
    """How many elements a tensor has; symbolic extents are taken for typical."""
    return loop_points(element_axes(tensor.shape))
