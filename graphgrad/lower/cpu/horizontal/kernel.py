"""The kernel of several chains with the same formula, each on tensors of its own.

The tensors of one chain are a row of the table of addresses in `ops/tensor_table.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ....ir.loops import index, load, registers, store
from ....ops.tensor_table import Rows, kernel, loop_over_rows
from .chain import Formula

_LANES = 16
"""The number of elements that are computed at once: whole registers of 128, 256 and 512 bits. On
each, updates take the same time with half and with twice as many."""


def kernel_of(
    formula: Formula, shapes: Sequence[Sequence[Sequence[int]]], scalars: Sequence[str]
) -> tirx.PrimFunc:
    """The kernel that computes a formula for several rows of tensors.

    Parameters
    ----------
    formula : Formula
    shapes : sequence
        For each row the shapes of its tensors, in the order of the formula's cells.
    scalars : sequence of str
        The dtypes of the scalars.

    Returns
    -------
    PrimFunc
        Its parameters are the scalars, then row by row the cells that hold arguments, then row by
        row the others. Arguments whose cells the formula stores to are overwritten.
    """
    scalar_buffers = [tirx.decl_buffer((), dtype, f"scalar{i}") for i, dtype in enumerate(scalars)]
    rows = [
        [
            tirx.decl_buffer(list(map(index, shape)), dtype, "tensor")
            for shape, dtype in zip(row, formula.dtypes, strict=True)
        ]
        for row in shapes
    ]
    first_statements, scalar_reads = formula.first(
        [load(scalar, []) for scalar in scalar_buffers], _once
    )

    def element(buffers: list[Any], position: Any, lane: Any) -> Any:
        def keep(value: Any) -> tuple[list[Any], Any]:
            # The loops that use it are right behind: so it is a register in them, and no more.
            buffer = registers("value", [_LANES], str(value.ty))
            return [tirx.AllocBuffer(buffer), store(buffer, [lane], value)], buffer[lane]

        return formula.statement(
            scalar_reads,
            [load(buffer, [position]) for buffer in buffers[: formula.argument_count]],
            lambda cell, value: store(buffers[cell], [position], value),
            keep,
        )

    arguments = [cell for row in rows for cell in row[: formula.argument_count]]
    results = [cell for row in rows for cell in row[formula.argument_count :]]
    statements = [*first_statements, *loop_over_rows(Rows(rows), _LANES, element)]
    return kernel([*scalar_buffers, *arguments, *results], statements, {})


def _once(value: Any) -> tuple[list[Any], Any]:
    """The statements that keep a value for all threads, and the read of it."""
    buffer, number = registers("value", [1], str(value.ty)), tirx.Var("number", str(value.ty.dtype))
    zero = [index(0)]
    statements = [tirx.AllocBuffer(buffer), store(buffer, zero, value)]
    return [*statements, tirx.Bind(number, load(buffer, zero))], number
