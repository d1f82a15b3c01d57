"""Arithmetic of bfloat16 written in float32, before TVM does it.

TVM lowers bfloat16 to float32 itself, but leaves out what a `Let` or a `Bind` statement binds: the
dtypes of value and variable then contradict one another, or the bits of a number are taken for an
integer. It has no remainder of bfloat16, keeps constants that bfloat16 does not have, and drops a
cast to it that a cast back follows. Here only the elements of arguments are of bfloat16, each
widened where it is read and rounded, to nearest even, where it is stored. Between stages values are
kept in float32, as TVM keeps them; a cast to bfloat16 rounds wherever it stands, and what is
compared is rounded first: one function takes a maximum of what it computes, and another asks where
what it computes is equal to the maximum, which has been stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock
from tvm.tirx.buffer import BufferType

from ...errors import ArgumentError
from ...ir.visits import nodes_in
from ..walk import Expr, Recursion, called, children, identity, is_load, rebuilt, unrolled

_NARROW = "bfloat16"
_WIDE = "float32"
_DROPPED_BITS = 16
"""Bits of a float32 behind those of a bfloat16."""

_SMALL_FLOAT_PREFIXES = ("float4_", "float6_", "float8_")
"""How the dtypes begin that are not served."""

_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)

_EXACT_DTYPES = ("bool", "int8", "uint8")
"""Of what a bfloat16 holds every value."""


def widen_bfloat16(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same function with all arithmetic of bfloat16 in float32.

    It may be applied again, after stages of different functions have become one.

    Parameters
    ----------
    func : PrimFunc

    Raises
    ------
    ArgumentError
        There are floats of fewer than 16 bits, which TVM converts wrongly: 0 becomes 2⁻⁷.
    """
    dtypes = _dtypes(func)
    for dtype in sorted(dtypes):
        if dtype.startswith(_SMALL_FLOAT_PREFIXES):
            raise ArgumentError(
                f"{dtype} is not served, because TVM converts its numbers wrongly; give the "
                "function float16, cast outside of it"
            )
    if _NARROW not in dtypes:
        return func
    widening = _widening_of(func)
    changes = [
        (tirx.BufferStore, widening.store),
        (tirx.Bind, widening.bind),
        # What other functions get stays as it is.
        (tirx.Evaluate, lambda statement, _: statement),
        (tvm.ir.Expr, widening.mutated),
    ]
    return func.with_body(tvm_ffi.structural_mutate(func.body, changes))


def is_left_narrow(func: tirx.PrimFunc) -> bool:
    """Whether a function has bfloat16 that TVM does not compute as float32, or not rightly.

    It compares numbers that it has computed, and not read; or it binds what it reads to variables;
    or it calls functions of bfloat16, of which there are none in vectors.
    """
    if _NARROW not in _dtypes(func):
        return False
    if any(str(call.ty) == _NARROW for call in nodes_in(func.body, tvm.ir.Call)):
        return True
    bound = [binding.value for binding in nodes_in(func.body, (prim.Let, tirx.Bind))]
    if any(str(load.ty) == _NARROW for load in nodes_in(bound, tvm.ir.TensorLoad)):
        return True
    widening = _widening_of(func)
    return any(
        str(comparison.a.ty) == _NARROW
        and not (widening.is_stored(comparison.a) and widening.is_stored(comparison.b))
        for comparison in nodes_in(func.body, _COMPARISONS)
    )


def _dtypes(func: tirx.PrimFunc) -> set[str]:
    """The dtypes that a function reads, writes, and casts to."""
    read = nodes_in(func.body, (prim.Cast, tvm.ir.TensorLoad))
    return {str(_element_type(param)) for param in func.params} | {str(node.ty) for node in read}


def _element_type(value: Any) -> Any:
    return value.ty.dtype if isinstance(value.ty, BufferType) else value.ty


def _is_narrow_buffer(value: Any) -> bool:
    return isinstance(value.ty, BufferType) and str(_element_type(value)) == _NARROW


def _widening_of(func: tirx.PrimFunc) -> Widening:
    """The widening of a function's bfloat16, that of buffers that it allocates included.

    Those stay that other functions get, or elements of them, those that have a second name, and
    those of which vectors are read or written.
    """
    allocated: list[Any] = []
    opaque: set[int] = set()

    kinds = (SBlock, tirx.AllocBuffer, tirx.Evaluate, tirx.BufferStore, tirx.Bind, tvm.ir.Call)
    for node in nodes_in(func.body, kinds):
        if isinstance(node, tirx.BufferStore | tirx.Bind):
            if _is_of_vectors(node):
                opaque.update(identity(load.source) for load in nodes_in(node, tvm.ir.TensorLoad))
                if isinstance(node, tirx.BufferStore):
                    opaque.add(identity(node.buffer))
        elif isinstance(node, SBlock):
            allocated.extend(node.alloc_buffers)
            opaque.update(identity(match.source.source) for match in node.match_buffers)
        elif isinstance(node, tirx.AllocBuffer):
            allocated.append(node.buffer)
        elif isinstance(node, tirx.Evaluate):
            opaque.update(identity(load.source) for load in nodes_in(node, tvm.ir.TensorLoad))
        else:
            # A buffer as an argument: what the call does with its memory is not seen.
            opaque.update(map(identity, node.args))
    narrow = [buffer for buffer in allocated if _is_narrow_buffer(buffer)]
    wide = {
        identity(buffer): tirx.decl_buffer(
            buffer.ty.shape, _WIDE, buffer.name, scope=buffer.ty.storage_scope
        )
        for buffer in narrow
        if identity(buffer) not in opaque
    }
    return Widening(_NARROW, wide, kept={*map(identity, narrow)} - wide.keys())


class Widening:
    """Expressions of a narrow dtype of floats as such of float32, with what they are part of.

    Parameters
    ----------
    narrow : str
        ``"float16"`` or ``"bfloat16"``.
    buffers : mapping, optional
        Buffers that take the place of others, by the identities of these.
    variables : mapping, optional
        What stands for variables, by their identities.
    kept : collection, optional
        Identities of the narrow buffers that a function allocates, and keeps.
    """

    def __init__(
        self,
        narrow: str,
        buffers: Mapping[int, Any] | None = None,
        variables: Mapping[int, Expr] | None = None,
        kept: Collection[int] = (),
    ) -> None:
        self.narrow = narrow
        self.buffers = dict(buffers or {})
        self.variables = dict(variables or {})
        self._kept = kept

    def expression(self, node: Expr) -> Expr:
        """An expression with the arithmetic of the narrow dtype in float32."""
        return unrolled(self._wide(node))

    def mutated(self, node: Any, mutator: Any) -> Any:
        """The part that a statement is made of: an expression, or a buffer, or a part of one."""
        if _is_of_vectors(node):
            return node
        if isinstance(node, tvm.ir.TensorRegion):
            ranges = [mutator.mutate(each) for each in node.region]
            return tvm.ir.TensorRegion(mutator.mutate(node.source), ranges, node.ty)
        if isinstance(node.ty, tvm.ir.PrimType):
            return self.expression(node)
        return self.buffers.get(identity(node), node)

    def store(self, store: Any, _: Any) -> Any:
        """A store of the same element, rounded if its buffer is narrow."""
        if _is_of_vectors(store):
            return store
        buffer = self.buffers.get(identity(store.buffer), store.buffer)
        indices = [self.expression(index) for index in store.indices]
        value = store.value
        is_narrow = str(buffer.ty.dtype) == self.narrow
        if is_narrow and _is_element(value) and identity(value.source) not in self.buffers:
            # An element that is copied from narrow memory to narrow memory keeps its bits.
            at = [self.expression(index) for index in value.indices]
            return tirx.BufferStore(buffer, tirx.BufferLoad(value.source, at), indices)
        value = unrolled(self._wide(value, rounded_later=is_narrow))
        if not is_narrow:
            return tirx.BufferStore(buffer, value, indices)
        reads = nodes_in(value, tvm.ir.TensorLoad)
        # What a statement binds must not read narrow memory that is allocated: TVM, which widens
        # that, overlooks it there.
        if not nodes_in(value, prim.Let) or any(identity(x.source) in self._kept for x in reads):
            return tirx.BufferStore(buffer, prim.Cast(store.value.ty, value), indices)
        # TVM rounds by an expression that has the value twice, and in a vector no variable may be
        # bound twice.
        value = unrolled(self._wide(store.value, bound=True, rounded_later=True))
        stored = tirx.Var("stored", _WIDE)
        rounding = tirx.BufferStore(buffer, prim.Cast(store.value.ty, stored), indices)
        return tirx.SeqStmt([tirx.Bind(stored, value), rounding])

    def bind(self, bind: Any, _: Any) -> Any:
        """A statement that binds the same value, wide."""
        if not isinstance(bind.value.ty, tvm.ir.PrimType) or _is_of_vectors(bind):
            return bind
        value = unrolled(self._wide(bind.value, bound=True))
        return tirx.Bind(self._variable(bind.var), value)

    def _variable(self, variable: Any) -> Any:
        """A variable, or one of float32 in its place."""
        if not self._is_narrow(variable):
            return variable
        wide = tirx.Var(variable.name, _WIDE)
        self.variables[identity(variable)] = wide
        return wide

    def _is_narrow(self, node: Expr) -> bool:
        return str(node.ty) == self.narrow

    def _wide(self, node: Expr, bound: bool = False, rounded_later: bool = False) -> Recursion:
        """An expression that is of float32 if it was narrow.

        Parameters
        ----------
        node : Expr
        bound : bool
            It is part of what is bound to a variable, where TVM lowers no conversion.
        rounded_later : bool
            Its value is stored as it is.
        """
        if identity(node) in self.variables:
            return self.variables[identity(node)]
        if isinstance(node, prim.Let):
            value = yield self._wide(node.value, bound=True)
            variable = self._variable(node.var)
            return prim.Let(variable, value, (yield self._wide(node.body, bound, rounded_later)))
        if isinstance(node, prim.Cast) and self._is_narrow(node):
            return (yield self._rounded(node, bound, rounded_later))
        if called(node) == "tirx.reinterpret":
            return (yield self._reinterpreted(node, bound))
        if isinstance(node, _COMPARISONS) and self._is_narrow(node.a):
            return (yield self._compared(node, bound))
        is_choice = isinstance(node, prim.Select) or called(node) == "prim.if_then_else"
        parts = []
        for number, part in enumerate(_parts(node)):
            is_arm = is_choice and number > 0
            # Of a choice only the arms end up in what is stored, not the condition.
            parts.append((yield self._wide(part, bound, rounded_later and is_arm)))
        return self._with(node, parts, bound)

    def _with(self, node: Expr, parts: list[Expr], bound: bool) -> Expr:
        """A node, which is of float32 if it was narrow, of wide parts."""
        if _is_element(node):
            buffer = self.buffers.get(identity(node.source), node.source)
            node = tirx.BufferLoad(buffer, parts)
            if self._is_narrow(node) and bound:
                # Where TVM lowers no conversion, the number is made of its bits.
                return _of_bits(tirx.reinterpret("uint16", node), self.narrow)
            return prim.Cast(_WIDE, node) if self._is_narrow(node) else node
        if isinstance(node, prim.Cast):  # to another dtype
            (value,) = parts
            return value if str(value.ty) == str(node.ty) else prim.Cast(node.ty, value)
        if not self._is_narrow(node):
            return rebuilt(node, parts)
        if isinstance(node, prim.FloatImm):
            return tirx.const(_nearest(float(node.value), self.narrow), _WIDE)
        if isinstance(node, tvm.ir.Var) or is_load(node):
            return prim.Cast(_WIDE, rebuilt(node, parts))
        if isinstance(node, tvm.ir.Call):
            wide = tvm.ir.PrimType(_WIDE)
            return tvm.ir.Call(node.op, parts, attrs=node.attrs, span=node.span, ret_ty=wide)
        return rebuilt(node, parts)

    def _rounded(self, cast: Expr, bound: bool, rounded_later: bool) -> Recursion:
        """The value that is cast to the narrow dtype, in float32, with no more digits than that."""
        exact = self._is_narrow(cast.value) or str(cast.value.ty) in _EXACT_DTYPES
        # Rounding by bits binds its operand, so all of that counts as bound.
        value = yield self._wide(cast.value, bound or not (exact or rounded_later), rounded_later)
        if str(value.ty) != _WIDE:
            value = prim.Cast(_WIDE, value)
        return value if exact or rounded_later else _rounded(value, self.narrow)

    def _compared(self, comparison: Expr, bound: bool) -> Recursion:
        """A comparison of narrow numbers as they are, or would be, stored."""
        operands = []
        for operand in (comparison.a, comparison.b):
            is_stored = self.is_stored(operand)
            value = yield self._wide(operand, bound or not is_stored)
            operands.append(value if is_stored else _rounded(value, self.narrow))
        return rebuilt(comparison, operands)

    def is_stored(self, node: Expr) -> bool:
        """Whether an expression is a number that no rounding would change."""
        is_memory = _is_element(node) and identity(node.source) not in self.buffers
        return is_memory or isinstance(node, prim.FloatImm)

    def _reinterpreted(self, node: Expr, bound: bool) -> Recursion:
        """A number of other bits, which are those of a narrow one, or become those."""
        (source,) = node.args
        if _is_element(source) and identity(source.source) not in self.buffers:
            at = []
            # Narrow memory has the bits already.
            for index in source.indices:
                at.append((yield self._wide(index, bound)))
            source = tirx.BufferLoad(source.source, at)
        elif self._is_narrow(source):
            source = _bits_of((yield self._wide(source, bound=True)), self.narrow)
        else:
            source = yield self._wide(source, bound)
        if self._is_narrow(node):
            return _of_bits(tirx.reinterpret("uint16", source), self.narrow)
        return tirx.reinterpret(str(node.ty), source)


def _is_of_vectors(node: Any) -> bool:
    """Whether a statement or an expression is written in vectors, as some schedules write them."""
    return bool(nodes_in(node, (tirx.Ramp, tirx.Broadcast, tirx.Shuffle)))


def _is_element(node: Expr) -> bool:
    return isinstance(node, tvm.ir.TensorLoad)


def _parts(node: Expr) -> list[Expr]:
    return list(node.indices) if _is_element(node) else list(children(node))


def _nearest(value: float, narrow: str) -> float:
    """The number of a narrow dtype that is nearest to another one."""
    return float(np.dtype(getattr(ml_dtypes, narrow, narrow)).type(value))


def _of_bits(bits: Expr, narrow: str) -> Expr:
    """The float32 that is the narrow number of some bits."""
    if narrow != _NARROW:
        return prim.Cast(_WIDE, tirx.reinterpret(narrow, bits))
    return tirx.reinterpret(_WIDE, bits.astype("uint32") << _DROPPED_BITS)


def _bits_of(value: Expr, narrow: str) -> Expr:
    """The bits of the narrow number that a float32 is rounded to."""
    if narrow != _NARROW:
        return tirx.reinterpret("uint16", prim.Cast(narrow, value))
    return (tirx.reinterpret("uint32", _rounded(value, narrow)) >> _DROPPED_BITS).astype("uint16")


def is_rounded(value: Expr) -> bool:
    """Whether a value is a float32 that is rounded to bfloat16."""
    if not isinstance(value, prim.Let) or str(value.value.ty) != _WIDE:
        return False
    return bool(tvm_ffi.structural_equal(value, _rounded(value.value, _NARROW)))


def _rounded(value: Expr, narrow: str) -> Expr:
    """A float32 rounded to the nearest narrow number, to the even one of two.

    For bfloat16, half of the last place that is kept, less one bit, is added to the bits, and one
    bit if that place is odd.
    """
    if narrow != _NARROW:
        return prim.Cast(_WIDE, prim.Cast(narrow, value))
    operand = tirx.Var("given", _WIDE)
    bits = tirx.reinterpret("uint32", operand)
    half = tirx.const((1 << (_DROPPED_BITS - 1)) - 1, "uint32")
    odd = (bits >> _DROPPED_BITS) & tirx.const(1, "uint32")
    kept = ((bits + half + odd) >> _DROPPED_BITS) << _DROPPED_BITS
    nearest = tirx.reinterpret(_WIDE, kept)
    # A NaN stays as it is: of some, rounding would make an infinity.
    return prim.Let(operand, value, tirx.Select(tirx.isnan(operand), operand, nearest))
