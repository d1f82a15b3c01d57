"""Sums over a tensor inside a border of zeros, without the copy that has the border.

Where each element is used only a few times, as in a depthwise convolution, making the copy takes as
long as the sum. The tensor itself is read instead, and terms outside of it are left out. For finite
values that is the same sum. Otherwise it is the better one: a border's zero times an infinite
weight would be no number, and here such a term adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import tirx

from ....ir.kernel_structure import Load, Stage, buffer_of, uses
from ....ir.visits import nodes_in
from ...kernels.contraction import Contraction

if TYPE_CHECKING:
    from ...kernels.pads import Border


def read_inside_border(
    contraction: Contraction, borders: Mapping[Any, Border]
) -> Contraction | None:
    """A contraction that reads what is inside borders; None if it reads no such copy.

    Parameters
    ----------
    contraction : Contraction
    borders : dict
        By buffer, what it is a copy of. All its extents are static.
    """
    inside: dict[int, tuple[Any, ...]] = {}
    factors = list(contraction.factors)
    for number, load in enumerate(contraction.loads):
        border = borders.get(buffer_of(load))
        if border is None:
            continue
        shifted = zip(load.indices, border.before, strict=True)
        indices = [index - before for index, before in shifted]
        read = tirx.BufferLoad(border.source, indices)
        factors[number] = _replace_load(factors[number], read)
        inside[number] = tuple(_distances(contraction, read))
    if not inside:
        return None
    return replace(contraction, factors=(factors[0], factors[1]), inside=inside)


def reads_both_along(contraction: Contraction, axis: Any) -> bool:
    """Whether both factors are read in vectors along an axis, without crossing a border.

    Each element read is then used by no more results than a window has places.
    """
    return all(contraction.step(factor, axis) for factor in (0, 1)) and not any(
        uses(distance, axis.var) for distance in contraction.distances
    )


def unread(
    found: Sequence[Stage], nests: Mapping[str, Any], borders: Mapping[Any, Border]
) -> list[str]:
    """The names of the stages that made copies which no nest and no other stage reads.

    Parameters
    ----------
    found : sequence of Stage
        All of the kernel.
    nests : dict
        What takes the place of stages, by their names.
    borders : dict
        By buffer, what it is a copy of.
    """

    def is_read(buffer: Any, stage: Stage) -> bool:
        if stage.name in nests:
            return nests[stage.name] is not None and _loads(nests[stage.name], buffer)
        return any(buffer_of(load).same_as(buffer) for load in stage.loads)

    return [
        border.stage
        for buffer, border in borders.items()
        if not any(is_read(buffer, stage) for stage in found)
    ]


def _distances(contraction: Contraction, read: Any) -> Iterable[Any]:
    """Yield how far indices are from the first and the last element, if they may lie beyond."""
    analyzer = tvm.sym.Analyzer()
    for axis in contraction.axes:
        zero = tirx.const(0, str(axis.var.ty.dtype))
        analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(zero, contraction.extent(axis)))
    for index, extent in zip(read.indices, buffer_of(read).shape, strict=True):
        for distance in (index, extent - 1 - index):
            simple = analyzer.simplify(distance)
            if not analyzer.can_prove(simple >= 0):
                yield simple


def _replace_load(factor: Any, read: Any) -> Any:
    return tvm_ffi.structural_map(factor, (Load, lambda _: read))


def _loads(statement: Any, buffer: Any) -> bool:
    found = nodes_in(statement, Load)
    return any(load.source.same_as(buffer) for load in found)
