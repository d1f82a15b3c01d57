"""One contribution as a stage: a contraction, a sum of another kind, or residue classes of either.

The forms are compared by how often they evaluate their bodies (see `cost`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import te, tirx

from ..backprop import finite_product
from ..bindings import shared
from ..contribution import Contribution
from ..guarded import Guarded
from ..indices.affine import coefficients
from ..indices.index_system import Axis, NotAffineError, invert
from ..indices.linear_system import analyzer_of, element_axes
from ..kinds import Kind, marked
from ..walk import (
    Expr,
    depend,
    identity,
    is_load,
    loaded,
    map_all_nodes,
    reads,
    substitute_expressions,
    substituted,
)
from .contraction import load_of, product_at
from .cost import loop_points
from .gather import gather
from .narrow import block_read, narrowed, placed
from .normal_form import contraction
from .operands import inside, is_operand, operands
from .residues import (
    ResidueClass,
    has_too_many_classes,
    is_feasible,
    label,
    merged,
    moduli_of,
    residue_classes,
    worthwhile,
)
from .terms import factors, finite_factors, hoisted, product

_SUM_POINTS_PER_SCATTER_POINT = 2
"""Points of a sum in parallel loops that one of a serial scatter is worth; chosen, not measured."""

_MIN_BLOCK_TERMS = 32
"""Terms of each sum from which on a block of a tensor is summed by itself, and put in place; fewer,
as at the border of an image, are not worth two stages. Chosen, not measured."""

_CONTRACTION_POINTS_PER_SCATTER_POINT = 8
"""The same of contractions and scaled sums, which schedules make fast; chosen, not measured."""


def derived(contribution: Contribution, pads: bool = True) -> te.Tensor | None:
    """A contribution as a tensor, in the dtype of its terms.

    Parameters
    ----------
    contribution : Contribution
    pads : bool
        Whether conditions may become borders of zeros, see `pads`.

    Returns
    -------
    Tensor or None
        None if its indices cannot be inverted, or if to add it up where the forward pass read is
        far less work.
    """
    bounded = _add_operand_loops(hoisted(contribution))
    try:
        return _Derivation(bounded, pads, loop_points(contribution.axes)).result()
    except NotAffineError:
        return None


def _is_scaled_read(term: Guarded) -> bool:
    """Whether a term is an element that is read times numbers."""
    conditions, values = factors(term.value)
    read = [value for value in values if reads(value)]
    return not conditions and len(values) > len(read) == 1 and is_operand(read[0])


class _Derivation:
    """The forms of one contribution."""

    def __init__(self, contribution: Contribution, pads: bool, scattered: int):
        self.element = element_axes(contribution.tensor.shape)
        self.pads = pads
        self.name = f"{contribution.stage}_{contribution.tensor.op.name}_g"
        self.inverse = invert(
            contribution.indices, contribution.axes, self.element,
            equations=contribution.conditions,
        )  # fmt: skip
        # Without a sum there is nothing that a constant could be taken out of.
        is_sum = bool(self.inverse.loops)
        self._given = contribution
        self.contribution = _read_at_element(contribution, self.element) if is_sum else contribution
        self.points = loop_points([*self.element, *self.inverse.loops])
        # A scatter also visits each element once, to write its zero.
        self.scattered = scattered + loop_points(self.element)
        self.moduli = moduli_of(contribution, self.inverse, self.element)

    def result(self) -> te.Tensor | None:
        """The stage, or None if a scatter is better."""
        part = self.contribution
        terms = part.terms
        if len(terms) == 1 and self.inverse.loops:
            inner, outer = self._separate_outer_factor(terms[0])
            stage = self._contraction(inner)
            if stage is not None:
                return self._scaled(stage, outer)
        is_long = loop_points(self.inverse.loops) >= _MIN_BLOCK_TERMS
        block = block_read(self.inverse, self.element) if is_long else None
        if block is not None:
            in_block = _Derivation(narrowed(self._given, block), self.pads, self.scattered).result()
            return None if in_block is None else placed(in_block, block, part.tensor.shape)
        most = (
            _CONTRACTION_POINTS_PER_SCATTER_POINT
            if all(map(_is_scaled_read, terms))
            else _SUM_POINTS_PER_SCATTER_POINT
        )
        if self.points <= most * self.scattered:
            return gather(self.contribution, self.inverse, self.element, self.name)
        classes = self._classes(self.moduli)
        if not classes or self._exceed(classes, most):
            return None
        stages = {each.residues: self._gathered(each) for each in classes}
        dtype = str(next(iter(stages.values())).dtype)
        return merged(stages, part.tensor.shape, self.moduli, dtype, self.name)

    def _gathered(self, part: ResidueClass) -> te.Tensor:
        positions = list(zip([axis.var for axis in self.element], part.position, strict=True))
        here = _replace_terms(
            self.contribution, lambda exprs: substitute_expressions(exprs, positions)
        )
        name = f"{self.name}_r{label(part.residues)}"
        return gather(here, part.inversion, part.element, name)

    def _classes(self, moduli: Sequence[int]) -> list[ResidueClass]:
        """The residue classes of some moduli; none if they are too many."""
        if all(modulus == 1 for modulus in moduli):
            variables = [axis.var for axis in self.element]
            return [ResidueClass((0,) * len(moduli), self.element, variables, self.inverse)]
        if not is_feasible(moduli):
            return []
        classes = residue_classes(self.contribution, self.element, moduli)
        return [] if has_too_many_classes(classes) else classes

    def _exceed(self, classes: Sequence[ResidueClass], factor: int) -> bool:
        """Whether residue classes are more work than a scatter."""
        return sum(each.points for each in classes) > factor * self.scattered

    # --- contractions

    def _separate_outer_factor(self, term: Guarded) -> tuple[Guarded, Guarded | None]:
        """A term as what is summed and what all of a sum is multiplied with, or None."""
        value, outer = term.value, []
        while (pair := finite_factors(value)) is not None and self._is_constant(pair[1]):
            value = pair[0]
            outer.append(pair[1])
        # What stood below a finite product has conditions of its own, which nobody has hoisted.
        conditions, values = factors(value)
        all_guards = [*term.guards, *((condition, True) for condition in conditions)]
        inner = [value for value in values if not self._is_constant(value)]
        # A product of two without guards is a contraction as it is: it stays whole.
        if len(inner) > 1 and len(values) + len(all_guards) > 2:
            outer += [value for value in values if self._is_constant(value)]
        else:
            inner = values
        guards = [guard for guard in all_guards if self._is_constant(guard[0])]
        others = [guard for guard in all_guards if not self._is_constant(guard[0])]
        analyzer = analyzer_of(self.element)
        # Outside of the sum nothing protects them: their loads must be inside their tensors.
        if not (outer or guards) or not all(
            inside(expr, analyzer) for expr in [*outer, *(condition for condition, _ in guards)]
        ):
            return term, None
        one = tirx.const(1.0, str(value.ty))
        return (
            Guarded(tuple(others), product(inner)),
            Guarded(tuple(guards), product(outer or [one])),
        )

    def _is_constant(self, value: Expr) -> bool:
        """Whether a value depends on nothing but the element."""
        loops = {identity(axis.var) for axis in self.contribution.axes}
        return reads(value) and not depend([value], loops)

    def _contraction(self, term: Guarded) -> te.Tensor | None:
        """The sum of a product of two loads; None if it is none, or has too many points."""
        part = self.contribution
        element = {identity(axis.var) for axis in self.element}
        if depend([term.applied()], element):
            return None
        if term.guards and not self.pads:
            return None  # a guard would become a factor 0
        loads = operands(term, part.axes, part.conditions, self.name)
        if loads is None:
            return None
        block = block_read(self.inverse, self.element)
        if block is None:
            return self._sum_product(loads)
        in_block = _Derivation(narrowed(part, block), self.pads, self.scattered)
        # Outside the block the gradient is 0: only the block is a sum of products.
        stage = in_block._sum_product(loads)
        return None if stage is None else placed(stage, block, part.tensor.shape)

    def _sum_product(self, loads: tuple[Expr, Expr]) -> te.Tensor | None:
        """The sum of a product of two loads, by residue classes where that saves points."""
        part = self.contribution
        saving = worthwhile(part, self.element, self.moduli, self.points)
        # Failing the splits that save points, all of them: they decide every remainder.
        for moduli in [saving] if saving == self.moduli else [saving, self.moduli]:
            classes = self._classes(moduli)
            if not classes or self._exceed(classes, _CONTRACTION_POINTS_PER_SCATTER_POINT):
                continue
            products = {
                each.residues: product_at(loads, part.axes, each.inversion, each.element)
                for each in classes
            }
            stage = contraction(products, moduli, part.tensor.shape, self.name, self.pads)
            if stage is not None:
                return stage
        return None

    def _scaled(self, stage: te.Tensor, outer: Guarded | None) -> te.Tensor:
        """A sum multiplied with what depends on its element only."""
        if outer is None:
            return stage
        variables = [axis.var for axis in self.element]

        def body(*position: Any) -> Expr:
            total = stage(*variables)
            scaled = finite_product(total, outer.value)
            if self.inverse.guards:
                # Nothing may have read the element: then the factor may be NaN. Only then is it
                # left out: the derivative by a sum that happens to be zero is the factor.
                zero = tirx.const(0.0, str(total.ty))
                nothing = tirx.all(tirx.EQ(total, zero), tirx.isnan(scaled))
                scaled = tirx.Select(nothing, zero, scaled)
            value = Guarded(outer.guards, scaled).applied()
            around = [
                replace(axis, var=var) for axis, var in zip(self.element, position, strict=True)
            ]
            here = substituted(value, zip(variables, position, strict=True))
            return shared(here, axes=around)

        shape = tuple(axis.extent for axis in self.element)
        return te.compute(shape, body, name=f"{self.name}_scaled", attrs=marked(Kind.MAP))


def _add_operand_loops(contribution: Contribution) -> Contribution:
    """A contribution with further loops over indices of its operands, in their ranges.

    What an operand is read at under the conditions is inside it. An index that stands for a
    quotient, as the position in the data of a transposed convolution, has no other bound.
    """
    if len(contribution.terms) != 1 or not contribution.conditions:
        return contribution
    axes, equations = [], []
    for value in factors(contribution.terms[0].value)[1]:
        if not is_operand(value):
            continue
        tensor, indices = loaded(load_of(value))
        for index, extent in zip(indices, tensor.shape, strict=True):
            if coefficients(index, contribution.axes) is None:
                dtype = str(index.ty)
                var = te.var("at", dtype)
                axes.append(Axis(var, tirx.const(0, dtype), extent.astype(dtype)))
                equations.append(tirx.EQ(var, index))
    return replace(
        contribution,
        axes=[*contribution.axes, *axes],
        conditions=[*contribution.conditions, *equations],
    )


def _read_at_element(contribution: Contribution, element: Sequence[Axis]) -> Contribution:
    """A contribution whose terms read at the element itself where they read at its indices.

    What is read there is the same at all points that are summed.
    """

    def change(node: Expr) -> Expr:
        if not is_load(node):
            return node
        tensor, indices = loaded(node)
        same = len(indices) == len(element) and all(
            tvm_ffi.structural_equal(a, b)
            for a, b in zip(indices, contribution.indices, strict=True)
        )
        return tensor(*(axis.var for axis in element)) if same else node

    return _replace_terms(contribution, lambda exprs: map_all_nodes(exprs, change))


def _replace_terms(
    contribution: Contribution, change: Callable[[list[Expr]], list[Expr]]
) -> Contribution:
    """A contribution with the expressions of its terms changed, all at once.

    So what the terms share stays shared.
    """
    terms = contribution.terms
    changed = iter(change([e for t in terms for e in (*(c for c, _ in t.guards), t.value)]))
    # Taken in the order in which they were given: guards first, then the value.
    terms = [
        Guarded(tuple((next(changed), wanted) for _, wanted in term.guards), next(changed))
        for term in terms
    ]
    return replace(contribution, terms=terms)
