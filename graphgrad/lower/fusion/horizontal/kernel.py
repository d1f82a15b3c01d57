"""The kernel of several chains with the same formula, each on tensors of its own: a row of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ....ir.loops import index
from ....ops.tensor_table import kernel
from .chain import Formula
from .flat import DTYPES

Row = list[Any]
"""The buffers of a chain, in the order of the formula's cells."""


@dataclass(frozen=True)
class RowsWriter:
    """How a target computes a formula for several rows.

    Attributes
    ----------
    statements : function
        Given the formula, a buffer for each scalar, and the rows; returns what computes them.
    max_tensors : int
        The most tensors of a kernel.
    dtypes : sequence of str
        The types of elements that tensors may have.
    """

    statements: Callable[[Formula, list[Any], list[Row]], list[Any]]
    max_tensors: int
    dtypes: Sequence[str] = DTYPES

    def kernel_of(
        self,
        formula: Formula,
        shapes: Sequence[Sequence[Sequence[int]]],
        scalars: Sequence[str],
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
            Its parameters are the scalars, then row by row the cells that hold arguments, then row
            by row the others. Arguments whose cells the formula stores to are overwritten.
        """
        scalar_buffers = [
            tirx.decl_buffer((), dtype, f"scalar{i}") for i, dtype in enumerate(scalars)
        ]
        rows = [
            [
                tirx.decl_buffer(list(map(index, shape)), dtype, "tensor")
                for shape, dtype in zip(row, formula.dtypes, strict=True)
            ]
            for row in shapes
        ]
        arguments = [cell for row in rows for cell in row[: formula.argument_count]]
        results = [cell for row in rows for cell in row[formula.argument_count :]]
        statements = self.statements(formula, scalar_buffers, rows)
        return kernel([*scalar_buffers, *arguments, *results], statements, {})
