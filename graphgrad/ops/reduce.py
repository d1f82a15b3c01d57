"""Reductions: their lowerings and layout rules.

Stock ones add up half precision in itself, drop NaN from maxima, give the position of any NaN, and
divide by zero at compile time where there is nothing to average.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.ir import prim

from ..fallback.graph import is_reduction, rewritten, stop_gradient
from ..ir.calls import result_types
from ..ir.kernel_calls import REDUCTION_PATTERN
from ..ir.kernel_structure import static
from ..ir.tensor import is_float
from ..layout import orders
from ..layout.orders import Order
from ..layout.rule import (
    LaidOut,
    Site,
    along_axis,
    following,
    layout_rule,
    stored_axes,
    stored_axis,
)
from .define import OPAQUE
from .elementwise import infinity, larger, minus_infinity, smaller
from .legalize import Legalization, legalization, lower_half_in_float32, lowering_of
from .moments import mean_expression
from .opaque_kernel import for_gpu
from .sorting import order

_MANY_CLASSES = 4096
"""From how many on a softmax's logarithm is computed where it is read: of a vocabulary, the scores
and their gradient are the largest tensors that a step has, and the loss reads one of a row."""


def _axes(call: relax.Call) -> list[int]:
    """The reduced axes as non-negative numbers."""
    rank, axes = call.args[0].ty.ndim, call.attrs.axis
    if axes is None:
        return list(range(rank))
    return [int(axis) % rank for axis in ([axes] if isinstance(axes, int) else axes)]


def _lower_extremum(
    op: str, choose: Callable[[Any, Any], Any], start: Callable[[str], Any]
) -> None:
    """Lower a maximum or minimum in which NaN wins.

    `start` makes the result for no elements from a dtype: −∞ for a maximum, ∞ for a minimum.
    """
    hint = op.removeprefix("relax.")
    reducer = te.comm_reducer(choose, lambda ty: start(str(ty)), name=hint)

    @legalization(op)
    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        axes = _axes(call)

        def expression(x: te.Tensor) -> te.Tensor:
            if not axes:
                return topi.identity(x)
            if str(x.dtype) == "bool":
                return topi.cast(_reduced(topi.cast(x, "uint8"), axes, keepdims, reducer), "bool")
            return _reduced(x, axes, keepdims, reducer)

        keepdims = bool(call.attrs.keepdims)
        return builder.call_te(expression, call.args[0], primfunc_name_hint=hint)


def _lower_position(
    op: str, before: Callable[[Any, Any], Any], start: Callable[[str], Any]
) -> None:
    """Lower the position of the first maximum or minimum, or of the first NaN if there is one."""

    def choose(left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, Any]:
        (i, a), (j, b) = left, right
        wins, loses, ties = before(a, b), before(b, a), a == b
        if is_float(str(a.ty)):
            wins = tirx.any(wins, tirx.all(tirx.isnan(a), tirx.Not(tirx.isnan(b))))
            loses = tirx.any(loses, tirx.isnan(b))
            ties = tirx.any(ties, tirx.all(tirx.isnan(a), tirx.isnan(b)))
        # The value is selected without the positions, so that the next comparison, which reads it,
        # need not wait for theirs.
        first = tirx.any(wins, tirx.all(ties, i < j))
        return tirx.Select(first, i, j), tirx.Select(loses, b, a)

    hint = op.removeprefix("relax.")
    # The start's value may equal an infinite element. Its position is the greatest, so that the
    # element wins the tie.
    reducer = te.comm_reducer(
        choose, lambda index, ty: (tirx.max_value(str(index)), start(str(ty))), name=hint
    )

    @legalization(op)
    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        axes, keepdims = _axes(call), bool(call.attrs.keepdims)

        def expression(x: te.Tensor) -> te.Tensor:
            values = topi.cast(x, "uint8") if str(x.dtype) == "bool" else x
            return _position(values, axes, keepdims, reducer)

        return builder.call_te(expression, call.args[0], primfunc_name_hint=hint)

    lower_half_in_float32(op)


def _position(x: te.Tensor, axes: Sequence[int], keepdims: bool, reducer: Any) -> te.Tensor:
    """The row-major position along the axes that a reducer of positions and values chooses."""
    # Over no axes each element is the only one of its reduction.
    if not axes:
        return topi.full(x.shape, "int64", 0)

    def with_position(value: Any, along: dict[int, Any]) -> tuple[Any, Any]:
        position = tirx.const(0, "int64")
        for axis in axes:
            position = position * x.shape[axis] + along[axis].var
        return position, value

    position, _ = _reduced(x, axes, keepdims, reducer, with_position)
    return topi.identity(position)


def _reduced(
    x: te.Tensor,
    axes: Sequence[int],
    keepdims: bool,
    reducer: Any,
    term: Callable[[Any, dict[int, Any]], Any] = lambda value, _: value,
) -> Any:
    """The reduction of a tensor over axes, of the terms that `term` makes of its elements.

    `term` is given an element, and the reduction axis of each axis by number. The result is one
    tensor, or several if the reducer is one of tuples.
    """
    along = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}
    kept_axes = [axis for axis in range(len(x.shape)) if axis not in along]

    def element(*index: Any) -> Any:
        index_of_axis = (
            dict(zip(range(len(x.shape)) if keepdims else kept_axes, index, strict=True)) | along
        )
        value = x(*(index_of_axis[axis] for axis in range(len(x.shape))))
        return reducer(term(value, along), axis=list(along.values()))

    shape = [
        1 if axis in along else extent
        for axis, extent in enumerate(x.shape)
        if keepdims or axis in kept_axes
    ]
    return te.compute(shape, element, name="reduced")


Statistic = Callable[[te.Tensor, list[int], bool], te.Tensor]


def _lower_statistic(op: str, statistic: Statistic) -> None:
    """Lower a mean of floats, or a statistic made of means; integers are left to TVM."""
    stock: Legalization = tvm.ir.Op.get(op).get_attr("FLegalize")

    @legalization(op)
    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        (x,), keepdims = call.args, bool(call.attrs.keepdims)
        if not is_float(str(x.ty.dtype)):
            return stock(builder, call)
        hint = op.removeprefix("relax.")
        return builder.call_te(statistic, x, _axes(call), keepdims, primfunc_name_hint=hint)


def _variance(x: te.Tensor, axes: list[int], keepdims: bool) -> te.Tensor:
    """The population variance, by deviations from the mean."""
    deviation = topi.subtract(x, mean_expression(x, axes, True))
    return mean_expression(topi.multiply(deviation, deviation), axes, keepdims)


def _deviation(x: te.Tensor, axes: list[int], keepdims: bool) -> te.Tensor:
    """The standard deviation: its derivative where all elements are equal is 0, not NaN."""
    variance = _variance(x, axes, keepdims)

    def root(*i: Any) -> Any:
        square = variance(*i)
        return tirx.if_then_else(square > 0, tirx.sqrt(square), square)

    return te.compute(variance.shape, root, name="deviation")


def _log_softmax_by_statistics(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """y = x − m − log Σ exp(x − m), where m is the maximum of a row, by two kernels.

    The one makes two numbers of each row, and the other is a map, which those that read y may
    compute instead of reading it (`recompute_maps`). Of a vocabulary, y is the largest tensor there
    is, the loss reads one element of a row, and the gradient can read x as well.
    """
    (x,), axis = call.args, int(call.attrs.axis) % call.args[0].ty.ndim

    def statistics(x: te.Tensor) -> list[te.Tensor]:
        maximum = topi.max(x, axis, keepdims=True)
        shifted = topi.exp(topi.subtract(x, maximum))
        return [maximum, topi.log(topi.sum(shifted, axis, keepdims=True))]

    def result(x: te.Tensor, maximum: te.Tensor, logarithm: te.Tensor) -> te.Tensor:
        def element(*i: Any) -> Any:
            row = (*i[:axis], 0, *i[axis + 1 :])
            return x(*i) - maximum(*row) - logarithm(*row)

        return te.compute(x.shape, element)

    both = builder.emit(builder.call_te(statistics, x, primfunc_name_hint="log_sum_exp"))
    parts = [builder.emit(relax.TupleGetItem(both, i)) for i in range(2)]
    return builder.call_te(result, x, *parts, primfunc_name_hint="log_softmax")


def _lower_softmax(
    op: str,
    function: Callable[[te.Tensor, int], te.Tensor],
    by_statistics: Callable[[relax.BlockBuilder, relax.Call], Any] | None = None,
) -> None:
    """Lower a softmax or its logarithm as TVM does; no cotangent goes to the maximum of a row.

    Where that is given, one of many classes is lowered by the statistics of rows.
    """

    def unmoved(x: te.Tensor, axis: int) -> te.Tensor:
        def change(stage: Any) -> list[te.Tensor] | None:
            is_maximum = is_reduction(stage) and isinstance(
                stage.body[0].combiner.result[0], prim.Max
            )
            return [stop_gradient(stage.output(0))] if is_maximum else None

        (result,) = rewritten([function(x, axis)], change)
        return result

    @legalization(op)
    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        name = op.rpartition(".")[2]
        if by_statistics is not None and _is_large(call.args[0], call.attrs.axis):
            return by_statistics(builder, call)
        return builder.call_te(unmoved, call.args[0], call.attrs.axis, primfunc_name_hint=name)


@legalization("relax.median")
def median(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a median: the lower one of two middle elements; along a single axis also its index.

    The stock one reads past the end of the result over several axes, and sorts by a function of the
    host that no GPU has.
    """
    axes = _axes(call)
    kept_axes = [axis for axis in range(call.args[0].ty.ndim) if axis not in axes]
    results = result_types(call.ty)

    def expression(x: te.Tensor) -> list[te.Tensor]:
        count = math.prod(x.shape[axis] for axis in axes)
        rows = topi.reshape(
            topi.transpose(x, kept_axes + axes), [*(x.shape[a] for a in kept_axes), count]
        )
        sorted_indices = order(rows, len(kept_axes), descending=False)
        index = te.compute(
            rows.shape[:-1], lambda *i: sorted_indices(*i, (count - 1) // 2), name="index"
        )
        value = te.compute(rows.shape[:-1], lambda *i: rows(*i, index(*i)), name="value")
        pairs = zip((value, index), results, strict=False)
        return [topi.reshape(tensor, list(ty.shape)) for tensor, ty in pairs]

    return builder.call_te(
        expression, call.args[0], primfunc_name_hint="median", primfunc_attrs=OPAQUE
    )


def _is_large(x: Any, axis: int) -> bool:
    """Whether rows along an axis are not to be kept beside what they are made of.

    On a GPU that is always so; a processor keeps those of few classes in its cache.
    """
    return for_gpu() or (static(x.ty.shape[axis]) or 0) >= _MANY_CLASSES


_NLL_LOSS = lowering_of(tvm.ir.Op.get("relax.nn.nll_loss"))


@legalization("relax.nn.nll_loss")
def nll_loss(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a loss that reads one element of each row.

    TVM puts no map into a kernel that reads places which depend on data. Where classes are many,
    this one counts as a reduction, so that maps may compute what it reads.
    """
    assert _NLL_LOSS is not None
    result = _NLL_LOSS(builder, call)
    if _is_large(call.args[0], min(1, call.args[0].ty.ndim - 1)):
        kernel = result.args[0]
        func = builder.get()[kernel].with_attr("op_pattern", REDUCTION_PATTERN)
        builder.update_func(kernel, func)
    return result


_lower_extremum("relax.max", larger, minus_infinity)
_lower_extremum("relax.min", smaller, infinity)
_lower_position("relax.argmax", operator.gt, minus_infinity)
_lower_position("relax.argmin", operator.lt, infinity)
_lower_statistic("relax.mean", mean_expression)
_lower_statistic("relax.std", _deviation)
_lower_statistic("relax.variance", _variance)
_lower_softmax("relax.nn.softmax", topi.nn.softmax)
_lower_softmax("relax.nn.log_softmax", topi.nn.log_softmax, _log_softmax_by_statistics)
layout_rule("relax.nn.softmax", "relax.nn.log_softmax")(along_axis)

lower_half_in_float32(
    *("relax.collapse_sum_to", "relax.max", "relax.mean", "relax.min", "relax.prod", "relax.std"),
    *("relax.sum", "relax.variance", "relax.nn.cross_entropy_with_logits"),
    *("relax.nn.log_softmax", "relax.nn.nll_loss", "relax.nn.softmax"),
)


_REDUCTIONS = [f"relax.{name}" for name in ("max", "mean", "min", "prod", "std", "sum", "variance")]


@layout_rule(*_REDUCTIONS)
@following
def reduction_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """The axes are reduced where they are stored."""
    axes = site.attributes.axis
    reduced = list(range(len(order))) if axes is None else [axis % len(order) for axis in axes]
    remaining = order if site.attributes.keepdims else orders.without(order, reduced)
    return site.passed([x], remaining, axis=stored_axes(order, reduced))


@layout_rule("relax.argmax", "relax.argmin")
@following
def position_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut | None:
    """The position along one axis; over all of them it counts in the model's order."""
    axis = site.attributes.axis
    if axis is None:
        return None
    remaining = order if site.attributes.keepdims else orders.without(order, [axis % len(order)])
    return site.passed([x], remaining, axis=stored_axis(order, axis))
