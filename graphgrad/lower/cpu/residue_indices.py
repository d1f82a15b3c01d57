"""Indices where a remainder is known: a walk through memory in steps of one.

    if_then_else(j % 2 == 0, x[j // 2 * 2 + 1], ...)    reads    x[j + 1]

So lifting steps in place, and their gradients, choose by the parity of a place. Both sides of such
a choice are vectors, and a mask joins them (`vector_nests.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range, prim

from ...fallback.indices.conditions import conjuncts
from ...fallback.walk import Expr, Recursion, children, choice_of, rebuilt, unrolled
from ...ir.kernel_rewrite import replace_block
from ...ir.kernel_structure import Load, linear_coefficient, static, substitute_values, uses
from ...ir.visits import nodes_in, replace_nodes

_CHOICES = (prim.Select, tvm.ir.Call)

Residue = tuple[Any, int, int]
"""A loop's variable, a modulus, and the remainder."""


def residues_of(condition: Expr) -> list[Residue]:
    """The remainders that a condition asks for."""
    return [residue for part in conjuncts(condition) if (residue := residue_of(part)) is not None]


def residue_of(condition: Expr) -> Residue | None:
    """The remainder that a condition asks for and nothing else; None if it asks for another thing.

    Not to be 0 modulo 2 is to be 1.
    """
    if isinstance(condition, prim.LT) and static(condition.a) == 0:
        condition = prim.NE(condition.b, condition.a)  # as TVM writes of a remainder
    if not isinstance(condition, prim.EQ | prim.NE) or not isinstance(condition.a, prim.FloorMod):
        return None
    place, modulus, wanted = condition.a.a, static(condition.a.b), static(condition.b)
    variables = nodes_in(place, tvm.ir.Var)
    if not modulus or modulus < 0 or wanted is None or len(variables) != 1:
        return None
    if nodes_in(place, Load):  # of an index without axes the only variable is its memory
        return None
    (var,) = variables
    shift = static(tvm.sym.Analyzer().simplify(place - var))
    if shift is None or (isinstance(condition, prim.NE) and modulus != 2):
        return None
    return var, modulus, (wanted - shift + isinstance(condition, prim.NE)) % modulus


def simplify_where_residues_are_known(block: Any) -> Any:
    """A block that reads at simple indices where a condition tells a remainder of its axes."""
    choices = [node for node in nodes_in(block.body, _CHOICES) if choice_of(node) is not None]
    if not any(residues_of(children(choice)[0]) for choice in choices):
        return block

    def store(node: Any) -> Any:
        return tirx.BufferStore(node.buffer, unrolled(_simplified(node.value, {})), node.indices)

    return replace_block(block, body=replace_nodes(block.body, tirx.BufferStore, store))


def _simplified(node: Expr, known: Mapping[Any, tuple[int, int]]) -> Recursion:
    """An expression where variables have known remainders: by variable, the modulus and this."""
    if isinstance(node, Load):
        indices = [_simple_index(index, known) for index in node.indices]
        return tirx.BufferLoad(node.source, indices)
    choice = choice_of(node)
    if choice is None:
        parts = []
        for part in children(node):
            parts.append((yield _simplified(part, known)))
        return rebuilt(node, parts)
    condition, chosen, otherwise = choice
    told = {var: (modulus, remainder) for var, modulus, remainder in residues_of(condition)}
    residue = residue_of(condition)
    not_told = {}
    if residue is not None and residue[1] == 2:
        not_told = {residue[0]: (2, 1 - residue[2])}
    chosen = yield _simplified(chosen, {**known, **told})
    otherwise = yield _simplified(otherwise, {**known, **not_told})
    return rebuilt(node, [condition, chosen, otherwise])


def _simple_index(index: Any, known: Mapping[Any, tuple[int, int]]) -> Any:
    for var, (modulus, remainder) in known.items():
        if not uses(index, var) or linear_coefficient(index, var) is not None:
            continue
        analyzer = tvm.sym.Analyzer()
        quotient = tirx.Var("quotient", str(var.ty))
        analyzer.bind(quotient, Range.from_min_extent(0, tirx.const(1 << 30, str(var.ty))))
        by_quotient = substitute_values(index, {var: quotient * modulus + remainder})
        simple = _in_terms_of(var, analyzer.simplify(by_quotient), quotient, modulus, remainder)
        index = index if simple is None else simple
    return index


def _in_terms_of(var: Any, index: Any, quotient: Any, modulus: int, remainder: int) -> Any | None:
    """An index in a quotient in terms of what is divided; None if that would divide again."""

    def changed(node: Any) -> Any | None:
        if not uses(node, quotient):
            return node
        factor = linear_coefficient(node, quotient)
        if factor is not None and factor % modulus == 0:
            rest = tvm.sym.Analyzer().simplify(substitute_values(node, {quotient: _zero(quotient)}))
            return (var - remainder) * (factor // modulus) + rest
        if isinstance(node, prim.Mul) and isinstance(node.a, prim.Min | prim.Max):
            scale = static(node.b)
            if scale is not None and scale > 0:
                return changed(type(node.a)(node.a.a * node.b, node.a.b * node.b))
        if isinstance(node, prim.Min | prim.Max | prim.Add | prim.Sub):
            parts = [changed(node.a), changed(node.b)]
            return None if any(p is None for p in parts) else type(node)(*parts)
        return None

    result = changed(index)
    return None if result is None else tvm.sym.Analyzer().simplify(result)


def _zero(var: Any) -> Any:
    return tirx.const(0, str(var.ty))
