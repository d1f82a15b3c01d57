"""What functions return that overwrite arguments: results by position, without those arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tvm

from .cuda_graph import Form

NewResults: TypeAlias = Mapping[int, tvm.runtime.Tensor]
"""What a function returns, by position, without the arguments that it has overwritten."""


@dataclass(frozen=True)
class Returned:
    """What a function returns beside the arguments that it overwrites.

    Attributes
    ----------
    positions : list of int
        Of the results that it still returns, among all.
    results : list of Form
        Their shapes and dtypes.
    overwritten : list of int
        The positions of the arguments.
    """

    positions: list[int]
    results: list[Form]
    overwritten: list[int]


def by_position(
    function: Callable[..., Sequence[tvm.runtime.Tensor]], positions: Sequence[int]
) -> Callable[..., NewResults]:
    """A function whose results are mapped from the positions that they have among all."""
    return lambda *arguments: dict(zip(positions, function(*arguments), strict=True))


def split_loss(results: NewResults) -> tuple[tvm.runtime.Tensor, NewResults]:
    """The loss, and the other results by their position behind it.

    The loss is never dropped from the results: it takes the place of no argument.
    """
    return results[0], {position - 1: tensor for position, tensor in results.items() if position}
