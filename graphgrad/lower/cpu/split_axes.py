"""Axes whose quotient and remainder are used, split in two: groups, and positions in a group.

A convolution of groups reads channel ``k // 4 * 8 + c`` for filter k. Over the groups g and the
positions i in them, with k = 4 · g + i, every index is affine, and the groups are a batch: this is
what schedules of contractions ask for. The map that reads the results gets the same two axes. A map
that is not behind a reduction, such as one that normalizes by groups, gets plain loops in this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from ...ir.kernel_structure import Stage, buffer_of, is_among, stages, statements_of, static
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in
from .buffer_views import BufferView, IndexMap, block_of, replace_nests, restated


@dataclass(frozen=True)
class _Split:
    """The split of one dimension of a buffer in two.

    Attributes
    ----------
    position : int
        The dimension. In the split buffer it holds the quotients, and the next one the remainders.
    size : int
        The divisor, which is the extent of the remainders' dimension.
    """

    position: int
    size: int

    def divide(self, indices: Sequence[Any]) -> list[Any]:
        """From indices in the original buffer to those in the split one."""
        index = indices[self.position]
        quotient_and_remainder = [tirx.floordiv(index, self.size), tirx.floormod(index, self.size)]
        return [*indices[: self.position], *quotient_and_remainder, *indices[self.position + 1 :]]

    def merge(self, indices: Sequence[Any]) -> list[Any]:
        """From indices in the split buffer to those in the original one."""
        quotient, remainder = indices[self.position : self.position + 2]
        merged = quotient * self.size + remainder
        return [*indices[: self.position], merged, *indices[self.position + 2 :]]


@compiler_pass(
    Phase.FUSED,
    over="kernel",
    targets=("llvm",),
    provides="axis_views",
    after={
        "split_residues": "remainders that choose what is read are no part of an axis",
        "read_inside_borders": "a border shifts the indices that are to be divided",
    },
)
def split_axes(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[BufferView]]:
    """Split the axes of stages where that makes their indices affine.

    Parameters
    ----------
    func : PrimFunc
        Made of stages, not scheduled yet.

    Returns
    -------
    (PrimFunc, list of BufferView)
        The views are joined after scheduling (`buffer_views.joined`): until then results are stored
        to buffers with one dimension more.
    """
    kernel_stages = stages(func) or []
    nests = statements_of(func.body.block.body)
    internal = list(func.body.block.alloc_buffers)
    views: list[BufferView] = []
    for position, stage in enumerate(kernel_stages):
        block = block_of(nests[position])
        split = _split(stage, block)
        if split is None:
            continue
        written = block.body.buffer
        split_buffer = _add_dimension(written, split)
        readers = [i for i, s in enumerate(kernel_stages) if i != position and _reads(s, written)]
        if readers and not stage.reduced:
            continue
        reader = block_of(nests[readers[0]]) if len(readers) == 1 else None
        nests[position] = _split_nest(block, split, {written: (split_buffer, split.divide)})
        if reader is not None and is_among(written, internal) and _follows(reader, written, split):
            # What lies between the two has the split dimension for good; only the reader's result
            # is a view.
            result = reader.body.buffer
            split_result = _add_dimension(result, split)
            moved = {
                written: (split_buffer, split.divide),
                result: (split_result, split.divide),
            }
            nests[readers[0]] = _split_nest(reader, split, moved)
            internal = [buffer for buffer in internal if not buffer.same_as(written)]
            internal += [split_buffer, split_result]
            views.append(BufferView(split_result, result, split.merge))
        else:
            internal.append(split_buffer)
            views.append(BufferView(split_buffer, written, split.merge))
    return (replace_nests(func, nests, internal), views) if views else (func, [])


def _split(stage: Stage, block: SBlock) -> _Split | None:
    """How to split the first axis whose quotient or remainder a stage uses; None if none can be.

    The axis has one divisor, and its extent is a multiple of that. A map has to use the remainder,
    and its last axis stays as it is, because that is its vector.
    """
    if not isinstance(block.body, tirx.BufferStore):
        return None
    divisors: dict[Any, set[int | None]] = {}
    remainders: list[Any] = []
    for node in nodes_in(block.body.value, (tirx.FloorDiv, tirx.FloorMod)):
        if isinstance(node.a, tvm.ir.Var):
            divisors.setdefault(node.a, set()).add(static(node.b))
            if isinstance(node, tirx.FloorMod):
                remainders.append(node.a)
    extents = {axis.var: axis.extent for axis in stage.spatial}
    for var, sizes in divisors.items():
        extent, size = extents.get(var), next(iter(sizes))
        # Groups have to be whole, or the split buffer would be larger than the original.
        if len(sizes) > 1 or size is None or size < 1 or not extent or extent % size:
            continue
        if not stage.reduced and (not is_among(var, remainders) or var.same_as(stage.axes[-1].var)):
            continue
        dimensions = [i for i, index in enumerate(block.body.indices) if index.same_as(var)]
        if len(dimensions) == 1 and _is_whole(block, dimensions[0]):
            return _Split(dimensions[0], size)
    return None


def _follows(reader: SBlock, read_buffer: Any, split: _Split) -> bool:
    """Whether a map stores what it reads from a buffer at the very index that is split."""
    if reader.init is not None or not isinstance(reader.body, tirx.BufferStore):
        return False
    indices, position = list(reader.body.indices), split.position
    if len(indices) != len(read_buffer.shape) or not _is_whole(reader, position):
        return False
    loads = nodes_in(reader.body.value, tvm.ir.TensorLoad)
    extents = [static(buffer.shape[position]) for buffer in (read_buffer, reader.body.buffer)]
    return extents[0] == extents[1] and all(
        load.indices[position].same_as(indices[position])
        for load in loads
        if load.source.same_as(read_buffer)
    )


def _is_whole(block: SBlock, position: int) -> bool:
    """Whether a block stores along a whole dimension, with an axis of its own as the index."""
    index = block.body.indices[position]
    extent = static(block.body.buffer.shape[position])
    return any(
        iterator.var.same_as(index)
        and static(iterator.dom.min) == 0
        and static(iterator.dom.extent) == extent
        for iterator in block.iter_vars
    )


def _split_nest(block: SBlock, split: _Split, moved: Mapping[Any, tuple[Any, IndexMap]]) -> Any:
    """The nest of a block in which the axis that stores along the split dimension is two axes."""
    split_index = block.body.indices[split.position]
    axes, values = [], {}
    for iterator in block.iter_vars:
        var = tvm.ir.Var(iterator.var.name, iterator.var.ty)
        if not iterator.var.same_as(split_index):
            axes.append((var, iterator.dom, iterator.iter_type))
            values[iterator.var] = var
            continue
        remainder = tvm.ir.Var(f"{iterator.var.name}_remainder", iterator.var.ty)
        dtype = str(iterator.dom.extent.ty.dtype)
        for new_var, extent in (
            (var, int(iterator.dom.extent) // split.size),
            (remainder, split.size),
        ):
            dom = Range.from_min_extent(tirx.const(0, dtype), tirx.const(extent, dtype))
            axes.append((new_var, dom, iterator.iter_type))
        values[iterator.var] = var * split.size + remainder
    return restated(block, axes, values, moved, str(block.name_hint))


def _add_dimension(buffer: Any, split: _Split) -> Any:
    """A buffer for the same elements, with the dimension split in two."""
    shape = list(buffer.shape)
    extent = shape[split.position]
    two_extents = [tirx.floordiv(extent, split.size), tirx.const(split.size, str(extent.ty.dtype))]
    shape[split.position : split.position + 1] = two_extents
    return tirx.decl_buffer(shape, buffer.dtype, str(buffer.name))


def _reads(stage: Stage, buffer: Any) -> bool:
    return any(buffer_of(load).same_as(buffer) for load in stage.loads)
