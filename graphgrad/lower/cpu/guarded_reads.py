"""Reads that a condition keeps inside a tensor are evaluated only where it holds.

TVM's simplifier makes one choice of two nested ones, ``a && b`` for the conditions ``a`` and ``b``
(``RewriteSimplifier`` on ``if_then_else``, src/arith/rewrite_simplify.cc). Its code for processors
computes both sides of a conjunction, and of a disjunction. So ``b`` reads where ``a`` does not
hold: before the beginning of a tensor, behind its end, or from an unmapped page. In source of
CUDA the right side of ``&&`` waits for the left one.

Written as a choice whose result is a condition, ``a ? b : false`` or ``a ? true : b``, it stays
what it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock

from ...ir.kernel_structure import Load, buffer_of, is_conditional, static
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in, visit_nodes

_BOTH_SIDES = (tirx.And, tirx.Or)
"""Operations both sides of which are computed by code for processors."""


@compiler_pass(
    Phase.SCHEDULED,
    over="kernel",
    targets=("llvm",),
    because="inlining brings conditions together, and a schedule adds some",
)
def guard_reads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Have no condition read outside of a tensor unless an earlier one holds.

    Parameters
    ----------
    func : PrimFunc
        For a processor, scheduled, with indices that TVM has not flattened yet.
    """
    if not _reads_in_conditions(func.body):
        return func
    ranges = _Known(func.body)

    def waits(node: Any) -> bool:
        """Whether the right side must be evaluated only if the left one does not decide."""
        # What the left side reads in any case may be read again on the right.
        return ranges.leaves_tensor(node.b, _reads_in_any_case(node.a))

    def conjunction(node: Any) -> Any:
        return _choice(node.a, node.b) if waits(node) else node

    def disjunction(node: Any) -> Any:
        true = tirx.const(True, "bool")
        return _chosen(node.a, true, node.b) if waits(node) else node

    def nested(node: Any) -> Any:
        # TVM would join two choices with the same alternative, to `outer && inner ? value : ...`.
        # They are joined here, so that `inner` is still evaluated only where `outer` holds.
        if not is_conditional(node) or not is_conditional(node.args[1]):
            return node
        outer, (inner, value, otherwise) = node.args[0], node.args[1].args
        both_are_numbers = all(
            isinstance(e, prim.IntImm | prim.FloatImm) for e in (otherwise, node.args[2])
        )
        if not both_are_numbers or not ranges.leaves_tensor(inner):
            return node
        if not tvm_ffi.structural_equal(otherwise, node.args[2]):
            return node
        return _chosen(_choice(outer, inner), value, otherwise)

    rules = ((tirx.And, conjunction), (tirx.Or, disjunction), (tvm.ir.Call, nested))
    body = tvm_ffi.structural_map(func.body, rules)
    return func if body.same_as(func.body) else func.with_body(body)


def _choice(guard: Any, condition: Any) -> Any:
    """A condition that is evaluated only where its guard holds.

    From left to right: TVM would join a choice that is the first value of another.
    """
    if is_conditional(condition) and static(condition.args[2]) == 0:
        return _choice(_choice(guard, condition.args[0]), condition.args[1])
    return _chosen(guard, condition, tirx.const(False, "bool"))


def _chosen(condition: Any, value: Any, otherwise: Any) -> Any:
    return tirx.if_then_else(condition, value, otherwise)


def _reads_in_conditions(body: Any) -> bool:
    """Whether a condition, or the right side of one, reads from memory."""
    return any(
        _reads(node.b) if isinstance(node, _BOTH_SIDES) else _reads(node.args[0])
        for node in nodes_in(body, (*_BOTH_SIDES, tvm.ir.Call))
        if isinstance(node, _BOTH_SIDES) or is_conditional(node)
    )


def _reads(expression: Any) -> list[Any]:
    return nodes_in(expression, Load)


def _reads_in_any_case(expression: Any) -> list[Any]:
    """The reads of an expression that are under no condition within it."""
    reads: list[Any] = []

    def visit(node: Any) -> Any:
        if isinstance(node, Load):
            reads.append(node)
        elif is_conditional(node):
            reads.extend(_reads_in_any_case(node.args[0]))
            return tvm_ffi.WalkResult.SKIP
        return tvm_ffi.WalkResult.ADVANCE

    visit_nodes(expression, (Load, tvm.ir.Call), visit, outer_first=True)
    return reads


class _Known:
    """The ranges of a function's variables: of its loops, blocks and bindings."""

    def __init__(self, body: Any):
        self._analyzer = tvm.sym.Analyzer()

        for node in nodes_in(body, (tirx.For, SBlock, tirx.Bind)):
            if isinstance(node, tirx.For):
                self._bind(node.loop_var, tvm.ir.Range.from_min_extent(node.min, node.extent))
            elif isinstance(node, SBlock):
                for axis in node.iter_vars:
                    self._bind(axis.var, axis.dom)
            elif str(node.var.ty).startswith("int"):
                self._bind(node.var, node.value)

    def _bind(self, variable: Any, range_or_value: Any) -> None:
        self._analyzer.bind(variable, range_or_value)

    def leaves_tensor(self, expression: Any, earlier_reads: Sequence[Any] = ()) -> bool:
        """Whether an expression may read outside of a tensor.

        What it reads under a condition of its own is judged under that condition. `earlier_reads`
        have been made already and may be made again: to put them behind a branch would keep them
        from being vectorized.
        """
        leaving: list[Any] = []

        def visit(node: Any) -> Any:
            if isinstance(node, tvm.ir.Call):
                if not is_conditional(node):
                    return tvm_ffi.WalkResult.ADVANCE
                leaving.append(self._choice_leaves_tensor(node, earlier_reads))
                return tvm_ffi.WalkResult.SKIP
            was_read = any(tvm_ffi.structural_equal(node, earlier) for earlier in earlier_reads)
            leaving.append(not was_read and not self._is_inside(node))
            return tvm_ffi.WalkResult.ADVANCE

        visit_nodes(expression, (Load, tvm.ir.Call), visit, outer_first=True)
        return any(leaving)

    def _choice_leaves_tensor(self, choice: Any, earlier_reads: Sequence[Any]) -> bool:
        """Whether a choice may read outside of a tensor, its value under its condition."""
        condition, value, otherwise = choice.args
        # The alternative is judged without the negated condition, which is on the safe side.
        if self.leaves_tensor(condition, earlier_reads) or self.leaves_tensor(
            otherwise, earlier_reads
        ):
            return True
        with contextlib.ExitStack() as scopes:
            for part in _conjuncts(condition):
                scopes.enter_context(self._analyzer.constraint_scope(part))
            return self.leaves_tensor(value, earlier_reads)

    def _is_inside(self, read: Any) -> bool:
        """Whether a read is proved to be inside of its buffer, along each dimension."""
        return all(
            self._analyzer.can_prove(tirx.all(index >= 0, index < extent))
            for index, extent in zip(read.indices, buffer_of(read).shape, strict=True)
        )


def _conjuncts(condition: Any) -> Iterator[Any]:
    """Yield conditions that all hold where a given one does, and that read nothing."""
    if isinstance(condition, tirx.And):
        yield from (*_conjuncts(condition.a), *_conjuncts(condition.b))
    elif is_conditional(condition) and static(condition.args[2]) == 0:
        yield from (*_conjuncts(condition.args[0]), *_conjuncts(condition.args[1]))
    elif not _reads(condition):
        yield condition
