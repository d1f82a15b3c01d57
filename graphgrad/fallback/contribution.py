"""What one stage adds to the cotangent of a tensor that it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tvm import te

from ..errors import MissingGradientError
from .backprop import Guarded, Read, backpropagate
from .index_system import Axis
from .reduce import Point
from .walk import Expr, same, tensor_key


@dataclass(frozen=True)
class Contribution:
    """At each point of some loops, `cotangent of tensor [indices] += sum of terms`.

    Attributes
    ----------
    tensor : Tensor
        That is read.
    axes : list of Axis
        The loops of the stage that reads it, those over its elements first.
    indices : list of Expr
        One per dimension of `tensor`, in terms of the axes' variables and of loads.
    terms : list of Guarded
        In the dtype in which cotangents of `tensor` are summed.
    conditions : list of Expr
        On the axes alone, without loads (see `terms.hoisted`): a point counts only where all hold.
    stage : str
        The name of the stage that reads the tensor.
    """

    tensor: te.Tensor
    axes: list[Axis]
    indices: list[Expr]
    terms: list[Guarded]
    conditions: list[Expr] = field(default_factory=list)
    stage: str = ""


def contributions(
    point: Point,
    is_active: Callable[[te.Tensor], bool] = lambda tensor: True,
    stage: str = "",
) -> list[Contribution]:
    """Return what one expression, evaluated over some loops, adds to the tensors that it reads.

    Reads of one element, by equal indices, are one contribution.

    Raises
    ------
    MissingGradientError
        The expression has a part whose derivative is not known.
    """
    try:
        found = backpropagate(point.root, point.seed, is_active)
    except MissingGradientError as error:
        raise MissingGradientError(f"in the stage {stage}: {error}") from error
    reads: list[Read] = []
    for read in found:
        known = next((other for other in reads if _same_element(other, read)), None)
        if known is None:
            reads.append(read)
        else:
            known.terms.extend(read.terms)
    return [
        Contribution(read.tensor, point.axes, read.indices, read.terms, stage=stage)
        for read in reads
    ]


def _same_element(a: Read, b: Read) -> bool:
    return tensor_key(a.tensor) == tensor_key(b.tensor) and all(
        same(i, j) for i, j in zip(a.indices, b.indices, strict=True)
    )
