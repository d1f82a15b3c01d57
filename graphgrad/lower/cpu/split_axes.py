"""Axes of which stages use quotient and remainder, as two axes: groups, and places in a group.

A convolution of groups reads channel ``k // 4 * 8 + c`` for filter k. Over the groups g and the
places i in them, with k = 4 · g + i, every index is affine, and the groups are a batch: this is
what schedules of contractions ask for. The map that takes the results gets the same two axes. A map
of its own, such as what normalizes by groups, has plain loops then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from ...ir.kernel_structure import Stage, buffer_of, is_among, stages, statements_of, static
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in
from .buffer_views import BufferView, Places, block_of, replace_nests, restated


@dataclass(frozen=True)
class _Split:
    """One dimension of a buffer as two: `position` holds quotients by `size`, then remainders."""

    position: int
    size: int

    def apart(self, indices: Sequence[Any]) -> list[Any]:
        """Indices in the buffer of two dimensions."""
        index = indices[self.position]
        two = [tirx.floordiv(index, self.size), tirx.floormod(index, self.size)]
        return [*indices[: self.position], *two, *indices[self.position + 1 :]]

    def together(self, indices: Sequence[Any]) -> list[Any]:
        """Indices in the buffer of one."""
        quotient, remainder = indices[self.position : self.position + 2]
        one = quotient * self.size + remainder
        return [*indices[: self.position], one, *indices[self.position + 2 :]]


@compiler_pass(
    Phase.FUSED,
    over="kernel",
    targets=("llvm",),
    provides="axis_views",
    after={
        "split_residues": "remainders that choose what is read are no digits of an axis",
        "read_inside_borders": "a border shifts the indices that are to be divided",
    },
)
def split_axes(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[BufferView]]:
    """Divide the axes of stages where that makes their indices affine.

    Parameters
    ----------
    func : PrimFunc
        Made of stages, not scheduled yet.

    Returns
    -------
    (PrimFunc, list of BufferView)
        To be joined after scheduling: until then results are stored to buffers with a dimension
        more.
    """
    found = stages(func) or []
    nests = statements_of(func.body.block.body)
    internal = list(func.body.block.alloc_buffers)
    stand_ins: list[BufferView] = []
    for number, stage in enumerate(found):
        block = block_of(nests[number])
        split = _split(stage, block)
        if split is None:
            continue
        written = block.body.buffer
        own = _add_dimension(written, split)
        readers = [i for i, s in enumerate(found) if i != number and _reads(s, written)]
        if readers and not stage.reduced:
            continue
        reader = block_of(nests[readers[0]]) if len(readers) == 1 else None
        nests[number] = _split_nest(block, split, {written: (own, split.apart)})
        if reader is not None and is_among(written, internal) and _follows(reader, written, split):
            result = reader.body.buffer
            whole = _add_dimension(result, split)
            moved = {written: (own, split.apart), result: (whole, split.apart)}
            nests[readers[0]] = _split_nest(reader, split, moved)
            internal = [buffer for buffer in internal if not buffer.same_as(written)]
            internal += [own, whole]
            stand_ins.append(BufferView(whole, result, split.together))
        else:
            internal.append(own)
            stand_ins.append(BufferView(own, written, split.together))
    return (replace_nests(func, nests, internal), stand_ins) if stand_ins else (func, [])


def _split(stage: Stage, block: SBlock) -> _Split | None:
    """How to split the one axis whose quotient a stage uses; None if there is no such.

    Its extent has to be a multiple of the divisor. A map has to use the remainder too, and its
    last axis stays as it is, because that is its vector.
    """
    if not isinstance(block.body, tirx.BufferStore):
        return None
    divisors: dict[Any, set[int | None]] = {}
    remainders: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node.a, tvm.ir.Var):
            divisors.setdefault(node.a, set()).add(static(node.b))
            if isinstance(node, tirx.FloorMod):
                remainders.append(node.a)

    tvm_ffi.structural_walk(block.body.value, ((tirx.FloorDiv, tirx.FloorMod), visit))
    extents = {axis.var: axis.extent for axis in stage.spatial}
    for var, sizes in divisors.items():
        extent, size = extents.get(var), next(iter(sizes))
        if len(sizes) > 1 or size is None or size < 1 or not extent or extent % size:
            continue
        if not stage.reduced and (not is_among(var, remainders) or var.same_as(stage.axes[-1].var)):
            continue
        positions = [i for i, e in enumerate(block.body.indices) if e.same_as(var)]
        if len(positions) == 1 and _is_whole(block, positions[0]):
            return _Split(positions[0], size)
    return None


def _follows(reader: SBlock, taken: Any, split: _Split) -> bool:
    """Whether a map stores what it takes at the very index that is split."""
    if reader.init is not None or not isinstance(reader.body, tirx.BufferStore):
        return False
    indices, position = list(reader.body.indices), split.position
    if len(indices) != len(taken.shape) or not _is_whole(reader, position):
        return False
    loads = nodes_in(reader.body.value, tvm.ir.TensorLoad)
    extents = [static(buffer.shape[position]) for buffer in (taken, reader.body.buffer)]
    return extents[0] == extents[1] and all(
        load.indices[position].same_as(indices[position])
        for load in loads
        if load.source.same_as(taken)
    )


def _is_whole(block: SBlock, position: int) -> bool:
    """Whether a block's axis is an index of what it stores, all along that dimension."""
    index = block.body.indices[position]
    extent = static(block.body.buffer.shape[position])
    return any(
        v.var.same_as(index) and static(v.dom.min) == 0 and static(v.dom.extent) == extent
        for v in block.iter_vars
    )


def _split_nest(block: SBlock, split: _Split, moved: Mapping[Any, tuple[Any, Places]]) -> Any:
    """The nest of a block in which the axis of one dimension of its result is two."""
    chosen = block.body.indices[split.position]
    axes, values = [], {}
    for iterator in block.iter_vars:
        var = tvm.ir.Var(iterator.var.name, iterator.var.ty)
        if not iterator.var.same_as(chosen):
            axes.append((var, iterator.dom, iterator.iter_type))
            values[iterator.var] = var
            continue
        place = tvm.ir.Var(f"{iterator.var.name}_place", iterator.var.ty)
        dtype = str(iterator.dom.extent.ty.dtype)
        for one, extent in (
            (var, int(iterator.dom.extent) // split.size),
            (place, split.size),
        ):
            dom = Range.from_min_extent(tirx.const(0, dtype), tirx.const(extent, dtype))
            axes.append((one, dom, iterator.iter_type))
        values[iterator.var] = var * split.size + place
    return restated(block, axes, values, moved, str(block.name_hint))


def _add_dimension(buffer: Any, split: _Split) -> Any:
    """A buffer for the same elements, with a dimension more."""
    shape = list(buffer.shape)
    extent = shape[split.position]
    two = [tirx.floordiv(extent, split.size), tirx.const(split.size, str(extent.ty.dtype))]
    shape[split.position : split.position + 1] = two
    return tirx.decl_buffer(shape, buffer.dtype, str(buffer.name))


def _reads(stage: Stage, buffer: Any) -> bool:
    return any(buffer_of(load).same_as(buffer) for load in stage.loads)
