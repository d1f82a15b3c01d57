"""Integer divisions in indices, written so that TVM does not change their value.

Where TVM computes addresses (`FlattenBuffer`), it simplifies indices as sums of quotients and
remainders of loop variables (src/arith/iter_affine_map.cc). It gets two kinds of them wrong.

The first: it takes a factor of −1 out of a dividend and divides by a negative divisor, and loses
the constant in the dividend. (5 − i) // 2 becomes i // −2, and (1 − i) % 3 becomes (i % −3) · −1.
So a dividend a that only decreases is written as a = −1 − b here, by which, for n > 0:

    a // n = −1 − b // n,    a % n = n − 1 − b % n

The second: it extends (*pads*) the range of a loop so that a dividend starts at a multiple of its
divisor, but all other occurrences of the loop then get the same padding. i % 3 + (i + 2) % 3 * 3
becomes (i + 2) % 3 * 4. Or it fails with an error, where a padded term cancels against one that is
not padded. Such indices are *hidden* here: shifted right by zero bits, which TVM does not analyze
and leaves as it is, and which compilers of machine code remove.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock, SBlockRealize

from ..tvm_fixes.hooks import identity
from .kernel_structure import static
from .passes import Phase, compiler_pass
from .visits import nodes_in, replace_nodes, visit_nodes

_DIVISIONS = (prim.FloorDiv, prim.FloorMod)
_CHOICE = tvm.ir.Op.get("prim.if_then_else")


@compiler_pass(
    Phase.SCHEDULED, over="kernel", because="loops that a schedule fuses divide by their extents"
)
def write_exact_divisions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rewrite indices whose values TVM would change, so that it keeps them.

    Parameters
    ----------
    func : PrimFunc
        Of blocks, scheduled or not: before TVM computes addresses. If it is scheduled afterwards,
        loops that are fused or computed elsewhere may make new ones.
    """
    body = _make_dividends_positive(func.body)
    if not nodes_in(body, _DIVISIONS):
        return func
    body = _hide_indices(body)
    return func if body.same_as(func.body) else func.with_body(body)


def without_hiding(index: Any) -> Any:
    """An index as it was before it was hidden from TVM, for analyses of ours."""
    return replace_nodes(index, prim.RShift, lambda n: n.a if static(n.b) == 0 else n)


def _make_dividends_positive(body: Any) -> Any:
    """Statements without divisions of dividends that decrease in all of their variables."""
    axes = [axis for block in nodes_in(body, SBlock) for axis in block.iter_vars]
    one_trip_vars = [
        *(loop.loop_var for loop in nodes_in(body, tirx.For) if static(loop.extent) == 1),
        *(axis.var for axis in axes if static(axis.dom.extent) == 1),
    ]

    def change(node: Any) -> Any:
        if not isinstance(node.b, prim.IntImm) or int(node.b) == 0:
            return node
        return _positive(node, one_trip_vars)

    return replace_nodes(body, _DIVISIONS, change)


def _positive(node: Any, one_trip_vars: Sequence[Any]) -> Any:
    """An equal expression that divides by a positive divisor a dividend that not only decreases.

    Parameters
    ----------
    node : FloorDiv or FloorMod
        By a constant.
    one_trip_vars : sequence of Var
        Variables of loops of one trip, which are constants.
    """
    divide, is_quotient = type(node), isinstance(node, prim.FloorDiv)
    dividend, divisor = node.a, int(node.b)
    magnitude = tirx.const(abs(divisor), str(node.ty))
    if divisor < 0:
        # For floor division a // −n = (−a) // n and a % −n = −((−a) % n).
        opposite = _positive(divide(_simple(-dividend), magnitude), one_trip_vars)
        return opposite if is_quotient else -opposite
    signs = _signs(dividend, 1, one_trip_vars, abs(divisor))
    if not signs or max(signs) > 0:
        return node
    mirrored = divide(_simple(-1 - dividend), magnitude)
    return -1 - mirrored if is_quotient else magnitude - 1 - mirrored


def _simple(expr: Any) -> Any:
    """An expression as a sum with its constants collected."""
    return tvm.sym.Analyzer().canonical_simplify(expr)


def _signs(expr: Any, sign: int, one_trip_vars: Sequence[Any], divisor: int) -> list[int]:
    """The signs of the factors of those terms of a sum that vary modulo a divisor.

    Parameters
    ----------
    expr : Expr
        The sum.
    sign : int
        A factor of all of it.
    one_trip_vars : sequence of Var
        Variables that do not vary.
    divisor : int
        0 if it is not known.
    """
    signs = []
    for term, factor in _terms(expr, sign):
        if (divisor and factor % divisor == 0) or isinstance(term, prim.IntImm):
            continue  # TVM takes such a term out first
        if not any(term.same_as(var) for var in one_trip_vars):
            signs.append(1 if factor > 0 else -1)
    return signs


def _terms(expr: Any, factor: int = 1) -> Iterator[tuple[Any, int]]:
    """Yield the terms of a sum, each without its constant factor, and the factor."""
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
    """Statements in which indices that TVM may get wrong are hidden from it."""
    loop_indices = _LoopIndices(body)

    def load(node: Any) -> Any:
        indices = loop_indices.safe(node.indices)
        return node if indices is None else tirx.BufferLoad(node.source, indices)

    def store(node: Any) -> Any:
        indices = loop_indices.safe(node.indices)
        return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)

    return tvm_ffi.structural_map(body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])


class _LoopIndices:
    """The indices of some statements in terms of their loops, and which of them TVM gets wrong."""

    def __init__(self, body: Any) -> None:
        self.loops: list[tirx.For] = []
        self.values: dict[int, Any] = {}
        """From a variable of a block to its value in terms of loop variables."""
        self.divided: set[int] = set()
        """The variables of blocks whose values have divisions."""
        self.sources: dict[int, set[int]] = {}
        """From a variable to the loops on which it depends: itself, or those of its value."""
        self.shifted: set[int] = set()
        """Variables that may start elsewhere than at 0."""
        self.guarded = False
        """Whether conditions may narrow the range of a loop."""
        kinds = (tirx.For, SBlockRealize, tirx.Bind, prim.Let, tirx.IfThenElse, tvm.ir.Call)
        visit_nodes(body, kinds, self._note, outer_first=True)

    def _note(self, node: Any) -> None:
        """Record what a node says of variables and conditions."""
        if isinstance(node, tirx.For):
            loop = identity(node.loop_var)
            self.loops.append(node)
            self.sources[loop] = {loop}
            if not isinstance(node.min, prim.IntImm) or int(node.min) != 0:
                self.shifted.add(loop)
        elif isinstance(node, SBlockRealize):
            for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
                in_loops = self._in_loops(value)
                self.values[identity(axis.var)] = in_loops
                if _divisions_in(in_loops):
                    self.divided.add(identity(axis.var))
            self.guarded = self.guarded or not isinstance(node.predicate, prim.IntImm)
        elif isinstance(node, tirx.Bind | prim.Let):
            self.sources[identity(node.var)] = self._loops(node.value)
            self.shifted.add(identity(node.var))
        else:
            is_choice = isinstance(node, tirx.IfThenElse) or node.op.same_as(_CHOICE)
            self.guarded = self.guarded or is_choice

    @cached_property
    def analyzer(self) -> tvm.sym.Analyzer:
        """What is known of the loops; most kernels of many loops divide in no index."""
        analyzer = tvm.sym.Analyzer()
        for loop in self.loops:
            analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
        return analyzer

    def safe(self, indices: Sequence[Any]) -> list[Any] | None:
        """Indices with equal values, hidden from TVM; None if it keeps the values of these."""
        has_division = [self._divides(index) for index in indices]
        if not any(has_division):
            return None
        in_loops = [self._in_loops(index) for index in indices]
        in_loops = [self.analyzer.simplify(index) for index in in_loops]
        if not any(
            self._is_risky(node, in_loops) for index in in_loops for node in _divisions_in(index)
        ):
            return None
        return [
            _unknown(index) if divides else index
            for index, divides in zip(indices, has_division, strict=True)
        ]

    def _divides(self, index: Any) -> bool:
        """Whether an index has divisions when it is written in terms of loops."""
        if isinstance(index, tvm.ir.Var):
            return identity(index) in self.divided
        if isinstance(index, prim.IntImm):
            return False
        nodes = nodes_in(index, (tvm.ir.Var, *_DIVISIONS))
        return any(
            not isinstance(node, tvm.ir.Var) or identity(node) in self.divided for node in nodes
        )

    def _in_loops(self, expr: Any) -> Any:
        return replace_nodes(expr, tvm.ir.Var, lambda var: self.values.get(identity(var), var))

    def _loops(self, expr: Any, without: Any = None) -> set[int]:
        """The loops on which an expression depends.

        Dependences only through divisions that are padded in the same way as `without` are left
        out.
        """
        loops: set[int] = set()

        def visit(node: Any) -> Any:
            if isinstance(node, tvm.ir.Var):
                loops.update(self.sources.get(identity(node), ()))
            elif without is not None and _are_alike(node, without):
                return tvm_ffi.WalkResult.SKIP
            return None

        visit_nodes(expr, (tvm.ir.Var, *_DIVISIONS), visit, outer_first=True)
        return loops

    def _is_risky(self, node: Any, indices: Sequence[Any]) -> bool:
        """Whether TVM may get indices wrong by one of their divisions."""
        n = int(node.b) if isinstance(node.b, prim.IntImm) else 0
        signs = _signs(node.a, 1, [], n)
        # A dividend that only decreases, or one that partly does while a condition narrows a loop.
        if n < 0 or (signs and (max(signs) < 0 or (self.guarded and min(signs) < 0))):
            return True
        if not self._is_padded(node.a, n):
            return False
        if _divisions_in(node.a):
            return True
        # Padding does harm where a loop of the dividend also occurs outside of the division.
        outside = [self._loops(index, without=node) for index in indices]
        return not self._loops(node.a).isdisjoint(set().union(*outside))

    def _is_padded(self, dividend: Any, n: int) -> bool:
        """Whether a dividend may start elsewhere than at a multiple of its divisor."""
        offset = 0
        for term, factor in _terms(dividend):
            if isinstance(term, prim.IntImm):
                offset += int(term) * factor
            # It is not known where the term starts.
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
    """An index hidden from TVM's analysis: shifted right by zero bits."""
    return prim.RShift(index, tirx.const(0, str(index.ty)))
