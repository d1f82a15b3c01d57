"""Values of neighboring iterations, computed side by side: each is kept as a vector.

Statements that keep values in local memory, that branch, or that read under a condition become a
sequence of stores of whole vectors, with nothing conditional in them. A read that a condition keeps
inside of a tensor reads its first element where the condition does not hold, and what it reads is
not chosen. Reads at places that data choose are collected lane by lane by the code generator; the
arithmetic around them runs in vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from ...fallback.indices.linear_system import Axis, analyzer_of
from ...fallback.walk import Expr, Recursion, children, choice_of, rebuilt, unrolled
from ...ir.kernel_structure import (
    Load,
    is_among,
    is_conditional,
    is_pure,
    static,
    uses,
)
from ...ir.loops import own_loop, scratch, variable
from ...ir.visits import nodes_in, replace_nodes

_INTEGER_DIVISIONS = (prim.FloorDiv, prim.FloorMod, prim.Div, prim.Mod)

_DTYPES = ("int8", "float32", "float64", "int32", "int64", "uint32", "uint64")
"""The types whose vectors are kept as they are; other floats are computed in wider types."""


class NotInVectors(Exception):
    """Statements cannot be computed for several lanes at once."""


class VectorValues:
    """The values that statements compute, for a number of lanes.

    Parameters
    ----------
    lane : Var
        The number of the lane, which expressions are in terms of.
    lanes : int
    ranges : dict
        The first value of each loop around, and the one behind its last, by variable.
    local : sequence of Buffer
        The local memory that statements keep values in.

    Attributes
    ----------
    statements : list of Stmt
        Vectorized loops, each of which stores one vector, and stores of what all lanes share.
    buffers : list of Buffer
        What they store to, to be allocated around them.
    """

    def __init__(
        self,
        lane: Any,
        lanes: int,
        ranges: Mapping[Any, tuple[int, int]],
        local: Sequence[Any] = (),
    ):
        self._lane, self._lanes = lane, lanes
        self.statements: list[Any] = []
        self.buffers: list[Any] = []
        self._local = dict.fromkeys(local)
        self._stored: dict[Any, None] = {}
        """What statements before have stored to, besides local memory."""
        self._values: dict[Any, Any] = {}
        """By the buffer or the variable that stood for a value: the read that stands for it now."""
        self._conditions: list[tuple[Any, Any]] = []
        """Conditions, and the reads of what is kept of them."""
        self._remainders: list[tuple[Any, Any]] = []
        """Remainders of data, and the variables of their ranges that stand for them in proofs."""
        self._analyzer = analyzer_of(axes_of({**ranges, lane: (0, lanes)}))

    def run(self, statement: Any, condition: Any | None = None) -> list[tuple[Any, Any | None]]:
        """Compute what a statement keeps, and return its other stores, each with its condition.

        These, their indices too, are in terms of what is kept.

        Parameters
        ----------
        statement : Stmt
        condition : Expr, optional
            What must hold for the statement to run: a read of what is kept.

        Raises
        ------
        NotInVectors
        """
        if isinstance(statement, tirx.SeqStmt):
            return [s for part in statement.seq for s in self.run(part, condition)]
        if isinstance(statement, tirx.AllocBuffer):
            return []
        if self._reads_what_is_stored(statement):
            raise NotInVectors  # what is kept is computed in front of all stores
        if isinstance(statement, tirx.Bind):
            self._values[statement.var] = self.keep(self.plain(statement.value, condition))
            return []
        if isinstance(statement, tirx.IfThenElse):
            holds = self.plain(statement.condition, condition)
            if self._is_true(holds):
                return self.run(statement.then_case, condition)
            holds = self._kept_condition(holds)
            stores = self.run(statement.then_case, self._both(condition, holds))
            if statement.else_case is None:
                return stores
            otherwise = self._both(condition, tirx.Not(holds))
            return stores + self.run(statement.else_case, otherwise)
        if not isinstance(statement, tirx.BufferStore):
            raise NotInVectors
        value = self.plain(statement.value, condition)
        if statement.buffer not in self._local:
            indices = [self.plain(index, condition) for index in statement.indices]
            self._stored[statement.buffer] = None
            return [(tirx.BufferStore(statement.buffer, value, indices), condition)]
        earlier = self._values.get(statement.buffer)
        if condition is not None and earlier is not None:
            value = tirx.Select(condition, value, earlier)
        self._values[statement.buffer] = self.keep(value)
        return []

    def _reads_what_is_stored(self, statement: Any) -> bool:
        if isinstance(statement, tirx.IfThenElse):
            statement = statement.condition
        return any(load.source in self._stored for load in nodes_in(statement, Load))

    def keep(self, value: Any) -> Any:
        """Store a vector, and return a read of it; a number or a read of one stays as it is.

        What is the same in all lanes is stored once, so that what it indexes stays a vector.
        """
        if isinstance(value, tirx.IntImm | tirx.FloatImm) or self._is_kept(value):
            return value
        if str(value.ty) == "bool":
            # TVM keeps booleans as bytes, and fails where they are vectors.
            number = self.keep(tirx.Select(value, _int32(1), _int32(0)))
            return tirx.NE(number, _int32(0))
        varies = bool(uses(value, self._lane))
        buffer = self.vector(str(value.ty), self._lanes if varies else 1)
        position = [self._lane if varies else tirx.const(0, str(self._lane.ty))]
        stored = tirx.BufferStore(buffer, value, position)
        self.statements.append(self.each_lane(stored) if varies else stored)
        return tirx.BufferLoad(buffer, position)

    def vector(self, dtype: str, length: int | None = None) -> Any:
        """A new buffer for a vector, or for so many elements."""
        if dtype not in _DTYPES:
            raise NotInVectors
        self.buffers.append(scratch("value", [length or self._lanes], dtype))
        return self.buffers[-1]

    def each_lane(self, statement: Any) -> Any:
        """A vectorized loop over lanes, with a variable of its own, around a store."""
        return own_loop(self._lane, self._lanes, statement, tirx.ForKind.VECTORIZED)

    def plain(self, value: Any, condition: Any | None = None) -> Any:
        """An expression in which nothing is conditional, in terms of what is kept.

        Raises
        ------
        NotInVectors
        """
        return unrolled(self._plain(value, condition))

    def used(self, stores: Sequence[Any]) -> list[Any]:
        """The statements, but those whose values neither later ones nor `stores` read."""
        read = {load.source for store in stores for load in nodes_in(store, Load)}
        kept: list[Any] = []
        for each in reversed(self.statements):
            if getattr(each, "body", each).buffer in read:
                kept.insert(0, each)
                read |= {load.source for load in nodes_in(each, Load)}
        self.buffers = [buffer for buffer in self.buffers if buffer in read]
        return kept

    def _is_kept(self, value: Any) -> bool:
        if isinstance(value, prim.NE):
            value = value.a if static(value.b) == 0 else value
        return isinstance(value, Load) and is_among(value.source, self.buffers)

    def _plain(self, node: Expr, condition: Any | None) -> Recursion:
        if isinstance(node, Load):
            return (yield self._read(node, condition))
        if isinstance(node, tvm.ir.Var):
            return self._values.get(node, node)
        if isinstance(node, prim.Let):
            value = yield self._plain(node.value, condition)
            self._values[node.var] = self.keep(value)
            return (yield self._plain(node.body, condition))
        choice = choice_of(node)
        decides = choice is not None or isinstance(node, prim.And | prim.Or)
        if decides and condition is None and self._is_common(node):
            return node  # evaluated once for all lanes, in the way that it was
        # TVM guards what a `Select` reads, too (`RewriteUnsafeSelect`), but not in vectors.
        if choice is not None and (
            is_conditional(node) or any(map(self._reads_memory, choice[1:]))
        ):
            return (yield self._choice(*choice, condition))
        if isinstance(node, prim.And | prim.Or):
            return (yield self._logical(node, condition))
        if isinstance(node, _INTEGER_DIVISIONS) and not str(node.ty).startswith("float"):
            divisor = static(node.b)
            if not divisor and condition is not None:
                raise NotInVectors  # the divisor may be 0 where the condition does not hold
        if isinstance(node, tvm.ir.Call) and not is_pure(node):
            raise NotInVectors
        parts = []
        for part in children(node):
            parts.append((yield self._plain(part, condition)))
        return rebuilt(node, parts)

    def _logical(self, node: Expr, condition: Any | None) -> Recursion:
        """An *and* or an *or*, without the side of an *and* that is known to hold."""
        left = yield self._plain(node.a, condition)
        is_and = isinstance(node, prim.And)
        if is_and and self._is_true(left):
            return (yield self._plain(node.b, condition))
        if self._reads_memory(node.b):
            # The right side reads where the left one lets it.
            left = self._kept_condition(left)
            condition = self._both(condition, left if is_and else tirx.Not(left))
        right = yield self._plain(node.b, condition)
        return left if is_and and self._is_true(right) else type(node)(left, right)

    def _is_common(self, node: Expr) -> bool:
        """Whether an expression is the same in all lanes, and in terms of nothing that is kept."""
        variables = nodes_in(node, tvm.ir.Var)
        return not uses(node, self._lane) and not any(var in self._values for var in variables)

    def _reads_memory(self, node: Expr) -> bool:
        """Whether an expression reads more than what is kept."""
        return any(load.source not in self._values for load in nodes_in(node, Load))

    def _read(self, node: Expr, condition: Any | None) -> Recursion:
        """A read, of the first element where a condition does not hold."""
        if node.source in self._values:
            return self._values[node.source]
        if node.source in self._local:
            raise NotInVectors  # it was set by another trip, if at all
        indices = []
        for number, given in enumerate(node.indices):
            index = yield self._plain(given, condition)
            extent = static(node.source.shape[number])
            if condition is not None and not self._is_inside(index, extent):
                # In one expression with a choice on the same condition TVM would take it to hold.
                indices.append(self.keep(tirx.Select(condition, index, _zero(index))))
            else:
                indices.append(index)
        return tirx.BufferLoad(node.source, indices)

    def _is_true(self, condition: Any) -> bool:
        """Whether a condition is known to hold in all lanes."""
        condition = self._with_ranges(condition)
        return not nodes_in(condition, Load) and bool(self._analyzer.can_prove(condition))

    def _is_inside(self, index: Any, extent: int | None) -> bool:
        """Whether an index is known to be inside of an axis."""
        return extent is not None and self._is_true(tirx.all(index >= 0, index < extent))

    def _with_ranges(self, value: Any) -> Any:
        """An expression with variables, whose ranges are known, for remainders of data.

        TVM's analysis fails on loads. Whatever data are, remainders by a number have a range.
        """
        if not nodes_in(value, Load):
            return value
        return replace_nodes(value, prim.FloorMod, self._with_range)

    def _with_range(self, remainder: Any) -> Any:
        divisor = static(remainder.b)
        if not divisor or divisor < 0 or not nodes_in(remainder.a, Load):
            return remainder
        for earlier, var in self._remainders:
            if tvm_ffi.structural_equal(earlier, remainder):
                return var
        var = variable("remainder", str(remainder.ty))
        self._analyzer.bind(var, tvm.ir.Range(0, divisor))
        self._remainders.append((remainder, var))
        return var

    def _choice(
        self, test: Expr, true_value: Expr, false_value: Expr, condition: Any | None
    ) -> Recursion:
        """A choice: of two computed values, unless all lanes choose alike."""
        holds = yield self._plain(test, condition)
        if self._is_true(holds):
            return (yield self._plain(true_value, condition))
        if self._is_true(tirx.Not(holds)):
            return (yield self._plain(false_value, condition))
        if not uses(holds, self._lane):
            return (yield self._uniform_choice(holds, true_value, false_value, condition))
        holds = self._kept_condition(holds)
        chosen = yield self._plain(true_value, self._both(condition, holds))
        other = yield self._plain(false_value, self._both(condition, tirx.Not(holds)))
        return tirx.Select(holds, chosen, other)

    def _uniform_choice(
        self, holds: Any, true_value: Expr, false_value: Expr, condition: Any | None
    ) -> Recursion:
        """A choice that is the same in all lanes, which branches: what is not chosen reads nothing.

        But what is kept is computed in front of it. Where that may read beside a tensor, its reads
        are guarded like those of any other choice.
        """
        statements, conditions = len(self.statements), len(self._conditions)
        chosen = yield self._plain(true_value, condition)
        other = yield self._plain(false_value, condition)
        if any(map(self._may_read_beside, self.statements[statements:])):
            del self.statements[statements:], self._conditions[conditions:]
            kept = self._kept_condition(holds)
            chosen = yield self._plain(true_value, self._both(condition, kept))
            other = yield self._plain(false_value, self._both(condition, tirx.Not(kept)))
        return tirx.if_then_else(holds, chosen, other)

    def _may_read_beside(self, statement: Any) -> bool:
        """Whether a statement reads, of memory that is not kept, what may not be there."""
        return any(
            not self._is_inside(index, static(extent))
            for load in nodes_in(statement, Load)
            if not is_among(load.source, self.buffers)
            for index, extent in zip(load.indices, load.source.shape, strict=True)
        )

    def _kept_condition(self, condition: Any) -> Any:
        """A condition, kept: equal ones once."""
        for earlier, kept in self._conditions:
            if tvm_ffi.structural_equal(earlier, condition):
                return kept
        self._conditions.append((condition, self.keep(condition)))
        return self._conditions[-1][1]

    def _both(self, a: Any | None, b: Any) -> Any:
        return b if a is None else self._kept_condition(tirx.And(a, b))


def lanes_of(extent: int, lanes: int) -> int:
    """How many neighbors to compute side by side: a vector, or all if they are not too few."""
    return lanes if extent >= lanes else extent if 4 * extent >= lanes else 1


def common_conditions(statement: Any, lane: Any, local: Sequence[Any]) -> tuple[list[Any], Any]:
    """The conditions of a branch that are the same in all lanes, and what is done under these."""
    conditions: list[Any] = []
    while isinstance(statement, tirx.IfThenElse) and statement.else_case is None:
        condition = statement.condition
        is_local = any(is_among(load.source, local) for load in nodes_in(condition, Load))
        if is_local or uses(condition, lane):
            break
        conditions.append(condition)
        statement = statement.then_case
    return conditions, statement


def under(conditions: Sequence[Any], statement: Any) -> Any:
    """A statement under conditions, each of which is evaluated where those before it hold."""
    for condition in reversed(conditions):
        statement = tirx.IfThenElse(condition, statement, None)
    return statement


def distinct(expressions: Sequence[Any]) -> list[Any]:
    """Expressions, equal ones once."""
    found: list[Any] = []
    for each in expressions:
        if not any(tvm_ffi.structural_equal(each, other) for other in found):
            found.append(each)
    return found


def axes_of(ranges: Mapping[Any, tuple[int, int]]) -> list[Axis]:
    """Loops, given by the first value of each variable and the one behind its last."""
    return [
        Axis(var, tirx.const(start, str(var.ty)), tirx.const(end - start, str(var.ty)))
        for var, (start, end) in ranges.items()
    ]


def _int32(value: int) -> Any:
    return tirx.const(value, "int32")


def _zero(like: Any) -> Any:
    return tirx.const(0, str(like.ty))
