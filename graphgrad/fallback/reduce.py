"""Reductions: which elements a result depends on, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

from ..errors import MissingGradientError
from .backprop import Guard, Guarded, wide
from .index_system import Axis
from .walk import Expr, identity, substituted, without_lets

_POSITION = "int64"
_NOWHERE = (1 << 63) - 1
"""The position of a reduction's identity: behind every element."""


@dataclass(frozen=True)
class Point:
    """One expression that a stage evaluates at each point of some loops, and its cotangent there.

    Attributes
    ----------
    axes : list of Axis
    root : Expr
    seed : Guarded
        The cotangent of `root`.
    """

    axes: list[Axis]
    root: Expr
    seed: Guarded


def reduction_points(op: Any, cotangents: Sequence[te.Tensor | None]) -> list[Point]:
    """Return what a reduction evaluates, with the cotangents of that.

    Parameters
    ----------
    op : ComputeOp
        Whose bodies are reductions.
    cotangents : sequence of Tensor or None
        One per output.

    Raises
    ------
    MissingGradientError
        The gradient of the combiner is not known.
    """
    return _Reduction(op, cotangents).points()


def stage_axes(op: Any) -> list[Axis]:
    """Return the loops of a stage: those over its elements, then those that it reduces."""
    return [Axis(i.var, i.dom.min, i.dom.extent) for i in [*op.axis, *op.reduce_axis]]


def widened(value: Expr) -> Expr:
    """Return a value in the dtype in which cotangents of it are computed."""
    return value if str(value.ty) == wide(value.ty) else value.astype(wide(value.ty))


class _Reduction:
    """One stage that reduces."""

    def __init__(self, op: Any, cotangents: Sequence[te.Tensor | None]):
        self.op = op
        self.axes = stage_axes(op)
        self.spatial = [axis.var for axis in self.axes[: len(op.axis)]]
        self.reduced = self.axes[len(op.axis) :]
        self.body = op.body[0]
        self.combiner = self.body.combiner
        self.sources = [without_lets(source) for source in self.body.source]
        self.condition = self.body.condition
        # Outputs may name the components in any order, or only some of them.
        self.cotangents = {
            int(body.value_index): cotangent
            for body, cotangent in zip(op.body, cotangents, strict=True)
            if cotangent is not None
        }

    def points(self) -> list[Point]:
        """Return the points of every component that has a cotangent."""
        results = [without_lets(result) for result in self.combiner.result]
        if all(self._combines(result, i, prim.Add) for i, result in enumerate(results)):
            return [self._point(i, (), c) for i, c in self._seeds()]
        if len(self.body.init):
            raise MissingGradientError(
                f"the stage {self.op.name} reduces otherwise than by a sum, from a value given as "
                "init, whose gradient is not known; combine that value in a stage of its own"
            )
        if len(results) == 1 and self._combines(results[0], 0, prim.Max | prim.Min):
            return self._extreme(isinstance(results[0], prim.Max))
        if len(results) == 1 and self._combines(results[0], 0, prim.Mul):
            return self._product()
        choice = self._choice(results)
        if choice is not None:
            return self._chosen(choice)
        raise MissingGradientError(
            f"the stage {self.op.name} reduces by {self.combiner}, whose gradient is not known; "
            "write it as a sum, product, maximum or minimum, or give the op a gradient by "
            "gg.register_gradient"
        )

    def _seeds(self) -> list[tuple[int, Expr]]:
        return [(i, widened(c(*self.spatial))) for i, c in self.cotangents.items()]

    def _point(self, component: int, guards: tuple[Guard, ...], cotangent: Expr) -> Point:
        if not _is_true(self.condition):
            guards = ((self.condition, True), *guards)
        return Point(self.axes, self.sources[component], Guarded(guards, cotangent))

    def _combines(self, result: Expr, component: int, kind: Any) -> bool:
        """Return whether a component's result is one operation on its own two operands."""
        if not isinstance(result, kind):
            return False
        left, right = self.combiner.lhs[component], self.combiner.rhs[component]
        operands = {identity(result.a), identity(result.b)}
        return operands == {identity(left), identity(right)}

    def _choice(self, results: Sequence[Expr]) -> Expr | None:
        """Return the condition by which a combiner takes all components from one side, or None."""
        conditions = []
        for i, result in enumerate(results):
            if not isinstance(result, prim.Select):
                return None
            sides = [identity(result.true_value), identity(result.false_value)]
            if sides != [identity(self.combiner.lhs[i]), identity(self.combiner.rhs[i])]:
                return None
            conditions.append(result.condition)
        same = all(tvm_ffi.structural_equal(conditions[0], condition) for condition in conditions)
        return conditions[0] if same else None

    def _extreme(self, largest: bool) -> list[Point]:
        """All to the first of the largest elements, or smallest; to the first NaN if there is one.

        That one is found by a reduction of its own, of pairs (value, position).
        """

        def better(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
            ahead = a[0] > b[0] if largest else a[0] < b[0]
            a_nan, b_nan = tirx.isnan(a[0]), tirx.isnan(b[0])  # x != x would be folded to false
            level = tirx.any(tirx.EQ(a[0], b[0]), tirx.all(a_nan, b_nan))
            earlier = tirx.all(level, a[1] <= b[1])
            return tirx.any(ahead, tirx.all(a_nan, tirx.Not(b_nan)), earlier)

        start = tirx.const(-math.inf if largest else math.inf, str(self.sources[0].ty))
        return self._at_position(
            lambda a, b: tuple(tirx.Select(better(a, b), x, y) for x, y in zip(a, b, strict=True)),
            [start],
        )

    def _chosen(self, condition: Expr) -> list[Point]:
        """All to the element that the combiner chose: its own choice, with the position beside."""
        combiner = self.combiner
        count = len(combiner.lhs)

        def choose(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, ...]:
            bound = [*zip(combiner.lhs, a[:count], strict=True)]
            bound += zip(combiner.rhs, b[:count], strict=True)
            left = substituted(condition, bound)
            return tuple(tirx.Select(left, x, y) for x, y in zip(a, b, strict=True))

        return self._at_position(choose, list(combiner.identity_element))

    def _at_position(self, choose: Any, starts: Sequence[Expr]) -> list[Point]:
        """Return points guarded by the position that a reduction of pairs ends with.

        `choose` combines tuples whose last component is the position, from `starts`.
        """
        starts = [*starts, tirx.const(_NOWHERE, _POSITION)]
        elements = [*self.sources, self._linear_position()]
        if not _is_true(self.condition):
            elements = [
                tirx.if_then_else(self.condition, element, start)
                for element, start in zip(elements, starts, strict=True)
            ]
        combine = te.comm_reducer(choose, lambda *_: tuple(starts), name="choose")
        saved = self._reduced(combine, elements, "position")[-1]
        here = tirx.EQ(self._linear_position(), saved(*self.spatial))
        return [self._point(i, ((here, True),), c) for i, c in self._seeds()]

    def _linear_position(self) -> Expr:
        """Return the place of a point among those that are reduced, in row-major order."""
        total: Expr = tirx.const(0, _POSITION)
        for axis in self.reduced:
            offset = (axis.var - axis.low).astype(_POSITION)
            total = total * axis.extent.astype(_POSITION) + offset
        return total

    def _product(self) -> list[Point]:
        """The product of all others: by the number of zeros and the product of what is not zero."""
        source = self.sources[0]
        dtype = wide(source.ty)
        zero, one = tirx.const(0.0, dtype), tirx.const(1.0, dtype)
        value = widened(source)
        is_zero = tirx.EQ(value, zero)
        if not _is_true(self.condition):
            is_zero = tirx.if_then_else(self.condition, is_zero, tirx.const(False))
            value = tirx.if_then_else(self.condition, value, one)
        (zeros,) = self._reduced(te.sum, [tirx.Select(is_zero, one, zero)], "zeros")
        product = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1.0, t), name="product")
        (others,) = self._reduced(product, [tirx.Select(is_zero, one, value)], "product")
        count, rest = zeros(*self.spatial), others(*self.spatial)
        divisor = tirx.Select(is_zero, one, value)
        partial = tirx.Select(
            tirx.EQ(count, zero),
            rest / divisor,
            tirx.Select(tirx.all(tirx.EQ(count, one), is_zero), rest, zero),
        )
        return [self._point(i, (), c * partial) for i, c in self._seeds()]

    def _reduced(self, combine: Any, values: Sequence[Expr], name: str) -> list[te.Tensor]:
        """Return the results of another reduction over the same loops."""
        loops = [te.reduce_axis((axis.low, axis.extent), axis.var.name) for axis in self.reduced]

        def body(*position: Any) -> Any:
            renamed = [
                *zip(self.spatial, position, strict=True),
                *zip([a.var for a in self.reduced], [r.var for r in loops], strict=True),
            ]
            sources = tuple(substituted(value, renamed) for value in values)
            return combine(sources if len(sources) > 1 else sources[0], axis=loops)

        shape = [axis.extent for axis in self.axes[: len(self.spatial)]]
        result = te.compute(tuple(shape), body, name=f"{self.op.name}_{name}")
        return [result] if isinstance(result, te.Tensor) else list(result)


def _is_true(condition: Any) -> bool:
    return isinstance(condition, prim.IntImm) and bool(condition.value)
