"""Lowerings of sorting and searching: any dtype and axis, stable, and with a place for NaN."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi

from ...ir.tensor import is_float
from ..cumulative import cumulative
from ..define import OPAQUE
from ..indexing import Indexing, gather, outside_value, within
from ..order import order
from .axis import checked_axis
from .table import legalization


@legalization("relax.argsort")
def argsort(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower argsort; the stock one refuses 8-bit integers, and is undefined with NaN."""
    axis, dtype = checked_axis(call), str(call.attrs.dtype)

    def expression(x: te.Tensor) -> te.Tensor:
        sorted_indices = order(x, axis, bool(call.attrs.descending))
        return te.compute(x.shape, lambda *i: sorted_indices(*i).astype(dtype), name="argsort")

    return builder.call_te(
        expression, call.args[0], primfunc_name_hint="argsort", primfunc_attrs=OPAQUE
    )


@legalization("relax.sort")
def sort(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower sort as the elements in the order of argsort."""
    axis = checked_axis(call)

    def expression(x: te.Tensor) -> te.Tensor:
        return _at(x, order(x, axis, bool(call.attrs.descending)), axis)

    return builder.call_te(
        expression, call.args[0], primfunc_name_hint="sort", primfunc_attrs=OPAQUE
    )


@legalization("relax.topk")
def topk(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower topk as the first of the sorted elements: of ties, the first ones.

    The stock one refuses symbolic shapes. Where there are fewer than k elements, NaN (0 in
    integers) and the index −1 stand for the others.
    """
    axis, returned, dtype = checked_axis(call), str(call.attrs.ret_type), str(call.attrs.dtype)
    result = call.ty.fields[0] if isinstance(call.ty, relax.TupleType) else call.ty
    count = result.shape[axis]

    def expression(x: te.Tensor) -> te.Tensor | list[te.Tensor]:
        sorted_indices = order(x, axis, bool(call.attrs.largest))
        shape = [count if d == axis else extent for d, extent in enumerate(x.shape)]

        def position(*i: Any) -> Any:
            inside = tirx.all(True, *within([i[axis]], [x.shape[axis]], [count]))
            return tirx.if_then_else(inside, sorted_indices(*i), tirx.const(-1, "int64"))

        positions = te.compute(shape, position, name="places")
        values = _at(x, positions, axis)
        indices = te.compute(shape, lambda *i: positions(*i).astype(dtype), name="indices")
        return {"values": values, "indices": indices, "both": [values, indices]}[returned]

    return builder.call_te(
        expression, call.args[0], primfunc_name_hint="topk", primfunc_attrs=OPAQUE
    )


@legalization("relax.bucketize")
def bucketize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower bucketize so that NaN goes behind every boundary; the stock one puts it before."""
    dtype = "int32" if call.attrs.out_int32 else "int64"

    def expression(x: te.Tensor, boundaries: te.Tensor) -> te.Tensor:
        bucket = topi.searchsorted(boundaries, x, bool(call.attrs.right), dtype)
        if not is_float(str(x.dtype)):
            return bucket
        last = boundaries.shape[0].astype(dtype)
        return te.compute(
            x.shape, lambda *i: tirx.Select(tirx.isnan(x(*i)), last, bucket(*i)), name="bucketize"
        )

    return builder.call_te(
        expression, *call.args, primfunc_name_hint="bucketize", primfunc_attrs=OPAQUE
    )


@legalization("relax.multinomial_from_uniform")
def multinomial(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the choice of the class at which cumulative probability passes a uniform number.

    The stock one wants probabilities and numbers of one dtype, and reads outside for a row that
    does not exist; here the nearest row serves.
    """

    def expression(p: te.Tensor, uniform: te.Tensor, rows: te.Tensor) -> te.Tensor:
        total = cumulative(p, 1, "add", exclusive=False)
        wider = "float64" if "float64" in (str(p.dtype), str(uniform.dtype)) else "float32"
        k = te.reduce_axis((0, p.shape[1]), "k")

        def passed(n: Any, _: Any) -> Any:
            row = tirx.max(tirx.min(rows[n, 0].astype("int64"), p.shape[0] - 1), 0)
            is_below = total[row, k].astype(wider) <= uniform[n, 0].astype(wider)
            return te.sum(is_below.astype("int64"), axis=k)

        count = te.compute(uniform.shape, passed, name="passed")
        # Rounding may leave the total below the number: the last class serves.
        last = p.shape[1] - 1
        return te.compute(
            uniform.shape,
            lambda *i: tirx.min(count(*i), last).astype(str(call.attrs.dtype)),
            name="multinomial",
        )

    return builder.call_te(
        expression, *call.args, primfunc_name_hint="multinomial", primfunc_attrs=OPAQUE
    )


def _at(x: te.Tensor, positions: te.Tensor, axis: int) -> te.Tensor:
    """The elements at positions along an axis; NaN, or 0 in integers, at a negative one."""
    return gather(Indexing("elements", axis, "nan"), x, positions, outside_value(str(x.dtype)))
