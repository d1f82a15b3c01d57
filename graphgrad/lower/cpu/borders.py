"""Which tensors of a kernel are copies inside a border of zeros, for readers that do without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx

from ...ir.kernel_structure import Load, Stage, buffer_of, is_among, stages, statements_of
from ...ir.passes import Phase, compiler_pass
from ..kernels.pads import Border, border_of
from .buffer_views import Places, block_of, replace_nests, restated
from .contraction import blocks_of


def borders_of(
    found: Sequence[Stage], internal: Sequence[Any], blocks: Mapping[str, Any]
) -> dict[Any, Border]:
    """Return, by buffer, what the kernel's own copies with a border are copies of.

    A copy is left out if its source is stored to later on: then it has to be made.

    Parameters
    ----------
    found : sequence of Stage
        All of the kernel, in order.
    internal : sequence of Buffer
        Those of the kernel's own: what else is stored is read by the caller.
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    """
    borders = {}
    for number, stage in enumerate(found):
        written = stage.stores[0].buffer
        if len(stage.stores) > 1 or not is_among(written, internal):
            continue
        border = border_of(stage, blocks[stage.name])
        if border is not None and not _is_stored(border.source, found[number + 1 :]):
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

    Such is the part of a strided data gradient that only one place of the window reaches.

    Parameters
    ----------
    func : PrimFunc
        Made of stages, not scheduled yet.
    """
    found = stages(func) or []
    internal = list(func.body.block.alloc_buffers)
    borders = borders_of(found, internal, blocks_of(func.body))
    nests, changed = statements_of(func.body.block.body), False
    for number, stage in enumerate(found):
        read = {
            buffer: (border.source, _moved(border))
            for buffer, border in borders.items()
            if any(buffer_of(load).same_as(buffer) for load in stage.loads)
        }
        block = block_of(nests[number])
        if not stage.reduced and read and _stays_inside_borders(stage, block, borders):
            axes = [(tvm.ir.Var(v.var.name, v.var.ty), v.dom, v.iter_type) for v in block.iter_vars]
            values = {v.var: axis[0] for v, axis in zip(block.iter_vars, axes, strict=True)}
            nests[number], changed = restated(block, axes, values, read, stage.name), True
    return replace_nests(func, nests, internal) if changed else func


def _moved(border: Border) -> Places:
    def places(indices: Sequence[Any]) -> list[Any]:
        return [index - before for index, before in zip(indices, border.before, strict=True)]

    return places


def _stays_inside_borders(stage: Stage, block: Any, borders: Mapping[Any, Border]) -> bool:
    """Whether it is certain that a stage reads of copies nothing but what is copied."""
    analyzer = tvm.sym.Analyzer()
    for iterator in block.iter_vars:
        analyzer.bind(iterator.var, iterator.dom)

    def is_inside(load: Load) -> bool:
        border = borders.get(buffer_of(load))
        if border is None:
            return True
        places = zip(_moved(border)(load.indices), border.source.shape, strict=True)
        return all(
            analyzer.can_prove(place >= 0) and analyzer.can_prove(place < extent)
            for place, extent in places
        )

    return all(is_inside(load) for load in stage.loads)


def _is_stored(buffer: Any, found: Sequence[Stage]) -> bool:
    return any(is_among(buffer, [store.buffer for store in stage.stores]) for stage in found)
