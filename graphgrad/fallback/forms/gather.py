"""Sums of any terms over the points that read an element, with what guards them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import te

from ..contribution import Contribution
from ..guarded import Guarded, total
from ..indices.index_system import Axis, Inversion
from ..kinds import Kind, marked
from ..share import shared
from ..walk import Expr, all_substituted, substituted


def gather(
    contribution: Contribution, inversion: Inversion, element: Sequence[Axis], name: str
) -> te.Tensor:
    """Return a stage whose elements are sums over the points that read them.

    Parameters
    ----------
    contribution : Contribution
        Its conditions are those of the inversion.
    inversion : Inversion
        Of its indices.
    element : sequence of Axis
        The loops of the stage, in whose variables the inversion is.
    name : str
    """
    loops = [
        te.reduce_axis((axis.low, axis.low + axis.extent), name=axis.var.name)
        for axis in inversion.loops
    ]
    value = total(contribution.terms)
    places = [axis.var for axis in contribution.axes]

    def body(*position: Any) -> Expr:
        renamed = [
            *zip([axis.var for axis in element], position, strict=True),
            *zip([axis.var for axis in inversion.loops], [r.var for r in loops], strict=True),
        ]
        around = [
            replace(axis, var=var)
            for axis, (_, var) in zip([*element, *inversion.loops], renamed, strict=True)
        ]
        values = all_substituted(inversion.values, renamed)
        guards = tuple((guard, True) for guard in all_substituted(inversion.guards, renamed))
        here = substituted(value, [*renamed, *zip(places, values, strict=True)])
        summand = shared(Guarded(guards, here).applied(), axes=around)
        return te.sum(summand, axis=loops) if loops else summand

    kind = Kind.REDUCE if loops else Kind.MAP
    shape = tuple(axis.extent for axis in element)
    return te.compute(shape, body, name=name, attrs=marked(kind))
