"""Reductions: which elements a result depends on, and by how much.

Sums, products, extremes and tuples of which one side is chosen have forms of their own here; every
other combiner is restated as a recurrence (`reduce_restated`).

Of equal extremes the first gets all, in row-major order of the loops; the first NaN, if there is
one. That of a product is exact whatever its zeros are; where the product of what is not zero leaves
the range of its dtype, so does its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import prim

from ...errors import MissingGradientError
from ..backprop import is_float, wide, widened
from ..constants import integer_value, is_true
from ..graph import listed
from ..guarded import Guard, Guarded
from ..indices.index_system import Axis
from ..indices.row_major import raveled
from ..kinds import Kind, map_stage, marked
from ..walk import (
    Expr,
    choice_of,
    contain,
    depend,
    identity,
    inline_lets,
    is_load,
    items,
    substituted,
)
from .combiner import Combination, Combiner

OTHERS = "graphgrad.product_of_others"
"""The tag of stages that hold, for each factor of a product, the product of all others."""

_LAST_SHORT_POSITION = (1 << 31) - 1
"""The greatest int32, which is behind all positions where those are int32."""
_MAX_KNOWN_BOUND = 1 << 40
"""Bounds beyond which TVM's analysis only says that it knows none."""


@dataclass(frozen=True)
class Point:
    """One expression that a stage evaluates at each point of some loops, and its cotangent there.

    Attributes
    ----------
    axes : list of Axis
    root : Expr
    seed : Guarded
        The cotangent of `root`.
    value : Expr or None
        What holds the value of `root` already.
    """

    axes: list[Axis]
    root: Expr
    seed: Guarded
    value: Expr | None = None


def reduction_points(
    op: Any, cotangents: Sequence[te.Tensor | None], values: Sequence[te.Tensor | None] = ()
) -> list[Point]:
    """The expressions that a reduction evaluates, with their cotangents.

    Components whose combination is not known here are left out: see `reduce_restated`.

    Parameters
    ----------
    op : ComputeOp
        Whose bodies are reductions.
    cotangents : sequence of Tensor or None
        One per output.
    values : sequence of Tensor or None, optional
        Outputs that may be read.
    """
    return Reduction(op, cotangents, values).points()


def stage_axes(op: Any) -> list[Axis]:
    """The loops of a stage: those over its elements, then those that it reduces."""
    return [Axis(i.var, i.dom.min, i.dom.extent) for i in items(op.axis) + items(op.reduce_axis)]


class Reduction:
    """One stage that reduces.

    Attributes
    ----------
    op : ComputeOp
    combiner : Combiner
    sources, starts : list of Expr
        Components of what is reduced, and of what the result starts from.
    condition : Expr or None
        When an element counts; None if always.
    cotangents, values : dict
        Of the components that have one, by their numbers.
    groups : list of (list of int, Combination)
        The components that those depend on, and how they are combined.
    """

    def __init__(
        self,
        op: Any,
        cotangents: Sequence[te.Tensor | None],
        values: Sequence[te.Tensor | None] = (),
    ):
        self.op = op
        self.axes = stage_axes(op)
        self.shape = [axis.extent for axis in self.axes[: len(op.axis)]]
        self.spatial = [axis.var for axis in self.axes[: len(op.axis)]]
        self.reduced = self.axes[len(op.axis) :]
        body = op.body[0]
        self.combiner = Combiner(body.combiner)
        self.sources = [inline_lets(source) for source in body.source]
        self.has_init = len(body.init) > 0
        self.starts = [
            value if str(value.ty) == str(source.ty) else value.astype(str(source.ty))
            for value, source in zip(
                body.init if self.has_init else self.combiner.identity, self.sources, strict=True
            )
        ]
        self.condition = None if is_true(body.condition) else body.condition
        # Outputs may name the components in any order, or only some of them.
        components = [int(result.value_index) for result in op.body]
        self.cotangents = _present(components, cotangents)
        self.values = _present(components, values)
        groups = self.combiner.groups(self.cotangents)
        self.groups = [(group, self.combiner.combination(group)) for group in groups]

    def points(self) -> list[Point]:
        """The points of the components whose combination is known."""
        points = []
        for group, combination in self.groups:
            if combination is Combination.SUM:
                points += self._sum(group)
            elif self.has_init or combination is Combination.OTHER:
                continue
            elif combination is Combination.PRODUCT:
                points += self._product(group)
            elif combination is Combination.CHOICE:
                points += self._chosen(group)
            else:
                points += self._extreme(group, combination)
        return points

    def extents(self) -> list[Expr]:
        """How many values each reduced variable may have, wherever the others are."""
        analyzer = tvm.sym.Analyzer()
        variables = {identity(axis.var) for axis in self.axes}
        extents = []
        for axis in self.axes:
            if depend([axis.extent], variables):
                most = analyzer.const_int_bound(axis.extent).max_value
                if most > _MAX_KNOWN_BOUND:
                    raise MissingGradientError(
                        f"the stage {self.op.name} reduces over {axis.var.name}, of extent "
                        f"{axis.extent}, which has no constant bound: its gradient is not known; "
                        "make the range constant and add the rest as a condition"
                    )
                extents.append(tirx.const(most, str(axis.extent.ty)))
            else:
                extents.append(axis.extent)
            # Extents of loops further in may depend on this one.
            analyzer.bind(axis.var, tvm.ir.Range.from_min_extent(axis.low, axis.extent))
        return extents[len(self.spatial) :]

    def counts_everywhere(self) -> bool:
        """Whether every combination of offsets within `extents` is an element."""
        return self.condition is None and all(
            most.same_as(axis.extent)
            for axis, most in zip(self.reduced, self.extents(), strict=True)
        )

    def elements(
        self,
        values: Sequence[Expr],
        otherwise: Sequence[Expr],
        position: Sequence[Expr],
        offsets: Sequence[Expr],
    ) -> list[Expr]:
        """Values at a point of the loops, and something else where it does not count.

        Parameters
        ----------
        values : sequence of Expr
            In terms of the loops' variables.
        otherwise : sequence of Expr
        position : sequence of Expr
            In the result.
        offsets : sequence of Expr
            Of the reduced variables from their least values, within `extents`.
        """
        renamed = list(zip(self.spatial, position, strict=True))
        conditions = []
        for axis, offset, most in zip(self.reduced, offsets, self.extents(), strict=True):
            if not most.same_as(axis.extent):
                conditions.append(offset < substituted(axis.extent, renamed))
            renamed.append((axis.var, substituted(axis.low, renamed) + offset))
        if self.condition is not None:
            conditions.append(substituted(self.condition, renamed))
        results = []
        for value, fallback in zip(values, otherwise, strict=True):
            element = substituted(value, renamed)
            # The first condition goes outermost: later ones are evaluated only where it holds.
            for condition in reversed(conditions):
                element = tirx.if_then_else(condition, element, fallback)
            results.append(element)
        return results

    def _seeds(self, group: Sequence[int]) -> list[tuple[int, Expr]]:
        return [
            (i, widened(cotangent(*self.spatial)))
            for i, cotangent in self.cotangents.items()
            if i in group
        ]

    def _point(self, component: int, guards: tuple[Guard, ...], cotangent: Expr) -> Point:
        if self.condition is not None:
            guards = ((self.condition, True), *guards)
        return Point(self.axes, self.sources[component], Guarded(guards, cotangent))

    def _sum(self, group: Sequence[int]) -> list[Point]:
        """All to every element, and to what the sum starts from."""
        points = []
        for i, cotangent in self._seeds(group):
            points.append(self._point(i, (), cotangent))
            if self.has_init:
                over_results = self.axes[: len(self.spatial)]
                points.append(Point(over_results, self.starts[i], Guarded((), cotangent)))
        return points

    def _extreme(self, group: Sequence[int], combination: Combination) -> list[Point]:
        """All to the first of the largest elements, or smallest; to the first NaN if there is one.

        That one is found by a reduction of its own, of pairs (value, position). Where such a pair
        is one integer, that is a maximum like any other. Elements are not compared with the
        extreme unless they are read: computed again, by another kernel, they may be rounded to
        something else.
        """
        (component,) = group
        largest = combination is Combination.LARGEST
        if component in self.values and _is_read(self.sources[component]):
            return self._guarded(group, self._position_of(component))
        if self._may_be_packed(component):
            return self._guarded(group, self._packed_position(component, largest))

        def choose(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, ...]:
            ahead = a[0] > b[0] if largest else a[0] < b[0]
            # x != x would be folded to false, and isnan takes no bfloat16.
            a_nan, b_nan = tirx.isnan(widened(a[0])), tirx.isnan(widened(b[0]))
            tied = tirx.any(tirx.EQ(a[0], b[0]), tirx.all(a_nan, b_nan))
            earlier = tirx.all(tied, a[1] <= b[1])
            # A NaN goes before all numbers, the earlier of equals before the later.
            better = tirx.any(ahead, tirx.all(a_nan, tirx.Not(b_nan)), earlier)
            return tuple(tirx.Select(better, x, y) for x, y in zip(a, b, strict=True))

        value = self.sources[component]
        start = tirx.const(-math.inf if largest else math.inf, str(value.ty))
        return self._at_position(group, choose, [value], [start])

    def _position_of(self, component: int) -> te.Tensor:
        """The position of the first element that is the result, or NaN as the result is then."""
        element = widened(self.sources[component])
        result = widened(self.values[component](*self.spatial))
        last = tirx.max_value(self._position_dtype)
        is_result = tirx.any(tirx.EQ(element, result), tirx.isnan(element))
        position = tirx.Select(is_result, self._position(), last)
        return self._reduced(te.min, self._mask_elements([position], [last]), "position")[0]

    @property
    def _position_dtype(self) -> str:
        """The dtype of positions: int32 where it holds all of them and one behind."""
        count = math.prod(integer_value(e) or _LAST_SHORT_POSITION for e in self.extents())
        return "int32" if count < _LAST_SHORT_POSITION else "int64"

    def _may_be_packed(self, component: int) -> bool:
        """Whether a value and its position are one integer of 64 bits."""
        has_short_positions = self._position_dtype == "int32"
        return wide(self.sources[component].ty) == "float32" and has_short_positions

    def _packed_position(self, component: int, largest: bool) -> te.Tensor:
        """The position of the first extreme or NaN, from the greatest of packed pairs."""
        value = widened(self.sources[component])
        order = sortable(value if largest else -value).astype("int64")
        last = tirx.const(_LAST_SHORT_POSITION, "int64")
        pair = order * tirx.const(1 << 32, "int64") + (last - self._position()).astype("int64")
        least = tirx.min_value("int64")
        (greatest,) = self._reduced(te.max, self._mask_elements([pair], [least]), "extreme")

        def position(*at: Any) -> Expr:
            # Where no element counts, the last bits of the least integer say `last`: no position.
            return (last - tirx.bitwise_and(greatest(*at), last)).astype("int32")

        name = f"{self.op.name}_position"
        return map_stage(tuple(self.shape), position, name=name)

    def _chosen(self, group: Sequence[int]) -> list[Point]:
        """All to the element that the combiner chose, the first of equal ones.

        It is found by the combiner itself, with the position beside.
        """
        choice = self.combiner.choice(group)
        assert choice is not None
        condition, wants_left = choice

        def choose(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, ...]:
            bound = self.combiner.bound(group, a[:-1], b[:-1])
            left = substituted(condition, bound)
            tied = tirx.all(*(tirx.EQ(x, y) for x, y in zip(a[:-1], b[:-1], strict=True)))
            first = tirx.all(tied, a[-1] <= b[-1])
            second = tirx.all(tied, b[-1] < a[-1])

            # Of equal tuples the position decides: what the combiner takes depends on their order.
            def chosen(x: Expr, y: Expr) -> Expr:
                preferred = tirx.Select(left, x, y) if wants_left else tirx.Select(left, y, x)
                return tirx.Select(first, x, tirx.Select(second, y, preferred))

            return tuple(chosen(x, y) for x, y in zip(a, b, strict=True))

        sources = [self.sources[i] for i in group]
        starts = [self.combiner.identity[i] for i in group]
        return self._at_position(group, choose, sources, starts)

    def _at_position(
        self,
        group: Sequence[int],
        choose: Callable[..., Any],
        sources: Sequence[Expr],
        starts: Sequence[Expr],
    ) -> list[Point]:
        """Points guarded by the position that a reduction of tuples ends with.

        `choose` combines tuples of `sources` and, last, the position, from `starts`.
        """
        starts = [*starts, tirx.max_value(self._position_dtype)]
        elements = self._mask_elements([*sources, self._position()], starts)
        combine = te.comm_reducer(choose, lambda *_: tuple(starts), name="choose")
        return self._guarded(group, self._reduced(combine, elements, "position")[-1])

    def _guarded(self, group: Sequence[int], winner: te.Tensor) -> list[Point]:
        """Points of the elements whose position is that of a winner."""
        here = tirx.EQ(self._position(), winner(*self.spatial))
        return [self._point(i, ((here, True),), c) for i, c in self._seeds(group)]

    def _position(self) -> Expr:
        """The place of a point among those that are reduced, in row-major order."""
        # Like all indices in int64, into which TVM would turn the arithmetic of shorter ones.
        offsets = [(axis.var - axis.low).astype("int64") for axis in self.reduced]
        index = raveled(offsets, [extent.astype("int64") for extent in self.extents()])
        return index.astype(self._position_dtype)

    def _mask_elements(self, elements: Sequence[Expr], otherwise: Sequence[Expr]) -> list[Expr]:
        """Elements, and something else where they do not count."""
        if self.condition is None:
            return list(elements)
        return [
            tirx.if_then_else(self.condition, element, fallback)
            for element, fallback in zip(elements, otherwise, strict=True)
        ]

    def _product(self, group: Sequence[int]) -> list[Point]:
        """The product of all others: by the number of zeros and the product of what is not zero."""
        (component,) = group
        factor = widened(self.sources[component])
        dtype = str(factor.ty)
        zero, one = tirx.const(0.0, dtype), tirx.const(1.0, dtype)
        (counted,) = self._mask_elements([factor], [one])
        is_zero = tirx.EQ(counted, zero)
        (zeros,) = self._reduced(te.sum, [tirx.Select(is_zero, one, zero)], "zeros")
        combine = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1.0, t), name="product")
        (product,) = self._reduced(combine, [tirx.Select(is_zero, one, counted)], "product")

        def others(*position: Any) -> Expr:
            at, offsets = position[: len(self.shape)], position[len(self.shape) :]
            (value,) = self.elements([factor], [one], at, offsets)
            return product_of_others(value, zeros(*at), product(*at))

        # A stage of its own, because its gradient is not that of these expressions: the product of
        # others that are zero depends on them too.
        partial = te.compute(
            (*self.shape, *self.extents()), others, name=f"{self.op.name}_others", tag=OTHERS,
            attrs=marked(Kind.MAP),
        )  # fmt: skip
        offsets = [axis.var - axis.low for axis in self.reduced]
        return [
            self._point(i, (), cotangent * partial(*self.spatial, *offsets))
            for i, cotangent in self._seeds(group)
        ]

    def _reduced(self, combine: Any, values: Sequence[Expr], name: str) -> list[te.Tensor]:
        """The results of another reduction over the same loops."""

        def body(*position: Any) -> Any:
            renamed = list(zip(self.spatial, position, strict=True))
            loops = []
            for axis in self.reduced:
                low, extent = (substituted(e, renamed) for e in (axis.low, axis.extent))
                loops.append(te.reduce_axis((low, low + extent), axis.var.name))
                renamed.append((axis.var, loops[-1].var))
            sources = tuple(substituted(value, renamed) for value in values)
            return combine(sources if len(sources) > 1 else sources[0], axis=loops)

        return listed(
            te.compute(
                tuple(self.shape), body, name=f"{self.op.name}_{name}", attrs=marked(Kind.REDUCE)
            )
        )


def _present(
    components: Sequence[int], tensors: Sequence[te.Tensor | None]
) -> dict[int, te.Tensor]:
    """The tensors that are not None, by the component that each belongs to."""
    pairs = zip(components, tensors, strict=False)
    return {component: tensor for component, tensor in pairs if tensor is not None}


def _is_read(value: Expr) -> bool:
    """Whether a value is an element of a tensor or a constant, chosen without any arithmetic."""
    choice = choice_of(value)
    if choice is None:
        return is_load(value) or isinstance(value, prim.FloatImm)
    condition, *values = choice
    return all(map(_is_read, values)) and not contain([condition], lambda n: is_float(n.ty))


def sortable(value: Expr) -> Expr:
    """An int32 that is ordered as a float32 is, with −0 as 0 and every NaN above all numbers."""
    zero, greatest = tirx.const(0, "int32"), tirx.max_value("int32")
    bits = tirx.reinterpret("int32", value)
    # The magnitude of a negative number counts the other way.
    ordered = tirx.bitwise_xor(bits, tirx.bitwise_and(bits >> tirx.const(31, "int32"), greatest))
    is_zero = tirx.EQ(value, tirx.const(0.0, "float32"))
    return tirx.Select(tirx.isnan(value), greatest, tirx.Select(is_zero, zero, ordered))


def product_of_others(factor: Expr, zeros: Expr, product: Expr) -> Expr:
    """The product of all factors but one.

    Parameters
    ----------
    factor : Expr
        The one that is left out.
    zeros : Expr
        How many factors are zero.
    product : Expr
        Of those that are not.
    """
    zero, one = tirx.const(0.0, str(factor.ty)), tirx.const(1.0, str(factor.ty))
    is_zero = tirx.EQ(factor, zero)
    # A single zero is among the others of every factor but itself; two are among those of all.
    return tirx.Select(
        tirx.EQ(zeros, zero),
        product / tirx.Select(is_zero, one, factor),
        tirx.Select(tirx.all(tirx.EQ(zeros, one), is_zero), product, zero),
    )
