"""Sums of any terms over the points that read an element, with what guards them."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx

from ..bindings import shared
from ..contribution import Contribution
from ..guarded import Guarded, total
from ..indices.index_system import Axis, Inversion
from ..kinds import Kind, iteration, stage_over


def gather(
    contribution: Contribution, inversion: Inversion, element: Sequence[Axis], name: str
) -> te.Tensor:
    """A stage whose elements are sums over the points that read them.

    Parameters
    ----------
    contribution : Contribution
        Its conditions are those of the inversion.
    inversion : Inversion
        Of its indices. Its loops become those of the sum.
    element : sequence of Axis
        In whose variables the inversion is. They become the loops of the stage.
    name : str
    """
    guards = tuple((guard, True) for guard in inversion.guards)
    value = shared(
        Guarded(guards, total(contribution.terms)).applied(),
        axes=[*element, *inversion.loops],
        values=[*zip((axis.var for axis in contribution.axes), inversion.values, strict=True)],
    )
    if not inversion.loops:
        return stage_over(element, value, name, Kind.MAP)
    loops = [iteration(axis, tirx.IterVar.CommReduce) for axis in inversion.loops]
    return stage_over(element, te.sum(value, axis=loops), name, Kind.REDUCE)
