"""Stages in front of the sums of windows, and what these sums consist of, by letters of layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tvm import te, tirx

from ...ir.tensor import Dimension, accumulator_dtype, bits, is_float, same_dimension
from .window import Window


def permuted(x: te.Tensor, source: str, target: str) -> te.Tensor:
    """A tensor of one layout in another."""
    if source == target:
        return x
    return te.compute(
        long(extents_of(x, source, target)),
        lambda *i: x(*[i[target.index(axis)] for axis in source]),
        name="permuted",
    )


def padded(x: te.Tensor, source: str, target: str, window: Window) -> te.Tensor:
    """Data of one layout in another, with the padding of a window."""
    spatial = spatial_axes(source)
    before = dict(zip(spatial, window.before, strict=True))
    extents = {
        axis: extent + low + high
        for axis, extent, low, high in zip(
            spatial, extents_of(x, source, spatial), window.before, window.after, strict=True
        )
    }
    return bordered(x, source, target, before, extents)


def bordered(
    x: te.Tensor,
    source: str,
    target: str,
    before: Mapping[str, Dimension],
    extents: Mapping[str, Dimension],
    fill: Any = None,
) -> te.Tensor:
    """A tensor of one layout in another, inside a border.

    Parameters
    ----------
    x : te.Tensor
    source, target : str
        Its layout, and that of the result.
    before : mapping
        From an axis to the length of the border before the first element.
    extents : mapping
        From an axis to its extent in the result; what is beyond it is left out.
    fill : expression, optional
        What the border holds; by default zeros.
    """
    fill = tirx.const(0, str(x.dtype)) if fill is None else fill
    extent_of = dict(zip(source, extents_of(x, source, source), strict=True))
    first = {axis: before.get(axis, 0) for axis in source}
    result_extent_of = {axis: extents.get(axis, extent_of[axis]) for axis in source}
    # The axes that get a border or lose elements: only these need a guard.
    changed = [
        axis
        for axis in source
        if not (
            same_dimension(first[axis], 0)
            and same_dimension(result_extent_of[axis], extent_of[axis])
        )
    ]
    if not changed:
        return permuted(x, source, target)

    def element(*indices: Any) -> Any:
        index_of = dict(zip(target, indices, strict=True))
        source_index = {axis: index_of[axis] - first[axis] for axis in source}
        inside = [
            tirx.all(source_index[axis] >= 0, source_index[axis] < extent_of[axis])
            for axis in changed
        ]
        value = x(*[source_index[axis] for axis in source])
        # No Select, which would read outside of the tensor.
        return tirx.if_then_else(tirx.all(*inside), value, fill)

    return te.compute(long([result_extent_of[axis] for axis in target]), element, name="padded")


def spatial_axes(layout: str) -> str:
    """The spatial axes of a layout, in the order of a window's numbers."""
    return "".join(axis for axis in "DHW" if axis in layout)


def extents_of(x: te.Tensor, layout: str, axes: str) -> list[Dimension]:
    """The extents of some axes of a tensor: ints, and expressions where symbolic."""
    extents = [x.shape[layout.index(axis)] for axis in axes]
    return [int(e) if isinstance(e, tirx.IntImm) else e for e in extents]


def long(extents: Iterable[Dimension]) -> tuple[Any, ...]:
    """Extents as int64, the dtype of symbolic ones: all indices of a kernel have one dtype."""
    return tuple(tirx.IntImm("int64", e) if isinstance(e, int) else e for e in extents)


def reduction_axes(extents: Sequence[Dimension], name: str) -> list[Any]:
    """A reduction axis for each extent, and a plain zero as index for an extent of 1."""
    zero = tirx.IntImm("int64", 0)
    return [
        zero
        if isinstance(extent, tirx.IntImm) and int(extent) == 1
        else te.reduce_axis((zero, extent), f"{name}{i}")
        for i, extent in enumerate(long(extents))
    ]


def total(term: Any, axes: Sequence[Any]) -> Any:
    """The sum of a term over axes of `reduction_axes`, of which the plain zeros are ignored.

    A sum over an empty axis is a plain zero: TVM would leave its memory unwritten.
    """
    summed = [axis for axis in axes if isinstance(axis, tirx.IterVar)]
    extents = [axis.dom.extent for axis in summed]
    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in extents):
        return tirx.const(0, term.ty.dtype)
    return te.sum(term, axis=summed) if summed else term


def wide_dtype(source: str, result: str) -> str:
    """The dtype to sum in: the wider of operands and result, and at least float32 for floats."""
    # Between an integer and a float width says nothing: the result's dtype decides.
    if is_float(source) != is_float(result):
        return accumulator_dtype(result)
    return max(accumulator_dtype(source), accumulator_dtype(result), key=bits)
