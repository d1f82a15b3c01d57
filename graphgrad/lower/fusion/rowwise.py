"""Rowwise fusion: kernels that compute row by row from the same rows become one kernel.

The statistics of a norm and the map that normalizes by them, or the sums and the map of its
gradient, read the same tensors. One kernel of all of them reads these once, and does everything
with a row while the row is in the cache, or in registers; see `lower/cpu/rowwise` and
`lower/cuda/row_chains.py`. Such a sequence of stages, each of which reads of earlier ones its own
row alone, is a chain of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import ScheduleError

from ...ir.kernel_structure import Stage, stages
from ...ir.passes import Phase, compiler_pass
from ..cpu.contraction import blocks_of
from ..cpu.group_vectors import vectorize_groups
from ..cpu.plain_indices import simplify_indices
from ..cpu.rowwise import chains_of, is_by_rows, rows_reduced
from ..cpu.split_axes import split_axes
from ..cpu.tuning import Processor
from ..kernels.contraction import reuses_operands
from ..kernels.inline_maps import MayRepeat, inline_maps
from ..kernels.unique_bindings import schedule_of
from .entries import Call
from .joining import joined_calls
from .merge import MergedKernels, Part
from .side_by_side import side_by_side

_MAX_SIDE_STAGE_ELEMENTS = 1 << 14
"""Elements of a stage that may stand beside a chain, such as a parameter in another shape."""

_MAX_BINDING_DISTANCE = 16
"""Bindings between two calls that become one: what the first reads or writes lives longer."""

_MAX_RESULTS = 8
"""Results of a kernel: each is a tensor that it writes, row by row beside the others."""


@compiler_pass(
    Phase.FUSED,
    targets=("llvm", "cuda"),
    after={"fuse_siblings": "it joins kernels of one result each, and these have several"},
)
def fuse_rowwise(mod: tvm.IRModule, processor: Processor, may_repeat: MayRepeat) -> tvm.IRModule:
    """Make one kernel of kernels that compute by the same rows.

    Parameters
    ----------
    mod : IRModule
    processor : Processor
    may_repeat : function
        Which maps a schedule will inline; see `inline_maps`.
    """
    kernels = MergedKernels(mod)
    chains = _Chains(kernels, processor, may_repeat)
    return kernels.in_blocks(
        lambda bindings: joined_calls(
            bindings, chains.joint, kernels.builder, _MAX_BINDING_DISTANCE
        )
    )


@dataclass(frozen=True)
class _Rows:
    """What decides, before any kernel is made, whether a kernel could be part of a chain of rows.

    Attributes
    ----------
    stages : list of Stage
    blocks : dict
        Their blocks, by name.
    reduced : list of tuple of int
        The extents of the rows that its stages reduce.
    """

    stages: list[Stage]
    blocks: dict[str, Any]
    reduced: list[tuple[int, ...]]

    @classmethod
    def of(cls, kernel: tirx.PrimFunc, processor: Processor) -> _Rows | None:
        """The rows of a kernel; None if it has contractions or no stages, or is only a view."""
        kernel_stages = stages(kernel)
        if (
            not kernel_stages
            or any(map(reuses_operands, kernel_stages))
            or _is_large_view(kernel, kernel_stages)
        ):
            return None
        # As the schedule will restate it before it asks for chains: `_REGROUPED`, `_TAKEN_APART`.
        restated = _restated(simplify_indices(kernel), processor)
        kernel_stages = kernel_stages if restated.same_as(kernel) else stages(restated) or []
        blocks = blocks_of(restated.body)
        return cls(kernel_stages, blocks, rows_reduced(kernel_stages, blocks, processor))

    def goes_by(self, extents: tuple[int, ...], processor: Processor) -> bool:
        """Whether all of its stages that take time could go by rows of these extents."""
        return all(
            stage.work <= _MAX_SIDE_STAGE_ELEMENTS
            or is_by_rows(stage, self.blocks, extents, processor)
            for stage in self.stages
        )


def _restated(kernel: tirx.PrimFunc, processor: Processor) -> tirx.PrimFunc:
    """A kernel as the schedule of processors restates it."""
    return kernel if processor.is_gpu else split_axes(vectorize_groups(kernel))[0]


def _is_large_view(kernel: tirx.PrimFunc, kernel_stages: Sequence[Stage]) -> bool:
    """Whether a kernel only gives a large tensor another shape.

    By itself that costs nothing; as a stage of a chain it would be a copy.
    """
    is_large = any(stage.work > _MAX_SIDE_STAGE_ELEMENTS for stage in kernel_stages)
    return is_large and bool(relax.analysis.has_reshape_pattern(kernel))


@dataclass(frozen=True)
class _Joint:
    """A kernel in the place of two, and of which of their values it is called.

    Attributes
    ----------
    kernel : GlobalVar
    arguments, results : list of int
        Places among the distinct values that the two calls take and make.
    """

    kernel: Any
    arguments: list[int]
    results: list[int]

    @classmethod
    def of(cls, call: Call, places: Mapping[Any, int]) -> _Joint:
        """What a call that was made of two is, by the places of their values."""
        of_values = [[places[value] for value in part] for part in (call.arguments, call.results)]
        return cls(call.kernel, *of_values)

    def call(self, values: Sequence[Any], span: Any) -> Call:
        """The call in the place of two others, given the distinct values of these."""
        arguments = [values[place] for place in self.arguments]
        return Call(self.kernel, arguments, [values[place] for place in self.results], span)


class _Chains:
    """The kernels of a module that may be part of a chain of rows, and those made of several."""

    def __init__(self, kernels: MergedKernels, processor: Processor, may_repeat: MayRepeat):
        self._kernels, self._processor, self._may_repeat = kernels, processor, may_repeat
        self._known: dict[Any, _Rows | None] = {}
        self._inlined: dict[Any, tirx.PrimFunc | None] = {}
        self._cases: dict[Any, _Joint | None] = {}

    def joint(self, first: Call, second: Call, is_needed: Callable[[Any], bool]) -> Call | None:
        """One call in the place of two, as `Join` says; None if they are no chain of rows."""
        # The cheap test first: it compares rows, before any kernel is made.
        first_rows, second_rows = self._rows(first.kernel), self._rows(second.kernel)
        if (
            first_rows is None
            or second_rows is None
            or not self._may_share_rows(first_rows, second_rows)
        ):
            return None
        # Results that only the second call reads become buffers inside the kernel.
        is_kept = [is_needed(result) for result in first.results]
        values = [*first.arguments, *first.results, *second.arguments, *second.results]
        places: dict[Any, int] = {}
        pattern = tuple(places.setdefault(value, len(places)) for value in values)
        # Layers repeat themselves: two kernels are met as often as there are layers.
        case = first.kernel, second.kernel, pattern, tuple(is_kept)
        if case not in self._cases:
            call = self._chain(first, second, is_kept)
            self._cases[case] = None if call is None else _Joint.of(call, places)
        joint = self._cases[case]
        return None if joint is None else joint.call(list(places), second.span)

    def _chain(self, first: Call, second: Call, is_kept: list[bool]) -> Call | None:
        """One call in the place of two, if it is a chain; see `joint`."""
        first_kernel, second_kernel = map(self._inline_all_maps, (first.kernel, second.kernel))
        if (
            first_kernel is None
            or second_kernel is None
            or not stages(first_kernel)
            or not stages(second_kernel)
        ):
            return None
        joined = side_by_side(
            Part(first_kernel, first.arguments),
            Part(second_kernel, second.arguments),
            first.results,
            is_kept,
        )
        results = [
            r for r, stays in zip(first.results, is_kept, strict=True) if stays
        ] + second.results
        if len(results) > _MAX_RESULTS or not self._is_chain(joined.kernel):
            return None
        name = self._kernels.add(joined.kernel, first.kernel, second.kernel)
        return Call(name, joined.arguments, results, second.span)

    def _rows(self, variable: Any) -> _Rows | None:
        """The description of a kernel; None if it cannot be part of a chain."""
        if variable not in self._known:
            kernel = self._kernels[variable]
            is_kernel = isinstance(kernel, tirx.PrimFunc)
            self._known[variable] = _Rows.of(kernel, self._processor) if is_kernel else None
        return self._known[variable]

    def _may_share_rows(self, first: _Rows, second: _Rows) -> bool:
        """Whether all stages of two kernels could go by rows that one of them reduces."""
        return any(
            first.goes_by(extents, self._processor) and second.goes_by(extents, self._processor)
            for extents in dict.fromkeys([*first.reduced, *second.reduced])
        )

    def _inline_all_maps(self, variable: Any) -> tirx.PrimFunc | None:
        """A kernel with its maps inlined; None if TVM refuses that."""
        if variable not in self._inlined:
            kernel = self._kernels[variable]
            try:
                sch = schedule_of(kernel)
                inline_maps(sch, self._may_repeat)
                kernel = simplify_indices(kernel.with_body(sch.mod["main"].body))
            except (ScheduleError, tvm.error.InternalError):
                kernel = None
            self._inlined[variable] = kernel
        return self._inlined[variable]

    def _is_chain(self, kernel: tirx.PrimFunc) -> bool:
        """Whether all stages of a kernel that take time are one chain."""
        kernel = _restated(kernel, self._processor)
        kernel_stages = stages(kernel) or []
        internal = list(kernel.body.block.alloc_buffers)
        chains = chains_of(kernel_stages, blocks_of(kernel.body), internal, self._processor)
        return len(chains) == 1 and all(
            chains[0].has(stage.name) or stage.work <= _MAX_SIDE_STAGE_ELEMENTS
            for stage in kernel_stages
        )
