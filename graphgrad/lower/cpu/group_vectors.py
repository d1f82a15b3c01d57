"""Vectors along all members of groups, in stages that go by groups.

With channels last, a group's members are neighbors and the groups lie side by side: element
``g * M + m`` is member m of group g. A sum over positions and members, one for each group, would
walk through M elements at a time. And a map that reads a group's statistics reads them at
``c // M``, which is no walk through memory at all. So

- such a sum is taken over positions first, for each member, in vectors along the members of all
  groups, and then over the members of each group: what lies between the two is small;
- what is read at quotients is laid out along the vector before, an element for each of its own;
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
"""How many times larger a stage's work is, at least, than what is laid out for it."""


@compiler_pass(
    Phase.FUSED,
    over="kernel",
    targets=("llvm",),
    after={"simplify_indices": "groups are told by plain indices"},
    before={"join_reductions": "until then each reduction has a block of its own"},
)
def vectorize_groups(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Have stages that go by groups go along the members of all groups.

    Parameters
    ----------
    func : PrimFunc
        Made of stages, not scheduled yet. Its indices are plain where they can be, and each
        reduction has a block of its own.
    """
    found = stages(func) or []
    if not any(map(_may_change, found)):
        return func
    writer = _Writer(func, found)
    nests = statements_of(func.body.block.body)
    made = [
        nest
        for stage, own in zip(found, nests, strict=True)
        for nest in (writer.changed(stage, own) if _may_change(stage) else [own])
    ]
    unchanged = all(new is old for new, old in zip(made, nests, strict=False))
    return func if unchanged else replace_nests(func, made, writer.buffers)


def _may_change(stage: Stage) -> bool:
    """Whether it may pay to look closer at a stage."""
    if any(axis.extent is None for axis in stage.axes) or stage.work < SMALL:
        return False
    if stage.conditional or len(stage.stores) != 1 or reuses_operands(stage):
        return False
    return len(_long_axes(stage.reduced)) > 1 or any(_divides(load.indices) for load in stage.loads)


def _divides(indices: Any) -> bool:
    return bool(nodes_in(list(indices), (tirx.FloorDiv, tirx.FloorMod)))


def _long_axes(axes: Sequence[Axis]) -> list[Axis]:
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
    """The axes of a reduction over positions and the members of groups; None if it is none.

    All that is read along the members lies in memory as the groups do, side by side.
    """
    for members in _long_axes(stage.reduced):
        along = [load for load in stage.loads if uses(load, members.var)]
        if not along or any(stride(load, members.var) != 1 for load in along):
            continue
        positions = [axis for axis in _long_axes(stage.reduced) if axis is not members]
        if volume(positions) < _MIN_WORK_RATIO:
            continue
        for groups in _long_axes(stage.spatial):
            if all(stride(load, groups.var) == volume([members]) for load in along):
                return _Groups(groups, members)
    return None


@dataclass(frozen=True)
class _Copy:
    """A buffer of what a stage reads at each point of some of its axes.

    Attributes
    ----------
    load : TensorLoad
    axes : list of Axis
    buffer : Buffer
    """

    load: Any
    axes: list[Axis]
    buffer: Any

    def is_of(self, load: Any, axes: Sequence[Axis]) -> bool:
        """Whether it holds what another stage reads along axes of its own."""
        if [axis.extent for axis in axes] != [axis.extent for axis in self.axes]:
            return False
        names = {axis.var: own.var for axis, own in zip(axes, self.axes, strict=True)}
        return bool(tvm_ffi.structural_equal(substitute_values(load, names), self.load))

    def at(self, indices: Sequence[Any]) -> Any:
        """A read of it."""
        return tirx.BufferLoad(self.buffer, list(indices))

    def nest(self, block: SBlock, name: str) -> Any:
        """The nest that fills it, given the block that reads the same."""
        store = tirx.BufferStore(self.buffer, self.load, [axis.var for axis in self.axes])
        spatial = [replace(axis, reduced=False) for axis in self.axes]
        axes, values = _rename_axes(block, spatial)
        return restated(SBlock([], [], [], name, store), axes, values, {}, name)


class _Writer:
    """Writes stages of a kernel anew.

    Attributes
    ----------
    buffers : list of Buffer
        The kernel's own, new ones included.
    """

    def __init__(self, func: tirx.PrimFunc, found: Sequence[Stage]):
        self._func = func
        self.buffers = list(func.body.block.alloc_buffers)
        self._made = [store.buffer for stage in found for store in stage.stores]
        self._copies: list[_Copy] = []
        self._names = {stage.name for stage in found}

    def changed(self, stage: Stage, nest: Any) -> list[Any]:
        """The nests that take the place of a stage's; that alone if it stays as it is."""
        groups = _groups_of(stage)
        if groups is None:
            divides = any(_divides(load.indices) for load in stage.loads)
            return (divides and self._smooth_reads(stage, nest)) or [nest]
        sums = accumulations_of(stage, block_of(nest))
        return [nest] if sums is None else self._split_reduction(stage, nest, groups, sums[0])

    def _split_reduction(
        self, stage: Stage, nest: Any, groups: _Groups, sums: Accumulation
    ) -> list[Any]:
        """A reduction by groups as one for each member, and one of these."""
        spatial, reduced = _long_axes(stage.spatial), _long_axes(stage.reduced)
        outer = [axis for axis in spatial if axis is not groups.groups]
        positions = [axis for axis in reduced if axis is not groups.members]
        member = Axis(tvm.ir.Var("member", groups.groups.var.ty), groups.all_members, False)
        between = _buffer([*outer, member], str(sums.store.buffer.dtype), "by_member")
        place = [axis.var for axis in outer]
        place.append(groups.groups.var * groups.size + groups.members.var)

        axes, values = _rename_axes(block_of(nest), [*outer, member, *positions])
        values[groups.groups.var] = tirx.floordiv(values[member.var], groups.size)
        values[groups.members.var] = tirx.floormod(values[member.var], groups.size)
        block = _accumulation_block(sums, sums.element, between, place)
        first = restated(block, axes, values, {}, self._name(f"{stage.name}_by_member"))
        made = self._smooth_reads(self._stage(first), first)
        if made is None:
            return [nest]
        self.buffers.append(between)
        axes, values = _rename_axes(block_of(nest), [*spatial, groups.members])
        block = _accumulation_block(
            sums, tirx.BufferLoad(between, place), sums.store.buffer, list(sums.store.indices)
        )
        return [*made, restated(block, axes, values, {}, stage.name)]

    def _smooth_reads(self, stage: Stage, nest: Any) -> list[Any] | None:
        """A stage whose reads all go along its vector, behind what is laid out for that.

        Returns
        -------
        list of Stmt or None
            The same nest alone if there is nothing to do; None if something cannot be done.
        """
        vector = next(reversed(_long_axes(stage.spatial)), None)
        if vector is None or any(_is_rough(store, vector) for store in stage.stores):
            return None
        copies: list[_Copy] = []
        smooth: list[tuple[Any, Any]] = []
        for load in stage.loads:
            if not _is_rough(load, vector) or _in_place_of(load, smooth) is not load:
                continue
            other = None if self._is_own(load.source) else _merge_digit_reads(load, vector)
            if other is None:
                used = _axes_used(stage, load, vector)
                if volume(used) * _MIN_WORK_RATIO > stage.work or _is_indirect(load):
                    return None
                copy = next((one for one in self._copies if one.is_of(load, used)), None)
                if copy is None:
                    copy = _Copy(load, used, _buffer(used, str(load.source.dtype), "along"))
                    copies.append(copy)
                other = copy.at([axis.var for axis in used])
            smooth.append((load, other))
        if not smooth:
            return [nest]
        block = block_of(nest)
        body = replace_nodes(block.body, Load, lambda node: _in_place_of(node, smooth))
        changed = replace_block(block, body=body)
        axes, values = _rename_axes(block, _long_axes(stage.axes))
        self._copies += copies
        self.buffers += [copy.buffer for copy in copies]
        names = [self._name(f"{stage.name}_along") for _ in copies]
        first = [copy.nest(block, name) for copy, name in zip(copies, names, strict=True)]
        return [*first, restated(changed, axes, values, {}, stage.name)]

    def _stage(self, nest: Any) -> Stage:
        """The stage that a nest is."""
        body = replace_statements(self._func.body, [nest], self.buffers)
        (stage,) = stages(self._func.with_body(body)) or []
        return stage

    def _is_own(self, buffer: Any) -> bool:
        """Whether the kernel makes a buffer, whose memory may still become another."""
        return is_among(buffer, [*self._made, *self.buffers])

    def _name(self, wanted: str) -> str:
        while wanted in self._names:
            wanted += "_"
        self._names.add(wanted)
        return wanted


def _accumulation_block(
    sums: Accumulation, element: Any, into: Any, place: Sequence[Any]
) -> SBlock:
    """A block that does nothing but accumulate elements at a place."""
    value = sums.combine(tirx.BufferLoad(into, place), element)
    start = tirx.BufferStore(into, sums.start, place)
    return SBlock([], [], [], "", tirx.BufferStore(into, value, place), start)


def _axes_used(stage: Stage, load: Any, vector: Axis) -> list[Axis]:
    """The axes along which what is read differs, or may, with the vector as the last."""
    others = [
        axis for axis in _long_axes(stage.axes) if axis is not vector and uses(load, axis.var)
    ]
    return [*others, vector]


def _merge_digit_reads(load: Any, vector: Axis) -> Any | None:
    """A read at quotient and remainder of an axis, in two dimensions, as one in the second.

    None if it is something else.
    """
    indices = list(load.indices)
    for first, (quotient, remainder) in enumerate(itertools.pairwise(indices)):
        size = static(load.source.shape[first + 1])
        if _is_digit(quotient, tirx.FloorDiv, vector, size) and _is_digit(
            remainder, tirx.FloorMod, vector, size
        ):
            indices[first : first + 2] = [tirx.const(0, str(vector.var.ty.dtype)), vector.var]
            whole = tirx.BufferLoad(load.source, indices)
            return None if _is_rough(whole, vector) else whole
    return None


def _is_digit(index: Any, kind: type, vector: Axis, size: int | None) -> bool:
    if not isinstance(index, kind):
        return False
    digit: Any = index
    return bool(digit.a.same_as(vector.var)) and static(digit.b) == size


def _is_rough(access: Any, axis: Axis) -> bool:
    """Whether neighbors along an axis are no neighbors in memory, nor the same."""
    return stride(access, axis.var) not in (0, 1)


def _is_indirect(load: Any) -> bool:
    return bool(nodes_in(list(load.indices), Load))


def _in_place_of(load: Any, changes: Iterable[tuple[Any, Any]]) -> Any:
    """The replacement of a read; the read itself if nothing does."""
    return next((new for old, new in changes if tvm_ffi.structural_equal(old, load)), load)


def _rename_axes(block: SBlock, axes: Sequence[Axis]) -> tuple[list[Any], dict[Any, Any]]:
    """Axes with variables of their own, and those for a block's; all its others are 0."""
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
