"""Pads: copies of tensors inside a border of zeros, which a reader may be able to do without.

Such a reader reads the tensor itself and guards the border; see `Border`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from ...fallback.indices.conditions import conjuncts
from ...ir.kernel_structure import (
    Axis,
    Load,
    Stage,
    buffer_of,
    is_conditional,
    static,
    substitute_values,
)
from .contraction import fixed_iterators

Terms = dict[Any, int]
"""An affine index: each variable's factor, unless it is zero. The constant has the key None."""


@dataclass(frozen=True)
class Border:
    """The copy that a pad stage makes, and of which tensor.

    Attributes
    ----------
    stage : str
        The name of the stage that copies.
    source : Buffer
    before : tuple of int
        Zeros before the first element along each axis; negative where elements are left out.
    """

    stage: str
    source: Any
    before: tuple[int, ...]


def terms_of(index: Any, variables: Iterable[Any]) -> Terms | None:
    """An index as an affine function of some variables; None if it is something else."""
    variable_list = list(variables)
    factors = tvm.sym.detect_linear_equation(index, variable_list)
    numbers = [static(factor) for factor in factors]
    if not numbers or None in numbers:
        return None
    return {
        variable: number
        for variable, number in zip([*variable_list, None], numbers, strict=True)
        if number
    }


def border_of(stage: Stage, realize: Any) -> Border | None:
    """The border that a stage puts around a tensor; None if it does anything else.

    Parameters
    ----------
    stage : Stage
    realize : SBlockRealize
        Its block.
    """
    fixed = fixed_iterators(realize)
    choice = substitute_values(stage.values[0], fixed)
    if stage.reduced or not _is_choice(choice):
        return None
    condition, value, outside_value = _parts(choice)
    if not isinstance(value, Load) or not _is_zero(outside_value):
        return None
    axes = {axis.var: axis for axis in stage.axes}
    valid_ranges = _ranges(condition, axes)
    (store,) = stage.stores
    written = [terms_of(substitute_values(index, fixed), axes) for index in store.indices]
    read = [terms_of(index, axes) for index in value.indices]
    shape = [static(extent) for extent in buffer_of(value).shape]
    if valid_ranges is None or len(read) != len(written):
        return None
    before = []
    for written_terms, read_terms, extent in zip(written, read, shape, strict=True):
        if written_terms is None or read_terms is None or extent is None:
            return None
        # Where the copy is written at i, the tensor is read at i - zeros, along the same axis.
        zeros = written_terms.get(None, 0) - read_terms.get(None, 0)
        variables = {
            variable: factor for variable, factor in written_terms.items() if variable is not None
        }
        if variables != {
            variable: factor for variable, factor in read_terms.items() if variable is not None
        } or written_terms.get(None, 0):
            return None
        if not variables:
            low, high = 0, 0
            is_exact = zeros == 0 and extent == 1
        else:
            ((axis_variable, axis_factor),) = variables.items()
            length = axes[axis_variable].extent
            if axis_factor != 1 or length is None or len(variables) != 1:
                return None
            low, high = valid_ranges.pop(axis_variable, (0, length - 1))
            is_exact = (low, high) == (max(zeros, 0), min(extent + zeros, length) - 1)
        # The condition must leave out what is outside of the tensor, and nothing inside of it.
        if not is_exact:
            return None
        before.append(zeros)
    # A bound that is left is one of an axis that no index of the read depends on.
    return None if valid_ranges else Border(stage.name, buffer_of(value), tuple(before))


def _is_choice(value: Any) -> bool:
    return is_conditional(value) or isinstance(value, tirx.Select)


def _parts(choice: Any) -> tuple[Any, Any, Any]:
    """The condition of a choice, and its two values."""
    if isinstance(choice, tirx.Select):
        return choice.condition, choice.true_value, choice.false_value
    condition, true_value, false_value = choice.args
    return condition, true_value, false_value


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0


def _ranges(condition: Any, axes: Mapping[Any, Axis]) -> dict[Any, tuple[int, int]] | None:
    """The first and the last index along each axis at which a condition holds.

    Axes without a bound are not in it. None if the condition is anything but bounds of single axes.
    """
    ranges: dict[Any, tuple[int, int]] = {}
    for comparison in conjuncts(condition):
        difference = _at_least_zero(comparison)
        terms = None if difference is None else terms_of(difference, axes)
        if terms is None:
            return None
        start = terms.pop(None, 0)
        if len(terms) != 1:
            return None
        ((variable, factor),) = terms.items()
        length = axes[variable].extent
        if abs(factor) != 1 or length is None:
            return None
        # The comparison is variable + start >= 0, or start - variable >= 0.
        low, high = ranges.get(variable, (0, length - 1))
        ranges[variable] = (max(low, -start), high) if factor == 1 else (low, min(high, start))
    return ranges


def _at_least_zero(comparison: Any) -> Any | None:
    """The expression that is not negative where a comparison holds; None for another one."""
    if isinstance(comparison, prim.GE):
        return comparison.a - comparison.b
    if isinstance(comparison, prim.LE):
        return comparison.b - comparison.a
    if isinstance(comparison, prim.GT):
        return comparison.a - comparison.b - 1
    if isinstance(comparison, prim.LT):
        return comparison.b - comparison.a - 1
    return None
