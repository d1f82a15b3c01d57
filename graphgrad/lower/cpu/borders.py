"""The tensors of a kernel that are copies inside a border of zeros.

A reader that never reaches the border, or guards its own reads, can read the original instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx

from ...ir.kernel_structure import Load, Stage, buffer_of, is_among, stages, statements_of
from ...ir.passes import Phase, compiler_pass
from ..kernels.pads import Border, border_of
from .buffer_views import IndexMap, block_of, replace_nests, restated
from .contraction import blocks_of


def borders_of(
    kernel_stages: Sequence[Stage], internal: Sequence[Any], blocks: Mapping[str, Any]
) -> dict[Any, Border]:
    """Return, by buffer, what each of the kernel's padded copies is a copy of.

    A copy is left out if its source is stored to later on: then it has to be made.

    Parameters
    ----------
    kernel_stages : sequence of Stage
        All stages of the kernel, in order.
    internal : sequence of Buffer
        The buffers that the kernel allocates. All others are arguments, which the caller reads.
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    """
    borders = {}
    for position, stage in enumerate(kernel_stages):
        written = stage.stores[0].buffer
        # A copy that is stored to an argument has to be made anyway: the caller reads it.
        if len(stage.stores) > 1 or not is_among(written, internal):
            continue
        border = border_of(stage, blocks[stage.name])
        if border is not None and not _is_stored(border.source, kernel_stages[position + 1 :]):
            borders[written] = border
    return borders


@compiler_pass(
    Phase.FUSED,
    over="kernel",
    targets=("llvm",),
    after={"split_residues": "a map for some remainders may never reach the border"},
)
def read_inside_borders(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Have maps that never read a border read the tensor inside of it.

    An example is the residue class of a strided data gradient that a single tap of the window
    reaches.

    Parameters
    ----------
    func : PrimFunc
        Made of stages, not scheduled yet.
    """
    kernel_stages = stages(func) or []
    internal = list(func.body.block.alloc_buffers)
    borders = borders_of(kernel_stages, internal, blocks_of(func.body))
    nests, changed = statements_of(func.body.block.body), False
    for position, stage in enumerate(kernel_stages):
        moved = {
            buffer: (border.source, _moved(border))
            for buffer, border in borders.items()
            if any(buffer_of(load).same_as(buffer) for load in stage.loads)
        }
        block = block_of(nests[position])
        # Contractions read inside borders by themselves, with guards: `contraction.border`.
        if not stage.reduced and moved and _stays_inside_borders(stage, block, borders):
            axes = [
                (tvm.ir.Var(iterator.var.name, iterator.var.ty), iterator.dom, iterator.iter_type)
                for iterator in block.iter_vars
            ]
            values = {
                iterator.var: axis[0] for iterator, axis in zip(block.iter_vars, axes, strict=True)
            }
            nests[position], changed = restated(block, axes, values, moved, stage.name), True
    return replace_nests(func, nests, internal) if changed else func


def _moved(border: Border) -> IndexMap:
    """The map from indices in a padded copy to those in the tensor inside of the border."""

    def to_source(indices: Sequence[Any]) -> list[Any]:
        return [index - before for index, before in zip(indices, border.before, strict=True)]

    return to_source


def _stays_inside_borders(stage: Stage, block: Any, borders: Mapping[Any, Border]) -> bool:
    """Whether a stage provably reads only copied elements of padded copies, no border."""
    analyzer = tvm.sym.Analyzer()
    for iterator in block.iter_vars:
        analyzer.bind(iterator.var, iterator.dom)

    def is_inside(load: Load) -> bool:
        border = borders.get(buffer_of(load))
        if border is None:
            return True
        positions = zip(_moved(border)(load.indices), border.source.shape, strict=True)
        return all(
            analyzer.can_prove(position >= 0) and analyzer.can_prove(position < extent)
            for position, extent in positions
        )

    return all(is_inside(load) for load in stage.loads)


def _is_stored(buffer: Any, later_stages: Sequence[Stage]) -> bool:
    """Whether one of some stages stores to a buffer."""
    return any(is_among(buffer, [store.buffer for store in stage.stores]) for stage in later_stages)
