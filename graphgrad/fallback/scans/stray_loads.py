"""Loads that a scan's update makes in front of its tensors, at times that are not computed.

`te.scan` asks for an update from the first computed time on, so a step may read what was before it,
`x[t - 1]`. But what depends on no state is a stage of its own, which is computed for all times, and
at the first ones it would read outside of its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tirx
from tvm.sym import ProofStrength

from ..equality import same
from ..graph import (
    STEPWISE,
    Operation,
    inside_scans,
    operations,
    outputs_of,
    rewritten,
    scan_with,
    sources,
    with_expressions,
)
from ..walk import Expr, is_load, loaded, postorder, tensor_key, transformed


def without_stray_loads(tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Return tensors that depend on scans whose updates read zeros outside of a tensor."""

    inside = inside_scans(operations(*tensors))

    def change(op: Operation) -> list[te.Tensor] | None:
        # A scan inside another is seen to when the step of that one is lowered.
        if (
            not isinstance(op, te.ScanOp)
            or op.tag == STEPWISE
            or tensor_key(op.output(0)) in inside
        ):
            return None
        return _with_guarded_update(op)

    return rewritten(tensors, change)


def _with_guarded_update(op: Any) -> list[te.Tensor] | None:
    """Return the states of a scan with such an update; None if its update is one."""
    rows = op.update[0].shape[0]

    def change(stage: Operation) -> list[te.Tensor] | None:
        is_timed = isinstance(stage, te.ComputeOp) and len(stage.axis) > 0
        if not is_timed or not same(stage.axis[0].dom.extent, rows):
            return None
        return outputs_of(_guarded(stage))

    # What depends on its states, or is computed step by step, is computed at its times alone.
    given = {tensor_key(tensor) for tensor in [*op.init, *op.inputs]}
    outside = [tensor for tensor in sources(op) if tensor_key(tensor) not in given]
    guarded = rewritten(outside, change)
    known = {
        tensor_key(tensor): new
        for tensor, new in zip(outside, guarded, strict=True)
        if tensor_key(tensor) != tensor_key(new)
    }
    if not known:
        return None
    updates = rewritten(op.update, lambda stage: None, known)
    return outputs_of(scan_with(op, op.init, updates, op.state_placeholder, op.inputs))


def _guarded(stage: Any) -> Any:
    """Return a stage whose loads are in bounds, or zeros."""
    analyzer = tvm.sym.Analyzer()
    for axis in [*stage.axis, *stage.reduce_axis]:
        if not any(is_load(node) for node in postorder(axis.dom.min, axis.dom.extent)):
            analyzer.bind(axis.var, axis.dom)

    def guarded(node: Expr) -> Expr:
        if not is_load(node):
            return node
        tensor, indices = loaded(node)
        bounds = [
            condition
            for index, extent in zip(indices, tensor.shape, strict=True)
            if not any(is_load(part) for part in postorder(index))
            for condition in (index >= 0, index < extent)
            if not analyzer.can_prove(condition, ProofStrength.SYMBOLIC_BOUND)
        ]
        if not bounds:
            return node
        return tirx.if_then_else(tirx.all(*bounds), node, tirx.const(0, str(tensor.dtype)))

    changed = with_expressions(stage, lambda root: transformed(root, guarded))
    same_bodies = all(a.same_as(b) for a, b in zip(changed.body, stage.body, strict=True))
    return stage if same_bodies else changed
