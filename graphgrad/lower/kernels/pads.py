"""Copies of tensors inside a border of zeros, which a reader may make do without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

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
"""An affine index: the factors of variables, without zeros. The constant has the key None."""


@dataclass(frozen=True)
class Border:
    """What a tensor is a copy of.

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
    """An index as an affine function of some variables; None if it is no such."""
    known = list(variables)
    factors = tvm.sym.detect_linear_equation(index, known)
    numbers = [static(factor) for factor in factors]
    if not numbers or None in numbers:
        return None
    return {v: number for v, number in zip([*known, None], numbers, strict=True) if number}


def border_of(stage: Stage, realize: Any) -> Border | None:
    """The tensor that a stage copies, if it does nothing else but put zeros around it.

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
    condition, value, other = _parts(choice)
    if not isinstance(value, Load) or not _is_zero(other):
        return None
    axes = {axis.var: axis for axis in stage.axes}
    inside = _ranges(condition, axes)
    (store,) = stage.stores
    written = [terms_of(substitute_values(index, fixed), axes) for index in store.indices]
    read = [terms_of(index, axes) for index in value.indices]
    shape = [static(extent) for extent in buffer_of(value).shape]
    if inside is None or len(read) != len(written):
        return None
    before = []
    for place, source, extent in zip(written, read, shape, strict=True):
        if place is None or source is None or extent is None:
            return None
        zeros = place.get(None, 0) - source.get(None, 0)
        variables = {v: f for v, f in place.items() if v is not None}
        if variables != {v: f for v, f in source.items() if v is not None} or place.get(None, 0):
            return None
        if not variables:
            low, high = 0, 0
            is_exact = zeros == 0 and extent == 1
        else:
            ((variable, factor),) = variables.items()
            length = axes[variable].extent
            if factor != 1 or length is None or len(variables) != 1:
                return None
            low, high = inside.pop(variable, (0, length - 1))
            is_exact = (low, high) == (max(zeros, 0), min(extent + zeros, length) - 1)
        if not is_exact:
            return None
        before.append(zeros)
    return None if inside else Border(stage.name, buffer_of(value), tuple(before))


def _is_choice(value: Any) -> bool:
    return is_conditional(value) or isinstance(value, tirx.Select)


def _parts(choice: Any) -> tuple[Any, Any, Any]:
    """The condition of a choice, and its two values."""
    if isinstance(choice, tirx.Select):
        return choice.condition, choice.true_value, choice.false_value
    condition, value, other = choice.args
    return condition, value, other


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0


def _ranges(condition: Any, axes: Mapping[Any, Axis]) -> dict[Any, tuple[int, int]] | None:
    """The first and the last index along each axis at which a condition holds.

    None if it is not made of bounds of single axes.
    """
    found: dict[Any, tuple[int, int]] = {}
    for comparison in _conjuncts(condition):
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
        low, high = found.get(variable, (0, length - 1))
        found[variable] = (max(low, -start), high) if factor == 1 else (low, min(high, start))
    return found


def _conjuncts(condition: Any) -> Iterable[Any]:
    if isinstance(condition, prim.And):
        yield from _conjuncts(condition.a)
        yield from _conjuncts(condition.b)
    else:
        yield condition


def _at_least_zero(comparison: Any) -> Any | None:
    """The expression that a comparison asks not to be negative."""
    if isinstance(comparison, prim.GE):
        return comparison.a - comparison.b
    if isinstance(comparison, prim.LE):
        return comparison.b - comparison.a
    if isinstance(comparison, prim.GT):
        return comparison.a - comparison.b - 1
    if isinstance(comparison, prim.LT):
        return comparison.b - comparison.a - 1
    return None
