"""Poolings, and the ops of their gradients, over one, two or three spatial axes.

A *tap* is an element of a window, numbered in row-major order. The gradient of max pooling finds
the tap of each window's first maximum by comparing x with y, in the backward pass
(`max_pool_index`). From there on only integers are compared: `max_pool_scatter` sends cotangents to
these taps, and `max_pool_gather` is its transpose. TVM's own max-pool gradient reads uninitialized
memory where windows do not cover the input; these do not.

Data are in the layout of the pooling, `Pool.layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from ..ir.tensor import Dimension, Tensor, accumulator_dtype, is_float, type_shape
from .define import call_op, define_op
from .pool_windows import Indices, Pool, inside, number_of_taps


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


def _infer_from_shape(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[-1], call.args[0].ty.dtype)


def _infer_index(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[1].ty.shape, Pool.of(call.attrs).index_dtype)


def _infer_gather(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[1].ty.shape, call.args[0].ty.dtype)


def _infer_position(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[0].ty.shape, "int64")


def _sum_over_windows(
    pool: Pool,
    shape: Sequence[Dimension],
    outputs: te.Tensor,
    condition: Callable[[Indices, Any], Any],
) -> te.Tensor:
    """The sum, for each element of x, of the outputs whose windows read it, on a condition.

    `condition(indices, tap)` says of an output and the number of the tap that reads the element
    whether the output counts.
    """
    extents = pool.spatial(outputs.shape)
    over = pool.windows_over_element(extents)
    dtype = str(outputs.dtype)
    accumulator = accumulator_dtype(dtype)
    zero = tirx.const(0, dtype)

    def element(*element_index: Any) -> Any:
        windows, taps, reads = pool.reached_by(pool.spatial(element_index), over, extents)
        indices = pool.indices(element_index, windows)
        # A selection, not a choice: what decides here differs along a vector, where to read does
        # not.
        chosen = tirx.Select(condition(indices, pool.tap_number(taps)), outputs(*indices), zero)
        return te.sum(tirx.if_then_else(reads, chosen, zero).astype(accumulator), axis=over)

    total = te.compute(tuple(shape), element, name="sum_over_windows")
    if accumulator == dtype:
        return total
    return te.compute(total.shape, lambda *i: total(*i).astype(dtype), name="narrow")


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
    return _sum_over_windows(
        Pool.of(call.attrs),
        type_shape(call.ty),
        ct,
        lambda indices, tap: index(*indices) == tap.astype(str(index.dtype)),
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
    "avg_pool_gradient", ["ct", "shape"], _infer_from_shape, avg_gradient_expression
)
_MAX_INDEX = define_op("max_pool_index", ["data", "output"], _infer_index, max_index_expression)
_MAX_SCATTER = define_op(
    "max_pool_scatter", ["ct", "index", "shape"], _infer_from_shape, max_scatter_expression
)
_MAX_GATHER = define_op("max_pool_gather", ["data", "index"], _infer_gather, _max_gather_expression)
_MAX_POSITION = define_op(
    "max_pool_position", ["index", "shape"], _infer_position, _max_position_expression
)
