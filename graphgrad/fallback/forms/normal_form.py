"""Contractions put together from residue classes: affine, without conditions, a stage each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm
from typing import Any

from tvm import te, tirx

from ..kinds import Kind, marked
from ..walk import Expr
from .contraction import Product, divisors, emitted, is_affine, split
from .pads import padded
from .residues import Residues, label, merged


def contraction(
    products: Mapping[Residues, Product],
    moduli: Sequence[int],
    shape: Sequence[Expr],
    name: str,
    pads: bool,
) -> te.Tensor | None:
    """The tensor whose residue classes are some products; None if they are not affine.

    Parameters
    ----------
    products : mapping of Product
        By residue class; one under all zeros if nothing is split.
    moduli : sequence of int
        One per dimension.
    shape : sequence of Expr
        Of the tensor.
    name : str
    pads : bool
        Whether conditions may become borders of zeros, see `pads`.
    """
    by = _quotients(products, moduli)
    parts = {residues: _split_product(product, by) for residues, product in products.items()}
    if not all(is_affine(part) for part in parts.values()):
        return None
    if pads:
        parts = dict(zip(parts, padded(list(parts.values())), strict=True))
    if all(modulus == 1 for modulus in moduli):
        (part,) = parts.values()
        kind = Kind.REDUCE if part.conditions else Kind.CONTRACTION
        return _fold_dimensions(emitted(part, name, marked(kind)), by, shape)
    loop_moduli = _spread(moduli, by, 1)
    stages: dict[Residues, te.Tensor] = {}
    for residues, part in parts.items():
        kind = Kind.REDUCE if part.conditions else Kind.RESIDUE_CLASS
        loop_residues = _spread(residues, by, 0)
        stages[loop_residues] = emitted(part, f"{name}_r{label(residues)}", marked(kind))
    extents: list[Expr] = []
    for number, extent in enumerate(shape):
        # A divided dimension is two here, one of quotients and one of remainders.
        extents += [extent // by[number], by[number]] if number in by else [extent]
    dtype = str(next(iter(stages.values())).dtype)
    return _fold_dimensions(merged(stages, extents, loop_moduli, dtype, name), by, shape)


def _quotients(products: Mapping[Residues, Product], moduli: Sequence[int]) -> dict[int, int]:
    """The divisors of the tensor's dimensions in any class, but for those that `moduli` split."""
    quotients: dict[int, int] = {}
    for product in products.values():
        for number, divisor in divisors(product).items():
            # Higher numbers are loops of the sum; a dimension that is split stays one.
            if number < len(moduli) and moduli[number] == 1:
                quotients[number] = lcm(quotients.get(number, 1), divisor)
    return dict(sorted(quotients.items()))


def _split_product(product: Product, by: Mapping[int, int]) -> Product:
    """A product with those dimensions, and its loops, as quotients and remainders."""
    loops = {n: d for n, d in divisors(product).items() if n >= len(product.element)}
    return split(product, {**by, **loops}) if by or loops else product


def _spread(values: Sequence[int], by: Mapping[int, int], residue: int) -> tuple[int, ...]:
    """Values per dimension as values per loop, where some dimensions are two loops."""
    return tuple(
        item
        for number, value in enumerate(values)
        for item in ([value, residue] if number in by else [value])
    )


def _fold_dimensions(stage: te.Tensor, by: Mapping[int, int], shape: Sequence[Expr]) -> te.Tensor:
    """A tensor of some shape from one with dimensions as quotients and remainders."""
    if not by:
        return stage

    def body(*position: Any) -> Expr:
        indices: list[Expr] = []
        for number, index in enumerate(position):
            divisor = by.get(number)
            if divisor is None:
                indices.append(index)
            else:
                indices += [tirx.floordiv(index, divisor), tirx.floormod(index, divisor)]
        return stage(*indices)

    name = f"{stage.op.name}_fold_dimensions"
    return te.compute(tuple(shape), body, name=name, attrs=marked(Kind.MAP))
