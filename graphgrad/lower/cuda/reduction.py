"""Reductions as expressions, apart from the loop nests and threads that compute them.

`rows.py` has a warp for each result, `columns.py` a thread for some of them. Where there are few
results with many terms, parts of the terms are reduced first, and further launches reduce the
parts. Which terms make a part depends on the shape alone: every run adds in the same order. No
thread adds more than `MAX_TERMS_PER_THREAD` terms where extents are known, and those in blocks:
float32 sums round as those of a tree do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tvm_ffi
from tvm import tirx

from ...ir.kernel_structure import (
    Axis,
    Load,
    Stage,
    bound_values,
    statements_of,
    static,
    stride,
    substitute_values,
    uses,
    volume,
)
from ...ir.loops import index, loop, variable
from ..kernels.epilogue import Epilogue
from .combiner import Combine, combiner

MAX_TERMS_PER_THREAD = 1024
"""Terms that one thread adds up at most."""

Values = list[Any]


@dataclass(frozen=True)
class Target:
    """How a finished result is stored.

    Attributes
    ----------
    result : Buffer
        The buffer of the reduction's result.
    store : BufferStore or None
        The store of the finished result, whose value reads `result`. With an epilogue it computes
        the map, and stores to the map's buffer. None for a result that nothing reads.
    """

    result: Any
    store: Any

    def stored(self, result: Any) -> list[Any]:
        """The statements that store a result: one, or none."""
        if self.store is None:
            return []

        def read(load: Any) -> Any:
            return result if load.source.same_as(self.result) else load

        value = tvm_ffi.structural_map(self.store.value, (Load, read))
        return [tirx.BufferStore(self.store.buffer, value, list(self.store.indices))]


@dataclass(frozen=True)
class Reduction:
    """A reduction as expressions, independent of the loop nest that computes it.

    Attributes
    ----------
    spatial, reduced : list of For
        The loops over results and over terms; only their variables and ranges are used.
    targets : list of Target
        One for each result; more than one for a reduction of tuples.
    initial : list of Expr
        The results before the first term.
    update : function
        Takes the results so far; returns them with the term at the reduced loops' variables.
    combine : function or None
        Takes the results of two parts, the earlier first, and returns those of both; None if the
        reduction cannot be done in parts.
    along_terms : bool
        Whether neighboring terms are neighbors in memory, rather than neighboring results.
    loads : list of TensorLoad
        What the terms are made of, in the variables of the loops.
    """

    spatial: list[Any]
    reduced: list[Any]
    targets: list[Target]
    initial: Values
    update: Callable[[Values], Values]
    combine: Combine | None
    along_terms: bool
    loads: list[Any]

    @cached_property
    def are_apart(self) -> bool:
        """Whether no result depends on another one: which terms are in which part is all the same.

        The index of the first maximum depends on the maximum, and on the order of the terms.
        """
        so_far = [tirx.Var("result", target.result.dtype) for target in self.targets]
        return not any(
            uses(value, var)
            for i, value in enumerate(self.update(so_far))
            for j, var in enumerate(so_far)
            if i != j
        )


@dataclass(frozen=True)
class Step:
    """One launch of a reduction.

    Attributes
    ----------
    kernel : Stmt
    buffers : list of Buffer
        What it hands to the next launch.
    rest : Reduction or None
        What is left to be reduced.
    """

    kernel: Any
    buffers: list[Any]
    rest: Reduction | None


def reduction_of(
    stage: Stage,
    loops: Sequence[Any],
    block: Any,
    epilogues: Sequence[Epilogue] = (),
    unread: Sequence[Any] = (),
) -> Reduction:
    """The reduction of a stage, with its loops' variables in place of the block's.

    A result that has an epilogue is not stored, but the map of it. `unread` are buffers that
    nothing reads: these results are not stored at all.
    """
    index_values = {axis.var: loop.loop_var for axis, loop in zip(stage.axes, loops, strict=True)}
    # Iterators of one element may have no loop: they are 0.
    for iterator in block.iter_vars:
        index_values.setdefault(iterator.var, tirx.const(0, "int64"))
    bound = bound_values(block.body)
    values = [substitute_values(store.value, bound) for store in stage.stores]
    epilogue_of_buffer = {epilogue.taken: epilogue for epilogue in epilogues}
    targets = [
        Target(store.buffer, None)
        if any(store.buffer.same_as(buffer) for buffer in unread)
        else _target(store, index_values, epilogue_of_buffer.get(store.buffer))
        for store in stage.stores
    ]
    start_values = {store.buffer: store.value for store in statements_of(block.init)}
    initial = [
        substitute_values(start_values[store.buffer], index_values) for store in stage.stores
    ]

    def update(accumulators: Values) -> Values:
        return [
            substitute_values(_read_accumulators(value, stage.stores, accumulators), index_values)
            for value in values
        ]

    axes_and_loops = list(zip(stage.axes, loops, strict=True))
    return Reduction(
        [loop for axis, loop in axes_and_loops if not axis.reduced],
        [loop for axis, loop in axes_and_loops if axis.reduced],
        targets,
        initial,
        update,
        combiner(values, stage.stores, initial),
        along_terms(stage),
        [substitute_values(load, index_values) for load in stage.loads],
    )


def parts_of(
    reduction: Reduction, parts: int, name: str, is_last_axis: bool
) -> tuple[Any, list[Target], Reduction, list[Any]]:
    """What it takes to reduce in parts.

    Parameters
    ----------
    reduction : Reduction
    parts : int
    name : str
        Of the stage.
    is_last_axis : bool
        Whether the results of a part are apart in memory; otherwise the parts of a result are.

    Returns
    -------
    part : For
        A loop over the parts.
    targets : list of Target
        For the results of the parts.
    rest : Reduction
        The reduction of the parts.
    buffers : list of Buffer
        Those of the parts.
    """
    assert reduction.combine is not None
    part = terms("part", parts)
    results = [loop.extent for loop in reduction.spatial]
    shape = [*results, parts] if is_last_axis else [parts, *results]
    indices = [loop.loop_var for loop in reduction.spatial]
    part_indices = [*indices, part.loop_var] if is_last_axis else [part.loop_var, *indices]
    buffers = [
        tirx.decl_buffer(shape, target.result.dtype, f"{name}_parts")
        for target in reduction.targets
    ]
    loads = [tirx.BufferLoad(buffer, part_indices) for buffer in buffers]
    targets = [
        Target(buffer, tirx.BufferStore(buffer, load, part_indices))
        for buffer, load in zip(buffers, loads, strict=True)
    ]
    combine = reduction.combine
    rest = replace(
        reduction,
        reduced=[part],
        update=lambda accumulators: combine(accumulators, loads),
        along_terms=is_last_axis,
        loads=loads,
    )
    return part, targets, rest, buffers


def terms(name: str, extent: Any) -> Any:
    """A loop over terms, whose variable and range alone are used; its body is empty."""
    return loop(variable(name), index(extent), tirx.Evaluate(0))


def results_of(reduction: Reduction) -> int:
    """The number of results; a symbolic extent counts as a long one."""
    return volume(Axis(each.loop_var, static(each.extent), False) for each in reduction.spatial)


def along_terms(stage: Stage) -> bool:
    """Whether consecutive terms are neighbors in memory, in most of what is read."""
    if not stage.spatial:
        return True
    result_var, term_var = stage.spatial[-1].var, stage.reduced[-1].var
    in_results = in_terms = 0
    for load in stage.loads:
        if stride(load, result_var) == 1:
            in_results += _size(load.source)
        elif stride(load, term_var) == 1:
            in_terms += _size(load.source)
    return in_terms > in_results


def _size(buffer: Any) -> int:
    """The number of elements of a buffer; a symbolic extent counts as a long one."""
    return volume(Axis(None, static(extent), False) for extent in buffer.shape)


def _read_accumulators(value: Any, targets: Sequence[Any], accumulators: Values) -> Any:
    """An expression that reads the results so far from accumulators, not from the targets."""

    def read(load: Any) -> Any:
        for target, accumulator in zip(targets, accumulators, strict=True):
            if load.source.same_as(target.buffer):
                return accumulator
        return load

    return tvm_ffi.structural_map(value, (Load, read))


def _target(store: Any, index_values: dict[Any, Any], epilogue: Epilogue | None) -> Target:
    """How a result is stored, with loops' variables in place of the blocks'."""
    result = store.buffer
    if epilogue is None:
        indices = [substitute_values(index, index_values) for index in store.indices]
        return Target(result, tirx.BufferStore(result, tirx.BufferLoad(result, indices), indices))
    # Axes of the map that run along none of the reduction's have one element, at 0.
    map_index_values = {
        axis.var: tirx.const(0, str(axis.var.ty.dtype)) for axis in epilogue.stage.axes
    }
    map_index_values |= {
        map_axis.var: index_values[var] for var, map_axis in epilogue.along.items()
    }
    (map_store,) = epilogue.stage.stores
    indices = [substitute_values(index, map_index_values) for index in map_store.indices]
    value = substitute_values(map_store.value, map_index_values)
    return Target(result, tirx.BufferStore(map_store.buffer, value, indices))
