"""Stages of a kernel computed by minimal filtering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..contraction import EpilogueSink, PlainSink, Sink, operands
from ..contraction.sink import is_single_store
from ..epilogue import Epilogue
from ..structure import Stage, buffer_of
from ..target import VectorUnit
from .choice import choose_convolution, choose_weight_gradient
from .code import Statement
from .form import Sum, convolution_of, weight_gradient_of
from .forward import ConvolutionKernel
from .pads import Border, border_of
from .weight import WeightGradientKernel


def nest_of(
    stage: Stage,
    epilogue: Epilogue | None,
    found: Sequence[Stage],
    internal: Sequence[Any],
    blocks: Mapping[str, Any],
    unit: VectorUnit,
) -> tuple[Statement | None, list[str]]:
    """Return what computes a convolution with windows of 3 by 3, or one of its gradients.

    Parameters
    ----------
    stage : Stage
    epilogue : Epilogue or None
        The map that takes each of its results.
    found : sequence of Stage
        All of the kernel.
    internal : sequence of Buffer
        Those of the kernel's own: what else is stored is read by the caller.
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    unit : VectorUnit

    Returns
    -------
    (Stmt or None, list of str)
        The statement; None if it is something else, is not of float32, or if the direct kernel is
        as good. And the names of the stages that nobody reads any more.
    """
    if operands(stage) is None or not _is_float32(stage):
        return None, []
    sink = _sink(stage, epilogue, blocks)
    if sink is None or not _stores_vectors(stage, blocks[stage.name], sink):
        return None, []
    borders = _borders(stage, found, internal, blocks)
    statement = _convolution(stage, blocks[stage.name], borders, sink, unit)
    if statement is None:
        statement = _weight_gradient(stage, blocks[stage.name], borders, sink, unit)
    unread = [] if statement is None else [border.stage for border in borders.values()]
    return statement, unread


def _convolution(
    stage: Stage, realize: Any, borders: Mapping[Any, Border], sink: Sink, unit: VectorUnit
) -> Statement | None:
    found = convolution_of(stage, realize, borders, sink)
    chosen = None if found is None else choose_convolution(found, unit)
    if found is None or chosen is None:
        return None
    kernel = ConvolutionKernel(found, chosen.filtering, chosen.panel)
    blocks = chosen.blocks
    if blocks.images:
        return kernel.by_images(blocks.images, blocks.rows)
    return kernel.by_filters(blocks.depth)


def _weight_gradient(
    stage: Stage, realize: Any, borders: Mapping[Any, Border], sink: Sink, unit: VectorUnit
) -> Statement | None:
    found = weight_gradient_of(stage, realize, borders, sink)
    chosen = None if found is None else choose_weight_gradient(found, unit)
    if found is None or chosen is None:
        return None
    kernel = WeightGradientKernel(found, chosen.filtering, chosen.panel)
    blocks = chosen.blocks
    if blocks.images:
        return kernel.by_images(blocks.images, blocks.rows)
    return kernel.at_once(blocks.depth)


def _is_float32(stage: Stage) -> bool:
    return all(
        str(buffer_of(access).dtype) == "float32" for access in (*stage.loads, *stage.stores)
    )


def _sink(stage: Stage, epilogue: Epilogue | None, blocks: Mapping[str, Any]) -> Sink | None:
    if epilogue is None:
        return PlainSink(blocks[stage.name])
    behind = blocks[epilogue.stage.name]
    return EpilogueSink(epilogue, behind) if is_single_store(behind) else None


def _stores_vectors(stage: Stage, realize: Any, sink: Sink) -> bool:
    """Return whether neighbours along the last axis of the result are neighbours where stored."""
    indices = Sum(stage, realize).accesses[2].indices
    last = indices[-1] if indices else None
    axes = [axis for axis in stage.spatial if last and axis.var in last]
    return bool(axes) and all(sink.step(axis) == 1 for axis in axes)


def _borders(
    stage: Stage, found: Sequence[Stage], internal: Sequence[Any], blocks: Mapping[str, Any]
) -> dict[Any, Border]:
    """Return, by buffer, what the stage reads that is a copy made for it alone."""
    borders = {}
    for load in stage.loads:
        read = buffer_of(load)
        writers = [s for s in found if any(store.buffer.same_as(read) for store in s.stores)]
        readers = [s for s in found if any(buffer_of(x).same_as(read) for x in s.loads)]
        own = any(read.same_as(buffer) for buffer in internal)
        if own and len(writers) == len(readers) == 1:
            border = border_of(writers[0], blocks[writers[0].name])
            if border is not None:
                borders[read] = border
    return borders
