"""Contractions, C[S] = Σ_R A[f(S, R)] · B[g(S, R)] with affine reads, and how stages become them.

S are the axes of the result, R those that are summed over.
"""

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
from ...ir.visits import nodes_in

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
        The two factors: loads, possibly under casts, or pairs of loads. They may mention variables
        that are no axes; the code around the contraction's loops binds these.
    dtype : str
        The dtype of the factors, of the products and of the sum.
    are_pairs : bool
        Whether each factor is an int32 that holds two of bfloat16, and a term is the sum of both
        products.
    extents : dict
        The extents of symbolic axes, by variable.
    inside : dict
        For each factor (0 or 1) whose read may fall outside its tensor, affine functions of the
        axes. Where one of them is negative, the term is left out.
    lasting : frozenset of int
        The factors that are the same in each step of a loop over time around the contraction: a
        copy of them is made once for all steps.
    """

    spatial: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    factors: tuple[Any, Any]
    dtype: str
    extents: Mapping[Any, Any] = field(default_factory=dict)
    inside: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)
    are_pairs: bool = False
    lasting: frozenset[int] = frozenset()

    @property
    def factor_dtype(self) -> str:
        """The dtype of what is read of a factor for a term."""
        return "int32" if self.are_pairs else self.dtype

    @property
    def distances(self) -> tuple[Any, ...]:
        """The functions in `inside` of both factors: none is negative where a term counts."""
        return tuple(distance for of_factor in self.inside.values() for distance in of_factor)

    @property
    def loads(self) -> tuple[Any, Any]:
        """The reads inside the factors: of a pair that of its first number."""
        return first_load(self.factors[0]), first_load(self.factors[1])

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

        In a convolution the position in the filter and that of the result add up to one index, so
        that windows overlap.
        """
        return any(
            sum(uses(index, axis.var) > 0 for axis in axes) > 1
            for index in self.loads[factor].indices
        )

    def can_be_copied(self, factor: int) -> bool:
        """Whether a copy of a factor, in the order in which it is read, repeats no elements.

        It would where windows overlap. The size of the copy must be known, too.
        """
        if factor in self.inside:
            return False
        used_axes = self.used_by(factor, self.axes)
        if any(axis.extent is None for axis in used_axes) or volume(used_axes) > _MAX_COPY_ELEMENTS:
            return False
        shape = [static(extent) for extent in buffer_of(self.loads[factor]).shape]
        if all(shape) and volume(used_axes) <= math.prod(extent or 0 for extent in shape):
            # Indices such as group · size + place depend on two axes without any overlap.
            return True
        return not self.share_index(factor, [axis for axis in used_axes if axis.extent != 1])

    @cached_property
    def _uses(self) -> list[dict[Any, bool]]:
        return [
            {axis.var: uses(factor, axis.var) > 0 for axis in self.axes} for factor in self.factors
        ]

    @cached_property
    def _steps(self) -> list[dict[Any, int | None]]:
        return [{axis.var: stride(load, axis.var) for axis in self.axes} for load in self.loads]


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
    # Iterators of one element become constants, so that no read mentions them.
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
    """The value of each iterator of a block that has one element only."""
    block = realize.block
    return {axis.var: axis.dom.min for axis in block.iter_vars if static(axis.dom.extent) == 1}


def _product(total: Any, stage: Stage) -> Any:
    """The term that is added to the sum so far; None if a value is no addition."""
    if not isinstance(total, tirx.Add):
        return None
    return total.b if _reads_result(total.a, stage) else total.a


def _starts_at_zero(block: Any) -> bool:
    initial = block.init.value
    return isinstance(initial, tirx.IntImm | tirx.FloatImm) and initial.value == 0


def _reads_result(value: Any, stage: Stage) -> bool:
    return isinstance(value, Load) and bool(buffer_of(value).same_as(stage.stores[0].buffer))


def first_load(factor: Any) -> Any:
    """The read in a factor: of a pair that of its first number."""
    return nodes_in(factor, Load)[0]


def _uncast(value: Any) -> Any:
    while isinstance(value, tirx.Cast):
        value = value.value
    return value
