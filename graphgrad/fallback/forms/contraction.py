"""Sums of products of two loads: the form in which schedules know them.

A derived contraction has affine indices, no condition, and loops in the order of the forward
pass. What an index divides by a constant, as in the channels of a grouped convolution, becomes
two loops, one over quotients and one over remainders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import prim

from ..constants import integer_value
from ..indices.affine import coefficients, written
from ..indices.conditions import conjuncts
from ..indices.index_system import Axis, Inversion
from ..indices.linear_system import analyzer_of
from ..walk import (
    Expr,
    depend,
    identity,
    is_load,
    loaded,
    postorder,
    rebuilt,
    substituted,
    transformed,
)


@dataclass(frozen=True)
class Product:
    """At each point of `element`: the sum over `loops` of the product of two loads.

    Attributes
    ----------
    element : list of Axis
        The loops of the stage.
    loops : list of Axis
        Those that it sums over.
    loads : pair of Expr
        Each a load, perhaps in a cast to a wider float.
    conditions : list of Expr
        A point counts only where all hold; elsewhere the loads may be outside their tensors.
    """

    element: list[Axis]
    loops: list[Axis]
    loads: tuple[Expr, Expr]
    conditions: list[Expr]

    @property
    def axes(self) -> list[Axis]:
        """All loops."""
        return [*self.element, *self.loops]


def product_at(
    loads: tuple[Expr, Expr],
    axes: Sequence[Axis],
    inversion: Inversion,
    element: Sequence[Axis],
) -> Product:
    """The product of two loads summed over the points of an inversion.

    Parameters
    ----------
    loads : pair of Expr
        In the variables of `axes`.
    axes : sequence of Axis
        The loops that were inverted.
    inversion : Inversion
    element : sequence of Axis
        The loops that it is in terms of.
    """
    values = list(zip([axis.var for axis in axes], inversion.values, strict=True))
    a, b = (substituted(load, values) for load in loads)
    return _simplified(Product(list(element), list(inversion.loops), (a, b), inversion.guards))


def load_of(operand: Expr) -> Expr:
    """The load in an operand."""
    return operand.value if isinstance(operand, prim.Cast) else operand


def replace_load(operand: Expr, load: Expr) -> Expr:
    """An operand with another load in it."""
    return rebuilt(operand, [load]) if isinstance(operand, prim.Cast) else load


def is_affine(product: Product) -> bool:
    """Whether all indices of both loads are affine in the loops, whose ranges are fixed."""
    variables = {identity(axis.var) for axis in product.axes}
    ends = [end for axis in product.loops for end in (axis.low, axis.extent)]
    if depend(ends, variables):
        return False
    return all(
        coefficients(index, product.axes) is not None
        for operand in product.loads
        for index in loaded(load_of(operand))[1]
    )


def divisors(product: Product) -> dict[int, int]:
    """The divisors of loops in the indices, by the loops' numbers.

    Only what is split without a rest: the loop's extent is a multiple of the divisor, and nothing
    but a multiple of it is added before the division.
    """
    by_loop: dict[int, int] = {}
    indices = [i for operand in product.loads for i in loaded(load_of(operand))[1]]
    for node in postorder(*indices):
        if not isinstance(node, prim.FloorDiv | prim.FloorMod):
            continue
        form = coefficients(node.a, product.axes)
        if form is None or not all(isinstance(e, prim.IntImm) for e in (form[1], node.b)):
            continue
        # Exactly one loop variable, with the coefficient 1.
        if sorted(form[0])[-1:] != [1] or sum(map(abs, form[0])) != 1:
            continue
        number = form[0].index(1)
        divisor = lcm(by_loop.get(number, 1), int(node.b))
        extent = product.axes[number].extent
        if (
            isinstance(extent, prim.IntImm)
            and int(extent) % divisor == int(form[1]) % int(node.b) == 0
        ):
            by_loop[number] = divisor
    return by_loop


def split(product: Product, by: Mapping[int, int]) -> Product:
    """A product with some loops replaced by one over quotients and one over remainders.

    Parameters
    ----------
    product : Product
    by : mapping
        The divisors, each of its loop's extent, by the loops' numbers.
    """
    values = []
    loops: list[list[Axis]] = [[axis] for axis in product.axes]
    for number, divisor in by.items():
        axis = product.axes[number]
        dtype = str(axis.extent.ty)
        zero = tirx.const(0, dtype)
        quotient = Axis(te.var(f"{axis.var.name}_q", dtype), zero, axis.extent // divisor)
        remainder = Axis(te.var(f"{axis.var.name}_d", dtype), zero, tirx.const(divisor, dtype))
        loops[number] = [quotient, remainder]
        values.append((axis.var, quotient.var * divisor + remainder.var + axis.low))
    count = len(product.element)
    a, b = (substituted(load, values) for load in product.loads)
    return _simplified(
        Product(
            [axis for axes in loops[:count] for axis in axes],
            [axis for axes in loops[count:] for axis in axes],
            (a, b),
            [substituted(condition, values) for condition in product.conditions],
        )
    )


def emitted(product: Product, name: str, attributes: Any) -> te.Tensor:
    """The stage that computes a product; its conditions, if any, stay around the loads.

    Its indices are affine: they are written out anew, as sums.
    """
    loops = [_reduce_axis(product, axis) for axis in product.loops]

    def body(*position: Any) -> Expr:
        variables = [*position, *(loop.var for loop in loops)]

        def affine_index(index: Expr) -> Expr:
            form = coefficients(index, product.axes)
            assert form is not None
            return written(*form, variables)

        operands = []
        for operand in product.loads:
            tensor, indices = loaded(load_of(operand))
            operands.append(
                replace_load(operand, tensor(*(affine_index(index) for index in indices)))
            )
        value = operands[0] * operands[1]
        if product.conditions:
            zero = tirx.const(0.0, str(value.ty))
            condition = substituted(
                tirx.all(*product.conditions),
                (
                    (axis.var, var.astype(str(axis.var.ty)))
                    for axis, var in zip(product.axes, variables, strict=True)
                ),
            )
            value = tirx.if_then_else(condition, value, zero)
        return te.sum(value, axis=loops) if loops else value

    shape = tuple(axis.extent for axis in product.element)
    return te.compute(shape, body, name=name, attrs=attributes)


def _reduce_axis(product: Product, axis: Axis) -> Any:
    """A loop to sum over, of the dtype of what it indexes."""
    dtype = str(axis.var.ty)
    # The last one found stays: that of the first operand, if the loop indexes it.
    for operand in reversed(product.loads):
        tensor, indices = loaded(load_of(operand))
        for index, extent in zip(indices, tensor.shape, strict=True):
            if depend([index], {identity(axis.var)}):
                dtype = str(extent.ty)
    analyzer = tvm.sym.Analyzer()
    ends = [analyzer.simplify(e.astype(dtype)) for e in (axis.low, axis.low + axis.extent)]
    return te.reduce_axis(tuple(ends), name=axis.var.name)


def _simplified(product: Product) -> Product:
    """A product with simple indices, and without loops of one trip and what is provable."""
    single = [axis for axis in product.loops if integer_value(axis.extent) == 1]
    values = [(axis.var, axis.low) for axis in single]
    # By identity: to compare axes would compare expressions.
    loops = [axis for axis in product.loops if not any(axis is other for other in single)]
    analyzer = analyzer_of([*product.element, *loops])

    def change(node: Expr) -> Expr:
        if not is_load(node):
            return node
        tensor, indices = loaded(node)
        return tensor(*(analyzer.simplify(index) for index in indices))

    a, b = (transformed(substituted(load, values), change) for load in product.loads)
    conditions = []
    for condition in product.conditions:
        for part in conjuncts(analyzer.simplify(substituted(condition, values))):
            if not analyzer.can_prove(part):
                conditions.append(analyzer.simplify(part))
    return replace(product, loops=loops, loads=(a, b), conditions=conditions)
