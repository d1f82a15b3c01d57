"""Reverse mode on one scalar expression: from its cotangent to those of the elements it reads.

A condition never becomes a factor. The cotangent of a branch carries the conditions under which it
counts, its *guards*, beside its value, and they are applied last, outermost. So what a forward
pass guards stays guarded: a load outside its tensor never happens, and 0 · ∞ never is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from tvm import tirx
from tvm.ir import StringImm, prim

from ..errors import MissingGradientError, RuleError
from . import intrinsics
from .walk import Expr, called, children, excerpt, identity, is_load, loaded, postorder

_MOST_GUARDS = 4
"""Sets of guards that are kept apart at one node; more are joined into one condition."""

_EXTERNS = ("tirx.call_pure_extern", "tirx.call_extern")
"""Calls of a function by its name, their first argument."""

Guard = tuple[Expr, bool]
"""A condition, and which way it must go."""


@dataclass(frozen=True)
class Guarded:
    """A value that counts only where all its guards hold, outermost first; else it is 0."""

    guards: tuple[Guard, ...]
    value: Expr

    def applied(self) -> Expr:
        """Return the value inside its conditions."""
        result = self.value
        for condition, wanted in reversed(self.guards):
            zero = tirx.const(0.0, str(result.ty))
            branches = (result, zero) if wanted else (zero, result)
            result = tirx.if_then_else(condition, *branches)
        return result


@dataclass
class Read:
    """One load of an expression, and the cotangent that it is due.

    Attributes
    ----------
    load : Expr
    terms : list of Guarded
        Their sum is the cotangent, in float32 at least.
    """

    load: Expr
    terms: list[Guarded] = field(default_factory=list)

    @property
    def tensor(self) -> Any:
        """The tensor that is read."""
        return loaded(self.load)[0]

    @property
    def indices(self) -> list[Expr]:
        """Where it is read."""
        return loaded(self.load)[1]


def is_float(dtype: Any) -> bool:
    """Return whether a dtype is one of floats, which have cotangents."""
    return "float" in str(dtype)


def wide(dtype: Any) -> str:
    """Return the dtype in which floats of a dtype are summed: float32 at least."""
    is_narrow = is_float(dtype) and str(dtype) not in ("float32", "float64")
    return "float32" if is_narrow else str(dtype)


def backpropagate(
    root: Expr, cotangent: Guarded, is_active: Callable[[Any], bool] = lambda tensor: True
) -> list[Read]:
    """Return the cotangents of the loads of active tensors in an expression.

    Parameters
    ----------
    root : Expr
        Without `Let` (see `walk.without_lets`).
    cotangent : Guarded
        Of its value, in the dtype `wide` of its.
    is_active : callable
        Whether the cotangent of a tensor is asked for.

    Returns
    -------
    list of Read
        In the order in which they are read; those that the value does not depend on are left out.

    Raises
    ------
    MissingGradientError
        On the way is a function or a node whose derivative is not known.
    """
    nodes = postorder(root)
    active = _active(nodes, is_active)
    cotangents: dict[int, list[Guarded]] = {identity(root): [cotangent]}
    reads = []
    for node in reversed(nodes):
        arrived = cotangents.pop(identity(node), [])
        if not arrived or identity(node) not in active:
            continue
        if is_load(node):
            reads.append(Read(node, arrived))
            continue
        choices = _choices(node)
        for term in arrived:
            for child, passed in _passed_on(node, choices, term):
                if identity(child) in active:
                    _accumulate(cotangents.setdefault(identity(child), []), passed)
    return reads[::-1]


def _active(nodes: Iterable[Expr], is_active: Callable[[Any], bool]) -> set[int]:
    """Return the float nodes that depend on a load of an active tensor."""
    active: set[int] = set()
    for node in nodes:
        if not is_float(node.ty):
            continue
        if is_load(node):
            if is_active(loaded(node)[0]):
                active.add(identity(node))
        elif any(identity(child) in active for child in children(node)):
            active.add(identity(node))
    return active


def _accumulate(terms: list[Guarded], term: Guarded) -> None:
    """Add a term to a sum; terms under the same guards become one."""
    for i, other in enumerate(terms):
        if _same_guards(other.guards, term.guards):
            terms[i] = Guarded(term.guards, other.value + term.value)
            return
    terms.append(term)
    if len(terms) > _MOST_GUARDS:
        terms[:] = [joined(terms)]


def _same_guards(a: Sequence[Guard], b: Sequence[Guard]) -> bool:
    return len(a) == len(b) and all(
        identity(c) == identity(d) and p == q for (c, p), (d, q) in zip(a, b, strict=True)
    )


def joined(terms: Sequence[Guarded]) -> Guarded:
    """Return a sum of terms as one term, which counts where any of them does."""
    value = reduce(lambda a, b: a + b, (term.applied() for term in terms))
    if any(not term.guards for term in terms):
        return Guarded((), value)
    true, false = tirx.const(True), tirx.const(False)
    conditions = []
    for term in terms:
        holds: Expr = true
        for condition, wanted in reversed(term.guards):
            # Nested, not joined by `and`: an inner condition may read what an outer one protects.
            branches = (holds, false) if wanted else (false, holds)
            holds = tirx.if_then_else(condition, *branches)
        conditions.append(holds)
    return Guarded(((reduce(tirx.any, conditions), True),), value)


def _choices(node: Expr) -> list[tuple[Expr, Guard]]:
    """Return the children that a node chooses from and when; empty if it is no choice."""
    if isinstance(node, prim.Select):
        children_of = [node.condition, node.true_value, node.false_value]
    elif called(node) == "prim.if_then_else":
        children_of = list(node.args)
    elif isinstance(node, prim.Max):
        # Not `a >= b`: beside a NaN both operands get the cotangent, rather than none.
        return [(node.a, (node.a < node.b, False)), (node.b, (node.b < node.a, False))]
    elif isinstance(node, prim.Min):
        return [(node.a, (node.a > node.b, False)), (node.b, (node.b > node.a, False))]
    else:
        return []
    condition, true_value, false_value = children_of
    return [(true_value, (condition, True)), (false_value, (condition, False))]


def _passed_on(
    node: Expr, choices: list[tuple[Expr, Guard]], term: Guarded
) -> list[tuple[Expr, Guarded]]:
    """Return what a node passes on to its children of its cotangent."""
    h = term.value
    if not choices:
        return [
            (child, Guarded(term.guards, _in(child, value)))
            for child, value in _partial_products(node, h)
            if is_float(child.ty)
        ]
    if isinstance(node, prim.Max | prim.Min):
        # Both operands' guards hold where they are equal: then each gets half.
        h = tirx.Select(tirx.EQ(node.a, node.b), 0.5 * h, h)
    return [(child, Guarded((*term.guards, guard), h)) for child, guard in choices]


def _partial_products(node: Expr, h: Expr) -> list[tuple[Expr, Expr]]:
    """Return the product of a cotangent with the derivative by each child."""
    if isinstance(node, prim.Add):
        return [(node.a, h), (node.b, h)]
    if isinstance(node, prim.Sub):
        return [(node.a, h), (node.b, -h)]
    if isinstance(node, prim.Mul):
        return [(node.a, h * _in(node, node.b)), (node.b, h * _in(node, node.a))]
    if isinstance(node, prim.Div):
        inverse = finite_product(h, 1.0 / _in(node, node.b))
        return [(node.a, inverse), (node.b, -finite_product(inverse, _in(node, node)))]
    if isinstance(node, prim.Mod | prim.FloorMod):
        whole = tirx.trunc if isinstance(node, prim.Mod) else tirx.floor
        quotient = whole(_in(node, node.a) / _in(node, node.b))
        return [(node.a, h), (node.b, -finite_product(h, quotient))]
    if isinstance(node, prim.FloorDiv):
        return []
    if isinstance(node, prim.Cast):
        return [(node.value, h)]
    return _of_intrinsic(node, h)


def _of_intrinsic(node: Expr, h: Expr) -> list[tuple[Expr, Expr]]:
    name = called(node)
    arguments = list(node.args) if name else []
    if name in _EXTERNS and arguments and isinstance(arguments[0], StringImm):
        name, arguments = str(arguments[0].value), arguments[1:]
    known = intrinsics.find(name)
    if known is None:
        reason = intrinsics.refusal(name) or "is not known"
        raise MissingGradientError(
            f"the derivative of {name or type(node).__name__} {reason}, in {excerpt(node)}; say "
            f"what it is by gg.register_intrinsic_gradient({name!r}, lambda x, y: ...), or write "
            "the tensor expression without it"
        )
    if known.partials is None:
        return []
    partials = known.partials(*(widened(argument) for argument in arguments), widened(node))
    partials = partials if isinstance(partials, tuple) else (partials,)
    if len(partials) != len(arguments):
        raise RuleError(
            f"the gradient registered for {name} gives {len(partials)} derivatives, but it is "
            f"called with {len(arguments)} arguments, in {excerpt(node)}; give one for each, None "
            "where there is none"
        )
    return [
        (argument, _product(h, partial, known.singular))
        for argument, partial in zip(arguments, partials, strict=True)
        if partial is not None
    ]


def _product(h: Expr, partial: Any, singular: bool) -> Expr:
    if isinstance(partial, int | float):
        return h * partial
    partial = partial.astype(str(h.ty)) if str(partial.ty) != str(h.ty) else partial
    return finite_product(h, partial) if singular else h * partial


def finite_product(h: Expr, partial: Any) -> Expr:
    """Return the product of a cotangent with a derivative that may be infinite: 0 · ∞ = 0.

    It is the product wherever that exists: a cotangent that happens to be 0 still has a
    derivative, which second order and forward mode ask for.
    """
    dtype = str(h.ty)
    infinite = tirx.EQ(tirx.abs(partial), tirx.infinity(dtype))
    zero = tirx.const(0.0, dtype)
    return tirx.Select(tirx.all(tirx.EQ(h, zero), infinite), zero, h * partial)


def widened(value: Expr) -> Expr:
    """Return a value in the dtype in which cotangents of it are computed."""
    return _in(value, value)


def _in(node: Expr, value: Expr) -> Expr:
    """Return a value in the dtype in which cotangents of `node` are computed."""
    return value.astype(wide(node.ty))
