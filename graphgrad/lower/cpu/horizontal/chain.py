"""Flat maps that run in one loop: what a chain of them does to the elements of its tensors.

The calls are taken in one after the other. What one stores, the next one finds in a register, so
that a result that nothing else reads needs no memory. Since each reads and writes elements with the
loop's number alone, the loop does the same as one loop for each call would, also to tensors that
one call reads and a later one overwrites.

Tensors are known here by numbers that the caller gives to them: to an argument, and to each result,
also to one that is in the memory of an argument.
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
"""Given a value, the statements that keep it, and what reads it."""


@dataclass(frozen=True)
class Call:
    """A call of a flat map.

    Attributes
    ----------
    kernel : FlatMap
        With one result.
    arguments : sequence of int
    result : int
    overwritten : int or None
        The position of the argument in whose memory the result is; None if that is fresh.
    """

    kernel: FlatMap
    arguments: Sequence[int]
    result: int
    overwritten: int | None

    @cached_property
    def tensors(self) -> frozenset[int]:
        """The arguments that are no scalars."""
        pairs = zip(self.kernel.params, self.arguments, strict=False)
        return frozenset(number for param, number in pairs if param.shape)


@dataclass
class Cell:
    """One tensor of a chain.

    Attributes
    ----------
    dtype : str
    argument : int or None
        What holds it before the chain; None where the chain makes it.
    results : list of int
        What has meant its memory since the chain began to write to it; the last one still does.
    value : Expr
        What its element is, so far.
    """

    dtype: str
    argument: int | None
    results: list[int]
    value: Any

    @property
    def number(self) -> int:
        """A number that means this tensor."""
        return self.results[0] if self.argument is None else self.argument

    def is_meant_by(self, number: int) -> bool:
        """Whether a number is that of this tensor, or was."""
        return number == self.argument or number in self.results


@dataclass(frozen=True)
class Formula:
    """What a chain computes, in terms of placeholders for its cells and scalars.

    Placeholders of one number and dtype are the same in all formulas.

    Attributes
    ----------
    dtypes : list of str
        Of the cells: first those that hold arguments, then those that the chain makes.
    given : int
        How many hold arguments.
    scalars : list of int
    numbers : list of (Var, Expr)
        In order: values of scalars alone.
    values : list of (Var, Expr)
        In order: values that an element has of its own.
    stores : list of (int, Expr)
        Cells, each once, and what is stored there.
    """

    dtypes: list[str]
    given: int
    scalars: list[int]
    numbers: list[tuple[Any, Any]]
    values: list[tuple[Any, Any]]
    stores: list[tuple[int, Any]]

    def is_like(self, other: Formula) -> bool:
        """Whether both compute the same of their cells, with the same scalars."""
        return (
            (self.dtypes, self.given, self.scalars) == (other.dtypes, other.given, other.scalars)
            and [cell for cell, _ in self.stores] == [cell for cell, _ in other.stores]
            and tvm_ffi.structural_equal(self._statement, other._statement)
        )

    def first(self, scalars: Sequence[Any], keep: Keep) -> tuple[list[Any], dict[Any, Any]]:
        """The values that are computed once, and what they make known for `statement`.

        Parameters
        ----------
        scalars : sequence of Expr
        keep : callable
        """
        given = [(_number(i, str(value.ty.dtype)), value) for i, value in enumerate(scalars)]
        known: dict[Any, Any] = {}
        return _kept([*given, *self.numbers], known, keep), known

    def statement(
        self,
        known: dict[Any, Any],
        cells: Sequence[Any],
        store: Callable[[int, Any], Any],
        keep: Keep,
    ) -> Any:
        """The formula of one element.

        Parameters
        ----------
        known : dict
            As `first` returns it.
        cells : sequence of Expr
            The elements of those cells that hold arguments.
        store : callable
            Given the number of a cell and a value, the statement that stores it.
        keep : callable
        """
        known = known | {_element(i, self.dtypes[i]): value for i, value in enumerate(cells)}
        statements = _kept(self.values, known, keep)
        # Whatever is loaded has been loaded before the first store.
        return sequence(
            *statements, *(store(cell, substitute_values(v, known)) for cell, v in self.stores)
        )

    @cached_property
    def _statement(self) -> Any:
        ends = [tirx.Evaluate(value) for _, value in self.stores]
        binds = [tirx.Bind(var, value) for var, value in (*self.numbers, *self.values)]
        return sequence(*binds, *ends)


class Chain:
    """What calls of flat maps on tensors of one length do, in order.

    Attributes
    ----------
    calls : list of Call
    length : int
    cells : list of Cell
    scalars : list of int
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
        """The formulas of the chain, and the cells that they are about.

        Parameters
        ----------
        is_needed : callable
            Whether anything outside of the chain means the result of a number. What nothing means
            is not stored, if it would be in memory of its own.
        """
        given = [cell for cell in self.cells if cell.argument is not None]
        made = [c for c in self.cells if c.argument is None and any(map(is_needed, c.results))]
        cells = [*given, *made]
        stores = [(i, cell.value) for i, cell in enumerate(cells) if cell.results]
        dtypes = [cell.dtype for cell in cells]
        values = _read(self._values, [value for _, value in stores])
        numbers = _read(self._numbers, [value for _, value in (*values, *stores)])
        return Formula(dtypes, len(given), self.scalars, numbers, values, stores), cells

    def _add(self, call: Call) -> None:
        *inputs, output = call.kernel.params
        known: dict[Any, Any] = {}
        for param, argument in zip(inputs, call.arguments, strict=True):
            dtype = str(param.dtype)
            is_scalar = not param.shape
            known[param] = (
                self._scalar(argument, dtype) if is_scalar else self._cell(argument, dtype).value
            )
        for buffer, value in call.kernel.stores:
            known[buffer] = self._named(buffer, _replace_loads(value, known))
        dtype = str(output.dtype)
        if call.overwritten is None:
            self.cells.append(Cell(dtype, None, [call.result], known[output]))
        else:
            cell = self._cell(call.arguments[call.overwritten], dtype)
            cell.value = known[output]
            cell.results.append(call.result)

    def _cell(self, number: int, dtype: str) -> Cell:
        """The cell of an argument."""
        for cell in self.cells:
            if cell.is_meant_by(number):
                return cell
        given = sum(cell.argument is not None for cell in self.cells)
        cell = Cell(dtype, number, [], _element(given, dtype))
        self.cells.append(cell)
        return cell

    def _scalar(self, scalar: int, dtype: str) -> Any:
        if scalar not in self.scalars:
            self.scalars.append(scalar)
        return _number(self.scalars.index(scalar), dtype)

    def _named(self, buffer: Any, value: Any) -> Any:
        """A variable for the value of a buffer, which may be read more than once."""
        values = self._values if buffer.shape else self._numbers
        var = tirx.Var(f"{'value' if buffer.shape else 'number'}{len(values)}", str(buffer.dtype))
        values.append((var, value))
        return var


@cache
def _element(number: int, dtype: str) -> Any:
    """The variable of the element of a cell."""
    return tirx.Var(f"cell{number}", dtype)


@cache
def _number(number: int, dtype: str) -> Any:
    """The variable of a scalar."""
    return tirx.Var(f"scalar{number}", dtype)


def _replace_loads(value: Any, known: dict[Any, Any]) -> Any:
    """An expression with what is known of each buffer in the place of its loads."""
    return replace_nodes(value, Load, lambda load: known[load.source])


def _read(values: Sequence[tuple[Any, Any]], ends: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Those of some values, each computed from earlier ones, that the last ones need."""
    read = {var for end in ends for var in variables_of(end)}
    found: list[tuple[Any, Any]] = []
    for var, value in reversed(values):
        if var in read:
            found.append((var, value))
            read.update(variables_of(value))
    return found[::-1]


def _kept(values: Sequence[tuple[Any, Any]], known: dict[Any, Any], keep: Keep) -> list[Any]:
    """The statements that keep values, in order; what reads them is added to what is known.

    They are not bound to variables: TVM would put each value in all places of its variable, and
    its simplification of integers fails on what that makes of some floating-point values.
    """
    statements = []
    for var, value in values:
        keeping, known[var] = keep(substitute_values(value, known))
        statements += keeping
    return statements
