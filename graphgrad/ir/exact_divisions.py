"""Integer divisions written so that TVM keeps their value.

Where it computes addresses (`FlattenBuffer`), TVM takes indices for sums of parts of its loops
(src/arith/iter_affine_map.cc), and gets two kinds of them wrong.

It takes a factor of −1 out of a dividend and divides by a negative divisor; the constant in the
dividend is lost on the way: (5 − i) // 2 becomes i // −2, (1 − i) % 3 becomes (i % −3) · −1. With
a = −1 − b these are the same, for n > 0:

    a // n = −1 − b // n,    a % n = n − 1 − b % n

And it pads a loop such that dividends start at a multiple of their divisors, once for all places
where the loop occurs: i % 3 + (i + 2) % 3 * 3 becomes (i + 2) % 3 * 4. Or it fails there: a part
that is padded cancels against one that is not. Such indices are shifted by no bits, which TVM takes
for unknown and leaves as it is, and compilers of machine code remove.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock, SBlockRealize

from ..tvm_fixes.hooks import identity
from .passes import Phase, compiler_pass
from .visits import nodes_in, replace_nodes, visit_nodes

_DIVISIONS = (prim.FloorDiv, prim.FloorMod)
_CHOICE = tvm.ir.Op.get("prim.if_then_else")


@compiler_pass(
    Phase.SCHEDULED, over="kernel", because="loops that a schedule fuses divide by their extents"
)
def write_exact_divisions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write indices to which TVM would give other values so that it keeps them.

    Parameters
    ----------
    func : PrimFunc
        Of blocks, scheduled or not: before TVM computes addresses. If it is scheduled afterwards,
        loops that are fused or computed elsewhere may make new ones.
    """
    body = _make_dividends_positive(func.body)
    if not _divides(body):
        return func
    body = _hide_indices(body)
    return func if body.same_as(func.body) else func.with_body(body)


def _divides(body: Any) -> bool:
    found = False

    def visit(_: Any) -> None:
        nonlocal found
        found = True

    visit_nodes(body, _DIVISIONS, visit)
    return found


def _make_dividends_positive(body: Any) -> Any:
    """Statements without divisions of what falls in all of its variables."""
    fixed: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.For):
            fixed.extend([node.loop_var] if _is_one(node.extent) else [])
        else:
            fixed.extend(axis.var for axis in node.iter_vars if _is_one(axis.dom.extent))

    def change(node: Any) -> Any:
        if not isinstance(node.b, prim.IntImm) or int(node.b) == 0:
            return node
        return _positive(node, fixed)

    visit_nodes(body, (tirx.For, SBlock), visit)
    return replace_nodes(body, _DIVISIONS, change)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, prim.IntImm) and int(extent) == 1


def _positive(node: Any, fixed: Sequence[Any]) -> Any:
    """A division by a positive divisor, of a dividend that does not only fall."""
    divide, is_quotient = type(node), isinstance(node, prim.FloorDiv)
    dividend, divisor = node.a, int(node.b)
    n = tirx.const(abs(divisor), str(node.ty))
    if divisor < 0:
        opposite = _positive(divide(_simple(-dividend), n), fixed)
        return opposite if is_quotient else -opposite
    signs = _signs(dividend, 1, fixed, abs(divisor))
    if not signs or max(signs) > 0:
        return node
    mirrored = divide(_simple(-1 - dividend), n)
    return -1 - mirrored if is_quotient else n - 1 - mirrored


def _simple(expr: Any) -> Any:
    return tvm.sym.Analyzer().canonical_simplify(expr)


def _signs(expr: Any, sign: int, fixed: Sequence[Any], n: int) -> list[int]:
    """The signs of the terms of a sum that are not the same everywhere, modulo n."""
    signs = []
    for term, factor in _terms(expr, sign):
        if (n and factor % n == 0) or isinstance(term, prim.IntImm):
            continue  # TVM takes such a term out first
        if not any(term.same_as(var) for var in fixed):
            signs.append(1 if factor > 0 else -1)
    return signs


def _terms(expr: Any, factor: int = 1) -> Iterator[tuple[Any, int]]:
    """Yield the terms of a sum, with constant factors apart."""
    if isinstance(expr, prim.Add | prim.Sub):
        yield from _terms(expr.a, factor)
        yield from _terms(expr.b, -factor if isinstance(expr, prim.Sub) else factor)
    elif isinstance(expr, prim.Mul) and isinstance(expr.b, prim.IntImm):
        yield from _terms(expr.a, factor * int(expr.b))
    elif isinstance(expr, prim.Mul) and isinstance(expr.a, prim.IntImm):
        yield from _terms(expr.b, factor * int(expr.a))
    else:
        yield expr, factor


def _hide_indices(body: Any) -> Any:
    """Statements with the indices that TVM may get wrong made unknown to it."""
    places = _Places(body)

    def load(node: Any) -> Any:
        indices = places.safe(node.indices)
        return node if indices is None else tirx.BufferLoad(node.source, indices)

    def store(node: Any) -> Any:
        indices = places.safe(node.indices)
        return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)

    return tvm_ffi.structural_map(body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])


class _Places:
    """Where in its loops some code reads and writes."""

    def __init__(self, body: Any) -> None:
        self.analyzer = tvm.sym.Analyzer()
        self.values: dict[int, Any] = {}
        """Of the variables of blocks, in terms of loops."""
        self.divided: set[int] = set()
        """Those of them whose values have divisions."""
        self.sources: dict[int, set[int]] = {}
        """The loops on which a variable depends: itself, or those of what it is bound to."""
        self.shifted: set[int] = set()
        """Variables that may start elsewhere than at 0."""
        self.guarded = False
        """Whether conditions may narrow the range of a loop."""
        kinds = (tirx.For, SBlockRealize, tirx.Bind, prim.Let, tirx.IfThenElse, tvm.ir.Call)
        visit_nodes(body, kinds, self._note, outer_first=True)

    def _note(self, node: Any) -> None:
        if isinstance(node, tirx.For):
            loop = identity(node.loop_var)
            self.analyzer.bind(node.loop_var, tvm.ir.Range.from_min_extent(node.min, node.extent))
            self.sources[loop] = {loop}
            if not isinstance(node.min, prim.IntImm) or int(node.min) != 0:
                self.shifted.add(loop)
        elif isinstance(node, SBlockRealize):
            for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
                placed = self._in_loops(value)
                self.values[identity(axis.var)] = placed
                if _divisions_in(placed):
                    self.divided.add(identity(axis.var))
            self.guarded = self.guarded or not isinstance(node.predicate, prim.IntImm)
        elif isinstance(node, tirx.Bind | prim.Let):
            self.sources[identity(node.var)] = self._loops(node.value)
            self.shifted.add(identity(node.var))
        else:
            is_choice = isinstance(node, tirx.IfThenElse) or node.op.same_as(_CHOICE)
            self.guarded = self.guarded or is_choice

    def safe(self, indices: Sequence[Any]) -> list[Any] | None:
        """Indices that TVM leaves as they are; None if it does right by the given ones."""
        divided = [self._divides(index) for index in indices]
        if not any(divided):
            return None
        placed = [self._in_loops(index) for index in indices]
        placed = [self.analyzer.simplify(index) for index in placed]
        if not any(
            self._is_risky(node, placed) for index in placed for node in _divisions_in(index)
        ):
            return None
        return [
            _unknown(index) if divides else index
            for index, divides in zip(indices, divided, strict=True)
        ]

    def _divides(self, index: Any) -> bool:
        """Whether an index has divisions, in terms of loops."""
        if isinstance(index, tvm.ir.Var):
            return identity(index) in self.divided
        if isinstance(index, prim.IntImm):
            return False
        found = nodes_in(index, (tvm.ir.Var, *_DIVISIONS))
        return any(
            not isinstance(node, tvm.ir.Var) or identity(node) in self.divided for node in found
        )

    def _in_loops(self, expr: Any) -> Any:
        return replace_nodes(expr, tvm.ir.Var, lambda var: self.values.get(identity(var), var))

    def _loops(self, expr: Any, without: Any = None) -> set[int]:
        """The loops on which an expression depends, outside of divisions as a given one."""
        found: set[int] = set()

        def visit(node: Any) -> Any:
            if isinstance(node, tvm.ir.Var):
                found.update(self.sources.get(identity(node), ()))
            elif without is not None and _are_alike(node, without):
                return tvm_ffi.WalkResult.SKIP
            return None

        visit_nodes(expr, (tvm.ir.Var, *_DIVISIONS), visit, outer_first=True)
        return found

    def _is_risky(self, node: Any, indices: Sequence[Any]) -> bool:
        """Whether TVM may get indices wrong by one of their divisions."""
        n = int(node.b) if isinstance(node.b, prim.IntImm) else 0
        signs = _signs(node.a, 1, [], n)
        if n < 0 or (signs and (max(signs) < 0 or (self.guarded and min(signs) < 0))):
            return True
        if not self._is_padded(node.a, n):
            return False
        if _divisions_in(node.a):
            return True
        outside = [self._loops(index, without=node) for index in indices]
        return not self._loops(node.a).isdisjoint(set().union(*outside))

    def _is_padded(self, dividend: Any, n: int) -> bool:
        """Whether a dividend may start elsewhere than at a multiple of its divisor."""
        offset = 0
        for term, factor in _terms(dividend):
            if isinstance(term, prim.IntImm):
                offset += int(term) * factor
            elif not self._loops(term) or self._is_shifted(term):
                return True
        return offset != 0 if n == 0 else offset % n != 0

    def _is_shifted(self, expr: Any) -> bool:
        variables = nodes_in(expr, tvm.ir.Var)
        return any(identity(var) in self.shifted for var in variables)


def _are_alike(a: Any, b: Any) -> bool:
    """Whether TVM pads the dividends of two divisions in the same way."""
    return bool(tvm_ffi.structural_equal(a.a, b.a) and tvm_ffi.structural_equal(a.b, b.b))


def _divisions_in(expr: Any) -> list[Any]:
    return nodes_in(expr, _DIVISIONS)


def _unknown(index: Any) -> Any:
    return prim.RShift(index, tirx.const(0, str(index.ty)))
