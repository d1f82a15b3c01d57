"""Reverse mode on one scalar expression: from its cotangent to those of the elements it reads.

A condition never becomes a factor. The cotangent of a branch carries the conditions under which it
counts, its *guards*, beside its value, and they are applied last, outermost. So what a forward
pass guards stays guarded: a load outside its tensor never happens, and 0 · ∞ never is.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import StringImm, prim

from ..errors import MissingGradientError, NotDifferentiableError, RuleError
from ..ir.callables import location_of
from . import intrinsics
from .guarded import Guard, Guarded, GuardedSum, joined
from .value_numbering import same
from .walk import (
    Expr,
    Graph,
    called,
    choice_of,
    dtype_name,
    excerpt,
    graph_of,
    identity,
    is_load,
    items,
    loaded_tensor,
)

_MAX_TERMS = 4
"""Sets of guards that are kept apart at one node; more are joined into one condition."""

_EXTERNS = ("tirx.call_pure_extern", "tirx.call_extern")
"""Calls of a function by its name, their first argument."""


_INVERSES = {"tirx.log": "tirx.exp", "tirx.exp": "tirx.log"}
"""Functions with those that they undo."""


@dataclass(frozen=True)
class Read:
    """One load of an expression, and the cotangent that it is due.

    Attributes
    ----------
    tensor : Tensor
        The tensor that is read.
    indices : list of Expr
        Where it is read.
    terms : list of Guarded
        Their sum is the cotangent, in float32 at least.
    """

    tensor: Any
    indices: list[Expr]
    terms: list[Guarded]


def is_float(dtype: Any) -> bool:
    """Whether a dtype is one of floats, which have cotangents."""
    return "float" in dtype_name(dtype)


def wide(dtype: Any) -> str:
    """The dtype in which floats of a dtype are summed: float32 at least.

    Raises
    ------
    NotDifferentiableError
        They have fewer than 16 bits.
    """
    name = dtype_name(dtype)
    if name in ("float32", "float64") or not is_float(name):
        return name
    if name not in ("float16", "bfloat16"):
        raise NotDifferentiableError(
            f"{name} holds quantized numbers, which have no gradient; differentiate before values "
            "are cast to it, or behind where they are cast from it"
        )
    return "float32"


def backpropagate(
    root: Expr,
    cotangent: Guarded,
    is_active: Callable[[Any], bool] = lambda tensor: True,
    value: Expr | None = None,
) -> list[Read]:
    """The cotangents of the loads of active tensors in an expression.

    Parameters
    ----------
    root : Expr
        Without `Let` (see `walk.inline_lets`).
    cotangent : Guarded
        Of its value, in the dtype `wide` of its.
    is_active : callable
        Whether the cotangent of a tensor is asked for.
    value : Expr, optional
        What holds the value of `root` already, for derivatives in terms of it.

    Returns
    -------
    list of Read
        In the order in which they are read; those that the value does not depend on are left out.

    Raises
    ------
    MissingGradientError
        On the way is a function or a node whose derivative is not known.
    """
    graph = graph_of([root])
    active = _active(graph, is_active)
    cotangents: dict[int, GuardedSum] = {identity(root): GuardedSum()}
    cotangents[identity(root)].add(cotangent)
    reads = []
    # What uses a node comes before it here: its cotangent is complete when it is met.
    for node, parts in reversed(graph):
        total = cotangents.pop(identity(node), None)
        if total is None or identity(node) not in active:
            continue
        arrived = few(total.terms())
        if is_load(node):
            reads.append(Read(loaded_tensor(node), [*parts], arrived))
            continue
        choices = _choices(node)
        node_value = node if value is None or not node.same_as(root) else value
        for term in arrived:
            for child, passed in _propagate(node, choices, term, node_value):
                if identity(child) in active:
                    cotangents.setdefault(identity(child), GuardedSum()).add(passed)
    return reads[::-1]


def few(terms: list[Guarded]) -> list[Guarded]:
    """The terms of a sum, joined into one if they are many."""
    return terms if len(terms) <= _MAX_TERMS else [joined(terms)]


def _active(graph: Graph, is_active: Callable[[Any], bool]) -> set[int]:
    """The float nodes that depend on a load of an active tensor; not those that are always zero."""
    active: set[int] = set()
    zeros: set[int] = set()
    for node, parts in graph:
        if not is_float(node.ty):
            continue
        if _is_zero(node, zeros):
            zeros.add(identity(node))
        elif is_load(node):
            if is_active(loaded_tensor(node)):
                active.add(identity(node))
        elif any(identity(part) in active for part in parts):
            active.add(identity(node))
    return active


def _is_zero(node: Expr, zeros: Container[int]) -> bool:
    """Whether a node is zero but for rounding, whatever is read; `zeros` are known.

    So are corrections, such as x - log(exp(x)) of what an exponential has rounded off: their
    derivative is zero, and would take long to add up to that.
    """
    if isinstance(node, prim.FloatImm):
        return float(node.value) == 0.0
    if type(node) is prim.Sub:
        a, b = _without_inverses(node.a), _without_inverses(node.b)
        is_undone = not (a.same_as(node.a) and b.same_as(node.b))
        return is_undone and same(a, b)
    if type(node) is prim.Mul:
        return identity(node.a) in zeros or identity(node.b) in zeros
    choice = choice_of(node)
    return choice is not None and all(identity(value) in zeros for value in choice[1:])


def _without_inverses(value: Expr) -> Expr:
    """The x of log(exp(x)) and exp(log(x)), however often; another value as it is."""
    while called(value) in _INVERSES and called(value.args[0]) == _INVERSES[called(value)]:
        value = value.args[0].args[0]
    return value


def _choices(node: Expr) -> list[tuple[Expr, Guard]]:
    """The children that a node chooses from and when; empty if it is no choice."""
    choice = choice_of(node)
    if choice is not None:
        condition, true_value, false_value = choice
        return [(true_value, (condition, True)), (false_value, (condition, False))]
    rectified = _relu_operand(node)
    if rectified is not None:
        zero = tirx.const(0.0, dtype_name(rectified.ty))
        # Not where `x > 0`: a NaN gets the cotangent, too.
        return [(rectified, (rectified <= zero, False))]
    if type(node) is prim.Max:
        # Not `a >= b`: beside a NaN both operands get the cotangent, rather than none.
        return [(node.a, (node.a < node.b, False)), (node.b, (node.b < node.a, False))]
    if type(node) is prim.Min:
        return [(node.a, (node.a > node.b, False)), (node.b, (node.b > node.a, False))]
    return []


def _relu_operand(node: Expr) -> Expr | None:
    """The x of a node max(x, 0), which is relu: its derivative at 0 is 0; None for another node."""
    if type(node) is prim.Max:
        for x, other in ((node.a, node.b), (node.b, node.a)):
            if isinstance(other, prim.FloatImm) and float(other.value) == 0.0:
                return x
    return None


def _propagate(
    node: Expr, choices: list[tuple[Expr, Guard]], term: Guarded, value: Expr
) -> list[tuple[Expr, Guarded]]:
    """The parts of its cotangent that a node passes on to its children.

    `value` is the node, or what holds its value already.
    """
    h = term.value
    if not choices:
        return [
            (child, Guarded(term.guards, _in(child, product)))
            for child, product in _PRODUCTS.get(type(node), _intrinsic_terms)(node, h, value)
            if is_float(child.ty)
        ]
    if type(node) in (prim.Max, prim.Min):
        # Both operands' guards hold where they are equal: then each gets half.
        dtype = dtype_name(h.ty)
        half, one = tirx.const(0.5, dtype), tirx.const(1.0, dtype)
        h = h * tirx.Select(tirx.EQ(node.a, node.b), half, one)
    return [(child, Guarded((*term.guards, guard), h)) for child, guard in choices]


def _quotient_terms(node: Expr, h: Expr, value: Expr) -> list[tuple[Expr, Expr]]:
    # -a / b² as (1 / b) · (a / b): b² would overflow, or underflow, sooner.
    inverse = finite_product(h, 1.0 / _in(node, node.b))
    return [(node.a, inverse), (node.b, -finite_product(inverse, _in(node, value)))]


def _remainder_terms(node: Expr, h: Expr, _: Expr) -> list[tuple[Expr, Expr]]:
    # a mod b = a - q·b, where the quotient q is constant piece by piece.
    rounding = tirx.trunc if type(node) is prim.Mod else tirx.floor
    quotient = rounding(_in(node, node.a) / _in(node, node.b))
    return [(node.a, h), (node.b, -finite_product(h, quotient))]


def _factor_terms(node: Expr, h: Expr, _: Expr) -> list[tuple[Expr, Expr]]:
    return [(node.a, h * _in(node, node.b)), (node.b, h * _in(node, node.a))]


_PRODUCTS: dict[type, Callable[[Expr, Expr, Expr], list[tuple[Expr, Expr]]]] = {
    prim.Add: lambda node, h, value: [(node.a, h), (node.b, h)],
    prim.Sub: lambda node, h, value: [(node.a, h), (node.b, -h)],
    prim.Mul: _factor_terms,
    prim.Div: _quotient_terms,
    prim.Mod: _remainder_terms,
    prim.FloorMod: _remainder_terms,
    prim.FloorDiv: lambda node, h, value: [],
    prim.Cast: lambda node, h, value: [(node.value, h)],
}
"""The products of a node's cotangent with its derivatives by the operands; calls apart.

The last argument is what holds the node's value.
"""


def _intrinsic_terms(node: Expr, h: Expr, value: Expr) -> list[tuple[Expr, Expr]]:
    name = called(node)
    arguments = items(node.args) if name else []
    # The operator of such a call says nothing: the function is its first argument.
    if name in _EXTERNS and arguments and isinstance(arguments[0], StringImm):
        name, arguments = str(arguments[0].value), arguments[1:]
    intrinsic = intrinsics.find(name)
    if intrinsic is None:
        reason = intrinsics.refusal(name) or "is not known"
        raise MissingGradientError(
            f"the derivative of {name or type(node).__name__} {reason}, in {excerpt(node)}; say "
            f"what it is by gg.register_intrinsic_gradient({name!r}, lambda x, y: ...), or write "
            "the tensor expression without it"
        )
    if intrinsic.partials is None:
        return []
    partials = intrinsic.partials(*(widened(argument) for argument in arguments), widened(value))
    partials = partials if isinstance(partials, tuple) else (partials,)
    _check_partials(name, intrinsic.partials, partials, node, len(arguments))
    return [
        (argument, _product(h, partial, intrinsic.singular))
        for argument, partial in zip(arguments, partials, strict=True)
        if partial is not None
    ]


def _check_partials(
    name: str, function: Callable[..., Any], partials: tuple[Any, ...], node: Expr, count: int
) -> None:
    """Raise unless a function gave one derivative, a scalar, for each argument of a call."""
    rule = f"{location_of(function)}: the gradient registered for {name}"
    if len(partials) != count:
        raise RuleError(
            f"{rule} gives {len(partials)} derivatives, but it is called with {count} arguments, "
            f"in {excerpt(node)}; give one for each, None where there is none"
        )
    for partial in partials:
        if partial is not None and not isinstance(partial, int | float) and not _is_float(partial):
            raise RuleError(
                f"{rule} gives {partial!r} ({type(partial).__name__}), in {excerpt(node)}; a "
                "derivative is a number or a float expression of the arguments and the value"
            )


def _is_float(partial: Any) -> bool:
    return tvm.ir.is_prim_expr(partial) and dtype_name(partial.ty).startswith(("float", "bfloat"))


def _product(h: Expr, partial: Any, singular: bool) -> Expr:
    if isinstance(partial, int | float):
        return h * partial
    dtype = dtype_name(h.ty)
    partial = partial.astype(dtype) if dtype_name(partial.ty) != dtype else partial
    return finite_product(h, partial) if singular else h * partial


def finite_product(h: Expr, partial: Any) -> Expr:
    """The product of a cotangent with a derivative that may be infinite: 0 · ∞ = 0.

    It is the product wherever that exists: a cotangent that happens to be 0 still has a
    derivative, which second order and forward mode ask for.
    """
    dtype = dtype_name(h.ty)
    infinite = tirx.EQ(tirx.abs(partial), tirx.infinity(dtype))
    zero = tirx.const(0.0, dtype)
    return tirx.Select(tirx.all(tirx.EQ(h, zero), infinite), zero, h * partial)


def widened(value: Expr) -> Expr:
    """A value in the dtype in which cotangents of it are computed."""
    return _in(value, value)


def _in(node: Expr, value: Expr) -> Expr:
    """A value in the dtype in which cotangents of `node` are computed."""
    dtype = wide(node.ty)
    return value if dtype_name(value.ty) == dtype else value.astype(dtype)
