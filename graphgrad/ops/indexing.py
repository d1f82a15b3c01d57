"""The element of a tensor that an index points at, which gathers and scatters have in common.

A gather reads ``y[o] = x[position(o)]``; a scatter goes through the same ``o`` and writes to
``position(o)``. There are four forms of the position, with ``I`` the index tensor:

=========== ==================================== =========================================
form        position of o                        ops
=========== ==================================== =========================================
take        o with the axes of I → ``I[…]``      ``take``, embeddings
elements    o with one axis → ``I[o]``           ``gather_elements``, ``scatter_elements``
nd          (batch, ``I[batch, q, :]``, rest)    ``gather_nd``, ``scatter_nd``, ``index_put``
line        o with one axis → 0; there is no I   running products along an axis
=========== ==================================== =========================================

**Indices that point outside** never touch memory. A negative index counts from the end of the axis.
What is still outside reads NaN (0 in integers), and is left out of a scatter; so a derivative sends
nothing there. The modes "clip" and "wrap" of ``take`` have no outside; in the mode "nan" a negative
index is outside, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm
from tvm import te, tirx

from ..ir.kernel_structure import static
from ..ir.loops import Indices
from ..ir.tensor import Dimension, is_float
from .opaque_kernel import Nest

Form = Literal["take", "elements", "nd", "line"]


@dataclass(frozen=True)
class Indexing:
    """The way in which positions are made of indices.

    Attributes
    ----------
    form : "take", "elements", "nd" or "line"
    axis : int
        The indexed axis, not negative; of "nd" the number of batch axes.
    mode : "fast", "nan", "clip" or "wrap"
    """

    form: Form
    axis: int
    mode: str = "fast"

    @staticmethod
    def of(attributes: Any) -> Indexing:
        """Read the indexing from the attributes of a call of one of our ops."""
        return Indexing(
            str(attributes["form"]),  # type: ignore[arg-type]
            int(attributes["axis"]),
            str(attributes["mode"]),
        )

    def attributes(self) -> dict[str, Any]:
        """The indexing as attributes of a call."""
        return {"form": self.form, "axis": self.axis, "mode": self.mode}

    def output_shape(
        self, data: Sequence[Dimension], index: Sequence[Dimension]
    ) -> list[Dimension]:
        """The shape of what a gather reads, and of what a scatter writes."""
        data, index, axis = list(data), list(index), self.axis
        if self.form == "take":
            return data[:axis] + index + data[axis + 1 :]
        if self.form == "nd":
            return index[:-1] + data[axis + int(index[-1]) :]
        return index

    def serial_axes(self, rank: int) -> range:
        """The output axes along which positions may coincide.

        Along the axes before and after them an output has the index of the data: elements that
        differ there are never the same, whatever the indices are.

        Parameters
        ----------
        rank : int
            Of the index tensor.
        """
        stop = {"take": self.axis + rank, "nd": rank - 1}.get(self.form, self.axis + 1)
        return range(self.axis, stop)

    def position(
        self, data: Sequence[Dimension], index: te.Tensor | None, output: Indices
    ) -> tuple[list[Any], Any, bool]:
        """The position in the data of an output element.

        Parameters
        ----------
        data : sequence of int or expression
            Shape of the data.
        index : te.Tensor or Buffer, or None for the form "line"
        output : sequence of expressions
            Indices of the output element.

        Returns
        -------
        position : list of expressions
            Clamped to the data, unless that has no elements.
        inside : expression
            Whether the indices point inside.
        safe : bool
            Whether the position, clamped as it is, may be read even where it is not inside.
        """
        axis = self.axis
        if self.form == "line":
            zero = tirx.const(0, "int64")
            return [*output[:axis], zero, *output[axis + 1 :]], _true(), True
        assert index is not None
        rank = len(index.shape)
        if self.form == "nd":
            lead, trailing = list(output[: rank - 1]), list(output[rank - 1 :])
            coordinates = [index[(*lead, k)] for k in range(int(index.shape[-1]))]
            batch = lead[:axis]
        elif self.form == "take":
            batch, trailing = list(output[:axis]), list(output[axis + rank :])
            coordinates = [index[tuple(output[axis : axis + rank])]]
        else:
            batch, trailing = list(output[:axis]), list(output[axis + 1 :])
            coordinates = [index[tuple(output)]]
        extents = data[axis : axis + len(coordinates)]
        resolved = [_resolve(c, e, self.mode) for c, e in zip(coordinates, extents, strict=True)]
        position = [*batch, *(clamped for clamped, _ in resolved), *trailing]
        shared = self._shared_bounds(data, index, output)
        inside = tirx.all(_true(), *(condition for _, condition in resolved), *shared)
        # Clamped to an axis without elements, an index is still outside.
        safe = not shared and all(static(extent) not in (None, 0) for extent in extents)
        return position, inside, safe

    def _shared_bounds(
        self, data: Sequence[Dimension], index: te.Tensor, output: Indices
    ) -> list[Any]:
        """Conditions for shared axes whose extents are not known to fit the data's.

        Only the index tensor's own axes can be at odds with the data.
        """
        if self.form == "take":
            return []
        rank = len(index.shape)
        axes = range(self.axis) if self.form == "nd" else [d for d in range(rank) if d != self.axis]
        return within(
            [output[d] for d in axes], [data[d] for d in axes], [index.shape[d] for d in axes]
        )


def within(
    indices: Indices, limits: Sequence[Dimension], extents: Sequence[Dimension]
) -> list[Any]:
    """The conditions for indices below `extents` to be below `limits`, less those that are proved.

    None of them is needed where the list is empty.
    """
    analyzer = tvm.sym.Analyzer()
    return [
        i < limit
        for i, limit, extent in zip(indices, limits, extents, strict=True)
        if not analyzer.can_prove(extent <= limit)
    ]


def _resolve(value: Any, extent: Dimension, mode: str) -> tuple[Any, Any]:
    """An index clamped to an axis, and whether it points inside."""
    i, zero = value.astype("int64"), tirx.const(0, "int64")
    if mode == "wrap":
        i = tirx.floormod(i, tirx.max(extent, 1))
    elif mode == "clip":
        i = tirx.max(tirx.min(i, extent - 1), zero)
    elif mode == "fast":  # in "nan", a negative index stays negative, and so is outside
        i = tirx.Select(i < 0, i + extent, i)
    clamped = i if mode in ("wrap", "clip") else tirx.max(tirx.min(i, extent - 1), zero)
    return clamped, tirx.all(i >= 0, i < extent)


def _true() -> Any:
    return tirx.const(True, "bool")


def outside_value(dtype: str) -> Any:
    """The value that an index outside of the tensor reads: NaN, or 0 in a dtype without NaN."""
    return tirx.const(math.nan if is_float(dtype) else 0, dtype)


def gather(indexing: Indexing, data: te.Tensor, index: te.Tensor, fill: Any) -> te.Tensor:
    """The gather y[o] = x[position(o)], and `fill` where the index points outside."""

    def element(*output: Any) -> Any:
        position, inside, safe = indexing.position(data.shape, index, output)
        # A Select reads even where it is not inside, but can be vectorized.
        choose = tirx.Select if safe else tirx.if_then_else
        return choose(inside, data(*position), fill)

    shape = indexing.output_shape(data.shape, index.shape)
    if any(static(extent) == 0 for extent in data.shape):
        return te.compute(shape, lambda *_: fill, name="gather_from_nothing")
    return te.compute(shape, element, name="gather")


def scatter_nest(
    indexing: Indexing, shape: Sequence[Dimension], index_rank: int, reverse: bool = False
) -> Nest:
    """The loops over a scatter's updates, in an order that no thread can change.

    Elements that may meet at one position are visited one after the other, in row-major order (or
    its reverse); threads share the other axes alone. So results are the same in every run.
    """
    return Nest(shape, indexing.serial_axes(index_rank), reverse)
