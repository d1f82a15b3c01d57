"""States of scans of which only the last rows are read: kept in a circular buffer of few rows.

A step that looks back `lag` rows needs no more than these and the row that it computes. If nobody
else reads earlier ones, row t is kept at t mod (lag + 1), for however many times the scan runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import te, tirx

from ..constants import integer_value
from ..graph import Key, Operation, map_expressions, outputs_of, scan_body, sources
from ..indices.linear_system import Axis, analyzer_of
from ..walk import Expr, is_load, loaded, postorder, reads, tensor_key, transformed
from .restage import stage_of


def circular_rows(op: Any) -> Expr:
    """How many rows a state of a scan has if it is a circular buffer."""
    return op.init[0].shape[0] + 1


def states_read_at_end(order: Sequence[Operation], results: Sequence[te.Tensor]) -> set[Key]:
    """The states of scans of which only rows that a circular buffer still has at the end are read.

    Parameters
    ----------
    order : sequence of Operation
        All stages.
    results : sequence of Tensor
        What is wanted as a whole.
    """
    scans = {
        tensor_key(state): op
        for op in order
        if isinstance(op, te.ScanOp)
        for state in outputs_of(op)
        if not _is_short(op)
    }
    candidates = scans.keys() - {tensor_key(tensor) for tensor in results}
    for op in order:
        for tensor in sources(op):
            key = tensor_key(tensor)
            if key in candidates:
                end = tensor.shape[0]
                only_last = isinstance(op, te.ComputeOp) and reads_rows(
                    [op], key, end - circular_rows(scans[key]), end
                )
                if not only_last:
                    candidates.remove(key)
    return candidates


def reads_recent_rows(stages: Sequence[Operation], state: te.Tensor, op: Any, time: Axis) -> bool:
    """Whether the stages of a step read only the rows of a state that a circular buffer has.

    Parameters
    ----------
    stages : sequence of Operation
    state : Tensor
        As the stages read it.
    op : ScanOp
    time : Axis
        Of the step.
    """
    return reads_rows(stages, tensor_key(state), time.var + 1 - circular_rows(op), time.var, [time])


def reads_rows(
    stages: Sequence[Operation], key: Key, low: Expr, end: Expr, around: Sequence[Axis] = ()
) -> bool:
    """Whether all that stages read of a tensor are rows from `low` on and before `end`.

    Parameters
    ----------
    stages : sequence of Operation
        An extern stage that reads the tensor is taken to read all of it.
    key : Key
    low, end : Expr
    around : sequence of Axis
        Loops in terms of whose variables all this is.
    """
    for op in stages:
        if not any(tensor_key(tensor) == key for tensor in sources(op)):
            continue
        if isinstance(op, te.ScanOp):
            is_start_or_result = any(tensor_key(tensor) == key for tensor in [*op.init, *op.update])
            if is_start_or_result or not reads_rows(scan_body(op), key, low, end, around):
                return False
            continue
        if not isinstance(op, te.ComputeOp):
            return False
        stage = stage_of(op)
        analyzer = analyzer_of([*around, *stage.axes])
        for node in postorder(*stage.expressions):
            if is_load(node) and tensor_key(loaded(node)[0]) == key:
                row = loaded(node)[1][0]
                if reads(row) or not analyzer.can_prove(tirx.all(row >= low, row < end)):
                    return False
    return True


def circular_row(row: Expr, rows: Expr) -> Expr:
    """Where a circular buffer has a row."""
    return tirx.floormod(row, rows.astype(str(row.ty)))


def read_circular_buffers(op: Operation, circulars: Mapping[Key, te.Tensor]) -> Operation:
    """A stage that reads states where they are kept.

    Parameters
    ----------
    op : Operation
    circulars : mapping
        From states to the circular buffers that have their last rows.
    """
    if not any(tensor_key(tensor) in circulars for tensor in sources(op)):
        return op

    def change(node: Expr) -> Expr:
        circular = circulars.get(tensor_key(loaded(node)[0])) if is_load(node) else None
        if circular is None:
            return node
        row, *others = loaded(node)[1]
        return circular(circular_row(row, circular.shape[0]), *others)

    return map_expressions(op, lambda root: transformed(root, change))


def _is_short(op: Any) -> bool:
    """Whether a circular buffer has no fewer rows than the states."""
    spare = tvm.sym.Analyzer().simplify(op.update[0].shape[0] - circular_rows(op))
    rows = integer_value(spare)
    return rows is not None and rows <= 0
