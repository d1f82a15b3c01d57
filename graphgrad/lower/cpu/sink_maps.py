"""Maps in front of a loop over time, of which each step reads one row, computed in the steps.

They are computed for all times at once, as what does not depend on the state is. Where a map is no
more than a few operations on each element, it takes longer to write it to memory and to read it
again than to compute it where it is read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...ir.kernel_rewrite import replace_block
from ...ir.kernel_structure import (
    Load,
    Stage,
    buffer_of,
    is_among,
    loop_nest,
    stage_of,
    static,
    substitute_values,
    uses,
)
from ...ir.loops import within
from ...ir.visits import nodes_in, replace_nodes
from .buffer_views import stores_at_iterators


@dataclass(frozen=True)
class Sunk:
    """A step with the maps that it reads.

    Attributes
    ----------
    step : list of Stmt
        The maps' rows and the stages of the step.
    rows : list of Buffer
        What the maps store to.
    left : list of Stmt
        The stages in front of the loop that stay there.
    unused : list of Buffer
        What only the maps accessed that stay no longer.
    """

    step: list[Any]
    rows: list[Any]
    left: list[Any]
    unused: list[Any]


def sink_maps(
    front: Sequence[Any],
    step: Sequence[Any],
    time: Any,
    movable: Collection[Any],
    pays: Callable[[Stage], bool] = lambda _: True,
) -> Sunk:
    """The steps of a loop with the maps in front of it of which they read one row each.

    Parameters
    ----------
    front : sequence of Stmt
        The stages in front of the loop, in order.
    step : sequence of Stmt
        The stages of a step.
    time : Var
    movable : collection of Buffer
        What only the stages in front and the step access, and nothing else stores to.
    pays : callable
        Whether to move a map, which is given for all times.
    """
    stored = [s.buffer for nest in step for s in nodes_in(nest, tirx.BufferStore)]
    stores = Counter(s.buffer for nest in front for s in nodes_in(nest, tirx.BufferStore))
    readers = Counter(load.source for nest in front for load in nodes_in(nest, Load))
    reads: dict[Any, list[Any]] = defaultdict(list)
    for load in nodes_in(step, Load):
        reads[load.source].append(load)
    maps: list[Any] = []
    left: list[Any] = []
    rows: dict[Any, Any] = {}
    # A map's readers come behind it, and may have been moved into the step.
    for nest in reversed(front):
        left.insert(0, nest)
        stage = stage_of(nest)
        if stage is None or not _is_movable_map(nest, stage, movable, stored) or not pays(stage):
            continue
        buffer = stage.stores[0].buffer
        # The first row of a state is stored in front of the loop, too.
        if stores[buffer] > 1 or readers[buffer]:
            continue
        row = _row_read(reads[buffer], time)
        if row is None:
            continue
        target = tirx.decl_buffer(list(buffer.shape)[1:], str(buffer.dtype), buffer.name)
        rows[buffer] = target
        maps.insert(0, _at_row(nest, row, target))
        left.pop(0)
        readers.subtract(load.source for load in nodes_in(nest, Load))
        for load in nodes_in(maps[0], Load):
            reads[load.source].append(load)
    steps = [_reading(nest, rows) for nest in [*maps, *step]]
    return Sunk(steps, list(rows.values()), left, list(rows))


def _is_movable_map(
    nest: Any, stage: Stage, movable: Collection[Any], stored: Sequence[Any]
) -> bool:
    """Whether a stage may be computed later, row by row: what it reads does not change."""
    found = loop_nest(nest)
    if found is None:
        return False
    outer, buffer = found[1].block, stage.stores[0].buffer
    doms = [axis.dom for axis in outer.iter_vars]
    return (
        not stage.reduced
        and len(stage.axes) == len(doms) > 1
        and stores_at_iterators(outer)
        and all(
            static(dom.min) == 0 and static(dom.extent) == static(extent) is not None
            for dom, extent in zip(doms, buffer.shape, strict=True)
        )
        and is_among(buffer, movable)
        and not any(is_among(buffer_of(load), stored) for load in stage.loads)
    )


def _row_read(loads: Sequence[Any], time: Any) -> Any | None:
    """The first index of all loads of a buffer in a step, which depends on the time alone."""
    if not loads:
        return None
    row = loads[0].indices[0]
    is_of_time = bool(uses(row, time)) and all(
        var.same_as(time) for var in nodes_in(row, tvm.ir.Var)
    )
    if not is_of_time or nodes_in(row, Load):
        return None
    for load in loads:
        if not tvm_ffi.structural_equal(load.indices[0], row):
            return None
        if any(uses(index, time) for index in load.indices[1:]):
            return None
    return row


def _at_row(nest: Any, row: Any, target: Any) -> Any:
    """A stage for one row, which it stores to another buffer."""
    loops, realize = loop_nest(nest) or ([], None)
    assert realize is not None
    outer = realize.block
    first = outer.iter_vars[0].var
    value = substitute_values(outer.body.value, {first: row.astype(str(first.ty.dtype))})
    body = tirx.BufferStore(target, value, list(outer.body.indices)[1:])
    block = replace_block(outer, iter_vars=outer.iter_vars[1:], body=body, reads=[], writes=[])
    nest = SBlockRealize(list(realize.iter_values)[1:], realize.predicate, block)
    return within(loops[1:], nest)


def _reading(nest: Any, rows: Mapping[Any, Any]) -> Any:
    """A stage that reads the rows of buffers instead of these."""

    def load(node: Any) -> Any:
        if node.source not in rows:
            return node
        return tirx.BufferLoad(rows[node.source], list(node.indices)[1:])

    return replace_nodes(nest, Load, load)
