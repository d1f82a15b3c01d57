"""Stages of a kernel replaced by nests of their own: contractions, with the maps behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import tirx

from ....ir.kernel_rewrite import replace_statements
from ....ir.kernel_structure import Stage, is_among, loop_nest, statements_of, volume
from ...kernels.contraction import contraction_of
from ...kernels.epilogue import Epilogue
from ..map import SMALL
from ..vector_unit import VectorUnit
from .border import read_inside_border, reads_both_along
from .emit import emit
from .order import plan
from .store import result_store_of

if TYPE_CHECKING:
    from ...kernels.pads import Border

_MIN_TERMS_HIDING_STORES = 512
"""Terms of a sum beside which storing it element by element takes no time worth naming."""


def pays(stage: Stage, epilogue: Epilogue) -> bool:
    """Whether an epilogue is sooner computed behind each tile than in a pass of its own.

    It is not where it does nothing but put sums of few terms into another order.
    """
    along = [epilogue.along[axis.var].var for axis in stage.spatial if axis.var in epilogue.along]
    order = [axis.var for axis in epilogue.stage.axes if axis.extent != 1]
    moves = not all(a.same_as(b) for a, b in zip(along, order, strict=True))
    copies = len(epilogue.stage.loads) == 1
    return not (moves and copies) or volume(stage.reduced) >= _MIN_TERMS_HIDING_STORES


def nest_of(
    stage: Stage,
    epilogue: Epilogue | None,
    blocks: Mapping[str, Any],
    unit: VectorUnit,
    borders: Mapping[Any, Border] | None = None,
) -> Any | None:
    """The statement that computes a contraction, and its epilogue; None if none pays.

    Parameters
    ----------
    stage : Stage
    epilogue : Epilogue or None
        The map that takes each of its results.
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    unit : VectorUnit
    borders : dict, optional
        By buffer, what it is a copy of, and may be read instead.
    """
    if stage.work < SMALL or any(axis.extent == 0 for axis in stage.axes):
        return None
    contraction = contraction_of(stage, blocks[stage.name])
    if contraction is None:
        return None
    result_store = result_store_of(stage, epilogue, blocks)
    if result_store is None:
        return None
    inside = read_inside_border(contraction, borders or {})
    if inside is not None and any(reads_both_along(inside, axis) for axis in inside.spatial):
        chosen = plan(inside, unit, result_store)
        if chosen is not None and reads_both_along(inside, chosen.vector):
            return emit(inside, chosen, result_store)
    chosen = plan(contraction, unit, result_store)
    return None if chosen is None else emit(contraction, chosen, result_store)


def blocks_of(root: Any) -> dict[str, Any]:
    """The blocks of a kernel's stages, by name."""
    nests = [loop_nest(statement) for statement in statements_of(root.block.body)]
    return {str(nest[1].block.name_hint): nest[1] for nest in nests if nest is not None}


def replace_stages(root: Any, nests: Mapping[str, Any], epilogues: Sequence[Epilogue]) -> Any:
    """A kernel's root block with stages replaced.

    Parameters
    ----------
    root : SBlockRealize
    nests : dict
        By the name of the stage; None for a stage that nothing needs any more.
    epilogues : sequence of Epilogue
        What the nests compute besides.
    """
    dropped = {epilogue.stage.name for epilogue in epilogues}
    named = [(_name(statement), statement) for statement in statements_of(root.block.body)]
    kept = [(nests.get(name, own), own) for name, own in named if name not in dropped]
    body = [statement for statement, _ in kept if statement is not None]
    unread = [own for statement, own in kept if statement is None]
    gone = [epilogue.taken for epilogue in epilogues]
    tvm_ffi.structural_walk(unread, (tirx.BufferStore, lambda one: gone.append(one.buffer)))
    buffers = [b for b in root.block.alloc_buffers if not is_among(b, gone)]
    return replace_statements(root, body, buffers)


def _name(statement: Any) -> str:
    found = loop_nest(statement)
    return "" if found is None else str(found[1].block.name_hint)
