"""Dropout, drawn from a counter: the same seed gives the same mask, forward and backward.

The mask of an element is a hash of the seed, the number of the dropout in the model and the
element's position; no mask is stored, and no order of execution matters. Salmon et al., *Parallel
random numbers: as easy as 1, 2, 3* (2011). The hash is the finalizer "lowbias32" (Wellons, 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from ..ir.tensor import Tensor
from ..layout import orders
from ..layout.orders import Order
from ..layout.rule import LaidOut, Site, following, layout_rule
from .cumulative import cumulative
from .define import OPAQUE, call_op, define_op, like_first
from .legalize import legalization

WORD = (1 << 32) - 1
"""The bits of a word of the hash."""

ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B))
"""Shifts and factors of the hash; a last shift follows, by that of the first round."""

_STREAM = 0x9E3779B9
"""2³² over the golden ratio: it sets the numbers of neighboring dropouts far apart."""


def stream_word(attributes: Any) -> int:
    """What sets the hash of one dropout apart from those of others that share its seed."""
    return int(attributes["stream"]) * _STREAM & WORD


def first_kept(attributes: Any) -> int:
    """The least hash of an element that is kept: of 2³² hashes the share of the rate is below."""
    return math.ceil(float(attributes["rate"]) * (1 << 32))


def scale_of_kept(attributes: Any) -> float:
    """What elements that are kept are multiplied by."""
    rate = float(attributes["rate"])
    # At the rate 1 nothing is kept, and any finite scale will do.
    return 1.0 / (1.0 - rate) if rate < 1 else 0.0


def numbered_axes(order: Sequence[int], rank: int) -> list[int]:
    """Which axis of the tensor whose elements are numbered each axis is, see `dropout_call`."""
    return list(map(int, order)) or list(range(rank))


def factor_parts(factor: int) -> tuple[int, int]:
    """The low 31 bits of a factor, and its highest bit.

    The low 32 bits of a product are those of value · low + (bit 0 of value) · 2³¹ · high, because
    only bit 31 of the last term is below 2³²; no step of that exceeds 63 bits.
    """
    return factor & 0x7FFFFFFF, factor >> 31


def dropout(x: Tensor, seed: Tensor, rate: float, stream: int, order: Sequence[int] = ()) -> Tensor:
    """``x / (1 − rate)`` where the mask keeps the element, else 0; see `dropout_call`."""
    return x.emitter.emit(dropout_call(x.expr, seed.expr, rate, stream, order))


def dropout_call(
    x: Any, seed: Any, rate: float, stream: int, order: Sequence[int] = ()
) -> relax.Call:
    """The call of a dropout.

    Parameters
    ----------
    x : relax expression
    seed : relax expression
        An int64 scalar.
    rate : float
        The probability of an element to be dropped, from 0 to 1.
    stream : int
        Distinguishes dropouts that share a seed.
    order : sequence of int
        Axis k of x is axis ``order[k]`` of the tensor whose elements are numbered; none for x
        itself. So the mask does not depend on how the tensor is stored.
    """
    return call_op(_DROPOUT, [x, seed], rate=rate, stream=stream, order=list(order))


def mask_call(x: Any, seed: Any, rate: float, stream: int) -> relax.Call:
    """The call that says where the same dropout keeps the elements: a boolean tensor."""
    return call_op(_MASK, [x, seed], rate=rate, stream=stream, order=[])


def _let(value: Any, body: Callable[[Any], Any]) -> Any:
    """The expression `body(value)`, in which a value that is read several times occurs once."""
    name = tirx.Var("bits", "uint64")
    return tirx.Let(name, value, body(name))


def _times(value: Any, factor: int) -> Any:
    """The low 32 bits of the product of a 32-bit value and a factor."""
    low, high = factor_parts(factor)
    product = value * _bits(low) + ((value & _bits(1)) << _bits(31)) * _bits(high)
    return product & _bits(WORD)


def _hash(value: Any) -> Any:
    """The hash, below 2³², of a number below 2³²: lowbias32, whose constants these are."""
    for shift, factor in ROUNDS:
        value = _let(value, lambda v, s=shift: v ^ (v >> _bits(s)))  # type: ignore[misc]
        value = _let(value, lambda v, f=factor: _times(v, f))  # type: ignore[misc]
    return _let(value, lambda v: v ^ (v >> _bits(ROUNDS[0][0])))


def _bits(value: int) -> Any:
    """A constant of the hash."""
    # Unsigned, so that TVM does not take it for an index, in which it replaces each name by its
    # value: the expression would double with every step of the hash.
    return tirx.const(value, "uint64")


def _key(call: relax.Call, seed: te.Tensor) -> te.Tensor:
    """The start of the mask's hash, a scalar: a hash of the seed and the stream."""
    stream = _bits(stream_word(call.attrs))
    seed_bits = seed().astype("uint64")
    word, upper = seed_bits & _bits(WORD), (seed_bits >> _bits(32)) & _bits(WORD)
    return te.compute((), lambda: _hash(_hash(word ^ stream) ^ upper), name="dropout_key")


def _kept(call: relax.Call, x: te.Tensor, key: te.Tensor, index: Any) -> Any:
    """Whether an element is kept: its hash, as a fraction of 2³², is at least the rate."""
    position = _bits(0)
    order = numbered_axes(call.attrs.get("order", ()), len(index))
    # The row-major position in the tensor whose axes are in the original order.
    for axis in range(len(index)):
        i, extent = index[order.index(axis)], x.shape[order.index(axis)]
        position = position * extent.astype("uint64") + i.astype("uint64")
    upper = _hash(((position >> _bits(32)) + key()) & _bits(WORD))
    drawn = _hash(_hash((position & _bits(WORD)) ^ key()) ^ upper)
    return drawn >= _bits(first_kept(call.attrs))


def _dropout_expression(call: relax.Call, x: te.Tensor, seed: te.Tensor) -> te.Tensor:
    """The result of dropout: x / (1 − rate) where the mask keeps the element, else 0."""
    dtype = str(x.dtype)
    zero = tirx.const(0, dtype)
    scale = tirx.const(scale_of_kept(call.attrs), dtype)
    key = _key(call, seed)

    def element(*index: Any) -> Any:
        return tirx.Select(_kept(call, x, key, index), x(*index) * scale, zero)

    return te.compute(x.shape, element, name="dropout")


def _mask_expression(call: relax.Call, x: te.Tensor, seed: te.Tensor) -> te.Tensor:
    """The mask of a dropout: true where it keeps the element."""
    key = _key(call, seed)
    return te.compute(x.shape, lambda *i: _kept(call, x, key, i), name="dropout_mask")


def _infer_mask(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(call.args[0].ty.shape, "bool")


_DROPOUT: tvm.ir.Op = define_op("dropout", ["data", "seed"], like_first, _dropout_expression)
_MASK: tvm.ir.Op = define_op("dropout_mask", ["data", "seed"], _infer_mask, _mask_expression)


@layout_rule("graphgrad.dropout", "graphgrad.dropout_mask")
@following
def dropout_layout(site: Site, x: relax.Expr, order: Order) -> LaidOut:
    """The mask is that of the model's tensor, in whatever order its elements are stored."""
    # The op's `order` says which axis of the model's tensor each stored axis is.
    model_order = site.attributes.order or orders.own(len(order))
    stored_order = [model_order[axis] for axis in order]
    return site.passed([x, site.operands[1].plain], order, order=stored_order)


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
