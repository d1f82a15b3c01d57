"""Gathers and scatters as ops of our own: families that are closed under differentiation.

``scatter_add`` and ``gather`` are each other's transposes. ``scatter_swap`` and
``scatter_recurrence`` are *walks*: they visit the updates of each position one after the other, and
return for every update the value that it found there. The transpose of either is the same walk
backwards. So the derivatives of "the last update wins" and of products hold with repeated indices
and with zeros, to every order, in work that is linear in the number of updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tvm import relax, te, tirx, topi

from ..ir.loops import Indices, Statement, sequence, store
from ..ir.tensor import Dimension, Tensor, accumulator_dtype, broadcast_shape, is_float, type_shape
from ..layout.orders import Order
from ..layout.rule import LaidOut, Site, following, layout_rule, stored_axis
from ..layout.value import Value
from . import ordered_scatter
from .define import OPAQUE, call_op, define_op, in_given_shape
from .elementwise import cast
from .index_restated import register_kernels
from .indexing import Indexing, gather, outside_value, scatter_nest, within
from .legalize import checked_axis, fields_of, legalization
from .opaque_kernel import extern, fill, for_gpu


def gather_at(x: Tensor, index: Tensor, indexing: Indexing) -> Tensor:
    """The elements of x at the positions of an index; 0 where it points outside."""
    if x.fill == 0.0:
        return x.emitter.full(0.0, indexing.output_shape(x.shape, index.shape), x.dtype)
    return x.emitter.emit(call_op(_GATHER, [x.expr, index.expr], **indexing.attributes()))


def scatter_add(
    updates: Tensor, index: Tensor, shape: Sequence[Dimension], indexing: Indexing
) -> Tensor:
    """Zeros of a shape with the updates added at the positions of an index."""
    if updates.fill == 0.0:
        return updates.emitter.full(0.0, shape, updates.dtype)
    arguments = [updates.expr, index.expr, relax.ShapeExpr(list(shape))]
    return updates.emitter.emit(call_op(_SCATTER_ADD, arguments, **indexing.attributes()))


def scatter_swap(
    initial: Tensor, values: Tensor, index: Tensor, indexing: Indexing, reverse: bool
) -> list[Tensor]:
    """Write each value at its position in turn; return what each replaced, and the last values.

    Parameters
    ----------
    initial : Tensor
        What is there at first.
    values : Tensor
        In the shape of what a gather reads.
    index : Tensor
    indexing : Indexing
    reverse : bool
        The last value goes first.
    """
    arguments = [initial.expr, values.expr, index.expr]
    call = call_op(_SWAP, arguments, reverse=reverse, **indexing.attributes())
    return initial.emitter.emit(call)


def scatter_recurrence(
    initial: Tensor,
    factors: Tensor,
    terms: Tensor,
    index: Tensor | None,
    indexing: Indexing,
    reverse: bool,
) -> list[Tensor]:
    """Replace h at each position in turn by a·h + b; return each h before, and the last ones.

    Parameters
    ----------
    initial : Tensor
        The first h of each position.
    factors, terms : Tensor
        a and b, in the shape of what a gather reads.
    index : Tensor or None
        None for the form "line".
    indexing : Indexing
    reverse : bool
        The last pair goes first.
    """
    arguments = [initial.expr, factors.expr, terms.expr]
    arguments += [] if index is None else [index.expr]
    call = call_op(_RECURRENCE, arguments, reverse=reverse, **indexing.attributes())
    return initial.emitter.emit(call)


def scatter(
    indexing: Indexing,
    data: te.Tensor | None,
    index: te.Tensor,
    updates: te.Tensor,
    reduction: str,
    shape: Sequence[Dimension] | None = None,
) -> te.Tensor:
    """Combine updates with data at the positions of an index.

    Where `data` is None, they are zeros of `shape`. Of several updates of one position, "update"
    leaves the last in row-major order.
    """
    dtype = str(updates.dtype)
    accumulator = accumulator_dtype(dtype)
    shape = list(data.shape) if data is not None else list(shape or [])
    loop_shape = indexing.output_shape(shape, index.shape)
    inputs = [index, cast(updates, accumulator)] + (
        [] if data is None else [cast(data, accumulator)]
    )
    is_ordered = for_gpu() and ordered_scatter.pays(indexing, shape, index.shape, updates.shape)
    ordered = ordered_scatter.order(indexing, shape, index) if is_ordered else []

    def build(ins: list[Any], outs: list[Any]) -> Statement:
        (out,) = outs

        def initial(i: Indices) -> Any:
            return tirx.const(0, accumulator) if data is None else ins[2][tuple(i)]

        def step(output: Indices) -> Statement:
            position, inside, _ = indexing.position(shape, ins[0], output)
            # The updates may be smaller than the index says: what they lack is left out.
            inside = tirx.all(inside, *within(output, updates.shape, loop_shape))
            combined = _combine(reduction, accumulator, out[tuple(position)], ins[1][tuple(output)])
            return tirx.IfThenElse(inside, store(out, position, combined), None)

        if ordered:
            combine = partial(_combine, reduction, accumulator)
            order = ins[len(inputs) :]
            combined = ordered_scatter.combined(indexing, index.shape, out, ins[1], order, combine)
            return sequence(fill(out, initial), combined)
        nest = scatter_nest(indexing, loop_shape, len(index.shape))
        return sequence(fill(out, initial), nest.build(step))

    attributes = {**indexing.attributes(), "reduction": reduction, "orders": len(ordered)}
    (result,) = extern(
        f"scatter_{reduction}", [shape], [accumulator], [*inputs, *ordered], build, attributes
    )
    return cast(result, dtype)


def _combine(reduction: str, dtype: str, old: Any, new: Any) -> Any:
    """The value that an update leaves at a position that held `old`."""
    if reduction == "update":
        return new
    if reduction == "add":
        return old + new
    if reduction == "mul":
        return old * new
    better = new < old if reduction == "min" else new > old
    if is_float(dtype):
        better = tirx.any(better, tirx.isnan(new))  # once NaN, always NaN
    return tirx.Select(better, new, old)


def _walk(call: relax.Call, initial: te.Tensor, *operands: te.Tensor) -> list[te.Tensor]:
    """The values that each update of a walk found, and those that the walk leaves."""
    indexing = Indexing.of(call.attrs)
    recurrence = call.op.same_as(_RECURRENCE)
    # A recurrence has factors and terms, a swap values; an index follows, except for a line.
    values, index = list(operands[: 1 + recurrence]), list(operands[1 + recurrence :])
    dtype = str(initial.dtype)
    accumulator = accumulator_dtype(dtype)
    inputs = [*index, *(cast(tensor, accumulator) for tensor in [initial, *values])]

    def build(ins: list[Any], outs: list[Any]) -> Statement:
        *index_buffers, start = ins[: len(index) + 1]
        steps, (old_values, held) = ins[len(index) + 1 :], outs

        def step(output: Indices) -> Statement:
            output_index = tuple(output)
            position, inside, _ = indexing.position(
                initial.shape, index_buffers[0] if index_buffers else None, output
            )
            old = held[tuple(position)]
            new = (
                steps[0][output_index] * old + steps[1][output_index]
                if recurrence
                else steps[0][output_index]
            )
            visit = sequence(store(old_values, output_index, old), store(held, position, new))
            skip = store(old_values, output_index, tirx.const(0, accumulator))
            return tirx.IfThenElse(inside, visit, skip)

        loop_shape, index_rank = (
            list(values[0].shape),
            len(index_buffers[0].shape) if index_buffers else 0,
        )
        nest = scatter_nest(indexing, loop_shape, index_rank, bool(call.attrs["reverse"]))
        return sequence(fill(held, lambda i: start[tuple(i)]), nest.build(step))

    shapes = [list(values[0].shape), list(initial.shape)]
    attributes = {**indexing.attributes(), "reverse": bool(call.attrs["reverse"])}
    results = extern("walk", shapes, [accumulator, accumulator], inputs, build, attributes)
    return [cast(result, dtype) for result in results]


def _gather_expression(call: relax.Call, x: te.Tensor, index: te.Tensor) -> te.Tensor:
    """The gather y[o] = x[position(o)], and 0 where the index points outside."""
    return gather(Indexing.of(call.attrs), x, index, tirx.const(0, str(x.dtype)))


def _scatter_add_expression(call: relax.Call, updates: te.Tensor, index: te.Tensor) -> te.Tensor:
    """The scatter x[p] = Σ of the updates whose position is p."""
    shape = type_shape(call.ty)
    return scatter(Indexing.of(call.attrs), None, index, updates, "add", shape)


def _infer_gather(call: relax.Call) -> relax.TensorType:
    x, index = (type_shape(argument.ty) for argument in call.args)
    shape = Indexing.of(call.attrs).output_shape(x, index)
    return relax.TensorType(shape, call.args[0].ty.dtype)


def _infer_walk(call: relax.Call) -> relax.TupleType:
    initial, values = call.args[0].ty, call.args[1].ty
    old_values = relax.TensorType(values.shape, initial.dtype)
    return relax.TupleType([old_values, relax.TensorType(initial.shape, initial.dtype)])


_GATHER = define_op("gather", ["data", "index"], _infer_gather, _gather_expression)
_SCATTER_ADD = define_op(
    "scatter_add",
    ["updates", "index", "shape"],
    in_given_shape,
    _scatter_add_expression,
    opaque=True,
)
_SWAP = define_op("scatter_swap", ["initial", "values", "index"], _infer_walk, _walk, opaque=True)
_RECURRENCE = define_op(
    "scatter_recurrence", ["initial", "factors", "terms", "index"], _infer_walk, _walk, opaque=True
)

register_kernels()


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
    x, indices = call.args[0], fields_of(builder, call.args[1])

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
        terms = [cast(tensor, wide) for tensor in (data, updates)]
        total = scatter(indexing, terms[0], index, terms[1], "add")
        ones = te.compute(updates.shape, lambda *_: tirx.const(1, "int32"), name="one")
        count = scatter(indexing, None, index, ones, "add", data.shape)

        def mean(*i: Any) -> Any:
            # The data's element is one of those that are averaged.
            divisor = (count(*i) + 1).astype(wide)
            divide = tirx.div if is_float(dtype) else tirx.floordiv
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
    indices = fields_of(builder, call.args[1])
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


@layout_rule("relax.take")
@following
def take_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut | None:
    """A vector of indices picks along the axis where it is stored."""
    index = site.operands[1]
    if not isinstance(index, Value) or index.rank != 1 or site.attributes.axis is None:
        return None
    axis = stored_axis(order, site.attributes.axis)
    return site.passed([x, index.plain], order, axis=axis)
