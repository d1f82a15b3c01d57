"""Poolings, and the ops of their gradients, over one, two or three spatial axes.

A *tap* is an element of a window, numbered in row-major order. The gradient of max pooling finds
the tap of each window's first maximum by comparing x with y, in the backward pass
(`max_pool_index`). From there on only integers are compared: `max_pool_scatter` sends cotangents to
these taps, and `max_pool_gather` is its transpose. TVM's own max-pool gradient reads uninitialized
memory where windows do not cover the input; these do not.

Data are in the layout of the pooling, `Pool.layout`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from ..errors import ArgumentError
from ..ir.tensor import Dimension, Tensor, accumulator_dtype, is_float, type_shape
from ..layout import orders
from ..layout.rule import LaidOut, Site, layout_rule
from . import functional as op
from .conv.stages import bordered, permuted
from .define import call_op, define_op, in_given_shape
from .elementwise import cast, minus_infinity
from .legalize import legalization, legalization_by_ops
from .pool_windows import LAYOUTS, Indices, Pool, inside, number_of_taps
from .resample import Table, resample


def avg_pool(x: Tensor, pool: Pool) -> Tensor:
    """The average of each window of x."""
    function = getattr(relax.op.nn, f"avg_pool{pool.rank}d")
    return x.emitter.emit(function(x.expr, **pool.attributes()))


def max_pool(x: Tensor, pool: Pool) -> Tensor:
    """The maximum of each window of x."""
    function = getattr(relax.op.nn, f"max_pool{pool.rank}d")
    return x.emitter.emit(function(x.expr, **pool.attributes()))


def avg_pool_gradient(ct: Tensor, shape: Sequence[Dimension], pool: Pool) -> Tensor:
    """The cotangent x̄ of ``y = avg_pool(x)`` from that of y; `shape` is that of x."""
    arguments = [ct.expr, relax.ShapeExpr(list(shape))]
    return ct.emitter.emit(call_op(_AVG_GRADIENT, arguments, **pool.attributes()))


def max_pool_index(x: Tensor, y: Tensor, pool: Pool) -> Tensor:
    """The number of the tap at which each window's first maximum is, as `Pool.index_dtype`.

    Parameters
    ----------
    x, y : Tensor
        Input and output of the max pooling. The maximum of a window with NaN is its first NaN. A
        window that lies in the padding has none: its number is that of the taps.
    pool : Pool
    """
    return x.emitter.emit(call_op(_MAX_INDEX, [x.expr, y.expr], **pool.attributes()))


def max_pool_scatter(ct: Tensor, index: Tensor, shape: Sequence[Dimension], pool: Pool) -> Tensor:
    """The cotangent x̄ of ``y = max_pool(x)`` from that of y; `shape` is that of x."""
    arguments = [ct.expr, index.expr, relax.ShapeExpr(list(shape))]
    return ct.emitter.emit(call_op(_MAX_SCATTER, arguments, **pool.attributes()))


def max_pool_gather(x: Tensor, index: Tensor, pool: Pool) -> Tensor:
    """The elements of x at the taps: the transpose of the scatter."""
    return x.emitter.emit(call_op(_MAX_GATHER, [x.expr, index.expr], **pool.attributes()))


def max_pool_position(
    index: Tensor, shape: Sequence[Dimension], pool: Pool, column_major: bool = False
) -> Tensor:
    """The positions of the taps in x, flattened over all its axes, as int64.

    Parameters
    ----------
    index : Tensor
        As of `max_pool_index`.
    shape : sequence
        The shape of x.
    pool : Pool
    column_major : bool
        Number the spatial elements with the first axis fastest; batch and channels stay slowest.
    """
    arguments = [index.expr, relax.ShapeExpr(list(shape))]
    attributes = {**pool.attributes(), "column_major": column_major}
    return index.emitter.emit(call_op(_MAX_POSITION, arguments, **attributes))


def is_nan(value: Any) -> Any:
    """Whether a float is NaN; TVM has no such test of bfloat16."""
    return tirx.isnan(value.astype(accumulator_dtype(str(value.ty))))


def _infer_index(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[1].ty.shape, Pool.of(call.attrs).index_dtype)


def _infer_gather(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[1].ty.shape, call.args[0].ty.dtype)


def _infer_position(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[0].ty.shape, "int64")


_Condition = Callable[[Indices, Indices], Any]
"""Whether an output counts, by its indices and the tap of its window that reads the element."""


def _term_of_window(
    pool: Pool, element: Indices, windows: Indices, outputs: te.Tensor, condition: _Condition
) -> Any:
    """The output of a window over an element of x, on a condition, in the dtype of its sum."""
    dtype = str(outputs.dtype)
    zero = tirx.const(0, dtype)
    extents = pool.spatial(outputs.shape)
    positions, taps, reads = pool.reached_by(pool.spatial(element), windows, extents)
    indices = pool.indices(element, positions)
    # A selection, not a choice: what decides here differs along a vector, where to read does not.
    chosen = tirx.Select(condition(indices, taps), outputs(*indices), zero)
    return tirx.if_then_else(reads, chosen, zero).astype(accumulator_dtype(dtype))


def _sum_over_windows(
    pool: Pool, shape: Sequence[Dimension], outputs: te.Tensor, condition: _Condition
) -> te.Tensor:
    """The sum, for each element of x, of the outputs whose windows read it, on a condition."""
    over = pool.windows_over_element(pool.spatial(outputs.shape))
    total = te.compute(
        tuple(shape),
        lambda *i: te.sum(_term_of_window(pool, i, over, outputs, condition), axis=over),
        name="sum_over_windows",
    )
    return cast(total, str(outputs.dtype))


def scattered_maxima(
    attrs: Any, shape: Sequence[Any], ct: te.Tensor, index: te.Tensor
) -> te.Tensor:
    """The cotangent of `max_scatter_expression` as a map, which adds up its few windows in turn."""
    pool = Pool.of(attrs)
    counts = [int(axis.dom.extent) for axis in pool.windows_over_element(pool.spatial(ct.shape))]

    def is_maximum(indices: Indices, taps: Indices) -> Any:
        # As wide as its parts: of a window that does not reach the element, the number of the tap
        # need not fit the dtype of the index.
        return index(*indices).astype("int64") == pool.tap_number(taps, "int64")

    def element(*element_index: Any) -> Any:
        total = tirx.const(0, accumulator_dtype(str(ct.dtype)))
        for numbers in itertools.product(*map(range, counts)):
            windows = [tirx.const(number, "int64") for number in numbers]
            total = total + _term_of_window(pool, element_index, windows, ct, is_maximum)
        return total.astype(str(ct.dtype))

    return te.compute(tuple(shape), element, name="scattered_maxima")


def avg_gradient_expression(call: relax.Call, ct: te.Tensor) -> te.Tensor:
    """The cotangent x̄ = Σ ȳ / count over the windows that contain the element."""
    pool = Pool.of(call.attrs)
    shape = type_shape(call.ty)
    dtype = str(ct.dtype)

    def scaled(*output_index: Any) -> Any:
        return ct(*output_index) / pool.count(
            pool.spatial(output_index), pool.spatial(shape)
        ).astype(dtype)

    share = te.compute(ct.shape, scaled, name="share_of_window")
    return _sum_over_windows(pool, shape, share, lambda *_: tirx.const(True, "bool"))


def max_index_expression(call: relax.Call, x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """The smallest tap at which the window's maximum is."""
    pool = Pool.of(call.attrs)
    taps = pool.reduce_axes()
    number = pool.tap_number(taps)
    none = tirx.const(number_of_taps(pool), pool.index_dtype)

    def element(*output_index: Any) -> Any:
        positions = pool.positions(pool.spatial(output_index), taps)
        value = x(*pool.indices(output_index, positions))
        is_maximum = value == y(*output_index)
        if is_float(str(x.dtype)):
            is_maximum = tirx.any(is_maximum, is_nan(value))
        # The read stays guarded by `inside`; only then is it compared.
        tap = tirx.if_then_else(
            inside(positions, pool.spatial(x.shape)), tirx.Select(is_maximum, number, none), none
        )
        return te.min(tap, axis=taps)

    return te.compute(y.shape, element, name="index_of_maximum")


def max_scatter_expression(call: relax.Call, ct: te.Tensor, index: te.Tensor) -> te.Tensor:
    """The cotangent x̄ = Σ ȳ over the windows whose maximum is at the element."""
    pool = Pool.of(call.attrs)
    return _sum_over_windows(
        pool,
        type_shape(call.ty),
        ct,
        lambda indices, taps: index(*indices) == pool.tap_number(taps).astype(str(index.dtype)),
    )


def _max_gather_expression(call: relax.Call, x: te.Tensor, index: te.Tensor) -> te.Tensor:
    """The element y of x at the tap that the index names; 0 where it names none."""
    pool = Pool.of(call.attrs)

    def element(*output_index: Any) -> Any:
        number = index(*output_index).astype("int64")
        positions = pool.positions(pool.spatial(output_index), pool.tap_of(number))
        reads = tirx.all(number < number_of_taps(pool), inside(positions, pool.spatial(x.shape)))
        value = x(*pool.indices(output_index, positions))
        return tirx.if_then_else(reads, value, tirx.const(0, str(x.dtype)))

    return te.compute(index.shape, element, name="gather_maximum")


def _max_position_expression(call: relax.Call, index: te.Tensor) -> te.Tensor:
    """The flat position in x of the tap that the index names."""
    pool = Pool.of(call.attrs)
    # The dtype is of no account: only the shape is read, as ints where it is static.
    _, channels, *extents = type_shape(relax.TensorType(call.args[1], "int32"))
    axes = list(range(pool.rank))
    if call.attrs["column_major"]:
        axes.reverse()

    def element(n: Any, c: Any, *outputs: Any) -> Any:
        positions = pool.positions(outputs, pool.tap_of(index(n, c, *outputs).astype("int64")))
        flat = tirx.Cast("int64", n) * channels + c
        for axis in axes:
            flat = flat * extents[axis] + positions[axis]
        return flat.astype("int64")

    return te.compute(index.shape, element, name="position_of_maximum")


_AVG_GRADIENT = define_op(
    "avg_pool_gradient", ["ct", "shape"], in_given_shape, avg_gradient_expression
)
_MAX_INDEX = define_op("max_pool_index", ["data", "output"], _infer_index, max_index_expression)
_MAX_SCATTER = define_op(
    "max_pool_scatter", ["ct", "index", "shape"], in_given_shape, max_scatter_expression
)
_MAX_GATHER = define_op("max_pool_gather", ["data", "index"], _infer_gather, _max_gather_expression)
_MAX_POSITION = define_op(
    "max_pool_position", ["index", "shape"], _infer_position, _max_position_expression
)


# The stock lowerings refuse an ``out_layout``, count what ``ceil_mode`` adds as padding, start a
# maximum at the least finite number, lose NaN, and add up half precision in half precision.
_MAX, _AVERAGE, _ADAPTIVE = (
    [f"relax.nn.{kind}_pool{rank}d" for rank in LAYOUTS] for kind in ("max", "avg", "adaptive_avg")
)
_SPATIAL = "DHW"


@legalization(*_MAX)
def lower_max_pool(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a max pooling: NaN stays NaN, and a window in the padding gives −∞."""
    shape = type_shape(call.ty)
    return builder.call_te(
        lambda x: _maxima(call.attrs, shape, x), call.args[0], primfunc_name_hint="max_pool"
    )


def _maxima(attrs: Any, shape: Sequence[Any], x: te.Tensor) -> te.Tensor:
    """The maxima of the windows, in the output's layout and shape."""
    pool = Pool.of(attrs)
    dtype = str(x.dtype)
    maximum = te.comm_reducer(_larger, lambda _: minus_infinity(dtype), name="maximum")
    taps = pool.reduce_axes()
    read = _window_reader(attrs, shape, x, minus_infinity(dtype))
    return te.compute(shape, lambda *i: maximum(read(i, taps), axis=taps), name="max_pool")


def max_with_index(attrs: Any, shape: Sequence[Any], x: te.Tensor) -> list[te.Tensor]:
    """The maxima of the windows of floats, and the taps of the first of them.

    They are those of `max_pool` and of `max_pool_index`, found in one pass: a term replaces
    the result so far if it is larger, if it is the first NaN, or if there was no element before.
    `shape` is that of the maxima, in the layout of x.
    """
    pool = Pool.of(attrs)
    dtype, index_dtype = str(x.dtype), pool.index_dtype
    none = tirx.const(number_of_taps(pool), index_dtype)

    def first(a: Any, b: Any) -> Any:
        is_new = tirx.any(a[1] == none, b[0] > a[0], tirx.all(is_nan(b[0]), tirx.Not(is_nan(a[0]))))
        return tuple(tirx.Select(is_new, new, old) for old, new in zip(a, b, strict=True))

    reducer = te.comm_reducer(
        first, lambda *_: (minus_infinity(dtype), none), name="maximum_and_index"
    )
    extents = pool.spatial(x.shape)
    taps = pool.reduce_axes()
    read = _window_reader(attrs, shape, x, minus_infinity(dtype))

    def element(*indices: Any) -> Any:
        is_inside = inside(pool.positions(pool.spatial(indices), taps), extents)
        number = tirx.if_then_else(is_inside, pool.tap_number(taps), none)
        return reducer((read(indices, taps), number), axis=taps)

    return te.compute(shape, element, name="max_pool")


@legalization(*_AVERAGE)
def lower_avg_pool(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower an average pooling: half precision adds up in float32."""
    pool = Pool.of(call.attrs)
    dtype = str(call.ty.dtype)
    accumulator = accumulator_dtype(dtype)

    def expression(x: te.Tensor) -> te.Tensor:
        taps = pool.reduce_axes()
        read = _window_reader(call.attrs, type_shape(call.ty), x, tirx.const(0, dtype))
        total = te.compute(
            type_shape(call.ty),
            lambda *i: te.sum(read(i, taps).astype(accumulator), axis=taps),
            name="window_sum",
        )
        extents = [x.shape[axis] for axis in _spatial_axes(call.attrs.layout)]

        def average(*indices: Any) -> Any:
            outputs = [indices[axis] for axis in _spatial_axes(call.attrs.out_layout)]
            count = pool.count(outputs, extents)
            return (total(*indices) / count.astype(accumulator)).astype(dtype)

        return te.compute(total.shape, average, name="avg_pool")

    return builder.call_te(expression, call.args[0], primfunc_name_hint="avg_pool")


@legalization("relax.grad.max_pool2d_backward")
def max_pool_backward(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower TVM's gradient of max pooling: that of the first maximum of each window.

    The stock one reads behind the last window.
    """

    def expression(ct: te.Tensor, x: te.Tensor) -> te.Tensor:
        y, ct = (_in_layout(t, call.attrs) for t in (_maxima(call.attrs, ct.shape, x), ct))
        return max_scatter_expression(call, ct, max_index_expression(call, x, y))

    return builder.call_te(expression, *call.args, primfunc_name_hint="max_pool_backward")


@legalization("relax.grad.avg_pool2d_backward")
def avg_pool_backward(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower TVM's gradient of average pooling; the stock one leaves the same border unguarded."""

    def expression(ct: te.Tensor) -> te.Tensor:
        return avg_gradient_expression(call, _in_layout(ct, call.attrs))

    return builder.call_te(expression, call.args[0], primfunc_name_hint="avg_pool_backward")


def _in_layout(output: te.Tensor, attrs: Any) -> te.Tensor:
    """The result of a pooling, or its cotangent, in the layout of the pooling's argument."""
    return permuted(output, str(attrs.out_layout), str(attrs.layout))


def _larger(a: Any, b: Any) -> Any:
    if not is_float(str(b.ty)):
        return tirx.max(a, b)
    return tirx.Select(tirx.any(b > a, is_nan(b)), b, a)


def _window_reader(
    attrs: Any, shape: Sequence[Any], x: te.Tensor, neutral: Any
) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    """The function that reads the element at a tap of an output's window, or `neutral` outside.

    It takes the indices of the output, whose shape is `shape`, and the tap. Where windows leave the
    input and the channels are last in memory, a whole vector of channels lies outside at once, and
    is not read. With other layouts a padded copy is made first, whose readers need no guard.
    """
    pool = Pool.of(attrs)
    layout, out_layout = str(attrs.layout), str(attrs.out_layout)
    axes = _spatial_axes(layout)
    output_axes = _spatial_axes(out_layout)
    # How far the windows of all outputs reach along each spatial axis, padding included.
    covered = [
        (shape[output_axes[k]] - 1) * pool.strides[k] + (pool.size[k] - 1) * pool.dilation[k] + 1
        for k in range(pool.rank)
    ]
    extents = [x.shape[axis] for axis in axes]
    stays_inside = _stays_inside(pool, covered, extents)
    is_copied = not stays_inside and layout[-1] != "C"
    source, before = x, pool.padding
    if is_copied:
        spatial = [layout[axis] for axis in axes]
        borders = dict(zip(spatial, pool.padding, strict=False))
        extents_by_axis = dict(zip(spatial, covered, strict=True))
        source = bordered(x, layout, layout, borders, extents_by_axis, neutral)
        before = (0,) * pool.rank

    def read(indices: Sequence[Any], taps: Sequence[Any]) -> Any:
        input_index = [indices[out_layout.index(name)] for name in layout]
        for k, axis in enumerate(axes):
            start = indices[output_axes[k]] * pool.strides[k] - before[k]
            input_index[axis] = start + taps[k] * pool.dilation[k]
        if stays_inside or is_copied:
            return source(*input_index)
        return tirx.if_then_else(
            inside([input_index[axis] for axis in axes], extents), source(*input_index), neutral
        )

    return read


def _stays_inside(pool: Pool, covered: Sequence[Any], extents: Sequence[Any]) -> bool:
    """Whether it is certain that no window reaches beyond the input.

    Without padding only ``ceil_mode`` adds such windows; with it, static extents may still show
    that there are none.
    """
    if any(pool.padding):
        return False
    fits = [
        isinstance(needed, int) and isinstance(extent, int | tirx.IntImm) and needed <= int(extent)
        for needed, extent in zip(covered, extents, strict=True)
    ]
    return all(fits) or not pool.ceil_mode


def _spatial_axes(layout: str) -> list[int]:
    return [axis for axis, name in enumerate(str(layout)) if name in _SPATIAL]


@legalization_by_ops(*_ADAPTIVE, or_stock=True)
def adaptive_pool_image(x: Tensor, attrs: Any) -> Tensor:
    """The results of ``relax.nn.adaptive_avg_pool1d`` to ``3d``, by their attributes.

    Along a spatial axis with n inputs and m outputs, output o averages the inputs from ⌊o·n/m⌋ to
    ⌈(o+1)·n/m⌉, as PyTorch has it. No ``output_size`` leaves x as it is.

    Raises
    ------
    ArgumentError
        An extent is symbolic and there is more than one output along it, or the layout is blocked.
    """
    layout, out_layout = attrs.layout, attrs.out_layout
    if not len(layout) == len(out_layout) == x.ndim:
        raise ArgumentError(f"cannot pool from the blocked layout {layout} to {out_layout}")
    axes = [layout.index(name) for name in "DHW" if name in layout]
    sizes = dict(zip(axes, attrs.output_size or (), strict=False))
    pooled = op.widen(x)
    # One output is a plain mean, which needs no table and may have a symbolic extent.
    averaged = [axis for axis, size in sizes.items() if size == 1]
    if averaged:
        total = op.reduce_sum(pooled, averaged, keepdims=True)
        pooled = op.divide_by_count(total, [x.shape[axis] for axis in averaged])
    for axis, size in sizes.items():
        if size != 1:
            pooled = resample(pooled, _parts(x, axis, size), axis)
    order = [layout.index(name) for name in out_layout]
    return op.permute_dims(pooled, order).astype(x.dtype)


def _parts(x: Tensor, axis: int, size: int) -> Table:
    """The table of adaptive average pooling of an axis to `size` outputs."""
    extent = x.shape[axis]
    if not isinstance(extent, int):
        raise ArgumentError(
            f"adaptive average pooling to {size} outputs needs the extent of axis {axis} as a "
            f"number, given {extent}; give the input a static shape there"
        )
    rows = []
    for output in range(size):
        start, stop = output * extent // size, -(-(output + 1) * extent // size)
        rows.append(dict.fromkeys(range(start, stop), 1.0 / (stop - start)))
    return Table(rows, extent)


@layout_rule(*_MAX, *_AVERAGE, *_ADAPTIVE)
def pooling_layout(site: Site) -> LaidOut | None:
    """The pooling in NHWC, where the data come in that order."""
    x, attributes = site.operands[0], site.attributes
    standard = LAYOUTS[x.rank - 2]
    if x.is_plain or (attributes.layout, attributes.out_layout) != (standard, standard):
        return None
    order = orders.channels_last(x.rank)
    layout = orders.letters(standard, order)
    return site.passed([x.in_order(order)], order, layout=layout, out_layout=layout)
