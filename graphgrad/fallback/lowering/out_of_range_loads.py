"""Loads that a scan's update makes in front of its tensors, at times that are not computed.

`te.scan` asks for an update from the first computed time on, so a step may read what was before it,
`x[t - 1]`. But what depends on no state is a stage of its own, which is computed for all times, and
at the first ones it would read outside of its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx
from tvm.sym import ProofStrength

from ..graph import (
    STEPWISE,
    Operation,
    inside_scans,
    map_expressions,
    operations,
    outputs_of,
    rebuild_scan,
    rewritten,
    sources,
)
from ..indices.linear_system import analyzer_of
from ..reductions.reduce import stage_axes
from ..value_numbering import same
from ..walk import Expr, depend, identity, is_load, loaded, reads, tensor_key, transformed


def clamp_out_of_range_loads(tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Tensors that depend on scans whose updates read nothing outside of a tensor.

    What they read instead is a part of rows that nobody reads.
    """

    inside = inside_scans(operations(*tensors))

    def change(op: Operation) -> list[te.Tensor] | None:
        # A scan inside another is seen to when the step of that one is lowered.
        if (
            not isinstance(op, te.ScanOp)
            or op.tag == STEPWISE
            or tensor_key(op.output(0)) in inside
        ):
            return None
        return _clamp_update(op)

    return rewritten(tensors, change)


def _clamp_update(op: Any) -> list[te.Tensor] | None:
    """The states of a scan with such an update; None if its update is one."""
    rows = op.update[0].shape[0]

    def change(stage: Operation) -> list[te.Tensor] | None:
        is_timed = isinstance(stage, te.ComputeOp) and len(stage.axis) > 0
        if not is_timed or not same(stage.axis[0].dom.extent, rows):
            return None
        return outputs_of(_clamp_loads(stage))

    # What depends on its states, or is computed step by step, is computed at its times alone.
    inputs = {tensor_key(tensor) for tensor in [*op.init, *op.inputs]}
    outside = [tensor for tensor in sources(op) if tensor_key(tensor) not in inputs]
    clamped = rewritten(outside, change)
    replacements = {
        tensor_key(tensor): new
        for tensor, new in zip(outside, clamped, strict=True)
        if tensor_key(tensor) != tensor_key(new)
    }
    if not replacements:
        return None
    updates = rewritten(op.update, lambda stage: None, replacements)
    return outputs_of(rebuild_scan(op, op.init, updates, op.state_placeholder, op.inputs))


def _clamp_loads(stage: Any) -> Any:
    """A stage that reads the nearest element in the place of one outside of a tensor."""
    analyzer = analyzer_of(stage_axes(stage))

    def proved(condition: Expr) -> bool:
        return bool(analyzer.can_prove(condition, ProofStrength.SYMBOLIC_BOUND))

    def clamped(index: Expr, extent: Expr) -> Expr:
        # A gather is the program's own to keep inside; other dimensions are read at every time.
        if reads(index) or not depend([index], {identity(stage.axis[0].var)}):
            return index
        if not proved(index < extent):
            index = tirx.min(index, extent - 1)
        return index if proved(index >= 0) else tirx.max(index, 0)

    is_changed = False

    def change(node: Expr) -> Expr:
        nonlocal is_changed
        if not is_load(node):
            return node
        tensor, indices = loaded(node)
        inside = list(map(clamped, indices, tensor.shape))
        if all(a.same_as(b) for a, b in zip(inside, indices, strict=True)):
            return node
        is_changed = True
        return tensor(*inside)

    changed = map_expressions(stage, lambda root: transformed(root, change))
    # Another stage that computes the same would be computed besides the one that others read.
    return changed if is_changed else stage
