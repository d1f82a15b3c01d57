"""Operands of a contraction on tensor cores: their elements, and how threads copy tiles of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import tirx

from ....ir.kernel_structure import (
    Load,
    is_conditional,
    stride,
    substitute_values,
    uses,
)
from ....ir.loops import index, load, loop, registers, sequence, store, unravel, variable
from ....ir.visits import nodes_in, replace_nodes
from ..lanes import is_wide, over_lanes
from .device import TF32, Layout, chunk_elements, rounded, stored_dtype

Loops = Sequence[Any]


@dataclass(frozen=True)
class Operand:
    """A factor of a contraction.

    Attributes
    ----------
    number : str
        What tensor cores read it as.
    value : Expr
        An element, in the variables of the loops.
    condition : Expr
        Where it is false, the element is 0, and `value` must not be computed.
    batch, rows, terms : list of For
        The loops over the products, over the rows of the operand (columns, of the right one), and
        over what is summed; only variables and ranges are used.
    """

    number: str
    value: Any
    condition: Any
    batch: Loops
    rows: Loops
    terms: Loops

    @cached_property
    def row_count(self) -> int:
        """How many rows there are."""
        return points(self.rows)

    @cached_property
    def term_count(self) -> int:
        """How many terms a row has."""
        return points(self.terms)

    def at(self, product: Any, row: Any, term: Any) -> tuple[Any, Any]:
        """The condition and the value of an element, given the numbers of its indices."""
        values = {
            var: value
            for loops, number in ((self.batch, product), (self.rows, row), (self.terms, term))
            for var, value in point(loops, number).items()
        }
        return substitute_values(self.condition, values), substitute_values(self.value, values)

    @cached_property
    def neighbors(self) -> Neighbors:
        """As many neighbors along terms, or along rows, as move at once."""
        along_terms, along_rows = self._widest(True), self._widest(False)
        if along_terms.width == along_rows.width == 1:
            first = next(iter(nodes_in(self.value, Load)), None)
            innermost = self.rows[-1].loop_var
            is_along_rows = first is not None and stride(first, innermost) == 1
            return along_rows if is_along_rows else along_terms
        return along_terms if along_terms.width >= along_rows.width else along_rows

    def _widest(self, along_terms: bool) -> Neighbors:
        width = chunk_elements(self.number)
        while (found := self._neighbors(along_terms, width)) is None:
            width //= 2
        return found

    def _neighbors(self, along_terms: bool, width: int) -> Neighbors | None:
        """So many neighbors; None if they are none in memory, or only some may be inside."""
        count, others = self.term_count, self.row_count
        if not along_terms:
            count, others = others, count
        if count % width:
            return None
        variables = [variable(name) for name in ("product", "line", "group", "lane")]
        product, line, group, lane = variables
        analyzer = tvm.sym.Analyzer()
        extents = (points(self.batch), others, count // width, width)
        for var, extent in zip(variables, extents, strict=True):
            analyzer.bind(var, tvm.ir.Range.from_min_extent(index(0), index(extent)))
        neighbor = group * width + (lane if width > 1 else index(0))
        row, term = (line, neighbor) if along_terms else (neighbor, line)
        condition, value = self.at(product, row, term)
        condition = analyzer.simplify(condition)
        if width == 1:
            return Neighbors(along_terms, 1, product, line, group, lane, condition, value, [])
        loads = nodes_in(value, Load)
        if uses(condition, lane) or not loads:
            return None
        if not all(is_wide(each, lane, width, analyzer) for each in loads):
            return None
        bound: list[tuple[Any, Any]] = []

        def at_variables(read: Any) -> Any:
            """A load at indices that are variables, but for the lane."""
            indices = [analyzer.simplify(each) for each in read.indices]
            firsts = [substitute_values(each, {lane: index(0)}) for each in indices]
            variables = [variable("at") for _ in indices]
            bound.extend(zip(variables, map(analyzer.simplify, firsts), strict=True))
            pairs = zip(variables, indices, strict=True)
            return load(read.source, [var + lane if uses(at, lane) else var for var, at in pairs])

        if any(self._is_gathered(each, lane, analyzer) for each in loads):
            return None
        value = replace_nodes(value, Load, at_variables)
        return Neighbors(along_terms, width, product, line, group, lane, condition, value, bound)

    @staticmethod
    def _is_gathered(read: Any, lane: Any, analyzer: Any) -> bool:
        """Whether an index depends on memory, or on the lane in another way than by adding it."""
        firsts = [substitute_values(each, {lane: index(0)}) for each in read.indices]
        return bool(nodes_in(list(read.indices), Load)) or not all(
            analyzer.can_prove_equal(at, first)
            if not uses(analyzer.simplify(at), lane)
            else analyzer.can_prove_equal(at, first + lane)
            for at, first in zip(read.indices, firsts, strict=True)
        )


@dataclass(frozen=True)
class Neighbors:
    """Elements of an operand that are neighbors in memory, as expressions.

    Attributes
    ----------
    along_terms : bool
        Whether they belong to neighboring terms of a row, or to neighboring rows of a term.
    width : int
        How many they are.
    product, line, group, lane : Var
        The number of the product, of the row (the term, along rows), of the group of neighbors in
        it, and of a neighbor.
    condition, value : Expr
        As of an operand; the condition is the same for all neighbors.
    bound : list of (Var, Expr)
        Variables in `value`, and what they stand for: indices without the lane.
    """

    along_terms: bool
    width: int
    product: Any
    line: Any
    group: Any
    lane: Any
    condition: Any
    value: Any
    bound: list[tuple[Any, Any]]


def operand_of(number: str, factor: Any, batch: Loops, rows: Loops, terms: Loops) -> Operand:
    """The operand that a factor is; what a choice at its top replaces by 0 is told apart."""
    condition: Any = tirx.const(True, "bool")
    while True:
        if is_conditional(factor):
            holds, chosen, other = factor.args
        elif isinstance(factor, tirx.Select):
            holds, chosen, other = factor.condition, factor.true_value, factor.false_value
        else:
            break
        if not (isinstance(other, tirx.FloatImm) and other.value == 0):
            break
        condition, factor = tirx.And(condition, holds), chosen
    return Operand(number, factor, condition, batch, rows, terms)


@dataclass(frozen=True)
class Copy:
    """The copying of a tile of an operand to shared memory, by way of a thread's registers.

    Attributes
    ----------
    operand : Operand
    layout : Layout
    threads : int
        Of a block.
    held : Buffer
        The registers, for the chunks of a thread.
    tiles : Buffer
        Two stages of the tile.
    """

    operand: Operand
    layout: Layout
    threads: int
    held: Any
    tiles: Any

    @classmethod
    def of(cls, operand: Operand, rows: int, threads: int, name: str) -> Copy:
        """The copying of tiles of so many rows by so many threads, into memory of a name."""
        layout = Layout(operand.number, rows, operand.neighbors.along_terms)
        dtype = stored_dtype(operand.number)
        tiles = tirx.decl_buffer([index(2), index(layout.elements)], dtype, name, scope="shared")
        held = registers("held", (layout.elements // threads,), dtype)
        return cls(operand, layout, threads, held, tiles)

    @property
    def _held_elements(self) -> int:
        """Numbers that a thread copies."""
        return self.layout.elements // self.threads

    @property
    def _chunk(self) -> int:
        return chunk_elements(self.operand.number)

    def fetched(self, thread: Any, product: Any, tile: Any, stage: Any) -> Any:
        """The statement that loads a thread's chunks of a tile, of a stage."""
        width = self.operand.neighbors.width
        return sequence(
            *(
                statement
                for place in range(0, self._held_elements, width)
                for statement in self._held(thread, product, tile, stage, place)
            )
        )

    def _held(self, thread: Any, product: Any, tile: Any, stage: Any, place: int) -> Iterator[Any]:
        """Yield the statements that hold some neighbors of a tensor at a place, or zeros."""
        operand, layout, elements = self.operand, self.layout, self.operand.neighbors
        width, lane = elements.width, variable("lane")
        line, chunk = self._line_and_chunk(thread, place // self._chunk)
        tile_of_groups, tile_of_lines = (stage, tile) if layout.along_terms else (tile, stage)
        group = tile_of_groups * layout.chunks + chunk
        group = group * (self._chunk // width) + place % self._chunk // width
        line = tile_of_lines * layout.lines + line
        values = {elements.product: product, elements.group: group, elements.line: line}
        for var, first in elements.bound:
            values[var] = variable(var.name)
            yield tirx.Bind(values[var], substitute_values(first, values))
        value = substitute_values(elements.value, {**values, elements.lane: lane})
        if operand.number == TF32:
            value = rounded(value)
        loaded = store(self.held, [place + (lane if width > 1 else index(0))], value)
        if width > 1:
            loaded = over_lanes(lane, width, loaded)
        condition = self._inside(substitute_values(elements.condition, values), line, group)
        if isinstance(condition, tirx.IntImm) and condition.value:
            yield loaded
            return
        zero = tirx.const(0, str(self.held.dtype))
        zeros = [store(self.held, [index(place + i)], zero) for i in range(width)]
        yield tirx.IfThenElse(condition, loaded, sequence(*zeros))

    def _inside(self, condition: Any, line: Any, group: Any) -> Any:
        """A condition, and that neighbors are inside the operand, where tiles are not full."""
        operand, layout, width = self.operand, self.layout, self.operand.neighbors.width
        stage_terms = layout.elements // layout.rows
        row, term = (line, group * width) if layout.along_terms else (group * width, line)
        if operand.row_count % layout.rows:
            condition = tirx.And(row < operand.row_count, condition)
        if operand.term_count % stage_terms:
            condition = tirx.And(term < operand.term_count, condition)
        return tvm.sym.Analyzer().simplify(condition)

    def shared(self, thread: Any, stage: Any) -> Any:
        """The statement that stores a thread's chunks to a stage of the tile."""
        statements = []
        for place in range(0, self._held_elements, self._chunk):
            line, chunk = self._line_and_chunk(thread, place // self._chunk)
            at = (line * self.layout.chunks + self.layout.rotated(line, chunk)) * self._chunk
            lane = variable("lane")
            moved = store(self.tiles, [stage, at + lane], load(self.held, [lane + place]))
            statements.append(loop(lane, self._chunk, moved, tirx.ForKind.VECTORIZED))
        return sequence(*statements)

    def _line_and_chunk(self, thread: Any, turn: int) -> tuple[Any, Any]:
        """Which chunk of the tile a thread copies in one of its turns."""
        number = thread + turn * self.threads
        chunks = self.layout.chunks
        return tirx.floordiv(number, chunks), tirx.floormod(number, chunks)


def points(loops: Loops) -> int:
    """The points of nested loops of known extents."""
    return math.prod(int(each.extent) for each in loops)


def point(loops: Loops, number: Any) -> dict[Any, Any]:
    """The values of nested loops' variables at a point, given its number."""
    indices = unravel(number, [int(each.extent) for each in loops])
    return {each.loop_var: at + each.min for each, at in zip(loops, indices, strict=True)}
