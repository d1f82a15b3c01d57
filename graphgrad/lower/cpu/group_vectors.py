"""Stages that work by groups of channels, vectorized along the members of all groups.

With channels last, a group's members are neighbors and the groups lie side by side: element
``g * M + m`` is member m of group g. A sum over positions and members, one for each group, would
walk through M elements at a time. And a map that reads a group's statistics reads them at
``c // M``, which is no walk through memory at all. So

- such a sum is taken over positions first, for each member, in vectors along the members of all
  groups, and then over the members of each group: what lies between the two is small;
- what is read at quotients is copied before, so that there is one element for each lane of the
  vector, in its order;
- an input whose groups and members are two axes is read along the second, beyond its end: these
  are the same addresses, without a division.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from ...ir.kernel_rewrite import replace_block, replace_statements
from ...ir.kernel_structure import (
    Axis,
    Load,
    Stage,
    is_among,
    stages,
    statements_of,
    static,
    stride,
    substitute_values,
    uses,
    volume,
)
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in, replace_nodes
from ..kernels.contraction import reuses_operands
from .buffer_views import block_of, replace_nests, restated
from .map import SMALL
from .rowwise.accumulation import Accumulation, accumulations_of

_MIN_WORK_RATIO = 16
"""The least ratio of a stage's work to the size of what is copied or added up in between."""


@compiler_pass(
    Phase.FUSED,
    over="kernel",
    targets=("llvm",),
    after={"simplify_indices": "groups are recognized by plain indices"},
    before={"join_reductions": "until then each reduction has a block of its own"},
)
def vectorize_groups(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Vectorize stages that work by groups along the members of all groups.

    Parameters
    ----------
    func : PrimFunc
        Made of stages, not scheduled yet. Its indices are plain where they can be, and each
        reduction has a block of its own.
    """
    kernel_stages = stages(func) or []
    if not any(map(_may_change, kernel_stages)):
        return func
    writer = _Writer(func, kernel_stages)
    nests = statements_of(func.body.block.body)
    new_nests = [
        nest
        for stage, old_nest in zip(kernel_stages, nests, strict=True)
        for nest in (writer.changed(stage, old_nest) if _may_change(stage) else [old_nest])
    ]
    # Where a stage became several nests the lengths differ, but so does the first of these nests.
    unchanged = all(new is old for new, old in zip(new_nests, nests, strict=False))
    return func if unchanged else replace_nests(func, new_nests, writer.buffers)


def _may_change(stage: Stage) -> bool:
    """Whether a stage is worth the search for groups: static, large, with one plain result."""
    if any(axis.extent is None for axis in stage.axes) or stage.work < SMALL:
        return False
    if stage.conditional or len(stage.stores) != 1 or reuses_operands(stage):
        return False
    return len(_long_axes(stage.reduced)) > 1 or any(_divides(load.indices) for load in stage.loads)


def _divides(indices: Any) -> bool:
    """Whether an index is made with a quotient or a remainder."""
    return bool(nodes_in(list(indices), (tirx.FloorDiv, tirx.FloorMod)))


def _long_axes(axes: Sequence[Axis]) -> list[Axis]:
    """The axes without those of extent one."""
    return [axis for axis in axes if axis.extent != 1]


@dataclass(frozen=True)
class _Groups:
    """The axes of a reduction by groups: over all groups, and over the members of one."""

    groups: Axis
    members: Axis

    @property
    def size(self) -> int:
        """The number of members of a group."""
        return volume([self.members])

    @property
    def all_members(self) -> int:
        """The number of members of all groups."""
        return volume([self.groups, self.members])


def _groups_of(stage: Stage) -> _Groups | None:
    """The axes of a reduction over positions and the members of groups.

    None if it is no such reduction: all that is read along the members must lie in memory side by
    side, and the groups one behind the other.
    """
    for members in _long_axes(stage.reduced):
        along = [load for load in stage.loads if uses(load, members.var)]
        if not along or any(stride(load, members.var) != 1 for load in along):
            continue
        positions = [axis for axis in _long_axes(stage.reduced) if axis is not members]
        # One sum for each member is stored in between, so there must be many terms for each.
        if volume(positions) < _MIN_WORK_RATIO:
            continue
        for groups in _long_axes(stage.spatial):
            if all(stride(load, groups.var) == volume([members]) for load in along):
                return _Groups(groups, members)
    return None


@dataclass(frozen=True)
class _Copy:
    """A buffer that holds what a stage reads, one element for each point of some of its axes.

    Attributes
    ----------
    load : TensorLoad
        The read that is copied, in terms of `axes`.
    axes : list of Axis
        The dimensions of the copy, the vector last.
    buffer : Buffer
        The copy.
    """

    load: Any
    axes: list[Axis]
    buffer: Any

    def is_of(self, load: Any, axes: Sequence[Axis]) -> bool:
        """Whether the copy holds what another stage reads along its own axes."""
        if [axis.extent for axis in axes] != [axis.extent for axis in self.axes]:
            return False
        renamed = {axis.var: copy_axis.var for axis, copy_axis in zip(axes, self.axes, strict=True)}
        return bool(tvm_ffi.structural_equal(substitute_values(load, renamed), self.load))

    def at(self, indices: Sequence[Any]) -> Any:
        """A read of the copy."""
        return tirx.BufferLoad(self.buffer, list(indices))

    def nest(self, block: SBlock, name: str) -> Any:
        """The nest that fills the copy, given the block whose read is copied."""
        store = tirx.BufferStore(self.buffer, self.load, [axis.var for axis in self.axes])
        spatial = [replace(axis, reduced=False) for axis in self.axes]
        axes, values = _rename_axes(block, spatial)
        return restated(SBlock([], [], [], name, store), axes, values, {}, name)


class _Writer:
    """Rewrites stages of a kernel.

    Attributes
    ----------
    buffers : list of Buffer
        All that the kernel allocates, the new ones included.
    """

    def __init__(self, func: tirx.PrimFunc, kernel_stages: Sequence[Stage]):
        self._func = func
        self.buffers = list(func.body.block.alloc_buffers)
        self._made = [store.buffer for stage in kernel_stages for store in stage.stores]
        self._copies: list[_Copy] = []
        self._names = {stage.name for stage in kernel_stages}

    def changed(self, stage: Stage, nest: Any) -> list[Any]:
        """The nests that replace a stage's nest; that nest alone if the stage stays as it is."""
        groups = _groups_of(stage)
        if groups is None:
            divides = any(_divides(load.indices) for load in stage.loads)
            return (divides and self._smooth_reads(stage, nest)) or [nest]
        sums = accumulations_of(stage, block_of(nest))
        return [nest] if sums is None else self._split_reduction(stage, nest, groups, sums[0])

    def _split_reduction(
        self, stage: Stage, nest: Any, groups: _Groups, sums: Accumulation
    ) -> list[Any]:
        """A reduction by groups as two: sums for each member, then over the members of a group."""
        spatial, reduced = _long_axes(stage.spatial), _long_axes(stage.reduced)
        outer = [axis for axis in spatial if axis is not groups.groups]
        positions = [axis for axis in reduced if axis is not groups.members]
        member = Axis(tvm.ir.Var("member", groups.groups.var.ty), groups.all_members, False)
        member_sums = _buffer([*outer, member], str(sums.store.buffer.dtype), "by_member")
        member_indices = [axis.var for axis in outer]
        member_indices.append(groups.groups.var * groups.size + groups.members.var)

        axes, values = _rename_axes(block_of(nest), [*outer, member, *positions])
        # `member` counts the members of all groups: it says which group, and which member of that.
        values[groups.groups.var] = tirx.floordiv(values[member.var], groups.size)
        values[groups.members.var] = tirx.floormod(values[member.var], groups.size)
        block = _accumulation_block(sums, sums.element, member_sums, member_indices)
        first = restated(block, axes, values, {}, self._name(f"{stage.name}_by_member"))
        member_nests = self._smooth_reads(self._stage(first), first)
        # Nothing has been allocated yet: the stage can still stay as it is.
        if member_nests is None:
            return [nest]
        self.buffers.append(member_sums)
        axes, values = _rename_axes(block_of(nest), [*spatial, groups.members])
        block = _accumulation_block(
            sums,
            tirx.BufferLoad(member_sums, member_indices),
            sums.store.buffer,
            list(sums.store.indices),
        )
        return [*member_nests, restated(block, axes, values, {}, stage.name)]

    def _smooth_reads(self, stage: Stage, nest: Any) -> list[Any] | None:
        """A stage in which neighbors along the vector read neighbors, after the copies for that.

        Returns
        -------
        list of Stmt or None
            The same nest alone if all reads are so already; None if one cannot be made so.
        """
        vector = next(reversed(_long_axes(stage.spatial)), None)
        if vector is None or any(_is_rough(store, vector) for store in stage.stores):
            return None
        copies: list[_Copy] = []
        replacements: list[tuple[Any, Any]] = []
        for load in stage.loads:
            if not _is_rough(load, vector) or _in_place_of(load, replacements) is not load:
                continue
            # A read beyond the end of an axis relies on the buffer's layout, and what the kernel
            # writes may still be replaced by a buffer of another layout.
            replacement = None if self._is_own(load.source) else _merge_digit_reads(load, vector)
            if replacement is None:
                used_axes = _axes_used(stage, load, vector)
                # What is read at indices that are read themselves is not copied either.
                if volume(used_axes) * _MIN_WORK_RATIO > stage.work or _is_indirect(load):
                    return None
                copy = next(
                    (copied for copied in self._copies if copied.is_of(load, used_axes)), None
                )
                if copy is None:
                    copy = _Copy(
                        load, used_axes, _buffer(used_axes, str(load.source.dtype), "along")
                    )
                    copies.append(copy)
                replacement = copy.at([axis.var for axis in used_axes])
            replacements.append((load, replacement))
        if not replacements:
            return [nest]
        block = block_of(nest)
        body = replace_nodes(block.body, Load, lambda node: _in_place_of(node, replacements))
        changed = replace_block(block, body=body)
        axes, values = _rename_axes(block, _long_axes(stage.axes))
        self._copies += copies
        self.buffers += [copy.buffer for copy in copies]
        names = [self._name(f"{stage.name}_along") for _ in copies]
        copy_nests = [copy.nest(block, name) for copy, name in zip(copies, names, strict=True)]
        return [*copy_nests, restated(changed, axes, values, {}, stage.name)]

    def _stage(self, nest: Any) -> Stage:
        """The structure of a nest, as a stage."""
        body = replace_statements(self._func.body, [nest], self.buffers)
        (stage,) = stages(self._func.with_body(body)) or []
        return stage

    def _is_own(self, buffer: Any) -> bool:
        """Whether the kernel writes a buffer, so that its layout in memory may still change."""
        return is_among(buffer, [*self._made, *self.buffers])

    def _name(self, name: str) -> str:
        """A name of a stage that the kernel does not have yet; it is taken from now on."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name


def _accumulation_block(
    accumulation: Accumulation, element: Any, buffer: Any, indices: Sequence[Any]
) -> SBlock:
    """A block without axes that accumulates an element into a buffer at some indices."""
    value = accumulation.combine(tirx.BufferLoad(buffer, indices), element)
    start = tirx.BufferStore(buffer, accumulation.start, indices)
    return SBlock([], [], [], "", tirx.BufferStore(buffer, value, indices), start)


def _axes_used(stage: Stage, load: Any, vector: Axis) -> list[Axis]:
    """The axes on which a read's indices depend, and the vector as the last."""
    outer = [axis for axis in _long_axes(stage.axes) if axis is not vector and uses(load, axis.var)]
    return [*outer, vector]


def _merge_digit_reads(load: Any, vector: Axis) -> Any | None:
    """A read at [v // n, v % n] as one at [0, v], which is the same address.

    None if the read has no such indices, for an extent n, or would still not follow the vector.
    """
    indices = list(load.indices)
    for dimension, (quotient, remainder) in enumerate(itertools.pairwise(indices)):
        size = static(load.source.shape[dimension + 1])
        if _is_part(quotient, tirx.FloorDiv, vector, size) and _is_part(
            remainder, tirx.FloorMod, vector, size
        ):
            indices[dimension : dimension + 2] = [
                tirx.const(0, str(vector.var.ty.dtype)),
                vector.var,
            ]
            merged = tirx.BufferLoad(load.source, indices)
            return None if _is_rough(merged, vector) else merged
    return None


def _is_part(index: Any, kind: type, vector: Axis, size: int | None) -> bool:
    """Whether an index is the vector's quotient (or remainder, by kind) by a size."""
    if not isinstance(index, kind):
        return False
    division: Any = index
    return bool(division.a.same_as(vector.var)) and static(division.b) == size


def _is_rough(access: Any, axis: Axis) -> bool:
    """Whether neighbors along an axis are neither neighbors in memory nor the same element."""
    return stride(access, axis.var) not in (0, 1)


def _is_indirect(load: Any) -> bool:
    """Whether an index is itself read from a buffer."""
    return bool(nodes_in(list(load.indices), Load))


def _in_place_of(load: Any, changes: Iterable[tuple[Any, Any]]) -> Any:
    """The replacement of a read, from pairs of old and new; the read itself if it has none."""
    return next((new for old, new in changes if tvm_ffi.structural_equal(old, load)), load)


def _rename_axes(block: SBlock, axes: Sequence[Axis]) -> tuple[list[Any], dict[Any, Any]]:
    """New axes for some of a block's, and the block's variables in terms of them.

    The block's other variables stay at their first value.
    """
    values = {iterator.var: iterator.dom.min for iterator in block.iter_vars}
    values.update({axis.var: tvm.ir.Var(axis.var.name, axis.var.ty) for axis in axes})
    kinds = tirx.IterVar.DataPar, tirx.IterVar.CommReduce
    return [(values[axis.var], _range(axis), kinds[axis.reduced]) for axis in axes], values


def _range(axis: Axis) -> Range:
    dtype = str(axis.var.ty.dtype)
    return Range.from_min_extent(tirx.const(0, dtype), tirx.const(volume([axis]), dtype))


def _buffer(axes: Sequence[Axis], dtype: str, name: str) -> Any:
    """A buffer with an element for each point of some axes."""
    extents = [tirx.const(volume([axis]), str(axis.var.ty.dtype)) for axis in axes]
    return tirx.decl_buffer(extents, dtype, name)
