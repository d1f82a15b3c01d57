"""Lowerings of pooling.

The stock ones refuse an ``out_layout``, count what ``ceil_mode`` adds as padding, start a maximum
at the least finite number, lose NaN, and add up half precision in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from ...ir.tensor import accumulator_dtype, is_float, type_shape
from ..pool import avg_gradient_expression, is_nan, max_index_expression, max_scatter_expression
from ..pool_windows import Pool, inside
from .table import legalization

_SPATIAL = "DHW"


# Those of one to three axes are registered at the end of this file.
def max_pool(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower a max pooling: NaN stays NaN, and a window in the padding gives −∞."""
    shape = type_shape(call.ty)
    return builder.call_te(
        lambda x: _maxima(call.attrs, shape, x), call.args[0], primfunc_name_hint="max_pool"
    )


def _maxima(attrs: Any, shape: Sequence[Any], x: te.Tensor) -> te.Tensor:
    """The maxima of the windows, in the output's layout and shape."""
    pool = Pool.of(attrs)
    dtype = str(x.dtype)
    maximum = te.comm_reducer(_larger, lambda _: _lowest(dtype), name="maximum")
    taps = pool.reduce_axes()
    read = _window_reader(attrs, shape, x, _lowest(dtype))
    return te.compute(shape, lambda *i: maximum(read(i, taps), axis=taps), name="max_pool")


def avg_pool(builder: relax.BlockBuilder, call: relax.Call) -> Any:
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
        y = _maxima(call.attrs, ct.shape, x)
        y, ct = (_to_layout(tensor, call.attrs) for tensor in (y, ct))
        return max_scatter_expression(call, ct, max_index_expression(call, x, y))

    return builder.call_te(expression, *call.args, primfunc_name_hint="max_pool_backward")


@legalization("relax.grad.avg_pool2d_backward")
def avg_pool_backward(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower TVM's gradient of average pooling; the stock one leaves the same border unguarded."""

    def expression(ct: te.Tensor) -> te.Tensor:
        return avg_gradient_expression(call, _to_layout(ct, call.attrs))

    return builder.call_te(expression, call.args[0], primfunc_name_hint="avg_pool_backward")


def _to_layout(output: te.Tensor, attrs: Any) -> te.Tensor:
    """The result of a pooling, or its cotangent, in the layout of the pooling's argument."""
    layout, out_layout = str(attrs.layout), str(attrs.out_layout)
    if layout == out_layout:
        return output
    shape = [output.shape[out_layout.index(name)] for name in layout]

    def element(*indices: Any) -> Any:
        return output(*(indices[layout.index(name)] for name in out_layout))

    return te.compute(shape, element, name="in_layout")


def _lowest(dtype: str) -> Any:
    return tirx.const(float("-inf"), dtype) if is_float(dtype) else te.min_value(dtype)


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
        source = _pad(x, dict(zip(axes, covered, strict=True)), pool.padding, neutral)
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


def _pad(x: te.Tensor, covered: dict[int, Any], padding: Sequence[int], neutral: Any) -> te.Tensor:
    before = dict(zip(covered, padding, strict=False))

    def element(*indices: Any) -> Any:
        input_index = [i - before.get(axis, 0) for axis, i in enumerate(indices)]
        reads = inside([input_index[axis] for axis in covered], [x.shape[axis] for axis in covered])
        return tirx.if_then_else(reads, x(*input_index), neutral)

    extents = [covered.get(axis, extent) for axis, extent in enumerate(x.shape)]
    return te.compute(extents, element, name="padded")


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


for _rank in (1, 2, 3):
    legalization(f"relax.nn.avg_pool{_rank}d")(avg_pool)
    legalization(f"relax.nn.max_pool{_rank}d")(max_pool)
