"""The functions of `Tensor` that gradient rules are written in, named as in ``relax.op``.

Each function emits one binding and returns a `Tensor`. Sums and counts of half-precision values
are taken in float32 here, once, so that few rules have to think of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from ..errors import RuleError
from ..ir.tensor import (
    Dimension,
    Emitter,
    Tensor,
    accumulator_dtype,
    bits,
    dimension_text,
    operand,
    same_dimension,
    same_shape,
)

MANY_TENSORS = 64
"""Tensors that are joined, or that one is cut into, at a time: a kernel of many takes long to
compile."""


def _lift(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of ``relax.op`` emit its call and return a `Tensor`."""

    def emitted(x: Tensor, *args: Any, **attributes: Any) -> Any:
        arguments = [a.expr if isinstance(a, Tensor) else a for a in args]
        return x.emitter.emit(function(x.expr, *arguments, **attributes))

    emitted.__name__ = function.__name__
    emitted.__doc__ = function.__doc__
    return emitted


abs = _lift(relax.op.abs)
argsort = _lift(relax.op.argsort)
clip = _lift(relax.op.clip)
cos = _lift(relax.op.cos)
cosh = _lift(relax.op.cosh)
cumprod = _lift(relax.op.cumprod)
cumsum = _lift(relax.op.cumsum)
erf = _lift(relax.op.erf)
exp = _lift(relax.op.exp)
flip = _lift(relax.op.flip)
expand_dims = _lift(relax.op.expand_dims)
floor = _lift(relax.op.floor)
gather_elements = _lift(relax.op.gather_elements)
gather_nd = _lift(relax.op.gather_nd)
isfinite = _lift(relax.op.isfinite)
isinf = _lift(relax.op.isinf)
isnan = _lift(relax.op.isnan)
layout_transform = _lift(relax.op.layout_transform)
log = _lift(relax.op.log)
log_softmax = _lift(relax.op.nn.log_softmax)
logical_and = _lift(relax.op.logical_and)
logical_not = _lift(relax.op.logical_not)
logical_or = _lift(relax.op.logical_or)
maximum_of = _lift(relax.op.max)
mean = _lift(relax.op.mean)
minimum_of = _lift(relax.op.min)
nll_loss = _lift(relax.op.nn.nll_loss)
pad = _lift(relax.op.nn.pad)
prod = _lift(relax.op.prod)
relu = _lift(relax.op.nn.relu)
reverse_sequence = _lift(relax.op.reverse_sequence)
round = _lift(relax.op.round)
rsqrt = _lift(relax.op.rsqrt)
scatter_elements = _lift(relax.op.scatter_elements)
scatter_nd = _lift(relax.op.scatter_nd)
sigmoid = _lift(relax.op.sigmoid)
sign = _lift(relax.op.sign)
sin = _lift(relax.op.sin)
sinh = _lift(relax.op.sinh)
slice_scatter = _lift(relax.op.slice_scatter)
softmax = _lift(relax.op.nn.softmax)
softplus = _lift(relax.op.nn.softplus)
sqrt = _lift(relax.op.sqrt)
strided_slice = _lift(relax.op.strided_slice)
take = _lift(relax.op.take)
tanh = _lift(relax.op.tanh)
tile = _lift(relax.op.tile)
tril = _lift(relax.op.tril)
triu = _lift(relax.op.triu)
topk = _lift(relax.op.topk)
trunc = _lift(relax.op.trunc)


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    def emitted(x: Tensor, y: Any) -> Tensor:
        return x.emitter.emit(function(x.expr, operand(y, x)))

    emitted.__name__ = function.__name__
    emitted.__doc__ = function.__doc__
    return emitted


equal = _comparison(relax.op.equal)
greater = _comparison(relax.op.greater)
greater_equal = _comparison(relax.op.greater_equal)
less = _comparison(relax.op.less)
less_equal = _comparison(relax.op.less_equal)
not_equal = _comparison(relax.op.not_equal)
power = _comparison(relax.op.power)
minimum = _comparison(relax.op.minimum)
maximum = _comparison(relax.op.maximum)


def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    """Choose elementwise: `x` where the condition holds, else `y`; either may be a number."""
    like = x if isinstance(x, Tensor) else y
    return condition.emitter.emit(
        relax.op.where(condition.expr, operand(x, like), operand(y, like))
    )


def indices(emitter: Emitter, extent: Dimension) -> Tensor:
    """The int64 vector 0, 1, … of an extent, which may be symbolic."""
    return emitter.emit(relax.op.arange(0, extent, 1, "int64"))


def widen(x: Tensor) -> Tensor:
    """The value in the dtype in which sums are taken: float32 for half precision."""
    return x.astype(accumulator_dtype(x.dtype))


def same_dtype(*tensors: Tensor) -> list[Tensor]:
    """Float tensors in the widest of their dtypes: an op's ``out_dtype`` may be wider."""
    widest = max((t.dtype for t in tensors), key=bits)
    return [t.astype(widest) for t in tensors]


def permute_dims(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Permute the axes; reverse them where no order is given."""
    order = list(axes) if axes is not None else list(reversed(range(x.ndim)))
    if order == list(range(x.ndim)):
        return x
    if x.fill is not None:
        return x.emitter.full(x.fill, [x.shape[axis] for axis in order], x.dtype)
    return x.emitter.emit(relax.op.permute_dims(x.expr, order))


def transpose(x: Tensor) -> Tensor:
    """Swap the last two axes."""
    axes = list(range(x.ndim))
    axes[-2:] = reversed(axes[-2:])
    return permute_dims(x, axes)


def reshape(x: Tensor, shape: Sequence[Dimension]) -> Tensor:
    """Give the tensor another shape with as many elements."""
    if same_shape(x.shape, shape):
        return x
    # A constant tensor stays one, so that what reads it can be simplified.
    if x.fill is not None:
        return x.emitter.full(x.fill, shape, x.dtype)
    # `relax.op.reshape` would read 0 as the extent that the tensor has there.
    reshape_op = tvm.ir.Op.get("relax.reshape")
    return x.emitter.emit(relax.Call(reshape_op, [x.expr, relax.ShapeExpr(list(shape))]))


def broadcast_to(x: Tensor, shape: Sequence[Dimension]) -> Tensor:
    """The tensor, repeated to a larger shape by the broadcasting rules."""
    if same_shape(x.shape, shape):
        return x
    if x.fill is not None:
        return x.emitter.full(x.fill, shape, x.dtype)
    return x.emitter.emit(relax.op.broadcast_to(x.expr, list(shape)))


def concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors along an axis."""
    return tensors[0].emitter.emit(relax.op.concat([t.expr for t in tensors], axis=axis))


def split(x: Tensor, indices_or_sections: int | Sequence[int], axis: int) -> list[Tensor]:
    """Cut a tensor along an axis: at the indices given, or into so many equal parts.

    Many parts are cut from parts, because what TVM does with a tuple takes the square of the time.
    """
    if isinstance(indices_or_sections, int):
        count, extent = indices_or_sections, x.shape[axis]
        if count <= MANY_TENSORS or not isinstance(extent, int) or not extent or extent % count:
            return x.emitter.emit(relax.op.split(x.expr, count, axis=axis))
        indices_or_sections = range(extent // count, extent, extent // count)
    if len(indices_or_sections) < MANY_TENSORS:
        return x.emitter.emit(relax.op.split(x.expr, list(indices_or_sections), axis=axis))
    starts = [0, *indices_or_sections]
    firsts = starts[::MANY_TENSORS]
    result = []
    for number, part in enumerate(split(x, firsts[1:], axis)):
        inner = starts[number * MANY_TENSORS : (number + 1) * MANY_TENSORS]
        offsets = [start - inner[0] for start in inner[1:]]
        result += split(part, offsets, axis) if offsets else [part]
    return result


def reduce_sum(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Sum over axes (all of them where none are given); half precision adds up in float32."""
    # An empty list of axes, unlike None, sums over nothing.
    if axes is not None and not axes:
        return x
    if x.fill == 0.0:
        return x.emitter.full(0.0, reduced_shape(x.shape, axes, keepdims), x.dtype)
    axis = None if axes is None else list(axes)
    total = x.emitter.emit(relax.op.sum(widen(x).expr, axis=axis, keepdims=keepdims))
    return total.astype(x.dtype)


def normalize_axes(axes: Sequence[int] | None, rank: int) -> list[int]:
    """Axes as non-negative numbers; all axes where none are given."""
    if axes is None:
        return list(range(rank))
    return [axis % rank for axis in axes]


def reduced_shape(
    shape: Sequence[Dimension], axes: Sequence[int] | None, keepdims: bool
) -> list[Dimension]:
    """The shape that a reduction over the axes leaves."""
    reduced = set(normalize_axes(axes, len(shape)))
    if keepdims:
        return [1 if axis in reduced else extent for axis, extent in enumerate(shape)]
    return [extent for axis, extent in enumerate(shape) if axis not in reduced]


def unreduce(x: Tensor, shape: Sequence[Dimension], axes: Sequence[int] | None) -> Tensor:
    """A reduction's result, repeated along the axes that it summed over, in `shape`."""
    return broadcast_to(reshape(x, reduced_shape(shape, axes, keepdims=True)), shape)


def sum_to(x: Tensor, shape: Sequence[Dimension]) -> Tensor:
    """Sum over the axes along which `shape` was broadcast to ``x.shape``: the vjp of broadcasting.

    Raises
    ------
    RuleError
        ``shape`` does not broadcast to ``x.shape``, or has an extent of which nothing says whether
        it is 1.
    """
    if same_shape(x.shape, shape):
        return x
    new_axes = x.ndim - len(shape)
    if new_axes < 0:
        raise RuleError(f"{list(shape)} does not broadcast to {x.shape}")
    axes = list(range(new_axes))
    for axis, extent in enumerate(shape):
        if same_dimension(x.shape[new_axes + axis], extent):
            continue
        if not isinstance(extent, int):
            raise RuleError(
                f"{list(shape)} is broadcast to {x.shape}, but whether the extent "
                f"{dimension_text(extent)} is 1 is known at run time only, and so is the "
                "gradient's sum: give the extent a value, with shapes= of from_onnx"
            )
        if extent != 1:
            raise RuleError(f"{list(shape)} does not broadcast to {x.shape}")
        axes.append(new_axes + axis)
    return reshape(reduce_sum(x, axes, keepdims=False), shape)


def divide_by_count(x: Tensor, extents: Sequence[Dimension]) -> Tensor:
    """Divide by the product of extents, which may be symbolic."""
    static_count = math.prod(extent for extent in extents if isinstance(extent, int))
    quotient = widen(x)  # float16 ends at 65504, a common count
    for extent in extents:
        if not isinstance(extent, int):
            size = x.emitter.emit(relax.op.shape_to_tensor(relax.ShapeExpr([extent])))
            quotient = quotient / reshape(size, []).astype(quotient.dtype)
    if static_count != 1:
        quotient = quotient / float(static_count)
    return quotient.astype(x.dtype)
