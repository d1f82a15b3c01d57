"""The nests that take the place of stages by minimal filtering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm.tirx import ForKind

from ....ir.kernel_structure import Stage, buffer_of
from ....ir.loops import Statement, block, fused, index, load, loop, scratch, store, variable
from ...kernels.contraction import operands
from ...kernels.epilogue import Epilogue
from ...kernels.pads import Border
from ..contraction import ResultStore, result_store_of
from ..tuning import Processor
from .choice import Choice, choose_convolution, choose_weight_gradient
from .form import Sum, convolution_of, weight_gradient_of
from .forward import Convolution, ConvolutionKernel
from .weight import WeightGradientKernel


def nest_of(
    stage: Stage,
    epilogue: Epilogue | None,
    blocks: Mapping[str, Any],
    processor: Processor,
    borders: Mapping[Any, Border],
) -> Statement | None:
    """The statement that computes a convolution with windows of 3 by 3, or one of its gradients.

    Parameters
    ----------
    stage : Stage
    epilogue : Epilogue or None
        The map that takes each of the stage's results.
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    processor : Processor
    borders : dict
        From the buffer of each padded copy to the tensor in it, which the statement reads instead.

    Returns
    -------
    Stmt or None
        None if the stage computes something else, if it is not of float32, of factors of float32 or
        bfloat16, if vectors of results cannot be stored as such, or if the direct kernel is as
        good.
    """
    if operands(stage) is None or not _has_known_floats(stage):
        return None
    result_store = result_store_of(stage, epilogue, blocks)
    if result_store is None or not _stores_vectors(stage, blocks[stage.name], result_store):
        return None
    statement = _convolution(stage, blocks[stage.name], borders, result_store, processor)
    if statement is None:
        statement = _weight_gradient(stage, blocks[stage.name], borders, result_store, processor)
    return statement


def _convolution(
    stage: Stage,
    realize: Any,
    borders: Mapping[Any, Border],
    result_store: ResultStore,
    processor: Processor,
) -> Statement | None:
    """The statement of a convolution; None if the stage is none, or it does not pay."""
    conv = convolution_of(stage, realize, borders, result_store)
    choice = None if conv is None else choose_convolution(conv, processor)
    if conv is None or choice is None:
        return None
    # Vectors of bfloat16 cannot be transposed in registers.
    narrow, _ = conv.weight(*[index(0)] * 4)
    if not conv.turned or str(narrow.dtype) == "float32":
        return _kernel_of(conv, choice)
    wide = scratch(f"{narrow.name}_wide", [int(extent) for extent in narrow.shape])
    kernel = _kernel_of(replace(conv, weight=lambda *at: (wide, conv.weight(*at)[1])), choice)
    return block("scratch", _widened(narrow, wide, choice.panel.lanes), kernel, buffers=[wide])


def _kernel_of(conv: Convolution, choice: Choice) -> Statement:
    kernel = ConvolutionKernel(conv, choice.filtering, choice.panel)
    blocks = choice.blocks
    if blocks.images:
        return kernel.by_images(blocks.images, blocks.rows)
    return kernel.by_filters(blocks.depth)


def _widened(narrow: Any, wide: Any, lanes: int) -> Statement:
    """The statement that copies weights to float32; their last axis is one of whole vectors."""
    *outer, last = (int(extent) for extent in narrow.shape)
    indices = [variable("i") for _ in outer]
    vector, lane = variable("vector"), variable("lane")
    at = [*indices, vector * lanes + lane]
    copy = store(wide, at, load(narrow, at).astype("float32"))
    around = [*zip(indices, outer, strict=True), (vector, last // lanes)]
    return fused(around, loop(lane, lanes, copy, ForKind.VECTORIZED), ForKind.PARALLEL)


def _weight_gradient(
    stage: Stage,
    realize: Any,
    borders: Mapping[Any, Border],
    result_store: ResultStore,
    processor: Processor,
) -> Statement | None:
    """The statement of a weight gradient; None if the stage is none, or it does not pay."""
    gradient = weight_gradient_of(stage, realize, borders, result_store)
    choice = None if gradient is None else choose_weight_gradient(gradient, processor)
    if gradient is None or choice is None:
        return None
    kernel = WeightGradientKernel(gradient, choice.filtering, choice.panel)
    blocks = choice.blocks
    if blocks.images:
        return kernel.by_images(blocks.images, blocks.rows)
    return kernel.of_all_tiles(blocks.depth)


def _has_known_floats(stage: Stage) -> bool:
    """Whether a stage adds up in float32, and reads float32 or bfloat16."""
    return stage.dtype == "float32" and all(
        str(buffer_of(load).dtype) in ("float32", "bfloat16") for load in stage.loads
    )


def _stores_vectors(stage: Stage, realize: Any, result_store: ResultStore) -> bool:
    """Whether neighbors along the last axis of the result are neighbors where they are stored."""
    indices = Sum(stage, realize).accesses[2].indices
    last_index = indices[-1] if indices else None
    vector_axes = [axis for axis in stage.spatial if last_index and axis.var in last_index]
    return bool(vector_axes) and all(result_store.step(axis) == 1 for axis in vector_axes)
