"""Cumulative sums and products, forwards and backwards along an axis."""

from __future__ import annotations

from typing import Any, Literal

from tvm import relax, te, tirx, topi

from ..fallback.externs import register
from ..fallback.externs.cumulative import running
from ..ir.loops import Statement, load, sequence, store
from ..ir.tensor import Tensor, accumulator_dtype
from ..layout.rule import along_axis, layout_rule
from .define import OPAQUE, call_op, define_op, like_first
from .elementwise import cast
from .legalize import Legalization, checked_axis, legalization
from .opaque_kernel import KERNEL, Nest, extern
from .warp_scan import WarpScan


def reverse_cumsum(x: Tensor, axis: int, exclusive: bool) -> Tensor:
    """The sums of the elements from each one to the last along an axis.

    Parameters
    ----------
    x : Tensor
    axis : int
        Not negative.
    exclusive : bool
        The element itself does not count.
    """
    return x.emitter.emit(call_op(_REVERSE_CUMSUM, [x.expr], axis=axis, exclusive=exclusive))


def cumulative(
    x: te.Tensor,
    axis: int,
    combine: Literal["add", "mul"],
    exclusive: bool,
    reverse: bool = False,
) -> te.Tensor:
    """Running sums or products along an axis; those of half precision run in float32."""
    dtype = str(x.dtype)
    accumulator = accumulator_dtype(dtype)
    source = cast(x, accumulator)
    extent = x.shape[axis]
    # Rounding errors of a running sum grow with its length.
    carried = "float64" if accumulator == "float32" else accumulator
    by_warps = WarpScan(
        axis,
        (lambda before, new: before + new)
        if combine == "add"
        else lambda before, new: before * new,
        0 if combine == "add" else 1,
        exclusive,
        reverse,
        carried,
    )
    if by_warps.pays(x.shape):
        return cast(by_warps.of(source, accumulator), dtype)

    def build(ins: list[Any], outs: list[Any]) -> Statement:
        (values,), (out,) = ins, outs

        def step(i: list[Any], total: Any, at: list[Any]) -> Statement:
            # With `reverse` the nest visits the axis last to first: the element before is behind.
            position, before = i[axis], i[axis] + (1 if reverse else -1)
            previous = (*i[:axis], before, *i[axis + 1 :])
            first = position == (extent - 1 if reverse else 0)
            new = values[previous if exclusive else tuple(i)].astype(carried)
            sum_or_product = load(total, at) + new if combine == "add" else load(total, at) * new
            identity = tirx.const(0 if combine == "add" else 1, carried)
            start = identity if exclusive else new
            return sequence(
                # No Select, which would read before the first element.
                store(total, at, tirx.if_then_else(first, start, sum_or_product)),
                store(out, i, load(total, at).astype(accumulator)),
            )

        return Nest(list(x.shape), range(axis, axis + 1), reverse).build_carrying(carried, step)

    attributes = {"axis": axis, "combine": combine, "exclusive": exclusive, "reverse": reverse}
    (result,) = extern("cumulative", [x.shape], [accumulator], [source], build, attributes)
    return cast(result, dtype)


def _restate_recurrence(op: Any) -> list[te.Tensor]:
    """The tensor expressions of a kernel of running sums or products, to be differentiated."""
    (x,), attributes = op.inputs, op.attrs
    adds = attributes["combine"] == "add"
    return [
        running(
            x,
            int(attributes["axis"]),
            str(x.dtype),
            bool(attributes["exclusive"]),
            (lambda folded, new: folded + new) if adds else (lambda folded, new: folded * new),
            0.0 if adds else 1.0,
            bool(attributes["reverse"]),
        )
    ]


register(f"{KERNEL}cumulative", _restate_recurrence)


def _reverse_cumsum_expression(call: relax.Call, x: te.Tensor) -> te.Tensor:
    """The sums y[i] = Σ x[j] over j ≥ i, or over j > i where exclusive."""
    return cumulative(x, int(call.attrs["axis"]), "add", bool(call.attrs["exclusive"]), True)


_REVERSE_CUMSUM = define_op(
    "reverse_cumsum",
    ["data"],
    like_first,
    _reverse_cumsum_expression,
    opaque=True,
)


def _cumulative(combine: Literal["add", "mul"]) -> Legalization:
    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        """Lower a cumulative op.

        The stock one adds up half precision as it is: a sum of ones in float16 ends at 2048.
        """
        axis = None if call.attrs.axis is None else checked_axis(call)

        def expression(x: te.Tensor) -> te.Tensor:
            x = cast(x, str(call.ty.dtype))
            if axis is None:
                x = topi.reshape(x, list(call.ty.shape))
            return cumulative(x, axis or 0, combine, bool(call.attrs.exclusive))

        return builder.call_te(
            expression, call.args[0], primfunc_name_hint="cumulative", primfunc_attrs=OPAQUE
        )

    return lower


legalization("relax.cumsum")(_cumulative("add"))
legalization("relax.cumprod")(_cumulative("mul"))


layout_rule("relax.cumsum", "relax.cumprod")(along_axis)
