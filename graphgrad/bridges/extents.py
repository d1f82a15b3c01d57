"""Extents of results, for extents of arguments that another framework may only have as symbols."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm.ir import prim

from ..errors import InputError
from ..ir.tensor import Dimension, dimension_text

_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    prim.Add: operator.add,
    prim.Sub: operator.sub,
    prim.Mul: operator.mul,
    prim.FloorDiv: operator.floordiv,
    prim.FloorMod: operator.mod,
    prim.Min: min,
    prim.Max: max,
}


def bind_symbols(
    expected: Sequence[Sequence[Dimension]], shapes: Sequence[Sequence[Any]]
) -> dict[Any, Any]:
    """The extents of the symbolic dimensions that stand alone in some shapes."""
    pairs = [
        pair
        for dimensions, shape in zip(expected, shapes, strict=True)
        for pair in zip(dimensions, shape, strict=True)
    ]
    return {dim: extent for dim, extent in reversed(pairs) if isinstance(dim, tvm.tirx.Var)}


def evaluate(dimension: Dimension, extents: Mapping[Any, Any]) -> Any:
    """A dimension, for the extents of the symbols in it: numbers, or what computes as they do.

    Raises
    ------
    InputError
        The dimension depends on data, or is an expression that shapes of models do not have.
    """
    if isinstance(dimension, int | tvm.tirx.IntImm):
        return int(dimension)
    if isinstance(dimension, tvm.tirx.Var) and dimension in extents:
        return extents[dimension]
    if isinstance(dimension, prim.Cast):
        return evaluate(dimension.value, extents)
    operation = _OPERATIONS.get(type(dimension))
    if operation is None:
        raise InputError(
            f"the extent {dimension_text(dimension)} of a result is not known before it is "
            "computed; call the model without a compiler around it"
        )
    return operation(*(evaluate(part, extents) for part in (dimension.a, dimension.b)))
