"""Long sums in blocks of few terms, so that rounding errors do not grow with their length.

    for t in terms:                     total = 0                           float64
      sum += term(t)                    for b in blocks:
                                          part = 0                          float32
                                          for t in terms of block b:
                                            part += term(t)
                                          total += part
                                        sum += total

A running sum of n terms is off by up to n roundings, all in one direction where terms are alike. In
blocks it is off by those of one block, because blocks are added up in float64; that costs little,
as a block of vectors is one conversion and one addition. Higham, *The accuracy of floating point
summation* (1993), compares orders of addition.

Loops are rewritten when they are scheduled, so that all schedules are served. Sums that are
computed side by side, as lanes of vectors or in a row, are in blocks together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import ForKind

from ...ir.kernel_rewrite import replace_block, replace_realized, with_body
from ...ir.kernel_structure import (
    Load,
    bound_values,
    is_among,
    static,
    substitute_values,
    uses,
)
from ...ir.loops import (
    MIN_HEAP_BYTES,
    block,
    ceil_div,
    index,
    load,
    loop,
    sequence,
    store,
    variable,
)
from ...ir.tensor import bits
from ...ir.visits import nodes_in, replace_nodes
from ...tvm_fixes.hooks import identity

_BLOCK_TERMS = 16
"""Terms of a block of float32: fewer take longer, more are less accurate."""

SHORT_SUM = 2 * _BLOCK_TERMS
"""Terms of a sum, at most, that is never worth blocks."""

_MAX_SUMS = 1 << 16
"""The most sums that are in blocks together: the parts of more would stay in no near cache."""

_ASSUMED_TRIPS = 1024
"""What an unknown number of trips is taken for."""

_SERIAL = (ForKind.SERIAL, ForKind.UNROLLED)


def sum_in_blocks(statement: Any, scope: str = "global", total: str | None = "float64") -> Any:
    """A scheduled statement in which long sums of floats are in blocks.

    Parameters
    ----------
    statement : Stmt
        Loops, blocks and stores; statements of other kinds stay as they are.
    scope : str
        The scope of small buffers that are to be kept in registers.
    total : str or None
        The dtype in which blocks are added up; None for that of the sum, whose blocks are as long
        as they are many then.
    """
    if isinstance(statement, tirx.SeqStmt):
        return sequence(*(sum_in_blocks(part, scope, total) for part in statement.seq))
    if isinstance(statement, SBlockRealize):
        return replace_realized(statement, body=sum_in_blocks(statement.block.body, scope, total))
    if not isinstance(statement, tirx.For) or not _reads_what_it_stores(statement):
        return statement
    if statement.kind == ForKind.SERIAL:
        outer = replace_nodes(statement, tirx.SeqStmt, _without_bindings)
        updates = _updates(outer)
        if updates and _trips(updates[0].reduced) > 2 * _block_terms(updates, total):
            return _Blocks(outer, updates, scope, total).statement()
    return with_body(statement, sum_in_blocks(statement.body, scope, total))


def _reads_what_it_stores(statement: Any) -> bool:
    """Whether a statement reads a buffer that it stores to, as each sum does: most loops do not."""
    stored = {identity(store.buffer) for store in nodes_in(statement, tirx.BufferStore)}
    return any(identity(each.source) in stored for each in nodes_in(statement, Load))


@dataclass(frozen=True)
class _Update:
    """A store in a loop that adds a term to a sum over this loop, and perhaps over inner ones.

    Attributes
    ----------
    store : BufferStore
    indices : list of Expr
        Those of the store, in variables of loops.
    term : Expr
    reduced : list of For
        The loops over terms, outermost first.
    kept : list of For
        The inner loops over sums, outermost first.
    """

    store: Any
    indices: list[Any]
    term: Any
    reduced: list[Any]
    kept: list[Any]

    @property
    def dtype(self) -> str:
        """The dtype of the sum."""
        return str(self.store.buffer.dtype)


def _updates(outer: Any) -> list[_Update]:
    """The updates of sums over a loop; nothing else in the loop reads or writes these sums.

    They have their loops over terms in common.
    """
    accesses: list[Any] = []
    stores = list(_stores(outer.body, [], {}, accesses))
    updates = [u for u in (_update(outer, *store) for store in stores) if u is not None]
    buffers = [update.store.buffer for update in updates]

    def is_exclusive(update: _Update) -> bool:
        buffer = update.store.buffer
        # Each update reads its sum once and stores it once.
        return sum(map(buffer.same_as, accesses)) == 2 * sum(map(buffer.same_as, buffers))

    updates = [update for update in updates if is_exclusive(update)]
    return [update for update in updates if _same_loops(update.reduced, updates[0].reduced)]


def _stores(
    statement: Any, around: list[Any], values: Mapping[Any, Any], accesses: list[Any]
) -> Iterator[tuple[Any, list[Any], Mapping[Any, Any]]]:
    """The stores of a statement, with the loops around them and the values of blocks' variables.

    Stores inside of statements of other kinds are left out, as are those of blocks that begin a
    reduction. The buffer of each read and each store is added to `accesses`.
    """
    if isinstance(statement, tirx.SeqStmt):
        for part in statement.seq:
            yield from _stores(part, around, values, accesses)
    elif isinstance(statement, tirx.For):
        yield from _stores(statement.body, [*around, statement], values, accesses)
    elif isinstance(statement, SBlockRealize) and statement.block.init is None:
        variables = [axis.var for axis in statement.block.iter_vars]
        bound = [substitute_values(value, values) for value in statement.iter_values]
        inner_values = {**values, **dict(zip(variables, bound, strict=True))}
        yield from _stores(statement.block.body, around, inner_values, accesses)
    else:
        accesses += [load.source for load in nodes_in(statement, Load)]
        accesses += [store.buffer for store in nodes_in(statement, tirx.BufferStore)]
        if isinstance(statement, tirx.BufferStore):
            yield statement, around, values


def _update(
    outer: Any, stored: Any, around: list[Any], values: Mapping[Any, Any]
) -> _Update | None:
    """A store in loops inside of another one as the update of a sum; None if it is none."""
    term = added_term(stored)
    indices = [substitute_values(index, values) for index in stored.indices]
    if term is None or str(stored.buffer.dtype) not in ("float32", "float64"):
        return None

    def is_kept(candidate: Any) -> bool:
        return any(uses(index, candidate.loop_var) for index in indices)

    kept = [inner for inner in around if is_kept(inner)]
    reduced = [outer, *(inner for inner in around if not is_kept(inner))]
    serves = (
        not is_kept(outer)
        and not nodes_in(indices, Load)
        and all(inner.kind in _SERIAL for inner in reduced)
        and all(inner.kind in (*_SERIAL, ForKind.VECTORIZED) for inner in kept)
        and all(static(inner.min) == 0 and static(inner.extent) for inner in kept)
        and _trips(kept) <= _MAX_SUMS
    )
    return _Update(stored, indices, term, reduced, kept) if serves else None


def added_term(store: Any, written: Sequence[Any] = ()) -> Any | None:
    """The term that a store adds to the element that it stores; None if it does something else.

    A term reads nothing of what is written, there or elsewhere.
    """
    if not isinstance(store.value, tirx.Add):
        return None
    for total, term in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
        is_total = (
            isinstance(total, Load)
            and total.source.same_as(store.buffer)
            and all(map(tvm_ffi.structural_equal, total.indices, store.indices))
        )
        if is_total and not any(
            is_among(load.source, [store.buffer, *written]) for load in nodes_in(term, Load)
        ):
            return term
    return None


def _without_bindings(statements: tirx.SeqStmt) -> Any:
    """Statements that bind several sums, then store them, as stores alone.

    They are left as they are if they do anything else.
    """
    bound = bound_values(statements)
    stores = [part for part in statements.seq if isinstance(part, tirx.BufferStore)]
    if not bound or len(bound) + len(stores) != len(statements.seq):
        return statements
    written = [part.buffer for part in stores]
    stores = [store(s.buffer, s.indices, substitute_values(s.value, bound)) for s in stores]
    is_sums = all(added_term(part, written) is not None for part in stores)
    return sequence(*stores) if is_sums else statements


class _Blocks:
    """Writes a loop over terms in blocks."""

    def __init__(self, outer: Any, updates: Sequence[_Update], scope: str, total: str | None):
        self._outer, self._updates, self._scope, self._total = outer, updates, scope, total
        self._cut, self._length = _cut(updates, total)
        self._totals = [self._buffer("total", u.kept, total or u.dtype) for u in updates]
        self._parts = [self._buffer("part", self._inner(u), u.dtype) for u in updates]

    def statement(self) -> Any:
        """The statement that takes the loop's place."""
        # What is on the heap is allocated here, and not where TVM would do so, for each block.
        large = [part for part in self._parts if _size(part) >= MIN_HEAP_BYTES]
        touches = [store(part, [index(0)] * len(part.shape), _zero(part)) for part in large]
        clears = map(_cleared, self._totals, (update.kept for update in self._updates))
        body = replace_nodes(self._outer, (tirx.BufferStore, SBlock), self._in_parts)
        body = replace_nodes(body, tirx.For, self._in_blocks)
        ends = map(self._ended, self._updates, self._totals)
        buffers = [*self._totals, *self._parts]
        return block("sums", *touches, *clears, body, *ends, buffers=buffers)

    def _buffer(self, name: str, kept: Sequence[Any], dtype: str) -> Any:
        """A new buffer with an element for each point of loops over sums."""
        shape = [inner.extent for inner in kept] or [index(1)]
        return tirx.decl_buffer(shape, dtype, name, scope=self._scope)

    def _inner(self, update: _Update) -> list[Any]:
        """The loops over sums inside of the loop that is cut."""
        inside = [inner.loop_var for inner in nodes_in(self._cut.body, tirx.For)]
        return [inner for inner in update.kept if is_among(inner.loop_var, inside)]

    def _in_parts(self, node: Any) -> Any:
        """A store to a part, where it is one to a sum; a block that may access anything."""
        if isinstance(node, SBlock):
            return replace_block(node, reads=[], writes=[])
        for update, part in zip(self._updates, self._parts, strict=True):
            if node.same_as(update.store):
                indices = _point(self._inner(update))
                return store(part, indices, load(part, indices) + update.term)
        return node

    def _in_blocks(self, inner: Any) -> Any:
        """The loop that is cut as one over blocks, with one over the terms of each in it."""
        if not inner.loop_var.same_as(self._cut.loop_var):
            return inner
        dtype, trips = str(inner.loop_var.ty.dtype), static(inner.extent)
        length = self._length if trips is None else _divisor_near(trips, self._length)
        number, term = variable("number", dtype), variable("term", dtype)
        first = number * length
        is_even = trips is not None and trips % length == 0
        count = length if is_even else tirx.min(tirx.const(length, dtype), inner.extent - first)
        body = substitute_values(inner.body, {inner.loop_var: inner.min + first + term})
        each = zip(self._updates, self._parts, self._totals, strict=True)
        steps = [
            *(
                _cleared(part, self._inner(u))
                for u, part in zip(self._updates, self._parts, strict=True)
            ),
            loop(term, count, sum_in_blocks(body, self._scope, self._total)),
            *(self._added_up(*sums) for sums in each),
        ]
        return loop(number, ceil_div(inner.extent, length), sequence(*steps))

    def _added_up(self, update: _Update, part: Any, total: Any) -> Any:
        """The statement that adds the part of a block to the total."""

        def added(at: dict[Any, Any]) -> Any:
            indices = [at.get(i, i) for i in _point(update.kept)]
            of_part = [at.get(i, i) for i in _point(self._inner(update))]
            value = load(part, of_part).astype(str(total.dtype))
            return store(total, indices, load(total, indices) + value)

        return _over(self._inner(update), added)

    def _ended(self, update: _Update, total: Any) -> Any:
        """The statement that adds the total to the sum."""

        def ended(at: dict[Any, Any]) -> Any:
            indices = [substitute_values(i, at) for i in update.indices]
            value = load(update.store.buffer, indices).astype(str(total.dtype))
            value = value + load(total, [at.get(i, i) for i in _point(update.kept)])
            return store(update.store.buffer, indices, value.astype(update.dtype))

        return _over(update.kept, ended)


def _cut(updates: Sequence[_Update], total: str | None) -> tuple[Any, int]:
    """The loop over terms that is cut into blocks, and how many of its trips make a block.

    It is the outermost one whose trips have less terms than a block.
    """
    terms, reduced = _block_terms(updates, total), updates[0].reduced
    inside = [_trips(reduced[depth + 1 :]) for depth in range(len(reduced))]
    depth = next(depth for depth, count in enumerate(inside) if count < terms)
    return reduced[depth], terms // inside[depth]


def _block_terms(updates: Sequence[_Update], total: str | None) -> int:
    """The number of terms of a block.

    Blocks are as long as they are many where no wider type adds them up.
    """
    if total and any(update.dtype != total for update in updates):
        return _BLOCK_TERMS
    return max(_BLOCK_TERMS, math.isqrt(_trips(updates[0].reduced)))


def _trips(loops: Sequence[Any]) -> int:
    """The number of points of loops."""
    extents = [static(inner.extent) for inner in loops]
    return math.prod(_ASSUMED_TRIPS if extent is None else extent for extent in extents)


def _divisor_near(extent: int, length: int) -> int:
    """The divisor of an extent nearest to a length, up to twice or half of it; else the length."""
    candidates = [d for d in range(-(-length // 2), 2 * length + 1) if extent % d == 0]
    return min(candidates, key=lambda d: abs(math.log(d / length)), default=length)


def _same_loops(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(
        a.same_as(b) for a, b in zip(first, second, strict=True)
    )


def _point(kept: Sequence[Any]) -> list[Any]:
    """The indices of a partial sum in a buffer of those of loops."""
    return [inner.loop_var for inner in kept] or [index(0)]


def _over(kept: Sequence[Any], body: Callable[[dict[Any, Any]], Any]) -> Any:
    """Loops like others around a body, which is given the new variables of those."""
    new = {inner.loop_var: variable("sum", str(inner.loop_var.ty.dtype)) for inner in kept}
    statement = body(new)
    for inner in reversed(kept):
        statement = loop(new[inner.loop_var], inner.extent, statement, inner.kind)
    return statement


def _cleared(buffer: Any, kept: Sequence[Any]) -> Any:
    """The statement that stores zeros in a buffer of partial sums."""
    return _over(
        kept, lambda at: store(buffer, [at.get(i, i) for i in _point(kept)], _zero(buffer))
    )


def _zero(buffer: Any) -> Any:
    return tirx.const(0, str(buffer.dtype))


def _size(buffer: Any) -> int:
    """The size of a buffer in bytes."""
    return math.prod(map(int, buffer.shape)) * bits(str(buffer.dtype)) // 8
