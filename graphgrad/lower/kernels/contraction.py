"""What a contraction is: C[S] = Σ_R A[f(S, R)] · B[g(S, R)], with affine reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tvm import tirx

from ...ir.kernel_structure import (
    Axis,
    Load,
    Stage,
    buffer_of,
    statements_of,
    static,
    stride,
    substitute_values,
    uses,
    volume,
)

_MAX_COPY_ELEMENTS = 1 << 29
"""Elements of a copy at most: its indices fit 32 bits, with what fills up its last panel."""


@dataclass(frozen=True)
class Contraction:
    """A sum of products of two reads.

    Attributes
    ----------
    spatial : tuple of Axis
        The axes of the result.
    reduced : tuple of Axis
        The axes that are summed over.
    factors : tuple of Expr
        The two factors: loads, possibly under casts. They may mention variables that are no axes;
        whoever places the nest binds these around it.
    dtype : str
        Of the factors, of the products and of the sum.
    extents : dict
        The extents of symbolic axes, by variable.
    inside : dict
        By factor that is read beyond its tensor: affine functions of the axes. Where one of them is
        negative, the term is left out.
    """

    spatial: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    factors: tuple[Any, Any]
    dtype: str
    extents: Mapping[Any, Any] = field(default_factory=dict)
    inside: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def distances(self) -> tuple[Any, ...]:
        """All functions of the axes that are not negative where a term counts."""
        return tuple(distance for of_factor in self.inside.values() for distance in of_factor)

    @property
    def loads(self) -> tuple[Any, Any]:
        """The reads inside the factors."""
        return _uncast(self.factors[0]), _uncast(self.factors[1])

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, those of the result first."""
        return (*self.spatial, *self.reduced)

    def extent(self, axis: Axis) -> Any:
        """The extent of an axis: a number, or an expression if it is symbolic."""
        return self.extents[axis.var] if axis.extent is None else axis.extent

    def depends(self, factor: int, axis: Axis) -> bool:
        """Whether a factor depends on an axis."""
        return self._uses[factor][axis.var]

    def used_by(self, factor: int, axes: Sequence[Axis]) -> list[Axis]:
        """Those of `axes` that one of the factors depends on."""
        return [axis for axis in axes if self.depends(factor, axis)]

    def step(self, factor: int, axis: Axis) -> int | None:
        """How far in memory (elements) a factor's read moves along an axis.

        None if that is not the same everywhere.
        """
        return self._steps[factor][axis.var]

    def share_index(self, factor: int, axes: Sequence[Axis]) -> bool:
        """Whether some index of a factor's read depends on two of the axes, or more.

        Such are the position of a filter and that of the result, whose windows overlap.
        """
        return any(
            sum(uses(index, axis.var) > 0 for axis in axes) > 1
            for index in self.loads[factor].indices
        )

    def can_be_copied(self, factor: int) -> bool:
        """Whether a copy of what a factor reads is as large as that, and its size known.

        Where windows overlap, a copy in the order of reading would repeat elements.
        """
        if factor in self.inside:
            return False
        used = self.used_by(factor, self.axes)
        if any(axis.extent is None for axis in used) or volume(used) > _MAX_COPY_ELEMENTS:
            return False
        shape = [static(extent) for extent in buffer_of(self.loads[factor]).shape]
        if all(shape) and volume(used) <= math.prod(extent or 0 for extent in shape):
            return True  # indices such as group · size + place share one without any overlap
        return not self.share_index(factor, [axis for axis in used if axis.extent != 1])

    @cached_property
    def _uses(self) -> list[dict[Any, bool]]:
        return [{a.var: uses(factor, a.var) > 0 for a in self.axes} for factor in self.factors]

    @cached_property
    def _steps(self) -> list[dict[Any, int | None]]:
        return [{a.var: stride(load, a.var) for a in self.axes} for load in self.loads]


def known(axis: Axis) -> int:
    """The extent of an axis that is not symbolic."""
    assert axis.extent is not None
    return axis.extent


def contraction_of(stage: Stage, realize: Any) -> Contraction | None:
    """The contraction that a stage computes; None if it computes something else.

    Parameters
    ----------
    stage : Stage
    realize : SBlockRealize
        Its block.
    """
    if operands(stage) is None or not _starts_at_zero(realize.block):
        return None
    block = realize.block
    store = substitute_values(statements_of(block.body)[0], fixed_iterators(realize))
    term = _product(store.value, stage)
    extents = {v.var: v.dom.extent for v in block.iter_vars if static(v.dom.extent) is None}
    return Contraction(
        tuple(stage.spatial), tuple(stage.reduced), (term.a, term.b), stage.dtype, extents
    )


def operands(stage: Stage) -> tuple[Any, Any] | None:
    """The two reads whose products the stage sums, or None if it does something else."""
    if len(stage.stores) != 1 or not stage.reduced or len(stage.loads) != 2:
        return None
    term = _product(stage.values[0], stage)
    if not isinstance(term, tirx.Mul):
        return None
    left, right = _uncast(term.a), _uncast(term.b)
    return (left, right) if isinstance(left, Load) and isinstance(right, Load) else None


def reuses_operands(stage: Stage) -> bool:
    """Whether a stage sums products of reads, and uses some of what it reads several times.

    The sum of products of two tensors element by element does not.
    """
    pair = operands(stage)
    return pair is not None and any(
        axis.extent != 1 and not uses(operand, axis.var) for axis in stage.axes for operand in pair
    )


def fixed_iterators(realize: Any) -> dict[Any, Any]:
    """The values of a block's iterators over one element."""
    block = realize.block
    return {axis.var: axis.dom.min for axis in block.iter_vars if static(axis.dom.extent) == 1}


def _product(total: Any, stage: Stage) -> Any:
    """The term that is added to the sum so far; None if nothing is."""
    if not isinstance(total, tirx.Add):
        return None
    return total.b if _reads_result(total.a, stage) else total.a


def _starts_at_zero(block: Any) -> bool:
    start = block.init.value
    return isinstance(start, tirx.IntImm | tirx.FloatImm) and start.value == 0


def _reads_result(value: Any, stage: Stage) -> bool:
    return isinstance(value, Load) and bool(buffer_of(value).same_as(stage.stores[0].buffer))


def _uncast(value: Any) -> Any:
    while isinstance(value, tirx.Cast):
        value = value.value
    return value
