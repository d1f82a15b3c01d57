"""Maps of the same points in one launch, where they read the same large tensor.

The gradients of two batch norms whose results are added are maps of one cotangent. A thread reads
its elements once, and computes both.
"""

from __future__ import annotations

from typing import Any

from ...ir.kernel_structure import (
    Stage,
    buffer_of,
    is_among,
    same_indices,
    stride,
    substitute_values,
    uses,
)

_MIN_POINTS = 1 << 18
"""Points of maps that are worth it: in fewer, a launch takes longer than what it reads."""

_MAX_OPERATIONS = 64
"""Operations of a map: what two of them compute of a vector must fit into registers."""


def is_large_map(stage: Stage) -> bool:
    """Whether a stage is a map that may share its launch: in the order of its large tensors."""
    return (
        not stage.reduced
        and not stage.conditional
        and stage.work >= _MIN_POINTS
        and stage.operations <= _MAX_OPERATIONS
        and all(
            stride(access, stage.axes[-1].var) == 1
            for access in (*stage.loads, *stage.stores)
            if _reads_at_each_point(access, stage)
        )
    )


def _reads_at_each_point(access: Any, stage: Stage) -> bool:
    """Whether an access has another element at each point."""
    return all(uses(list(access.indices), axis.var) for axis in stage.axes if axis.extent != 1)


def share_reads(first: Stage, second: Stage) -> bool:
    """Whether two large maps read one element of a tensor at each point, and not each other."""
    extents = [[axis.extent for axis in stage.axes] for stage in (first, second)]
    if not is_large_map(first) or not is_large_map(second) or extents[0] != extents[1]:
        return False
    stored = [access.buffer for access in (*first.stores, *second.stores)]
    if any(is_among(buffer_of(load), stored) for load in (*first.loads, *second.loads)):
        return False
    axes = {own.var: other.var for own, other in zip(second.axes, first.axes, strict=True)}
    loads = [substitute_values(load, axes) for load in second.loads]
    return any(
        buffer_of(load).same_as(buffer_of(other))
        and same_indices(load, other)
        and _reads_at_each_point(other, first)
        for load in loads
        for other in first.loads
    )
