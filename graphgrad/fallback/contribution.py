"""What one stage adds to the cotangent of a tensor that it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm import te

from ..errors import MissingGradientError, NotDifferentiableError
from .backprop import Read, backpropagate, few
from .guarded import Guarded
from .indices.index_system import Axis
from .reductions.reduce import Point
from .value_numbering import Classes
from .walk import Expr, tensor_key


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
    point: Point, is_active: Callable[[te.Tensor], bool], stage: str
) -> list[Contribution]:
    """The contributions of one expression, evaluated over some loops, to the tensors that it reads.

    Reads of one element, by equal indices, are one contribution.

    Raises
    ------
    MissingGradientError
        The expression has a part whose derivative is not known.
    NotDifferentiableError
        It depends on what is read by quantized numbers.
    """
    try:
        reads = backpropagate(point.root, point.seed, is_active, point.value)
    except (MissingGradientError, NotDifferentiableError) as error:
        raise type(error)(f"in the stage {stage}: {error}") from error
    return [
        Contribution(load.tensor, point.axes, load.indices, few(terms), stage=stage)
        for load, terms in _by_element(reads)
    ]


def _by_element(reads: Sequence[Read]) -> list[tuple[Read, list[Guarded]]]:
    """The first read of each element, and the terms of all of its reads."""
    classes = Classes()
    elements: dict[tuple[int, ...], tuple[Read, list[Guarded]]] = {}
    for read in reads:
        key = (*tensor_key(read.tensor), *(classes.number(index) for index in read.indices))
        _, terms = elements.setdefault(key, (read, []))
        terms.extend(read.terms)
    return list(elements.values())
