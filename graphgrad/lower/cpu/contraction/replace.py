"""The stages of a kernel that are replaced by nests: contractions, with the maps behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvm import tirx

from ....ir.kernel_rewrite import replace_statements
from ....ir.kernel_structure import (
    Stage,
    buffer_of,
    is_among,
    loop_nest,
    statements_of,
    volume,
)
from ....ir.visits import nodes_in
from ...kernels.contraction import Contraction, contraction_of, operands
from ...kernels.epilogue import Epilogue
from ..map import SMALL
from ..tuning import Processor
from .border import read_inside_border, reads_both_along
from .emit import emit
from .order import plan
from .pairs import paired
from .store import result_store_of

if TYPE_CHECKING:
    from ...kernels.pads import Border
    from ..buffer_views import BufferView

_MIN_TERMS_HIDING_STORES = 512
"""Terms of a sum from which on the time to store it element by element is negligible."""


def pays(stage: Stage, epilogue: Epilogue) -> bool:
    """Whether an epilogue is computed faster with each tile than in a pass of its own.

    It is not if all it does is to permute the axes of sums that have few terms: the tile then has
    to be stored element by element.
    """
    order_of_results = [
        epilogue.along[axis.var].var for axis in stage.spatial if axis.var in epilogue.along
    ]
    order_of_map = [axis.var for axis in epilogue.stage.axes if axis.extent != 1]
    permutes = not all(
        first.same_as(second) for first, second in zip(order_of_results, order_of_map, strict=True)
    )
    reads_results_only = len(epilogue.stage.loads) == 1
    return (
        not (permutes and reads_results_only) or volume(stage.reduced) >= _MIN_TERMS_HIDING_STORES
    )


def nest_of(
    stage: Stage,
    epilogue: Epilogue | None,
    blocks: Mapping[str, Any],
    processor: Processor,
    borders: Mapping[Any, Border] | None = None,
    arguments: Sequence[Any] = (),
    lasting: Sequence[Any] = (),
    rounded: Sequence[Any] = (),
    parts: Sequence[BufferView] = (),
) -> Any | None:
    """The nest that computes a contraction and its epilogue.

    None if the stage is no contraction, if it is too small for a nest to pay, or if no nest fits.

    Parameters
    ----------
    stage : Stage
    epilogue : Epilogue or None
        The map that takes each of the stage's results.
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    processor : Processor
    borders : dict, optional
        From the buffer of each padded copy to the tensor in it, which may be read instead.
    arguments : sequence of Buffer, optional
        Those of the kernel, of which pairs may be read.
    lasting : sequence of Buffer, optional
        The arguments that are the same in each step of a loop over time around the kernel.
    rounded : sequence of Buffer, optional
        The kernel's own buffers of float32 that hold numbers of bfloat16.
    parts : sequence of BufferView, optional
        The residue classes of interleaved tensors, between whose elements other stages store.
    """
    contraction = _contraction_of(stage, blocks[stage.name])
    if contraction is None:
        return None
    if lasting:
        factors = [n for n in (0, 1) if is_among(buffer_of(contraction.loads[n]), lasting)]
        contraction = replace(contraction, lasting=frozenset(factors))
    result_store = result_store_of(stage, epilogue, blocks, [view.buffer for view in parts])
    if result_store is None:
        return None
    # Reading around a copy pays only if both factors are vectors, as in depthwise convolutions;
    # other contractions read each element so often that the copy is worth its time.
    unpadded = read_inside_border(contraction, borders or {})
    if unpadded is not None and any(reads_both_along(unpadded, axis) for axis in unpadded.spatial):
        chosen_plan = plan(unpadded, processor, result_store)
        if chosen_plan is not None and reads_both_along(unpadded, chosen_plan.vector):
            return emit(unpadded, chosen_plan, result_store)
    pairs = None
    if processor.multiplies_pairs:
        pairs = paired(contraction, arguments, borders or {}, rounded)
    if pairs is not None:
        chosen_plan = plan(pairs.contraction, processor, result_store)
        if chosen_plan is not None:
            return pairs.emit(chosen_plan, result_store)
    chosen_plan = plan(contraction, processor, result_store)
    return None if chosen_plan is None else emit(contraction, chosen_plan, result_store)


def multiplies_pairs(
    stage: Stage,
    realize: Any,
    processor: Processor,
    borders: Mapping[Any, Border],
    arguments: Sequence[Any],
) -> bool:
    """Whether the nest of a stage is to multiply pairs of bfloat16; see `nest_of`."""
    if not processor.multiplies_pairs or operands(stage) is None:
        return False
    contraction = _contraction_of(stage, realize)
    return contraction is not None and paired(contraction, arguments, borders) is not None


def _contraction_of(stage: Stage, realize: Any) -> Contraction | None:
    """The contraction that a stage computes; None if it is another sum, or a small one."""
    if stage.work < SMALL or any(axis.extent == 0 for axis in stage.axes):
        return None
    return contraction_of(stage, realize)


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
        From the name of a stage to its nest; None for a stage that nothing needs any more. Stages
        without an entry stay as they are.
    epilogues : sequence of Epilogue
        The maps that the nests compute as well. Their own stages are dropped.
    """
    dropped = {epilogue.stage.name for epilogue in epilogues}
    statements_by_name = [
        (stage_name(statement), statement) for statement in statements_of(root.block.body)
    ]
    replaced_statements = [
        (nests.get(name, original), original)
        for name, original in statements_by_name
        if name not in dropped
    ]
    body = [statement for statement, _ in replaced_statements if statement is not None]
    dropped_statements = [
        original for statement, original in replaced_statements if statement is None
    ]
    # With its writer gone, a buffer of the kernel's own needs no memory any more.
    dropped_buffers = [epilogue.taken for epilogue in epilogues]
    dropped_buffers += [store.buffer for store in nodes_in(dropped_statements, tirx.BufferStore)]
    buffers = [
        buffer for buffer in root.block.alloc_buffers if not is_among(buffer, dropped_buffers)
    ]
    return replace_statements(root, body, buffers)


def stage_name(statement: Any) -> str:
    """The name of the stage that a statement is; empty if the statement is no loop nest."""
    nest = loop_nest(statement)
    return "" if nest is None else str(nest[1].block.name_hint)
