"""How a loop combines an element with the values that it meets, read off the value it stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ..walk import Expr, called, children, rebuilt, substituted
from .laws import is_associative, is_identity
from .statements import equal, loads

Load = tvm.ir.TensorLoad


class NoCombinationError(Exception):
    """Values are not combined in a way that is known to be associative; the text says how."""


Combine = Callable[[Sequence[Expr], Sequence[Expr]], list[Expr]]


@dataclass(frozen=True)
class Combination:
    """An associative combination of tuples.

    Attributes
    ----------
    name : str
    sources : list of Expr
        What each element is combined with, in terms of loops and of loads from buffers.
    combine : callable
    identity_of : callable or None
        From a dtype; None if only what the buffers begin with can serve.
    """

    name: str
    sources: list[Expr]
    combine: Combine
    identity_of: Callable[[str], Expr] | None

    @staticmethod
    def of(stores: Sequence[Any], in_any_order: bool) -> Combination:
        """The combination that stores of values made of the old ones mean.

        Parameters
        ----------
        stores : sequence of Store
        in_any_order : bool
            The iterations may happen in any order: then whatever combines is associative.

        Raises
        ------
        NoCombinationError
            A value does not depend on the old one: it is overwritten in every iteration. Or it
            does, but not by a combination that is known to be associative.
        """
        for store in stores:
            if not any(_is_old(load, stores) for load in loads([store.value])):
                raise NoCombinationError("{} is overwritten in every iteration")
        simple = _known(stores[0]) if len(stores) == 1 else None
        if simple is not None:
            return simple
        general = _general(stores) if in_any_order else None
        if general is None or not is_associative(general):
            raise NoCombinationError(
                "each iteration goes on from the one before, by no sum, product, extremum or "
                "associative combination in a block with a reduce axis"
            )
        return general

    def apply(self, a: Sequence[Expr], b: Sequence[Expr]) -> Any:
        """The combination of two tuples; one expression if they have one component."""
        results = self.combine(list(a), list(b))
        return results[0] if len(results) == 1 else tuple(results)

    def identities(self, starts: Sequence[Expr] | None) -> list[Expr]:
        """The writes that change nothing; `starts` is what the buffers are filled with before.

        Raises
        ------
        NoCombinationError
            It is not known.
        """
        if self.identity_of is not None:
            return [self.identity_of(str(source.ty)) for source in self.sources]
        if starts is None or not is_identity(self, starts):
            raise NoCombinationError(
                "its reduction does not begin with constants that change nothing they are "
                "combined with"
            )
        return list(starts)

    def reduce(self, values: Sequence[Expr], identities: Sequence[Expr], axes: Any) -> Any:
        """A reduction of values over some axes."""
        if len(values) == 1:
            reducer = te.comm_reducer(
                lambda a, b: self.apply([a], [b]), lambda _: identities[0], name=self.name
            )
            return reducer(values[0], axis=axes)

        def combined(a: Any, b: Any) -> Any:  # a function of two arguments: TVM looks at its code
            return self.apply(a, b)

        reducer = te.comm_reducer(combined, lambda *_: tuple(identities), name=self.name)
        return reducer(tuple(values), axis=axes)


def _known(store: Any) -> Combination | None:
    """A sum, product, maximum or minimum; None if it is none."""
    total = _addend(store.value, store)
    if total is not None:
        return Combination(
            "sum", [total], lambda a, b: [a[0] + b[0]], lambda dtype: tirx.const(0, dtype)
        )
    value = store.value
    if not isinstance(value, prim.Mul | prim.Max | prim.Min):
        return None
    sides = [side for side in (value.a, value.b) if not _is_old(side, [store])]
    if len(sides) != 1 or _reads_old(sides[0], [store]):
        return None
    if isinstance(value, prim.Mul):
        return Combination(
            "product", sides, lambda a, b: [a[0] * b[0]], lambda dtype: tirx.const(1, dtype)
        )
    if isinstance(value, prim.Max):
        return Combination("max", sides, lambda a, b: [tirx.max(a[0], b[0])], tirx.min_value)
    return Combination("min", sides, lambda a, b: [tirx.min(a[0], b[0])], tirx.max_value)


def _addend(value: Expr, store: Any) -> Expr | None:
    """The term that is added to the old value; None if the value is not such a sum."""
    if isinstance(value, prim.Add | prim.Sub):
        zero = tirx.const(0, str(value.ty))
        for side, term in ((value.a, value.b), (value.b, value.a)):
            # old - x adds -x to the old value, but x - old is no sum with it.
            if _reads_old(term, [store]) or (isinstance(value, prim.Sub) and side is value.b):
                continue
            addend = zero if _is_old(side, [store]) else _addend(side, store)
            if addend is not None:
                return addend - term if isinstance(value, prim.Sub) else addend + term
    return None


def _general(stores: Sequence[Any]) -> Combination:
    """A combination by an expression of any form.

    What does not depend on the old values is what they are combined with, each in its largest form.
    """
    old = [tirx.Var(f"old{i}", str(store.buffer.dtype)) for i, store in enumerate(stores)]
    new: list[tuple[Expr, Any]] = []

    def abstract(node: Expr) -> Expr:
        if not _reads_old(node, stores):
            if isinstance(node, prim.IntImm | prim.FloatImm):
                # A constant is part of how values combine: it is the same for every tuple.
                return node
            variable = next((v for e, v in new if tvm_ffi.structural_equal(e, node)), None)
            if variable is None:
                variable = tirx.Var(f"new{len(new)}", str(node.ty))
                new.append((node, variable))
            return variable
        if isinstance(node, Load):
            number = next(i for i, s in enumerate(stores) if node.source.same_as(s.buffer))
            return old[number]
        return rebuilt(node, [abstract(child) for child in children(node)])

    results = [abstract(store.value) for store in stores]
    # Each component has one value of its own; fewer or more do not pair up with the buffers.
    if len(new) != len(stores):
        raise NoCombinationError(
            f"it combines {len(stores)} value(s) with {len(new)}, so it is no reduction of tuples"
        )
    ordered = _matched(new, stores)
    return Combination(
        "combined",
        [expr for expr, _ in ordered],
        lambda a, b: [
            substituted(
                result,
                [*zip(old, a, strict=True), *zip([v for _, v in ordered], b, strict=True)],
            )
            for result in results
        ],
        None,
    )


def _matched(new: list[tuple[Expr, Any]], stores: Sequence[Any]) -> list[tuple[Expr, Any]]:
    """The new values in the order of the stores, each with one of its dtype.

    The combination is symmetric: the value that stands beside an old one is of its component.
    """
    unmatched = list(new)
    ordered = []
    for store in stores:
        beside = _beside(store.value, stores)
        match = next(
            (p for p in unmatched if any(tvm_ffi.structural_equal(p[0], e) for e in beside)),
            next((p for p in unmatched if str(p[1].ty) == str(store.buffer.dtype)), None),
        )
        if match is None or str(match[1].ty) != str(store.buffer.dtype):
            raise NoCombinationError("the values it combines do not match its buffers")
        unmatched.remove(match)
        ordered.append(match)
    return ordered


def _beside(value: Expr, stores: Sequence[Any]) -> list[Expr]:
    """The stored value where it is not the old one."""
    if isinstance(value, prim.Select):
        return [value.true_value, value.false_value]
    if called(value) == "prim.if_then_else":
        return list(value.args[1:])
    return [child for child in children(value) if not _reads_old(child, stores)]


def _is_old(node: Expr, stores: Sequence[Any]) -> bool:
    """Whether a node is an element that the stores write; no other one changes."""
    return isinstance(node, Load) and any(
        node.source.same_as(s.buffer) and equal(list(node.indices), s.indices) for s in stores
    )


def _reads_old(node: Expr, stores: Sequence[Any]) -> bool:
    return any(_is_old(load, stores) for load in loads([node]))
