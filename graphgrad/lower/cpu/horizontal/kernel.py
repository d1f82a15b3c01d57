"""The kernel of chains that are alike, over all their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ....ir.loops import index, load, registers, store
from ....ops.tensor_table import Rows, kernel, loop_over_rows
from .chain import Formula

_LANES = 16
"""Elements at once: a register of floats, or several."""


def kernel_of(
    formula: Formula, shapes: Sequence[Sequence[Sequence[int]]], scalars: Sequence[str]
) -> tirx.PrimFunc:
    """The kernel that does what a formula says, for several rows of tensors.

    Parameters
    ----------
    formula : Formula
    shapes : sequence
        For each row the shapes of its tensors, in the order of the formula's cells.
    scalars : sequence of str
        Dtypes of the scalars.

    Returns
    -------
    PrimFunc
        It takes the scalars, then row by row what its cells hold, then row by row the cells that
        are made. Those that are written to and hold arguments are overwritten.
    """
    numbers = [tirx.decl_buffer((), dtype, f"scalar{i}") for i, dtype in enumerate(scalars)]
    rows = [
        [
            tirx.decl_buffer(list(map(index, shape)), dtype, "tensor")
            for shape, dtype in zip(row, formula.dtypes, strict=True)
        ]
        for row in shapes
    ]
    first, known = formula.first([load(number, []) for number in numbers], _once)

    def element(buffers: list[Any], place: Any, lane: Any) -> Any:
        def keep(value: Any) -> tuple[list[Any], Any]:
            # The loops that use it are right behind: so it is a register in them, and no more.
            buffer = registers("value", [_LANES], str(value.ty))
            return [tirx.AllocBuffer(buffer), store(buffer, [lane], value)], buffer[lane]

        return formula.statement(
            known,
            [load(buffer, [place]) for buffer in buffers[: formula.given]],
            lambda cell, value: store(buffers[cell], [place], value),
            keep,
        )

    given = [cell for row in rows for cell in row[: formula.given]]
    made = [cell for row in rows for cell in row[formula.given :]]
    statements = [*first, *loop_over_rows(Rows(rows), _LANES, element)]
    return kernel([*numbers, *given, *made], statements, {})


def _once(value: Any) -> tuple[list[Any], Any]:
    """The statements that keep a value for all threads, and what reads it."""
    buffer, read = registers("value", [1], str(value.ty)), tirx.Var("number", str(value.ty.dtype))
    first = [index(0)]
    kept = [tirx.AllocBuffer(buffer), store(buffer, first, value)]
    return [*kept, tirx.Bind(read, load(buffer, first))], read
