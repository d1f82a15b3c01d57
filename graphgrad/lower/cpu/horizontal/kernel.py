"""The kernel of chains that are alike, over all their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ....ops.tensor_table import Rows, kernel, loop_over_rows
from .chain import Formula

_LANES = 16
"""Elements at once: a register of floats, or several."""


def kernel_of(
    formula: Formula, shapes: Sequence[Sequence[Sequence[int]]], scalars: Sequence[str]
) -> tirx.PrimFunc:
    """Return the kernel that does what a formula says, for several rows of tensors.

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
            tirx.decl_buffer([tirx.const(extent, "int64") for extent in shape], dtype, "tensor")
            for shape, dtype in zip(row, formula.dtypes, strict=True)
        ]
        for row in shapes
    ]
    first, known = formula.first([tirx.BufferLoad(number, []) for number in numbers], _once)

    def element(buffers: list[Any], index: Any, lane: Any) -> Any:
        def keep(value: Any) -> tuple[list[Any], Any]:
            # The loops that use it are right behind: so it is a register in them, and no more.
            buffer = _local(_LANES, value)
            store = tirx.BufferStore(buffer, value, [lane])
            return [tirx.AllocBuffer(buffer), store], buffer[lane]

        return formula.statement(
            known,
            [tirx.BufferLoad(buffer, [index]) for buffer in buffers[: formula.given]],
            lambda cell, value: tirx.BufferStore(buffers[cell], value, [index]),
            keep,
        )

    given = [cell for row in rows for cell in row[: formula.given]]
    made = [cell for row in rows for cell in row[formula.given :]]
    statements = [*first, *loop_over_rows(Rows(rows), _LANES, element)]
    return kernel([*numbers, *given, *made], statements, {})


def _once(value: Any) -> tuple[list[Any], Any]:
    """Return the statements that keep a value for all threads, and what reads it."""
    buffer, read = _local(1, value), tirx.Var("number", str(value.ty.dtype))
    zero = tirx.const(0, "int64")
    store = tirx.BufferStore(buffer, value, [zero])
    return [tirx.AllocBuffer(buffer), store, tirx.Bind(read, buffer[zero])], read


def _local(extent: int, value: Any) -> Any:
    """Return a buffer for values, of which registers become."""
    return tirx.decl_buffer((tirx.const(extent, "int64"),), str(value.ty), "value", scope="local")
