"""Sums over a padded tensor that read the tensor itself and not its padded copy.

A border is the zeros that such a copy has around the tensor. Where each element is used only a few
times, as in a depthwise convolution, making the copy takes as long as the sum. The tensor itself is
read instead, and terms outside of it are left out. For finite values that is the same sum.
Otherwise it is the better one: a zero of the border times an infinite weight would be NaN, and here
such a term adds nothing.
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
    """The same contraction reading tensors in place of their padded copies.

    None if it reads no padded copy.

    Parameters
    ----------
    contraction : Contraction
    borders : dict
        From the buffer of each padded copy to what it is a copy of, all of whose extents are
        static.
    """
    distances_by_factor: dict[int, tuple[Any, ...]] = {}
    factors = list(contraction.factors)
    for factor_number, load in enumerate(contraction.loads):
        border = borders.get(buffer_of(load))
        if border is None:
            continue
        shifted = zip(load.indices, border.before, strict=True)
        indices = [index - before for index, before in shifted]
        load_from_source = tirx.BufferLoad(border.source, indices)
        factors[factor_number] = _replace_load(factors[factor_number], load_from_source)
        distances_by_factor[factor_number] = tuple(_distances(contraction, load_from_source))
    if not distances_by_factor:
        return None
    return replace(contraction, factors=(factors[0], factors[1]), inside=distances_by_factor)


def reads_both_along(contraction: Contraction, axis: Any) -> bool:
    """Whether both factors are read in vectors along an axis, and none crosses a border along it.

    Each element that is read is then used by no more results than a window has taps.
    """
    # Whether a term lies inside the tensor must be the same for all lanes of a vector.
    return all(contraction.step(factor, axis) for factor in (0, 1)) and not any(
        uses(distance, axis.var) for distance in contraction.distances
    )


def unread(
    kernel_stages: Sequence[Stage], nests: Mapping[str, Any], borders: Mapping[Any, Border]
) -> list[str]:
    """The names of the stages that make padded copies which nothing reads any more.

    Parameters
    ----------
    kernel_stages : sequence of Stage
        All stages of the kernel.
    nests : dict
        From the name of a stage to the nest that takes its place; None if the stage is dropped.
    borders : dict
        From the buffer of each padded copy to what it is a copy of.
    """

    def is_read(buffer: Any, stage: Stage) -> bool:
        if stage.name in nests:
            return nests[stage.name] is not None and _loads(nests[stage.name], buffer)
        return any(buffer_of(load).same_as(buffer) for load in stage.loads)

    return [
        border.stage
        for buffer, border in borders.items()
        if not any(is_read(buffer, stage) for stage in kernel_stages)
    ]


def _distances(contraction: Contraction, load: Any) -> Iterable[Any]:
    """Yield the distances of a load's indices from the first and from the last element.

    They are affine functions of the axes, and negative outside of the tensor. Those that are
    provably never negative are left out.
    """
    analyzer = tvm.sym.Analyzer()
    for axis in contraction.axes:
        zero = tirx.const(0, str(axis.var.ty.dtype))
        analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(zero, contraction.extent(axis)))
    for index, extent in zip(load.indices, buffer_of(load).shape, strict=True):
        for distance in (index, extent - 1 - index):
            simplified = analyzer.simplify(distance)
            if not analyzer.can_prove(simplified >= 0):
                yield simplified


def _replace_load(factor: Any, read: Any) -> Any:
    return tvm_ffi.structural_map(factor, (Load, lambda _: read))


def _loads(statement: Any, buffer: Any) -> bool:
    loads = nodes_in(statement, Load)
    return any(load.source.same_as(buffer) for load in loads)
