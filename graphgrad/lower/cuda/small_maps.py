"""Small maps computed in the launch of the sums that they read.

Between the sums of a batch norm and the map that normalizes by them lie maps with an element for
each channel, which take as long to launch as to compute. Such a map is taken out of the kernel of a
large one, so that it is computed once, and put behind the reduction that makes what it reads, whose
last blocks compute it (`column_tiles.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import ScheduleError, renew_defs

from ...ir.kernel_structure import Stage, buffer_of, is_among, stages, statements_of, volume
from ...ir.loops import block
from ...ir.passes import Phase, compiler_pass
from ..fusion.entries import Call, Entry, Readers, bindings_of, entries_of
from ..fusion.merge import MergedKernels, Part
from ..fusion.side_by_side import side_by_side
from ..kernels.contraction import reuses_operands
from ..kernels.inline_maps import inline_maps
from ..kernels.unique_bindings import schedule_of
from .reduction import along_terms
from .stages import MAX_READERS, may_repeat

_MAX_ELEMENTS = 1 << 14
"""Elements of a small map at most."""

_MIN_RATIO = 16
"""How many times as many points the large stages of a kernel have, at least."""

_MIN_TERMS = 1024
"""Terms of a reduction whose launch computes small maps, at least."""


@compiler_pass(
    Phase.FUSED,
    targets=("cuda",),
    after={"fuse_siblings": "it joins reductions of one result each, without maps behind them"},
)
def attach_small_maps(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute small maps in the kernels of the reductions that they read."""
    kernels = MergedKernels(mod)
    maps = _SmallMaps(kernels)
    return kernels.in_blocks(lambda bindings: _Block(bindings, maps, kernels.builder).changed())


@dataclass(frozen=True)
class _Split:
    """A kernel as one of its small maps and one of the rest.

    Attributes
    ----------
    small, large : PrimFunc
    small_inputs, large_inputs : list of int
        Which arguments of the kernel each of them takes.
    handed : list of Buffer
        The results of the first, which the second takes behind its other arguments.
    """

    small: tirx.PrimFunc
    large: tirx.PrimFunc
    small_inputs: list[int]
    large_inputs: list[int]
    handed: list[Any]


class _SmallMaps:
    """The kernels of a module that have small maps or may take some, and those made of them."""

    def __init__(self, kernels: MergedKernels):
        self._kernels = kernels
        self._splits: dict[Any, _Split | None] = {}
        self._small: dict[Any, int] = {}
        self._results: dict[Any, int] = {}

    def split(self, call: Call) -> tuple[Call, Call] | None:
        """A call as that of its small maps, and that of the rest; None if it has none."""
        if call.kernel not in self._splits:
            count = len(call.arguments)
            self._splits[call.kernel] = _split(self._kernels[call.kernel], count)
        split = self._splits[call.kernel]
        if split is None:
            return None
        handed = [
            relax.DataflowVar("small", relax.TensorType(list(b.shape), str(b.dtype)))
            for b in split.handed
        ]
        small = self._kernels.add(split.small, call.kernel)
        large = self._kernels.add(split.large, call.kernel)
        small_arguments = [call.arguments[i] for i in split.small_inputs]
        large_arguments = [*(call.arguments[i] for i in split.large_inputs), *handed]
        return (
            Call(small, small_arguments, handed, call.span),
            Call(large, large_arguments, call.results, call.span),
        )

    def joint(self, first: Call, second: Call, is_kept: list[bool]) -> Call | None:
        """One call of a reduction and of small maps that read it; None if they are something else.

        Parameters
        ----------
        first, second : Call
        is_kept : list of bool
            Of which results of the first anything but the second reads.
        """
        elements = self._elements_of_small(second.kernel)
        if not elements or self._results_of(first.kernel) != elements:
            return None
        joined = side_by_side(
            Part(self._kernels[first.kernel], first.arguments),
            Part(self._kernels[second.kernel], second.arguments),
            first.results,
            is_kept,
        )
        kept = [result for result, stays in zip(first.results, is_kept, strict=True) if stays]
        name = self._kernels.add(joined.kernel, first.kernel, second.kernel)
        return Call(name, joined.arguments, [*kept, *second.results], first.span)

    def _elements_of_small(self, variable: Any) -> int:
        """The elements of the last of a kernel's maps, if it has small maps alone; otherwise 0."""
        if variable not in self._small:
            kernel_stages = _static_stages(self._kernels[variable])
            is_small = bool(kernel_stages) and all(map(_is_small_map, kernel_stages))
            self._small[variable] = kernel_stages[-1].work if is_small else 0
        return self._small[variable]

    def _results_of(self, variable: Any) -> int:
        """The results of a kernel's last reduction, if that is a long one of columns; else 0."""
        if variable not in self._results:
            reductions = [s for s in _static_stages(self._kernels[variable]) if s.reduced]
            is_long = bool(reductions) and _reduces_columns(reductions[-1])
            self._results[variable] = volume(reductions[-1].spatial) if is_long else 0
        return self._results[variable]


def _static_stages(kernel: Any) -> list[Stage]:
    """The stages of a kernel; none if it is not made of such, or an extent is symbolic or 0."""
    kernel_stages = stages(kernel) if isinstance(kernel, tirx.PrimFunc) else None
    if not all(axis.extent for stage in kernel_stages or [] for axis in stage.axes):
        return []
    return kernel_stages or []


def _is_small_map(stage: Stage) -> bool:
    return not stage.reduced and 0 < stage.work <= _MAX_ELEMENTS


def _reduces_columns(stage: Stage) -> bool:
    return (
        0 < volume(stage.spatial) <= _MAX_ELEMENTS
        and volume(stage.reduced) >= _MIN_TERMS
        and not reuses_operands(stage)
        and not along_terms(stage)
    )


def _split(kernel: Any, inputs: int) -> _Split | None:
    """A kernel of so many inputs in two; None if it has no small maps in front of large stages."""
    if not _static_stages(kernel) or not _has_small(_static_stages(kernel)):
        return None
    try:
        sch = schedule_of(kernel)
        inline_maps(sch, may_repeat, MAX_READERS)
    except (ScheduleError, tvm.error.InternalError):
        return None  # TVM makes no schedule of every kernel
    func = kernel.with_body(sch.mod["main"].body)
    kernel_stages, nests = stages(func) or [], statements_of(func.body.block.body)
    internal = list(func.body.block.alloc_buffers)
    if not _has_small(kernel_stages) or any(map(reuses_operands, kernel_stages)):
        return None
    most = max(stage.work for stage in kernel_stages)
    small: list[int] = []
    made: list[Any] = []
    for i, stage in enumerate(kernel_stages):
        written, read = stage.stores[0].buffer, [buffer_of(load) for load in stage.loads]
        if (
            _is_small_map(stage)
            and stage.work * _MIN_RATIO <= most
            and is_among(written, internal)
            and all(is_among(b, [*made, *func.params[:inputs]]) for b in read)
        ):
            small.append(i)
            made.append(written)
    large = [i for i in range(len(kernel_stages)) if i not in small]
    read = [buffer_of(load) for i in large for load in kernel_stages[i].loads]
    handed = [buffer for buffer in made if is_among(buffer, read)]
    if not handed:
        return None
    params = list(func.params)
    split = []
    for part, results, kept in (
        (small, handed, [b for b in made if not is_among(b, handed)]),
        (large, params[inputs:], [b for b in internal if not is_among(b, made)]),
    ):
        used = [buffer_of(load) for i in part for load in kernel_stages[i].loads]
        taken = [i for i in range(inputs) if is_among(params[i], used)]
        given = [params[i] for i in taken] + ([] if part is small else handed)
        body = block("root", *(nests[i] for i in part), buffers=kept)
        split.append((tirx.PrimFunc([*given, *results], body, attrs=func.attrs), taken))
    (first, first_inputs), (second, second_inputs) = split
    return _Split(renew_defs(first), renew_defs(second), first_inputs, second_inputs, handed)


def _has_small(kernel_stages: Sequence[Stage]) -> bool:
    return len(kernel_stages) > 1 and any(map(_is_small_map, kernel_stages))


class _Block:
    """The bindings of a dataflow block while small maps are attached to reductions."""

    def __init__(self, bindings: Sequence[Any], maps: _SmallMaps, builder: relax.BlockBuilder):
        self._maps, self._builder = maps, builder
        self._entries: list[Entry | None] = []
        for entry in entries_of(bindings):
            split = maps.split(entry.call) if entry.call is not None else None
            self._entries += [entry] if split is None else map(self._entry, split)
        self._made_at = {
            var: i for i, each in enumerate(self._entries) if each for var in each.makes
        }
        self._readers = Readers(entry for entry in self._entries if entry)

    def changed(self) -> list[Any]:
        """The bindings, with each small map in the call that makes the last of what it reads."""
        for position in range(len(self._entries)):
            self._attach(position)
        return [binding for entry in self._entries if entry for binding in entry.bindings]

    def _attach(self, position: int) -> None:
        """Compute the call at a position together with an earlier one, if that fits."""
        entry = self._entries[position]
        if entry is None or entry.call is None:
            return
        made_at = [self._made_at[var] for var in entry.reads if var in self._made_at]
        earlier = self._entries[max(made_at)] if made_at else None
        if earlier is None or earlier.call is None:
            return
        is_kept = [self._readers.is_read_beside(r, entry) for r in earlier.call.results]
        call = self._maps.joint(earlier.call, entry.call, is_kept)
        if call is None:
            return
        target = max(made_at)
        joined = self._entry(call)
        self._readers.replace((earlier, entry), joined)
        self._entries[target], self._entries[position] = joined, None
        self._made_at.update(dict.fromkeys(entry.makes, target))

    def _entry(self, call: Call) -> Entry:
        return Entry.of(call, bindings_of(call, self._builder))
