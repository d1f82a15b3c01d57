"""Maps that round to float32 what they compute in float64, in float32 where that is as good.

Means are carried in float64 because their terms cancel. What a gradient does with them to each
element is a product with a difference of elements, which float32 has within a few units in the last
place, in half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx
from tvm.ir import prim

from ..bindings import shared
from ..graph import (
    Key,
    Operation,
    is_reduction,
    operations,
    outputs_of,
    replace_bodies,
    rewritten,
)
from ..reductions.reduce import stage_axes
from ..walk import (
    Expr,
    children,
    choice_of,
    contain,
    dtype_name,
    graph_of,
    identity,
    inline_lets,
    is_load,
    loaded,
    tensor_key,
)
from .saved import elements

_WIDE, _NARROW = "float64", "float32"

_EXACTLY_NARROW = ("float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "bool")
"""Dtypes of whose values float32 has each."""

_MAX_ROUNDINGS = 4
"""Roundings to float32 that a value may have behind it: a difference times a factor of a row has
three."""

_MAX_FACTORS = 2
"""Numbers of float32's range that a product may have as factors. The product of two overflows or
vanishes on its own account; one of more might do so on the way, where float64 does not."""

_UNKNOWN = _MAX_FACTORS + 1
"""As the factors of a value: it may be of any magnitude."""

_MODERATE = (1e-9, 1e9)
"""Between these, a constant does not change what is in the range of float32."""

_ARITHMETIC: dict[type, Callable[[Expr, Expr], Expr]] = {
    kind: kind for kind in (prim.Add, prim.Sub, prim.Mul, prim.Div)
}


@dataclass(frozen=True)
class _Narrow:
    """An expression of float64 in float32.

    Attributes
    ----------
    value : Expr
    roundings : int
        Of how many roundings its relative error consists at most; 0 if there is none.
    factors : int
        As the product of how many numbers of float32's range it may be as large or small.
    saves : bool
        Whether arithmetic of float64 became such of float32.
    """

    value: Expr
    roundings: int
    factors: int
    saves: bool = False


def narrow_maps(tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Tensors from maps that compute in float32 what they round to it, as far as that is as good.

    It is for a product or quotient of two numbers that come from float32; for sums and differences
    of what float32 has exactly, not of what was rounded, whose terms may cancel; and for choices
    between such.
    """
    order = operations(*tensors)
    # What the steps of a scan read from outside stays what it is.
    if any(isinstance(op, te.ScanOp) for op in order) or not any(map(_rounds, order)):
        return list(tensors)
    return rewritten(tensors, _Maps().rewrite_stage)


def _is_map(op: Operation) -> bool:
    return isinstance(op, te.ComputeOp) and not is_reduction(op) and op.num_outputs == 1


def _rounds(op: Operation) -> bool:
    """Whether a stage is a map that rounds float64 to float32."""
    if not _is_map(op) or dtype_name(op.output(0).dtype) != _NARROW:
        return False
    body = inline_lets(op.body[0])
    return isinstance(body, prim.Cast) and dtype_name(body.value.ty) == _WIDE


class _Maps:
    """Maps of float64 and what they are in float32, each made once."""

    def __init__(self) -> None:
        self._made: dict[Key, tuple[te.Tensor, _Narrow]] = {}

    def rewrite_stage(self, op: Operation) -> list[te.Tensor] | None:
        """A map that rounds to float32 by one that computes in it; None if that saves nothing."""
        if not _rounds(op):
            self._add(op)
            return None
        value = inline_lets(op.body[0]).value
        narrow = self._narrow(value, elements(op.output(0)))
        return outputs_of(_with_body(op, narrow.value)) if narrow.saves else None

    def _add(self, op: Operation) -> None:
        """Make a map of float64 in float32; what it reads comes before it."""
        if _is_map(op) and dtype_name(op.output(0).dtype) == _WIDE:
            tensor = op.output(0)
            body = self._narrow(inline_lets(op.body[0]), elements(tensor))
            self._made[tensor_key(tensor)] = (_with_body(op, body.value).output(0), body)

    def _narrow(self, root: Expr, size: int) -> _Narrow:
        """An expression of float64 that is evaluated so many times."""
        results: dict[int, _Narrow] = {}
        for node, parts in graph_of([root]):
            if dtype_name(node.ty) == _WIDE:
                known = [results[identity(part)] for part in parts if identity(part) in results]
                factors = self._factors(node, known)
                narrow = self._of_node(node, known, size, factors)
                if narrow is None or factors > _MAX_FACTORS or narrow.roundings > _MAX_ROUNDINGS:
                    # In float64 up to here.
                    narrow = _Narrow(prim.Cast(_NARROW, node), 1, factors)
                results[identity(node)] = narrow
        return results[identity(root)]

    def _factors(self, node: Expr, parts: Sequence[_Narrow]) -> int:
        """As a product of how many numbers of float32's range a value may be as large or small."""
        if isinstance(node, prim.FloatImm):
            least, most = _MODERATE
            return 0 if node.value == 0 or least <= abs(node.value) <= most else _UNKNOWN
        if isinstance(node, prim.Cast):
            return 1 if dtype_name(node.value.ty) in _EXACTLY_NARROW else _UNKNOWN
        if is_load(node):
            made = self._made.get(tensor_key(loaded(node)[0]))
            return made[1].factors if made else _UNKNOWN
        if isinstance(node, prim.Mul | prim.Div):
            return sum(part.factors for part in parts)
        if isinstance(node, prim.Add | prim.Sub) or choice_of(node) is not None:
            return max(part.factors for part in parts)
        return _UNKNOWN

    def _of_node(
        self, node: Expr, parts: Sequence[_Narrow], size: int, factors: int
    ) -> _Narrow | None:
        """A node in float32, given its operands of float64; None if it has to stay."""
        if isinstance(node, prim.FloatImm):
            is_exact = float(np.float32(node.value)) == node.value
            return _Narrow(tirx.const(node.value, _NARROW), 0 if is_exact else 1, factors)
        if isinstance(node, prim.Cast):
            is_exact = dtype_name(node.value.ty) in _EXACTLY_NARROW
            return _Narrow(node.value.astype(_NARROW), 0, factors) if is_exact else None
        if is_load(node):
            return self._of_load(node, size)
        if choice_of(node) is not None:
            return _of_choice(node, parts, factors)
        if type(node) not in _ARITHMETIC:
            return None
        a, b = parts
        roundings = a.roundings + b.roundings + 1
        if isinstance(node, prim.Add) and node.a.same_as(node.b):
            roundings = a.roundings
        elif isinstance(node, prim.Add | prim.Sub) and a.roundings + b.roundings:
            return None
        return _Narrow(_ARITHMETIC[type(node)](a.value, b.value), roundings, factors, True)

    def _of_load(self, load: Expr, size: int) -> _Narrow | None:
        tensor, indices = loaded(load)
        made = self._made.get(tensor_key(tensor))
        if made is None:
            return None
        narrow, body = made
        # What is read of a smaller tensor, as of rows, costs little in float64.
        if elements(tensor) < size and body.roundings:
            return None
        return _Narrow(narrow(*indices), body.roundings, body.factors, body.saves)


def _of_choice(node: Expr, parts: Sequence[_Narrow], factors: int) -> _Narrow | None:
    condition = children(node)[0]
    # A condition stays as it is, so what it is computed from would be computed twice.
    if contain([condition], lambda part: dtype_name(part.ty) == _WIDE):
        return None
    a, b = parts
    choose = tirx.Select if isinstance(node, prim.Select) else tirx.if_then_else
    roundings = max(a.roundings, b.roundings)
    value = choose(condition, a.value, b.value)
    return _Narrow(value, roundings, factors, a.saves or b.saves)


def _with_body(op: Operation, body: Expr) -> Operation:
    return replace_bodies(op, [shared(body, axes=stage_axes(op))])
