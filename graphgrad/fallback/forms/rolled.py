"""Unrolled sums rolled up: products that several stages add to one tensor, as one in more loops.

A sum for each residue class of a stride, as `residues` and lowerings of transposed convolutions
write it, hands each of its operands a product for each class. Where these products differ in the
constants of their indices alone, and the constants are those that loops would count, they are one
product, summed over these loops too: the window that somebody has taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import te, tirx
from tvm.ir import prim

from ..constants import integer_value
from ..contribution import Contribution
from ..copies import copied_element
from ..guarded import Guarded
from ..indices.affine import coefficients
from ..indices.index_system import Axis
from ..walk import Expr, dtype_name, is_load, loaded, tensor_key
from .terms import factors, product

Point = tuple[int, ...]
"""The constants of all indices of a product, in order."""


def rolled(parts: Sequence[Contribution | te.Tensor]) -> list[Contribution | te.Tensor]:
    """What is added to the cotangent of one tensor, with as few products as loops allow.

    Parameters
    ----------
    parts : sequence of Contribution or Tensor
        All to the same tensor; tensors are left as they are.

    Returns
    -------
    list of Contribution or Tensor
        A product that stands for several has the place of the first.
    """
    groups: dict[Any, list[_Product]] = {}
    of_part: list[Any] = []
    for part in parts:
        unrolled = _product(part) if isinstance(part, Contribution) else None
        key = unrolled and unrolled.key
        of_part.append(key)
        if unrolled is not None:
            groups.setdefault(key, []).append(unrolled)
    result: list[Contribution | te.Tensor] = []
    done = set()
    for part, key in zip(parts, of_part, strict=True):
        group = groups.get(key, [])
        loops = _loops_over([each.constants for each in group]) if len(group) > 1 else None
        if loops is None:
            result.append(part)
        elif key not in done:
            done.add(key)
            first = min(group, key=lambda each: each.constants)
            result.append(first.summed_over(loops))
    return result


@dataclass(frozen=True)
class _Product:
    """A contribution of one product of loads, at indices that are affine.

    Attributes
    ----------
    contribution : Contribution
    loads : list of Expr
        Its factors; copies are read through.
    key : tuple
        All but the constants of indices.
    constants : Point
    """

    contribution: Contribution
    loads: list[Expr]
    key: Any
    constants: Point

    def summed_over(self, loops: Sequence[tuple[int, Point]]) -> Contribution:
        """The sum of such products, whose constants move by a step in each trip of some loops."""
        dtype = dtype_name(self.contribution.indices[0].ty)
        zero = tirx.const(0, dtype)
        axes = [Axis(te.var("tap", dtype), zero, tirx.const(n, dtype)) for n, _ in loops]
        moves = iter(zip(*(step for _, step in loops), strict=True))

        def moved(indices: Sequence[Expr]) -> list[Expr]:
            # Taken in the order of the constants: the tensor's indices first, then the factors'.
            return [_plus(index, axes, next(moves)) for index in indices]

        indices = moved(self.contribution.indices)
        values = []
        for load in self.loads:
            tensor, at = loaded(load)
            values.append(tensor(*moved(at)))
        return replace(
            self.contribution,
            axes=[*self.contribution.axes, *axes],
            indices=indices,
            terms=[Guarded((), product(values))],
        )


def _plus(index: Expr, axes: Sequence[Axis], factors_of_axes: Sequence[int]) -> Expr:
    for axis, factor in zip(axes, factors_of_axes, strict=True):
        if factor:
            index = index + axis.var.astype(dtype_name(index.ty)) * factor
    return index


def _product(part: Contribution) -> _Product | None:
    """A contribution as a product of loads at affine indices; None if it is none."""
    if not part.indices or part.conditions or len(part.terms) != 1 or part.terms[0].guards:
        return None
    conditions, values = factors(part.terms[0].value)
    if conditions or len(values) < 2 or not all(map(is_load, values)):
        return None
    loads = [copied_element(value) for value in values]
    indices = [*part.indices, *(index for load in loads for index in loaded(load)[1])]
    forms = [coefficients(index, part.axes) for index in indices]
    bounds = [(integer_value(axis.low), integer_value(axis.extent)) for axis in part.axes]
    if any(form is None or not isinstance(form[1], prim.IntImm) for form in forms):
        return None
    if any(None in bound for bound in bounds):
        return None
    key = (
        tuple(bounds),
        tuple(tuple(form[0]) for form in forms if form),
        tuple(tensor_key(loaded(load)[0]) for load in loads),
    )
    return _Product(part, loads, key, tuple(int(form[1]) for form in forms if form))


def _loops_over(points: Sequence[Point]) -> list[tuple[int, Point]] | None:
    """The trips and steps of loops that visit some points from the least one on, the last first.

    None if no loops visit just these.
    """
    remaining = sorted(points)
    loops: list[tuple[int, Point]] = []
    while len(remaining) > 1:
        step = _difference(remaining[1], remaining[0])
        trips = 2
        while trips < len(remaining) and _is_step(remaining, trips, step):
            trips += 1
        inner = [n for n in range(1, len(remaining)) if n % trips]
        if len(remaining) % trips or not all(_is_step(remaining, n, step) for n in inner):
            return None
        loops.append((trips, step))
        remaining = remaining[::trips]
    return loops


def _is_step(points: Sequence[Point], number: int, step: Point) -> bool:
    """Whether a point is one step away from that before it."""
    return _difference(points[number], points[number - 1]) == step


def _difference(a: Point, b: Point) -> Point:
    return tuple(x - y for x, y in zip(a, b, strict=True))
