"""The nests that take the place of stages by minimal filtering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....ir.kernel_structure import Stage, buffer_of
from ....ir.loops import Statement
from ...kernels.contraction import operands
from ...kernels.epilogue import Epilogue
from ...kernels.pads import Border
from ..contraction import ResultStore, result_store_of
from ..tuning import Processor
from .choice import choose_convolution, choose_weight_gradient
from .form import Sum, convolution_of, weight_gradient_of
from .forward import ConvolutionKernel
from .weight import WeightGradientKernel

_FORMS: tuple[tuple[Any, Any, Any], ...] = (
    (convolution_of, choose_convolution, ConvolutionKernel),
    (weight_gradient_of, choose_weight_gradient, WeightGradientKernel),
)
"""What is recognized, whether it pays, and the kernel that computes it."""


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
    for form_of, choose, kernel_of in _FORMS:
        form = form_of(stage, blocks[stage.name], borders, result_store)
        choice = None if form is None else choose(form, processor)
        if choice is not None:
            kernel, order = kernel_of(form, choice.filtering, choice.panel), choice.blocks
            if order.images:
                return kernel.by_images(order.images, order.rows)
            return kernel.by_channels(order.depth)
    return None


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
