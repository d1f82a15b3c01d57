"""Pooling gradients as ops of our own, two-dimensional, NCHW.

Max pooling is a gather: `max_pool2d_index` finds, once, the position of each window's first
maximum; `max_pool2d_scatter` sends cotangents there, and `max_pool2d_gather` is its transpose. The
index is an integer output, so no comparison of floats is repeated in the backward pass. TVM's own
max-pool gradient reads uninitialised memory where windows do not cover the input; these do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from .define import call_op, define_op
from .tensor import Dimension, Tensor, accumulator_dtype, type_shape


@dataclass(frozen=True)
class Pool:
    """The windows of a pooling: two numbers per field, padding as (top, left, bottom, right)."""

    size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    ceil_mode: bool
    count_include_pad: bool

    @staticmethod
    def of(attributes: Any) -> Pool:
        """Read the windows from the attributes of a pooling or of one of its gradients."""
        return Pool(
            tuple(int(v) for v in attributes["pool_size"]),  # type: ignore[arg-type]
            tuple(int(v) for v in attributes["strides"]),  # type: ignore[arg-type]
            tuple(int(v) for v in attributes["padding"]),  # type: ignore[arg-type]
            tuple(int(v) for v in attributes["dilation"]),  # type: ignore[arg-type]
            bool(attributes["ceil_mode"]),
            bool(attributes["count_include_pad"]),
        )

    def attributes(self) -> dict[str, Any]:
        """Return the windows as attributes of a call."""
        return {
            "pool_size": list(self.size),
            "strides": list(self.strides),
            "padding": list(self.padding),
            "dilation": list(self.dilation),
            "ceil_mode": self.ceil_mode,
            "count_include_pad": self.count_include_pad,
        }

    def position(self, axis: int, output: Any, tap: Any) -> Any:
        """Return the input coordinate that a tap of an output's window reads."""
        return output * self.strides[axis] + tap * self.dilation[axis] - self.padding[axis]

    def reached_by(self, axis: int, position: Any, tap: Any, outputs: Any) -> tuple[Any, Any]:
        """Return the output whose tap reads this input coordinate, and whether there is one."""
        offset = position + self.padding[axis] - tap * self.dilation[axis]
        output = tirx.floordiv(offset, self.strides[axis])
        exists = tirx.all(
            tirx.floormod(offset, self.strides[axis]) == 0, output >= 0, output < outputs
        )
        return output, exists


def avg_pool2d(x: Tensor, pool: Pool) -> Tensor:
    """Return the average of each window of x (N, C, H, W)."""
    return x.emitter.emit(relax.op.nn.avg_pool2d(x.expr, **pool.attributes()))


def avg_pool2d_gradient(ct: Tensor, shape: Sequence[Dimension], pool: Pool) -> Tensor:
    """Return x̄ of ``y = avg_pool2d(x)`` from y's cotangent; `shape` is that of x."""
    arguments = [ct.expr, relax.ShapeExpr(list(shape))]
    return ct.emitter.emit(call_op(_AVG_GRADIENT, arguments, **pool.attributes()))


def max_pool2d_index(x: Tensor, y: Tensor, pool: Pool) -> Tensor:
    """Return the tap (row · width + column in the window) of each first maximum, as int32.

    Parameters
    ----------
    x, y : Tensor
        Input and output of the max pooling.
    pool : Pool
    """
    return x.emitter.emit(call_op(_MAX_INDEX, [x.expr, y.expr], **pool.attributes()))


def max_pool2d_scatter(ct: Tensor, index: Tensor, shape: Sequence[Dimension], pool: Pool) -> Tensor:
    """Return x̄ of ``y = max_pool2d(x)`` from y's cotangent; `shape` is that of x."""
    arguments = [ct.expr, index.expr, relax.ShapeExpr(list(shape))]
    return ct.emitter.emit(call_op(_MAX_SCATTER, arguments, **pool.attributes()))


def max_pool2d_gather(x: Tensor, index: Tensor, pool: Pool) -> Tensor:
    """Return the elements of x (N, C, H, W) at the taps: the transpose of the scatter."""
    return x.emitter.emit(call_op(_MAX_GATHER, [x.expr, index.expr], **pool.attributes()))


def _infer_from_shape(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[-1], call.args[0].ty.dtype)


def _infer_index(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[1].ty.shape, "int32")


def _infer_gather(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[1].ty.shape, call.args[0].ty.dtype)


def _taps(pool: Pool) -> tuple[Any, Any]:
    return te.reduce_axis((0, pool.size[0]), "r"), te.reduce_axis((0, pool.size[1]), "s")


def _inside(pool: Pool, x: te.Tensor, p: Any, q: Any, r: Any, s: Any) -> tuple[Any, Any, Any]:
    h, v = pool.position(0, p, r), pool.position(1, q, s)
    return h, v, tirx.all(h >= 0, h < x.shape[2], v >= 0, v < x.shape[3])


def _sum_over_windows(
    pool: Pool,
    shape: Sequence[Dimension],
    outputs: te.Tensor,
    term: Callable[[Any, Any, Any, Any, Any], tuple[Any, Any]],
) -> te.Tensor:
    """x̄[n,c,h,w] = Σ over the taps (r, s) and outputs (p, q) that read (h, w) of a term.

    `term(n, c, p, q, tap)` returns the summand and a further condition on it.
    """
    r, s = _taps(pool)
    dtype = str(outputs.dtype)
    wide = accumulator_dtype(dtype)

    def element(n: Any, c: Any, h: Any, v: Any) -> Any:
        p, reads_p = pool.reached_by(0, h, r, outputs.shape[2])
        q, reads_q = pool.reached_by(1, v, s, outputs.shape[3])
        value, condition = term(n, c, p, q, r * pool.size[1] + s)
        guarded = tirx.if_then_else(condition, value, tirx.const(0, dtype))
        reads = tirx.all(reads_p, reads_q)
        return te.sum(
            tirx.if_then_else(reads, guarded, tirx.const(0, dtype)).astype(wide), axis=[r, s]
        )

    total = te.compute(tuple(shape), element, name="sum_over_windows")
    if wide == dtype:
        return total
    return te.compute(total.shape, lambda *i: total(*i).astype(dtype), name="narrow")


def _avg_gradient_expression(call: relax.Call, ct: te.Tensor) -> te.Tensor:
    """x̄[h,w] = Σ ȳ[p,q] / count[p,q] over the windows that contain (h, w)."""
    pool = Pool.of(call.attrs)
    shape = type_shape(call.ty)
    dtype = str(ct.dtype)

    def count(axis: int, output: Any) -> Any:
        """How many taps of a window the forward pass counts, along one axis."""
        before = pool.padding[axis] if pool.count_include_pad else 0
        after = pool.padding[axis + 2] if pool.count_include_pad else 0
        dilation = pool.dilation[axis]
        start = pool.position(axis, output, 0)
        first = tirx.max(tirx.floordiv(dilation - 1 - before - start, dilation), 0)
        end = shape[axis + 2] + after
        last = tirx.min(tirx.floordiv(end - 1 - start, dilation), pool.size[axis] - 1)
        return last - first + 1

    def scaled(n: Any, c: Any, p: Any, q: Any) -> Any:
        taps = tirx.max(count(0, p) * count(1, q), 1)
        return ct[n, c, p, q] / taps.astype(dtype)

    share = te.compute(ct.shape, scaled, name="share_of_window")
    return _sum_over_windows(
        pool,
        shape,
        share,
        lambda n, c, p, q, tap: (share[n, c, p, q], tirx.const(True, "bool")),
    )


def _max_index_expression(call: relax.Call, x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """The smallest tap at which the window's maximum stands."""
    pool = Pool.of(call.attrs)
    r, s = _taps(pool)
    none = tirx.const(pool.size[0] * pool.size[1], "int32")

    def element(n: Any, c: Any, p: Any, q: Any) -> Any:
        h, v, inside = _inside(pool, x, p, q, r, s)
        # The read stays guarded by `inside`; only then is it compared.
        tap = tirx.if_then_else(
            inside,
            tirx.if_then_else(
                x[n, c, h, v] == y[n, c, p, q], (r * pool.size[1] + s).astype("int32"), none
            ),
            none,
        )
        return te.min(tap, axis=[r, s])

    return te.compute(y.shape, element, name="index_of_maximum")


def _max_scatter_expression(call: relax.Call, ct: te.Tensor, index: te.Tensor) -> te.Tensor:
    """x̄[h,w] = Σ ȳ[p,q] over the windows whose maximum stands at (h, w)."""
    pool = Pool.of(call.attrs)
    return _sum_over_windows(
        pool,
        type_shape(call.ty),
        ct,
        lambda n, c, p, q, tap: (ct[n, c, p, q], index[n, c, p, q] == tap.astype("int32")),
    )


def _max_gather_expression(call: relax.Call, x: te.Tensor, index: te.Tensor) -> te.Tensor:
    """y[p,q] = x at the tap index[p,q] of the window."""
    pool = Pool.of(call.attrs)
    width = pool.size[1]

    def element(n: Any, c: Any, p: Any, q: Any) -> Any:
        tap = index[n, c, p, q]
        h, v, inside = _inside(pool, x, p, q, tirx.floordiv(tap, width), tirx.floormod(tap, width))
        return tirx.if_then_else(inside, x[n, c, h, v], tirx.const(0, str(x.dtype)))

    return te.compute(index.shape, element, name="gather_maximum")


_AVG_GRADIENT = define_op(
    "avg_pool2d_gradient", ["ct", "shape"], _infer_from_shape, _avg_gradient_expression
)
_MAX_INDEX = define_op("max_pool2d_index", ["data", "output"], _infer_index, _max_index_expression)
_MAX_SCATTER = define_op(
    "max_pool2d_scatter", ["ct", "index", "shape"], _infer_from_shape, _max_scatter_expression
)
_MAX_GATHER = define_op(
    "max_pool2d_gather", ["data", "index"], _infer_gather, _max_gather_expression
)
