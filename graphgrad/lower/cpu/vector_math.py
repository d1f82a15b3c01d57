"""Exponentials and related functions as arithmetic, which runs in vectors.

LLVM calls the C library for each element of ``exp``, ``log``, ``log1p``, ``tanh``, ``erf``,
``sigmoid``, the inverse square root and remainders. In float32 they are written out here, the
functions as polynomials. The coefficients interpolate the function, in double precision, at
Chebyshev nodes of the interval that is stated with each; those of the logarithm minimize the
relative error. Errors are below 3 units in the last place, remainders are exact; infinite values,
NaN and subnormal numbers are handled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.kernel_rewrite import replace_block, replace_statements
from ...ir.kernel_structure import (
    Load,
    buffer_of,
    is_conditional,
    statements_of,
    static,
    substitute_values,
    uses,
)
from ...ir.loops import own_loop, sequence
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in, replace_nodes

_EXP = (0.5, 1.66666667e-1, 4.16664650e-2, 8.33329848e-3, 1.39336435e-3, 1.98992762e-4)
"""(eʳ − 1 − r) / r² for |r| ≤ ln 2 / 2, by powers of r."""

_TANH = (-3.33333333e-1, 1.33333040e-1, -5.39594100e-2, 2.17699600e-2, -8.34698000e-3, 2.29584e-3)
"""(tanh x / x − 1) / x² for |x| ≤ 5/8, by powers of x²."""

_ERF = (
    *(1.12837917, -3.76126353e-1, 1.12837189e-1, -2.68607090e-2, 5.20433158e-3),
    *(-8.18078089e-4, 8.53412063e-5),
)
"""erf x / x for |x| ≤ 9/10, by powers of x²."""

_LOG_ERFC = (
    *(3.00268820e-4, -1.13015510, -6.31956241e-1, -1.09960799e-1, 2.63551208e-2),
    *(-4.73695062e-3, 5.92092757e-4, -4.55127728e-5, 1.61024041e-6),
)
"""ln(1 − erf x) for 9/10 ≤ x ≤ 4, by powers of x."""

_LOG = (
    *(3.33333317e-1, -2.50008210e-1, 2.00012269e-1, -1.66233573e-1, 1.42017580e-1),
    *(-1.31601824e-1, 1.27615770e-1, -7.63449653e-2),
)
"""(ln(1 + x) − x + x² / 2) / x³ for √½ ≤ 1 + x ≤ √2, by powers of x."""

_SMALL_TANH, _SMALL_ERF = 0.625, 0.9
"""Arguments below which the polynomials of the functions themselves are used."""

_WHOLE_TANH, _WHOLE_ERF = 10.0, 4.0
"""Arguments from which on the functions round to 1."""

_LEAST, _MOST = -105.0, 89.0
"""Arguments of the exponential beyond which it is 0, or infinite."""

_EXACT_QUOTIENTS = 2.0**29
"""Quotients of float32 below which float64 tells the integers between which they lie, and holds
the products of these with the divisor."""

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
"""ln 2 in two parts; the product of the first and a small integer is exact."""

_LEAST_NORMAL, _ROOT_HALF_BITS = 2.0**-126, 0x3F3504F3
"""The least normal number, and the bits of √½."""

_SHIFT, _SHIFT_BITS = 12582912.0, 0x4B400000
"""3 · 2²², and its bits. Numbers of this size have no fraction, so adding it rounds to an integer,
which the last bits of the sum hold; the 3 leaves room below for negative ones."""


@compiler_pass(
    Phase.DONATED,
    over="kernel",
    targets=("llvm",),
    after={"fuse_horizontally": "it writes kernels anew, from the functions that they call"},
)
def vectorize_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write functions of float32 out as arithmetic, which runs in vectors.

    Where a function is called under a condition that differs from lane to lane it stays a call: its
    argument may be a read that is valid only under that condition. Where all lanes choose alike,
    there is a loop for each case. Kernels that are not scheduled stay as they are.
    """
    if not isinstance(func.body, SBlockRealize) or not _calls(func.body):
        return func
    return func.with_body(_write_arithmetic(func.body))


def _write_arithmetic(root: SBlockRealize) -> SBlockRealize:
    """A kernel's root block with calls written out: in vectorized loops, then in other blocks."""
    buffers = list(root.block.alloc_buffers)

    def in_vectors(loop: tirx.For) -> Any:
        block = _vectorized_block(loop)
        if block is None:
            return loop
        cases = _cases(block, loop.loop_var)
        if cases:
            condition, *bodies = cases
            loops = [
                in_vectors(own_loop(loop.loop_var, loop.extent, each, loop.kind, loop.min))
                for each in bodies
            ]
            return tirx.IfThenElse(condition, *loops)
        if not _may_be_expanded(block):
            return loop
        values = _Values(loop.extent, loop.loop_var)
        stores = [s for statement in statements_of(block) for s in values.written_out(statement)]
        buffers.extend(values.buffers)
        # A loop for each store: TVM would move a buffer into the one vectorized loop that uses it,
        # where its code is wrong.
        return sequence(
            *(own_loop(loop.loop_var, loop.extent, s, _kind_of(s, loop), loop.min) for s in stores)
        )

    def in_scalars(block: SBlock) -> SBlock:
        if not block.iter_vars or not _may_be_expanded(block.body):
            return block
        values = _Values(tirx.const(1, "int32"), tirx.const(0, "int32"))
        stores = [
            s for statement in statements_of(block.body) for s in values.written_out(statement)
        ]
        buffers_of_block = [*block.alloc_buffers, *values.buffers]
        return replace_block(block, body=sequence(*stores), alloc_buffers=buffers_of_block)

    body = [
        tvm_ffi.structural_map(s, (tirx.For, in_vectors)) for s in statements_of(root.block.body)
    ]
    body = [tvm_ffi.structural_map(statement, (SBlock, in_scalars)) for statement in body]
    return replace_statements(root, body, buffers)


def _kind_of(statement: Any, loop: tirx.For) -> Any:
    """How the loop around a statement runs: a repair of single lanes is no vector."""
    return loop.kind if isinstance(statement, tirx.BufferStore) else tirx.ForKind.SERIAL


def _vectorized_block(loop: tirx.For) -> Any | None:
    """The body of a vectorized loop, without its blocks, if functions in it can be written out.

    None if there are none, or if a block has a predicate, an initialization or buffers.
    """
    if loop.kind != tirx.ForKind.VECTORIZED or not _calls(loop.body):
        return None
    if isinstance(loop.body, tirx.BufferStore):
        return loop.body
    bodies = [_body_of(statement) for statement in statements_of(loop.body)]
    if None in bodies:
        return None
    return sequence(*(statement for body in bodies for statement in statements_of(body)))


def _body_of(realize: Any) -> Any | None:
    """What a block does, in terms of the loops around it; None for anything else."""
    if not isinstance(realize, SBlockRealize):
        return None
    block = realize.block
    if static(realize.predicate) != 1 or block.init is not None or block.alloc_buffers:
        return None
    pairs = zip(block.iter_vars, realize.iter_values, strict=True)
    return substitute_values(block.body, {iterator.var: value for iterator, value in pairs})


def _cases(body: Any, lane: Any) -> tuple[Any, Any, Any] | None:
    """A condition on which all lanes choose alike what to call, and a store in both cases.

    None if a body is no store, or chooses otherwise.
    """
    if not isinstance(body, tirx.BufferStore):
        return None
    choices = [c for c in nodes_in(body.value, tvm.ir.Call) if is_conditional(c) and _calls(c)]
    if len(choices) != 1 or uses(choices[0].args[0], lane) or nodes_in(body.value, prim.Let):
        return None
    (choice,) = choices

    def stored(value: Any) -> Any:
        changed = replace_nodes(body.value, tvm.ir.Call, partial(_replaced, choice, value))
        return tirx.BufferStore(body.buffer, changed, body.indices)

    condition, value, otherwise = choice.args
    return condition, stored(value), stored(otherwise)


def _may_be_expanded(body: Any) -> bool:
    """Whether the functions called in a body may be computed in front of its stores.

    They may not under a condition. What an expression binds to a variable is computed there, too,
    as a function of it may be.
    """
    if not all(_is_store_or_number(statement) for statement in statements_of(body)):
        return False
    if not all(_is_number(binding.value) for binding in nodes_in(body, prim.Let)):
        return False
    return bool(_calls(body)) and not _conditional_values(body)


def _is_store_or_number(statement: Any) -> bool:
    """Whether a statement stores something, or gives a number a name."""
    if isinstance(statement, tirx.Bind):
        return _is_number(statement.value)
    return isinstance(statement, tirx.BufferStore)


def _is_number(value: Any) -> bool:
    return str(value.ty).startswith(("float", "int"))


def _calls(node: Any) -> list[Any]:
    """The calls and remainders in an expression that can be written out."""
    return [call for call in nodes_in(node, _CALLS) if _function(call) is not None]


def _conditional_values(node: Any) -> bool:
    """Whether a call that can be written out, or a binding, is in a choice."""
    choices = [call for call in nodes_in(node, tvm.ir.Call) if is_conditional(call)]
    return any(_calls(choice) or nodes_in(choice, prim.Let) for choice in choices)


def is_expandable(call: Any) -> bool:
    """Whether a call can be written out, where it is in a map and under no condition."""
    return _function(call) is not None


def _function(call: Any) -> Callable[..., Any] | None:
    """The function that writes a call out as arithmetic; None if there is none."""
    if str(call.ty) != "float32":
        return None
    if isinstance(call, prim.Mod):
        return _remainder
    return _FUNCTIONS.get(str(getattr(call.op, "name", "")))


class _Values:
    """Values that are computed once, in order, in front of a store.

    Each is kept in a local buffer, which becomes a register. Variables would not do: TVM would
    substitute what is bound to a variable for each of its uses, and compute it again and again.

    Parameters
    ----------
    extent : int expression
        The number of elements of each value: the lanes of a vector, or one.
    index : expression
        The element that is computed.

    Attributes
    ----------
    buffers : list of Buffer
        The buffers that hold the values, to be allocated around the stores.
    """

    def __init__(self, extent: Any, index: Any):
        self._extent, self._index = extent, index
        self.buffers: list[Any] = []
        self._stores: list[Any] = []
        self._known: list[tuple[Any, Any]] = []
        """Calls and bound expressions that are kept already, and the reads of their values."""
        self._named: dict[Any, Any] = {}
        """Bound variables, and the reads of their values."""

    def written_out(self, statement: Any) -> list[Any]:
        """The stores that replace a statement; the value of a binding is kept for later ones."""
        self._stores = []
        statement = substitute_values(statement, self._named) if self._named else statement
        value = self._expanded(statement.value)
        if isinstance(statement, tirx.Bind):
            self._named[statement.var] = self._once(value, lambda: self(value))
            return self._stores
        # What it stores to may have been read before, and be read again.
        self._known = [
            (earlier, kept)
            for earlier, kept in self._known
            if not any(load.source.same_as(statement.buffer) for load in nodes_in(earlier, Load))
        ]
        return [*self._stores, tirx.BufferStore(statement.buffer, value, statement.indices)]

    def _expanded(self, value: Any) -> Any:
        """An expression with calls written out, and with what it binds kept in front of it."""
        # The outer ones first: the values of inner ones mention their variables.
        while (outer := _outermost_binding(value)) is not None:
            bound = self._expanded(outer.value)
            kept = self._once(bound, partial(self, bound))
            body = substitute_values(outer.body, {outer.var: kept})
            value = replace_nodes(value, prim.Let, partial(_replaced, outer, body))
        return replace_nodes(value, _CALLS, self._arithmetic)

    def _arithmetic(self, call: Any) -> Any:
        """The arithmetic in place of a call; its arguments are written out already."""
        function = _function(call)
        if function is None:
            return call
        operands = (call.a, call.b) if isinstance(call, prim.Mod) else call.args[:1]
        return self._once(call, lambda: self(function(self, *map(self, operands))))

    def _once(self, expression: Any, keep: Callable[[], Any]) -> Any:
        """What is kept of an expression: several places, and several statements, may have it."""
        for earlier, value in self._known:
            if tvm_ffi.structural_equal(earlier, expression):
                return value
        self._known.append((expression, keep()))
        return self._known[-1][1]

    def __call__(self, value: Any) -> Any:
        """Store a value, and return a read of it."""
        buffer = tirx.decl_buffer([self._extent], str(value.ty), "value")
        self.buffers.append(buffer)
        self._stores.append(tirx.BufferStore(buffer, value, [self._index]))
        return tirx.BufferLoad(buffer, [self._index])

    def repair(self, kept: Any, condition: Any, value: Any) -> None:
        """Give a kept value another one in the lanes, few of them, where a condition holds."""
        store = tirx.BufferStore(buffer_of(kept), value, kept.indices)
        self._stores.append(tirx.IfThenElse(condition, store, None))

    def polynomial(self, coefficients: Sequence[Any], x: Any) -> Any:
        """Σ cᵢ xⁱ, by Horner's scheme."""
        *lower, total = (_float(c) if isinstance(c, float) else c for c in coefficients)
        for coefficient in reversed(lower):
            total = total * x + coefficient
        return self(total)


def _outermost_binding(value: Any) -> Any | None:
    """A binding that is in no other one; None if an expression has none."""
    return next(iter(nodes_in(value, prim.Let, outer_first=True)), None)


def _replaced(old: Any, new: Any, node: Any) -> Any:
    return new if node.same_as(old) else node


def _exp(keep: _Values, x: Any) -> Any:
    """eˣ = 2ⁿ eʳ, with n the integer next to x / ln 2; 2ⁿ in two factors."""
    above = keep(tirx.Select(x < _float(_LEAST), _float(_LEAST), x))  # NaN stays
    power, n = _fraction_and_exponent(keep, keep(_clamp_above(_MOST, above)))
    # Two factors, because at the ends of the range 2ⁿ itself is no normal number of float32.
    half = keep(n >> _int(1))
    return power * _power_of_two(half) * _power_of_two(n - half)


def _moderate_exp(keep: _Values, x: Any) -> Any:
    """eˣ of an x that is known to lie between −87 and 88, or NaN."""
    power, n = _fraction_and_exponent(keep, x)
    return power * _power_of_two(n)


def _fraction_and_exponent(keep: _Values, x: Any) -> tuple[Any, Any]:
    """eʳ and the integer n, with eˣ = 2ⁿ eʳ."""
    # Adding and subtracting the shift rounds to the nearest integer, without a call.
    shifted = keep(x * _float(_LOG2_E) + _float(_SHIFT))
    exponent = keep(shifted - _float(_SHIFT))
    r = keep(x - exponent * _float(_LN2_HIGH))
    r = keep(r - exponent * _float(_LN2_LOW))
    power = keep(keep.polynomial(_EXP, r) * (r * r) + r + _float(1))
    return power, keep(tirx.reinterpret("int32", shifted) - _int(_SHIFT_BITS))


def _clamp_above(bound: float, x: Any) -> Any:
    """The lesser of x and a bound; NaN stays."""
    return tirx.Select(x > _float(bound), _float(bound), x)


def _power_of_two(n: Any) -> Any:
    """2ⁿ, made of its bits: the biased exponent, above 23 bits of the fraction."""
    return tirx.reinterpret("float32", (n + _int(127)) << _int(23))


def _log(keep: _Values, x: Any) -> Any:
    """ln x = n ln 2 + ln m, with √½ ≤ m < √2."""
    is_subnormal = x < _float(_LEAST_NORMAL)
    # A subnormal number has no leading one: it is scaled by 2²³, and n is corrected below.
    bits = keep(tirx.reinterpret("int32", tirx.Select(is_subnormal, x * _float(2.0**23), x)))
    # Counted from the bits of √½, so that the remaining factor m lies around 1.
    n = keep((bits - _int(_ROOT_HALF_BITS)) >> _int(23))
    f = keep(tirx.reinterpret("float32", bits - (n << _int(23))) - _float(1))
    exponent = keep(n.astype("float32") - tirx.Select(is_subnormal, _float(23), _float(0)))
    square = keep(f * f)
    correction = keep(keep.polynomial(_LOG, f) * (square * f) + exponent * _float(_LN2_LOW))
    correction = keep(correction - square * _float(0.5))
    value = keep(exponent * _float(_LN2_HIGH) + (f + correction))
    infinity = _float(math.inf)
    not_positive = tirx.Select(tirx.EQ(x, _float(0)), -infinity, _float(math.nan))
    return tirx.Select(x > _float(0), tirx.Select(x < infinity, value, infinity), not_positive)


def _log1p(keep: _Values, x: Any) -> Any:
    """ln(1 + x), made of the logarithm of the rounded sum u by the factor x / (u − 1).

    Both have nearly the same relative error (Kahan, HP-15C Advanced Functions Handbook, 1982).
    """
    u = keep(_float(1) + x)
    logarithm = keep(_log(keep, u))
    corrected = logarithm * (x / keep(u - _float(1)))
    is_moderate = tirx.all(tirx.NE(u, _float(1)), u < _float(math.inf))
    return tirx.Select(is_moderate, corrected, tirx.Select(tirx.EQ(u, _float(1)), x, logarithm))


def _sigmoid(keep: _Values, x: Any) -> Any:
    """1 / (1 + e⁻ˣ)."""
    # Far below 0 the exponential is infinite, and so the result 0.
    return _float(1) / (_float(1) + keep(_exp(keep, keep(-x))))


def _tanh(keep: _Values, x: Any) -> Any:
    """tanh x: near 0 by its polynomial, elsewhere as 1 − 2 / (e²ˣ + 1) with the sign of x."""
    magnitude = keep(tirx.abs(x))
    square = keep(x * x)
    small = keep(x * (square * keep.polynomial(_TANH, square) + _float(1)))
    power = keep(_moderate_exp(keep, keep(keep(_clamp_above(_WHOLE_TANH, magnitude)) * _float(2))))
    large = keep(_float(1) - _float(2) / (power + _float(1)))
    return tirx.Select(magnitude < _float(_SMALL_TANH), small, _copy_sign(large, x))


def _erf(keep: _Values, x: Any) -> Any:
    """erf x by one polynomial, whose coefficients are chosen by the range of x.

    Far from 0 the polynomial is ln(1 − erf x).
    """
    magnitude = keep(tirx.abs(x))
    is_small = magnitude < _float(_SMALL_ERF)
    coefficients = [
        tirx.Select(is_small, _float(small), _float(large))
        for small, large in zip_longest(_ERF, _LOG_ERFC, fillvalue=0.0)
    ]
    argument = keep(tirx.Select(is_small, x * x, keep(_clamp_above(_WHOLE_ERF, magnitude))))
    # A vector computes both ranges and selects, so one polynomial is half the work of two.
    value = keep.polynomial(coefficients, argument)
    large = keep(_float(1) - keep(_moderate_exp(keep, value)))
    return tirx.Select(is_small, x * value, _copy_sign(large, x))


def _copy_sign(magnitude: Any, x: Any) -> Any:
    """A magnitude (a number without sign, or with that of x) with the sign of x."""
    sign = tirx.reinterpret("int32", x) & _int(-(2**31))
    return tirx.reinterpret("float32", tirx.reinterpret("int32", magnitude) | sign)


def _remainder(keep: _Values, x: Any, y: Any) -> Any:
    """x − n y, with n the quotient x / y without its fraction: exactly, and with the sign of x.

    A quotient of two numbers of 24 bits that is no integer is more than 2⁻²⁴ away from any. Below
    2²⁹ its rounding to 53 bits changes it by less than that, the product has at most 53 bits, and
    the difference is a multiple of the last place of y. Longer divisions are the C library's.
    """
    n = keep(tirx.trunc(x.astype("float64") / y.astype("float64")))
    difference = keep((x.astype("float64") - n * y.astype("float64")).astype("float32"))
    is_quotient_zero = tirx.abs(x) < tirx.abs(y)  # the product with an infinite y would be NaN
    value = keep(tirx.Select(is_quotient_zero, x, _copy_sign(difference, x)))
    is_exact = tirx.abs(n) < tirx.const(_EXACT_QUOTIENTS, "float64")
    # Of NaN, too; the negation would be simplified to a comparison that is not.
    is_other = tirx.Select(is_exact, tirx.const(False, "bool"), tirx.const(True, "bool"))
    keep.repair(value, is_other, tirx.truncmod(x, y))
    return value


def _rsqrt(keep: _Values, x: Any) -> Any:
    return _float(1) / tirx.sqrt(x)


def _float(value: float) -> Any:
    return tirx.const(value, "float32")


def _int(value: int) -> Any:
    return tirx.const(value, "int32")


_CALLS = (tvm.ir.Call, prim.Mod)
"""Expressions that may be functions."""

_FUNCTIONS: dict[str, Callable[[_Values, Any], Any]] = {
    "tirx.erf": _erf,
    "tirx.exp": _exp,
    "tirx.log": _log,
    "tirx.log1p": _log1p,
    "tirx.rsqrt": _rsqrt,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _tanh,
}

FUNCTIONS = frozenset(_FUNCTIONS)
"""The names of functions that are arithmetic in float32."""
