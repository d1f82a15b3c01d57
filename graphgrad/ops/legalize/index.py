"""Lowerings of gathers and scatters: stock ones read and write outside of tensors, and race.

`graphgrad.ops.indexing` defines what becomes of an index that points outside, and along which axes
elements may meet at one position.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi

from ...ir.tensor import accumulator_dtype, broadcast_shape
from ..define import OPAQUE
from ..index import as_dtype, scatter
from ..indexing import Indexing, gather, outside_value
from .axis import checked_axis
from .table import legalization


@legalization("relax.take")
def take(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower take, so that the mode "fast" stays inside and knows negative indices."""
    x, index = call.args
    axis = 0 if call.attrs.axis is None else checked_axis(call)
    return _gather(builder, x, index, Indexing("take", axis, str(call.attrs.mode)), "take")


@legalization("relax.grad.take_backward")
def take_backward(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower the sum of the updates of each position, with indices read as in `take`."""
    updates, data, index = call.args
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(data.ty.shape)
    indexing = Indexing("take", axis)

    def expression(updates: te.Tensor, data: te.Tensor, index: te.Tensor) -> te.Tensor:
        return scatter(indexing, None, index, updates, "add", data.shape)

    return builder.call_te(
        expression, updates, data, index, primfunc_name_hint="take_backward", primfunc_attrs=OPAQUE
    )


@legalization("relax.gather_elements")
def gather_elements(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower gather_elements; the stock one reads outside for negative indices."""
    x, index = call.args
    return _gather(builder, x, index, Indexing("elements", checked_axis(call)), "gather_elements")


@legalization("relax.gather_nd")
def gather_nd(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower gather_nd; the stock one reads outside for negative indices."""
    x, index = call.args
    return _gather(builder, x, index, Indexing("nd", int(call.attrs.batch_dims)), "gather_nd")


def _gather(
    builder: relax.BlockBuilder, x: Any, index: Any, indexing: Indexing, name: str
) -> relax.Call:
    def expression(x: te.Tensor, index: te.Tensor) -> te.Tensor:
        return gather(indexing, x, index, outside_value(str(x.dtype)))

    return builder.call_te(expression, x, index, primfunc_name_hint=name)


@legalization("relax.index_tensor")
def index_tensor(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower index_tensor as gather_nd of the stacked coordinates."""
    x, indices = call.args[0], _fields(builder, call.args[1])

    def expression(x: te.Tensor, indices: list[te.Tensor]) -> te.Tensor:
        return gather(Indexing("nd", 0), x, _stacked(indices), outside_value(str(x.dtype)))

    return builder.call_te(expression, x, indices, primfunc_name_hint="index_tensor")


@legalization("relax.scatter_elements")
def scatter_elements(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower scatter_elements.

    The stock one writes to wrong places where the indices are smaller than the data along another
    axis, and outside where they point there; its "mean" is not the mean of more than two values.
    """
    data, index, updates = call.args
    indexing = Indexing("elements", checked_axis(call))
    reduction = str(call.attrs.reduction)
    if reduction != "mean":
        return _scatter(builder, indexing, data, index, updates, reduction)

    def expression(data: te.Tensor, index: te.Tensor, updates: te.Tensor) -> te.Tensor:
        dtype = str(data.dtype)
        # Rounded once, at the end: in half precision a sum may overflow where its mean does not.
        wide = accumulator_dtype(dtype)
        terms = [as_dtype(tensor, wide) for tensor in (data, updates)]
        total = scatter(indexing, terms[0], index, terms[1], "add")
        ones = te.compute(updates.shape, lambda *_: tirx.const(1, "int32"), name="one")
        count = scatter(indexing, None, index, ones, "add", data.shape)

        def mean(*i: Any) -> Any:
            # The data's element is one of those that are averaged.
            divisor = (count(*i) + 1).astype(wide)
            divide = tirx.div if dtype.startswith(("float", "bfloat")) else tirx.floordiv
            return divide(total(*i), divisor).astype(dtype)

        return te.compute(data.shape, mean, name="mean")

    return builder.call_te(
        expression, data, index, updates, primfunc_name_hint="scatter_mean", primfunc_attrs=OPAQUE
    )


@legalization("relax.scatter_nd")
def scatter_nd(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower scatter_nd; the stock one writes outside for indices that are negative or too large."""
    data, index, updates = call.args
    return _scatter(builder, Indexing("nd", 0), data, index, updates, str(call.attrs.reduction))


def _scatter(
    builder: relax.BlockBuilder,
    indexing: Indexing,
    data: Any,
    index: Any,
    updates: Any,
    reduction: str,
) -> relax.Call:
    def expression(data: te.Tensor, index: te.Tensor, updates: te.Tensor) -> te.Tensor:
        return scatter(indexing, data, index, updates, reduction)

    return builder.call_te(
        expression,
        data,
        index,
        updates,
        primfunc_name_hint=f"scatter_{reduction}",
        primfunc_attrs=OPAQUE,
    )


@legalization("relax.index_put")
def index_put(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower index_put as scatter_nd at the stacked coordinates, the values broadcast.

    In the stock one, threads race for a repeated index: sums come out wrong, and differ from run to
    run.
    """
    data, values = call.args[0], call.args[2]
    indices = _fields(builder, call.args[1])
    reduction = "add" if call.attrs.accumulate else "update"

    def expression(data: te.Tensor, indices: list[te.Tensor], values: te.Tensor) -> te.Tensor:
        index = _stacked(indices)
        updates = topi.broadcast_to(values, index.shape[:-1])
        return scatter(Indexing("nd", 0), data, index, updates, reduction)

    return builder.call_te(
        expression, data, indices, values, primfunc_name_hint="index_put", primfunc_attrs=OPAQUE
    )


@legalization("relax.reverse_sequence")
def reverse_sequence(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower reverse_sequence; the stock one reads outside for lengths beyond the axis."""
    rank = len(call.args[0].ty.shape)
    along, batch = int(call.attrs.seq_axis) % rank, int(call.attrs.batch_axis) % rank

    def expression(x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*i: Any) -> Any:
            # In a loop, extents and their indices are int32.
            at, extent = i[along].astype("int64"), x.shape[along].astype("int64")
            length = tirx.min(lengths[i[batch]].astype("int64"), extent)
            # Behind its length a sequence stays as it is.
            source = tirx.Select(at < length, length - 1 - at, at)
            return x(*i[:along], source, *i[along + 1 :])

        return te.compute(x.shape, element, name="reverse_sequence")

    return builder.call_te(expression, *call.args, primfunc_name_hint="reverse_sequence")


def _fields(builder: relax.BlockBuilder, indices: Any) -> list[Any]:
    """The tensors of an argument that is a tuple of them, or a single one."""
    if isinstance(indices.ty, relax.TensorType):
        return [indices]
    if isinstance(indices, relax.Tuple):
        return list(indices.fields)
    return [builder.emit(relax.TupleGetItem(indices, k)) for k in range(len(indices.ty.fields))]


def _stacked(indices: list[te.Tensor]) -> te.Tensor:
    """The coordinates that the form "nd" takes: index tensors, stacked along a new last axis."""
    shape: list[Any] = []
    for index in indices:
        extents = [int(d) if isinstance(d, tirx.IntImm) else d for d in index.shape]
        shape = broadcast_shape(shape, extents)
    broadcast = [topi.broadcast_to(index, shape) for index in indices]

    def coordinate(*i: Any) -> Any:
        chosen = broadcast[-1](*i[:-1]).astype("int64")
        for k in reversed(range(len(broadcast) - 1)):
            chosen = tirx.Select(i[-1] == k, broadcast[k](*i[:-1]).astype("int64"), chosen)
        return chosen

    return te.compute([*shape, len(broadcast)], coordinate, name="coordinates")
