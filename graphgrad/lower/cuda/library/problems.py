"""Which calls of a program are contractions that a library knows, and as which problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tvm import relax

from ....ir.attributes import Attributes
from ....ops.conv import SPATIAL, Layouts, Window
from ....runtime.cudnn.problem import MATMUL, Problem, TensorForm
from .views import View, plain

_CONVOLUTIONS = {
    **{f"relax.nn.conv{rank}d": "conv_forward" for rank in (2, 3)},
    "graphgrad.conv_data_gradient": "conv_data_gradient",
    "graphgrad.conv_weight_gradient": "conv_weight_gradient",
}

PRODUCT = "relax.matmul"

_MATRIX = 2
"""Axes of a matrix."""


def problem_of(call: relax.Call, operands: Sequence[View], tf32: bool) -> Problem | None:
    """The problem that a call states; None if it is none for a library.

    Parameters
    ----------
    call : relax.Call
    operands : sequence of View
        Its tensors.
    tf32 : bool
        Whether operands of float32 may be rounded to 10 bits of mantissa.
    """
    name = str(getattr(call.op, "name", ""))
    views = (*operands, plain(relax.Var("result", call.ty)))
    forms = [form for view in views if (form := view.form) is not None and 0 not in form.shape]
    if len(forms) < len(views) or forms[0].dtype != forms[1].dtype:
        return None
    *inputs, result = forms
    tf32 = tf32 and inputs[0].dtype == "float32"
    if name == PRODUCT and result.dtype in (inputs[0].dtype, "float32"):
        return _product(inputs, result, tf32)
    if name in _CONVOLUTIONS and result.dtype == inputs[0].dtype:
        return _convolution(_CONVOLUTIONS[name], call, inputs, result, tf32)
    return None


def tensors_of(call: Any) -> list[Any]:
    """The tensors of a call that may be a problem; empty for all other values."""
    name = str(getattr(call.op, "name", "")) if isinstance(call, relax.Call) else ""
    return list(call.args[:2]) if name == PRODUCT or name in _CONVOLUTIONS else []


def _product(inputs: list[TensorForm], output: TensorForm, tf32: bool) -> Problem | None:
    """A product of stacks of matrices, as cuDNN counts axes: batch, rows, columns."""
    first, second = inputs
    if min(len(first.shape), len(second.shape)) < _MATRIX:
        return None
    if len(second.shape) == _MATRIX:
        # One matrix for all of a stack: its rows are those of one tall matrix.
        tall = _tall(first)
        if tall is None:
            return None
        rows = prod(first.shape[:-1])
        flat = TensorForm((1, rows, output.shape[-1]), (0, output.shape[-1], 1), output.dtype)
        matrix = TensorForm((1, *second.shape), (prod(second.shape), *second.strides), second.dtype)
        return Problem(MATMUL, (tall, matrix), (flat,), tf32)
    stacks = [_stack(form) for form in (first, second, output)]
    counts = {stack.shape[0] for stack in stacks if stack is not None}
    # A stack of one matrix is multiplied by all of the other; other broadcasts are not served.
    if None in stacks or len(counts - {1}) > 1 or (len(counts) > 1 and _spreads(first, second)):
        return None
    a, b, c = (stack for stack in stacks if stack is not None)
    return Problem(MATMUL, (a, b), (c,), tf32)


def _spreads(first: TensorForm, second: TensorForm) -> bool:
    """Whether both stacks have more than one matrix."""
    return min(prod(form.shape[:-_MATRIX]) for form in (first, second)) > 1


def _joined(extents: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """Several axes as one, its extent and stride; None if that is not even."""
    count, step = extents[-1], strides[-1]
    for extent, stride in zip(extents[-2::-1], strides[-2::-1], strict=True):
        if extent > 1 and count > 1 and stride != count * step:
            return None
        step = step if count > 1 else stride
        count *= extent
    return count, step


def _tall(form: TensorForm) -> TensorForm | None:
    """A stack of matrices as one of all their rows; None if its rows are not evenly spaced."""
    joined = _joined(form.shape[:-1], form.strides[:-1])
    if joined is None:
        return None
    rows, step = joined
    strides = (rows * step, step, form.strides[-1])
    return replace(form, shape=(1, rows, form.shape[-1]), strides=strides)


def _stack(form: TensorForm) -> TensorForm | None:
    """A stack of matrices with one axis in front; None if they are not evenly spaced."""
    outer = len(form.shape) - _MATRIX
    joined = _joined(form.shape[:outer], form.strides[:outer]) if outer else (1, prod(form.shape))
    if joined is None:
        return None
    count, step = joined
    shape, strides = (count, *form.shape[outer:]), (step, *form.strides[outer:])
    return replace(form, shape=shape, strides=strides)


def _convolution(
    op: str, call: relax.Call, inputs: list[TensorForm], output: TensorForm, tf32: bool
) -> Problem | None:
    window = Window.of(call.attrs)
    layouts = Layouts.of(call.attrs, window.rank)
    axes = SPATIAL[window.rank]
    if op == "conv_forward" and str(Attributes(call.attrs).out_layout) != layouts.data:
        return None
    data, weights = (layouts.data, "NC" + axes), (layouts.kernel, "OI" + axes)
    orders = {
        "conv_forward": (data, weights, data),
        "conv_data_gradient": (data, weights, data),
        "conv_weight_gradient": (data, data, weights),
    }[op]
    forms = [
        _reordered(form, *order) for form, order in zip((*inputs, output), orders, strict=True)
    ]
    problem = Problem(
        op,
        tuple(forms[:-1]),
        (forms[-1],),
        tf32,
        strides=window.strides,
        padding_before=window.before,
        padding_after=window.after,
        dilation=window.dilation,
    )
    return problem if _covers(problem) else None


def _covers(problem: Problem) -> bool:
    """Whether a window has the positions that a library expects: all that fit, and no others."""
    parts = zip(
        problem.data.shape[2:],
        problem.weights.shape[2:],
        problem.result.shape[2:],
        zip(problem.padding_before, problem.padding_after, strict=True),
        zip(problem.strides, problem.dilation, strict=True),
        strict=True,
    )
    return all(
        min(padding) >= 0
        and (extent + sum(padding) - dilation * (taps - 1) - 1) // stride + 1 == positions
        for extent, taps, positions, padding, (stride, dilation) in parts
    )


def _reordered(form: TensorForm, layout: str, order: str) -> TensorForm:
    """A form with the axes of a layout in another order."""
    axes = [layout.index(axis) for axis in order]
    shape, strides = (tuple(x[axis] for axis in axes) for x in (form.shape, form.strides))
    return replace(form, shape=shape, strides=strides)
