"""Lanes: consecutive elements that one thread computes, so that it moves them in wide accesses.

A schedule gives a thread a *loop over lanes*, in which the statement stays as it is: what proves
that a kernel may work in place looks at it. Where the kernel is lowered, `widen_accesses` moves all
lanes of a load or a store at once, by way of registers, if they are neighbors in memory and begin
at a multiple of their size. What is computed between them stays scalar: choices, gathers and
functions that have no form for vectors hinder nothing.

Tensors begin at a multiple of 64 bytes: VM storage does, views of another offset are refused by
kernels, and foreign tensors are not taken unless they do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.tirx import ForKind

from ...ir.exact_divisions import without_hiding
from ...ir.kernel_rewrite import replace_realized, with_body
from ...ir.kernel_structure import (
    Load,
    buffer_of,
    is_conditional,
    same_indices,
    static,
    substitute_values,
    uses,
)
from ...ir.loops import index, load, loop, registers, sequence, store, variable
from ...ir.tensor import bits
from ...ir.visits import nodes_in, replace_nodes, visit_nodes
from .threads import at_point

_LANES = "graphgrad.lanes"
"""Marks a loop over lanes."""

_WIDEST = 16
"""Bytes of the widest access that a thread has."""

MIN_POINTS = 1 << 14
"""Points from which on a thread gets more than one: fewer would leave most of a GPU idle."""

_MAX_SHARERS = 16
"""Points for each element of a tensor up to which its bytes count beside those of others."""

_MAX_INDICES = 4
"""Lanes of a vector of indices, at most."""

_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "int8", "uint8", "bool")
"""Dtypes that move in vectors."""

_BYTES = {"bool": "uint8"}
"""What is moved in the place of dtypes that have no vectors in CUDA."""


def lanes_of(loops: Sequence[Any], accesses: Iterable[Any]) -> int:
    """How many points of nested loops, outermost first, a thread should compute; 1 for no loop.

    So many as fill the widest access of the narrowest tensor, or half of them, if they divide the
    points of some innermost loops.
    """
    extents = [static(each.extent) for each in loops]
    if None in extents or (points := math.prod(extents)) < MIN_POINTS:  # type: ignore[arg-type]
        return 1
    lanes = wide_lanes(large(accesses, points))
    while lanes > 1 and points % lanes:
        lanes //= 2
    return lanes


def large(accesses: Iterable[Any], points: int) -> list[Any]:
    """The accesses whose tensors decide how many lanes a thread has; all if none is large.

    Not those of few elements, such as a number or a flag for each channel: threads share them in
    near caches, and more lanes cost registers.
    """
    accesses = list(accesses)
    return [a for a in accesses if _elements(a) * _MAX_SHARERS >= points] or accesses


def _elements(access: Any) -> float:
    """The elements of what is accessed; infinitely many if their number is not known."""
    extents = [static(extent) for extent in buffer_of(access).shape]
    return math.inf if None in extents else math.prod(extents)  # type: ignore[arg-type]


def is_vector_dtype(buffer: Any) -> bool:
    """Whether elements of a buffer can be moved together."""
    return str(buffer.dtype) in _DTYPES


def wide_lanes(accesses: Iterable[Any]) -> int:
    """How many elements of the narrowest of some tensors fill the widest access."""
    dtypes = {str(buffer_of(access).dtype) for access in accesses}
    sizes = [_bytes(dtype) for dtype in dtypes if dtype in _DTYPES]
    return _WIDEST // min(sizes, default=_WIDEST)


def split_lanes(
    loops: Sequence[Any], lanes: int, inner: int = 1
) -> tuple[list[Any], Any, dict[Any, Any]]:
    """Nested loops with the lanes of a thread apart.

    Parameters
    ----------
    loops : sequence of For
        Outermost first.
    lanes : int
    inner : int
        How many innermost loops become one, at least: if these have a multiple of the lanes.

    Returns
    -------
    outer : list of For
        Loops over what is left of the points: of them, variables and ranges are used alone.
    lane : Var
    values : dict
        The values of the given loops' variables.
    """
    while math.prod(int(each.extent) for each in loops[-inner:]) % lanes:
        inner += 1
    kept, cut = list(loops[:-inner]), loops[-inner:]
    lane, group = variable("lane"), variable("group")
    points = math.prod(int(each.extent) for each in cut)
    groups = loop(group, points // lanes, tirx.Evaluate(0))
    return [*kept, groups], lane, at_point(cut, group * lanes + lane)


def over_lanes(lane: Any, lanes: int, body: Any) -> Any:
    """A loop over the lanes of a thread; its body is a store, and bindings of values before it."""
    if lanes == 1:
        return substitute_values(body, {lane: index(0)})
    marks = {_LANES: index(lanes)}
    return tirx.For(lane, index(0), index(lanes), ForKind.UNROLLED, body, None, marks)


def each_lane(lane: Any, lanes: int, statements: Iterable[Any]) -> Any:
    """Statements of one lane of a thread, for each of its lanes."""
    own = variable("lane")
    return over_lanes(own, lanes, substitute_values(sequence(*statements), {lane: own}))


def widen_accesses(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled PrimFunc whose threads move their lanes in wide accesses, where that may be."""
    return func.with_body(_widened(func.body, tvm.sym.Analyzer()))


def unroll_flags(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled PrimFunc in which no vectorized loop reads or writes booleans.

    TVM would take each for 16 bits of memory. Schedules of TVM's own, and kernels written by hand,
    have such loops.
    """

    def unrolled(vectors: Any) -> Any:
        var, first, extent, body = vectors.loop_var, vectors.min, vectors.extent, vectors.body
        if vectors.kind == ForKind.VECTORIZED and any(
            str(buffer_of(access).dtype) == "bool"
            for access in nodes_in(body, (Load, tirx.BufferStore))
        ):
            return tirx.For(var, first, extent, ForKind.UNROLLED, body)
        return vectors

    return func.with_body(replace_nodes(func.body, tirx.For, unrolled))


def _widened(statement: Any, analyzer: Any) -> Any:
    """A statement with its loops over lanes replaced.

    Parameters
    ----------
    statement : Stmt
    analyzer : Analyzer
        It knows the ranges of the variables of the loops around the statement, and what holds where
        it runs.
    """
    if isinstance(statement, tirx.SeqStmt):
        return sequence(*(_widened(part, analyzer) for part in statement.seq))
    if isinstance(statement, tirx.Bind):
        if str(statement.var.ty) in ("int32", "int64"):  # indices
            analyzer.bind(statement.var, statement.value)
        return statement
    if isinstance(statement, SBlockRealize):
        body = _widened(statement.block.body, analyzer)
        return replace_realized(statement, body=body)
    if isinstance(statement, tirx.IfThenElse):
        holds, other = statement.condition, statement.else_case
        with analyzer.constraint_scope(holds):
            body = _widened(statement.then_case, analyzer)
        if other is not None:
            with analyzer.constraint_scope(analyzer.simplify(tirx.Not(holds))):
                other = _widened(other, analyzer)
        return tirx.IfThenElse(holds, body, other)
    if not isinstance(statement, tirx.For):
        return statement
    extent = tvm.ir.Range.from_min_extent(statement.min, statement.extent)
    analyzer.bind(statement.loop_var, extent)
    if _LANES in statement.annotations:
        return _Lanes(statement, analyzer).statement()
    return with_body(statement, _widened(statement.body, analyzer))


def is_wide(access: Any, lane: Any, lanes: int, analyzer: Any) -> bool:
    """Whether the lanes of an access are neighbors in memory, from a multiple of their size.

    Parameters
    ----------
    access : TensorLoad or BufferStore
    lane : Var
    lanes : int
    analyzer : Analyzer
        It knows the ranges of all variables.
    """
    buffer = buffer_of(access)
    shape = [static(extent) for extent in buffer.shape]
    if not is_vector_dtype(buffer) or buffer.scope() != "global" or None in shape:
        return False
    position = index(0)
    for at, extent in zip(access.indices, shape, strict=True):
        position = position * extent + without_hiding(index(at))
    first = substitute_values(position, {lane: index(0)})
    if not analyzer.can_prove_equal(position, first + lane):
        return False
    aligned = analyzer.modular_set(analyzer.simplify(first))
    step = _lanes_at_a_time(lanes, buffer)
    is_aligned = int(aligned.coeff) % step == 0 and int(aligned.base) % step == 0
    return is_aligned and (step > 1 or lanes == 1)


def _lanes_at_a_time(lanes: int, buffer: Any) -> int:
    """How many lanes an access moves: a power of two, since no others are vectors of CUDA's.

    Where accesses may leave a row, TVM may write their indices as vectors: it has those of four.
    """
    most = _WIDEST // _bytes(str(buffer.dtype))
    leaves_row = bool(buffer.shape) and int(buffer.shape[-1]) % most != 0
    return math.gcd(lanes, min(most, _MAX_INDICES) if leaves_row else most)


class _Lanes:
    """Writes a loop over lanes as wide loads, scalar work of all lanes, and wide stores."""

    def __init__(self, lanes: Any, analyzer: Any):
        self._loop, self._lane = lanes, lanes.loop_var
        self._lanes = int(lanes.extent)
        self._analyzer = analyzer
        self._written = nodes_in(lanes.body, tirx.BufferStore)
        self._conditions = _conditions_of_loads(lanes.body)
        # Each load, the registers that hold its lanes, and under which condition it is made.
        self._loaded: list[tuple[Any, Any, Any]] = []
        self._stored: list[tuple[Any, Any]] = []
        self._views: dict[Any, Any] = {}

    def statement(self) -> Any:
        """The statements that take the loop's place."""
        body = replace_nodes(self._loop.body, Load, self._from_registers)
        body = replace_nodes(body, tirx.BufferStore, self._to_registers)
        return sequence(
            *(tirx.AllocBuffer(held) for _, held, *_ in (*self._loaded, *self._stored)),
            *(tirx.DeclBuffer(view, data=buffer.data) for buffer, view in self._views.items()),
            *(self._made_if(c, self._moved(held, access)) for access, held, c in self._loaded),
            with_body(self._loop, body),
            *(self._moved(held, access) for access, held in self._stored),
        )

    def _from_registers(self, access: Any) -> Any:
        """A lane's element of a load, which is held in registers if it may be loaded widely."""
        for known, held, _ in self._loaded:
            if tvm_ffi.structural_equal(known, access):
                return load(held, [self._lane]).astype(str(access.source.dtype))
        condition = self._condition(access)
        if static(condition) == 0:
            return access
        held = self._registers("lanes", access.source)
        self._loaded.append((access, held, condition))
        return load(held, [self._lane]).astype(str(access.source.dtype))

    def _to_registers(self, access: Any) -> Any:
        """A store to registers, from where all lanes are stored, if that may be done widely."""
        if not self._is_wide(access):
            return access
        held = self._registers("result", access.buffer)
        self._stored.append((access, held))
        return store(held, [self._lane], access.value.astype(str(held.dtype)))

    def _registers(self, name: str, buffer: Any) -> Any:
        """Registers for all lanes of a buffer; where they are of another dtype, it gets a view."""
        dtype = str(buffer.dtype)
        moved = _BYTES.get(dtype, dtype)
        if moved != dtype and buffer not in self._views:
            self._views[buffer] = tirx.decl_buffer(buffer.shape, moved, "bytes")
        return registers(name, (self._lanes,), moved)

    def _condition(self, access: Any) -> Any:
        """Under which condition all lanes of a load may be loaded before anything is computed."""
        never, always = tirx.const(False, "bool"), tirx.const(True, "bool")
        for written in self._written:
            if written.buffer.same_as(access.source) and not same_indices(access, written):
                return never  # a lane may read what another one has written
        if not self._is_wide(access):
            return never
        conditions = [c for made, c in self._conditions if tvm_ffi.structural_equal(access, made)]
        if not all(conditions) or self._in_range(access):
            return always
        made = [self._analyzer.simplify(reduce(tirx.And, each)) for each in conditions]
        # What decides must be the same for all lanes, as at the border of an image.
        return never if any(uses(each, self._lane) for each in made) else reduce(tirx.Or, made)

    @staticmethod
    def _made_if(condition: Any, statement: Any) -> Any:
        return statement if static(condition) else tirx.IfThenElse(condition, statement, None)

    def _is_wide(self, access: Any) -> bool:
        return is_wide(access, self._lane, self._lanes, self._analyzer)

    def _in_range(self, access: Any) -> bool:
        """Whether a load is inside its tensor where it would not be made, too."""
        bounds = [
            tirx.And(at >= 0, at < extent)
            for at, extent in zip(access.indices, access.source.shape, strict=True)
        ]
        return all(self._analyzer.can_prove(bound) for bound in bounds)

    def _moved(self, held: Any, access: Any) -> Any:
        """The statement that moves all lanes between memory and registers, 16 bytes at a time."""
        step = _lanes_at_a_time(self._lanes, buffer_of(access))
        loads = isinstance(access, Load)
        buffer = self._views.get(buffer_of(access), buffer_of(access))

        def part(first: int) -> Any:
            lane = variable("lane")
            number = lane + first
            # Lanes are neighbors in memory, in which rows follow each other: so the last index may
            # leave its row. TVM sees lanes in no index that is hidden from it, and writes quotients
            # of eight lanes as no compiler takes them.
            *outer, last = (substitute_values(at, {self._lane: index(0)}) for at in access.indices)
            indices = [*outer, last + number]
            if loads:
                moved = store(held, [number], load(buffer, indices))
            else:
                moved = store(buffer, indices, load(held, [number]))
            return loop(lane, step, moved, ForKind.VECTORIZED)

        return sequence(*map(part, range(0, self._lanes, step)))


def _conditions_of_loads(body: Any, around: Sequence[Any] = ()) -> list[tuple[Any, list[Any]]]:
    """The loads of a statement, each with the conditions of the choices that decide on it."""
    found: list[tuple[Any, list[Any]]] = []

    def visit(node: Any) -> Any:
        if is_conditional(node):
            condition, chosen, other = node.args
            found.extend(_conditions_of_loads(condition, around))
            found.extend(_conditions_of_loads(chosen, [*around, condition]))
            found.extend(_conditions_of_loads(other, [*around, tirx.Not(condition)]))
            return tvm_ffi.WalkResult.SKIP
        if isinstance(node, Load):
            found.append((node, list(around)))
        return None

    visit_nodes(body, (Load, tvm.ir.Call), visit, outer_first=True)
    return found


def _bytes(dtype: str) -> int:
    return bits(dtype) // 8
