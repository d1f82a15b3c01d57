"""Flat maps that run in one loop: what a chain of them does to the elements of its tensors.

The calls are composed one after the other. What one stores, the next one reads from a register, so
that a result that nothing else reads needs no memory. In each iteration calls read and write only
the element of that iteration, so the loop does the same as one loop for each call would. That holds
also for tensors that one call reads and a later one overwrites.

Tensors are identified by numbers from the caller: each argument has one, and each result, also one
that is in the memory of an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import tvm_ffi
from tvm import tirx

from ....ir.kernel_calls import variables_of
from ....ir.kernel_structure import Load, substitute_values
from ....ir.loops import sequence
from ....ir.visits import replace_nodes
from .flat import FlatMap

Keep = Callable[[Any], tuple[list[Any], Any]]
"""Given a value, returns the statements that store it for later, and a read of it."""


@dataclass(frozen=True)
class Call:
    """A call of a flat map.

    Attributes
    ----------
    kernel : FlatMap
        It has one result.
    arguments : sequence of int
        The numbers of the arguments.
    result : int
        The number of the result.
    overwritten : int or None
        The position of the argument in whose memory the result is; None if that is fresh.
    """

    kernel: FlatMap
    arguments: Sequence[int]
    result: int
    overwritten: int | None

    @cached_property
    def tensors(self) -> frozenset[int]:
        """The numbers of the arguments that are not scalars."""
        pairs = zip(self.kernel.params, self.arguments, strict=False)
        return frozenset(number for param, number in pairs if param.shape)


@dataclass
class Cell:
    """One tensor in memory that a chain reads or writes.

    Attributes
    ----------
    dtype : str
    argument : int or None
        The number of the tensor that is there before the chain; None if the chain allocates it.
    results : list of int
        The numbers of the results that the chain has stored there, in order: the last one is its
        content after the chain. Empty if the chain only reads it.
    value : Expr
        The expression of its element after the calls so far.
    """

    dtype: str
    argument: int | None
    results: list[int]
    value: Any

    @property
    def number(self) -> int:
        """A number of this tensor: that of the argument or, without one, of the first result."""
        return self.results[0] if self.argument is None else self.argument

    def is_meant_by(self, number: int) -> bool:
        """Whether a number is, or was at some time, that of the tensor in this memory."""
        return number == self.argument or number in self.results


@dataclass(frozen=True)
class Formula:
    """What a chain computes, in terms of placeholders for its cells and scalars.

    Placeholders of one number and dtype are the same in all formulas.

    Attributes
    ----------
    dtypes : list of str
        The dtypes of the cells: first of those that hold arguments, then of those that the chain
        allocates.
    argument_count : int
        How many cells hold arguments.
    scalars : list of int
        The numbers of the scalars.
    numbers : list of (Var, Expr)
        Intermediate values that are computed from scalars alone, in order.
    values : list of (Var, Expr)
        Intermediate values of each element, in order.
    stores : list of (int, Expr)
        The positions of cells, each once, and the values that are stored there.
    """

    dtypes: list[str]
    argument_count: int
    scalars: list[int]
    numbers: list[tuple[Any, Any]]
    values: list[tuple[Any, Any]]
    stores: list[tuple[int, Any]]

    def is_like(self, other: Formula) -> bool:
        """Whether both compute the same of their cells, with the same scalars."""
        return (
            (self.dtypes, self.argument_count, self.scalars)
            == (other.dtypes, other.argument_count, other.scalars)
            and [cell for cell, _ in self.stores] == [cell for cell, _ in other.stores]
            and tvm_ffi.structural_equal(self._statement, other._statement)
        )

    def first(self, scalars: Sequence[Any], keep: Keep) -> tuple[list[Any], dict[Any, Any]]:
        """The statements that are executed once, and the reads of their values for `statement`.

        Parameters
        ----------
        scalars : sequence of Expr
            The values of the scalars.
        keep : callable
            See `Keep`.
        """
        scalar_values = [
            (_number(i, str(value.ty.dtype)), value) for i, value in enumerate(scalars)
        ]
        reads: dict[Any, Any] = {}
        return _kept([*scalar_values, *self.numbers], reads, keep), reads

    def statement(
        self,
        reads: dict[Any, Any],
        cells: Sequence[Any],
        store: Callable[[int, Any], Any],
        keep: Keep,
    ) -> Any:
        """The statement that computes and stores one element of each cell.

        Parameters
        ----------
        reads : dict
            From variables to the reads of their values, as `first` returns them.
        cells : sequence of Expr
            The elements of those cells that hold arguments.
        store : callable
            Given the position of a cell and a value, returns the statement that stores it.
        keep : callable
            See `Keep`.
        """
        reads = reads | {_element(i, self.dtypes[i]): value for i, value in enumerate(cells)}
        statements = _kept(self.values, reads, keep)
        # Whatever is loaded has been loaded before the first store.
        return sequence(
            *statements, *(store(cell, substitute_values(v, reads)) for cell, v in self.stores)
        )

    @cached_property
    def _statement(self) -> Any:
        """The formula as one statement, which is only compared with others."""
        ends = [tirx.Evaluate(value) for _, value in self.stores]
        binds = [tirx.Bind(var, value) for var, value in (*self.numbers, *self.values)]
        return sequence(*binds, *ends)


class Chain:
    """Calls of flat maps on tensors of one length, composed in order.

    Attributes
    ----------
    calls : list of Call
    length : int
        The number of elements of each tensor.
    cells : list of Cell
    scalars : list of int
        The numbers of the scalars that the calls read.
    """

    def __init__(self, calls: Sequence[Call]):
        self.calls = list(calls)
        self.length = calls[0].kernel.length
        self.cells: list[Cell] = []
        self.scalars: list[int] = []
        self._numbers: list[tuple[Any, Any]] = []
        self._values: list[tuple[Any, Any]] = []
        for call in calls:
            self._add(call)

    def formula(self, is_needed: Callable[[int], bool]) -> tuple[Formula, list[Cell]]:
        """The formula of the chain, and its cells in the order of the formula.

        Parameters
        ----------
        is_needed : callable
            Whether anything outside of the chain reads the result with a number. A result that
            nothing reads is not stored, unless it is in the memory of an argument.
        """
        argument_cells = [cell for cell in self.cells if cell.argument is not None]
        result_cells = [
            c for c in self.cells if c.argument is None and any(map(is_needed, c.results))
        ]
        cells = [*argument_cells, *result_cells]
        stores = [(position, cell.value) for position, cell in enumerate(cells) if cell.results]
        dtypes = [cell.dtype for cell in cells]
        values = _read(self._values, [value for _, value in stores])
        numbers = _read(self._numbers, [value for _, value in (*values, *stores)])
        return Formula(dtypes, len(argument_cells), self.scalars, numbers, values, stores), cells

    def _add(self, call: Call) -> None:
        """Compose a call: its loads become the current values of the cells that it reads."""
        *inputs, output = call.kernel.params
        current: dict[Any, Any] = {}
        for param, argument in zip(inputs, call.arguments, strict=True):
            dtype = str(param.dtype)
            is_scalar = not param.shape
            current[param] = (
                self._scalar(argument, dtype) if is_scalar else self._cell(argument, dtype).value
            )
        for buffer, value in call.kernel.stores:
            current[buffer] = self._named(buffer, _replace_loads(value, current))
        dtype = str(output.dtype)
        # Only now are the cells changed: what the call loads is from before its own store.
        if call.overwritten is None:
            self.cells.append(Cell(dtype, None, [call.result], current[output]))
        else:
            cell = self._cell(call.arguments[call.overwritten], dtype)
            cell.value = current[output]
            cell.results.append(call.result)

    def _cell(self, number: int, dtype: str) -> Cell:
        """The cell that holds an argument; a new one if the chain has none."""
        for cell in self.cells:
            if cell.is_meant_by(number):
                return cell
        argument_count = sum(cell.argument is not None for cell in self.cells)
        cell = Cell(dtype, number, [], _element(argument_count, dtype))
        self.cells.append(cell)
        return cell

    def _scalar(self, scalar: int, dtype: str) -> Any:
        """The placeholder of a scalar."""
        if scalar not in self.scalars:
            self.scalars.append(scalar)
        return _number(self.scalars.index(scalar), dtype)

    def _named(self, buffer: Any, value: Any) -> Any:
        """A variable for the value of a buffer: it is computed once, however often it is read."""
        values = self._values if buffer.shape else self._numbers
        var = tirx.Var(f"{'value' if buffer.shape else 'number'}{len(values)}", str(buffer.dtype))
        values.append((var, value))
        return var


@cache
def _element(number: int, dtype: str) -> Any:
    """The placeholder of an element of a cell: the same variable in all formulas."""
    return tirx.Var(f"cell{number}", dtype)


@cache
def _number(number: int, dtype: str) -> Any:
    """The placeholder of a scalar: the same variable in all formulas."""
    return tirx.Var(f"scalar{number}", dtype)


def _replace_loads(value: Any, current: dict[Any, Any]) -> Any:
    """An expression with loads replaced by the current values of their buffers."""
    return replace_nodes(value, Load, lambda load: current[load.source])


def _read(values: Sequence[tuple[Any, Any]], expressions: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Those of some values, each computed from earlier ones, that expressions need."""
    needed = {var for expression in expressions for var in variables_of(expression)}
    needed_values: list[tuple[Any, Any]] = []
    # Backwards, because a value's needs are known only when all its readers have been seen.
    for var, value in reversed(values):
        if var in needed:
            needed_values.append((var, value))
            needed.update(variables_of(value))
    return needed_values[::-1]


def _kept(values: Sequence[tuple[Any, Any]], reads: dict[Any, Any], keep: Keep) -> list[Any]:
    """The statements that keep values, in order; `reads` gets an entry for each of their variables.

    The values are not bound to variables: TVM would substitute each value for its variable, and its
    simplification of integers fails on some of the floating-point expressions that result.
    """
    statements = []
    for var, value in values:
        keeping, reads[var] = keep(substitute_values(value, reads))
        statements += keeping
    return statements
