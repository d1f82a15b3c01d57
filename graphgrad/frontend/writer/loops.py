"""Nested loops as ONNX: each node of an expression is a tensor over all loops at once.

Such a tensor has an extent of one along the loops that it does not depend on: loads are
permutations and gathers, a sum of a product is an Einsum, and whatever else a map is is computed
element by element.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from ...fallback.indices.linear_system import Axis
from ...fallback.scatter import Scatter
from ...fallback.walk import (
    Expr,
    called,
    choice_of,
    graph_of,
    identity,
    inline_lets,
    is_load,
    loaded,
    tensor_key,
)
from .graph import GraphWriter, UnwritableError, elem_type

_SAME: dict[type, str] = {
    prim.Add: "Add",
    prim.Sub: "Sub",
    prim.Mul: "Mul",
    prim.Div: "Div",
    prim.Min: "Min",
    prim.Max: "Max",
    prim.EQ: "Equal",
    prim.LT: "Less",
    prim.LE: "LessOrEqual",
    prim.GT: "Greater",
    prim.GE: "GreaterOrEqual",
    prim.And: "And",
    prim.Or: "Or",
}
"""Nodes that are an operator each. Div of integers rounds to zero, in both."""

_INTRINSICS = {
    f"tirx.{name}": operator
    for name, operator in {
        **{name: name.capitalize() for name in ("exp", "log", "sqrt", "tanh", "sigmoid", "erf")},
        **{name: name.capitalize() for name in ("sin", "cos", "tan", "sinh", "cosh", "floor")},
        **{name: name.capitalize() for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
        **{"fabs": "Abs", "ceil": "Ceil", "pow": "Pow", "isnan": "IsNaN", "isinf": "IsInf"},
        "nearbyint": "Round",  # of two neighbors to the even one, as there
    }.items()
}

_REDUCTIONS = {
    prim.Add: "ReduceSum",
    prim.Mul: "ReduceProd",
    prim.Max: "ReduceMax",
    prim.Min: "ReduceMin",
}


@dataclass(frozen=True)
class Value:
    """A tensor of the rank of the loops; a scalar, if it depends on none.

    Attributes
    ----------
    name : str
    axes : frozenset of int
        The loops that it depends on; it has an extent of one along others.
    """

    name: str
    axes: frozenset[int]


@dataclass(frozen=True)
class Environment:
    """What expressions may read.

    Attributes
    ----------
    graph : GraphWriter
    tensors : dict
        The names of tensors, by `tensor_key`.
    scalars : dict of int to str
        The names of integers, int64 scalars, by the identities of their variables.
    row : callable, optional
        Given a tensor and a first index, the name of what the tensor holds there; None of one that
        is in `tensors`, whole.
    """

    graph: GraphWriter
    tensors: dict[Any, str]
    scalars: dict[int, str]
    row: Callable[[Any, Expr], str | None] = lambda tensor, index: None


class Loops:
    """Nested loops, over which tensors are written.

    Parameters
    ----------
    environment : Environment
    axes : sequence of Axis
        Of the loops.
    count : int
        How many of them, the first ones, a result has; the others are reduced.
    """

    def __init__(self, environment: Environment, axes: Sequence[Axis], count: int):
        self._environment, self._graph, self._count = environment, environment.graph, count
        self._loops = {identity(axis.var): number for number, axis in enumerate(axes)}
        self._ranges = [axis.extent for axis in axes]
        self._begins = [axis.low for axis in axes]
        self._values: dict[int, Value] = {}
        # Kept, because another node could get the address of one that is gone.
        self._roots: list[Expr] = []

    def scalar(self, expression: Expr) -> str:
        """An integer that depends on no loop, as an int64 scalar."""
        return self._cast(self._value(expression).name, "int64")

    def zeros(self, shape: Sequence[Expr], dtype: str) -> str:
        """A tensor of zeros."""
        graph = self._graph
        parts = [graph.node("Reshape", self.scalar(extent), graph.ints([1])) for extent in shape]
        extents = graph.node("Concat", *parts, axis=0)
        return str(graph.node("Expand", graph.constant(0, dtype), extents))

    def added(self, total: str, shape: Sequence[Expr], scatter: Scatter) -> str:
        """A tensor of a shape with the values of a scatter added to it."""
        graph = self._graph
        # Those that a guard leaves out add zero, to an element that is there.
        value = scatter.value
        for guard in reversed(scatter.guards):
            value = tirx.Select(guard, value, tirx.const(0, str(value.ty)))
        whole = self._shape(range(self._count))
        updates = graph.node("Expand", self._value(value).name, whole)
        indices = [self._value(index) for index in scatter.indices]
        points = self._points(indices, shape, whole)
        return str(graph.node("ScatterND", total, points, updates, reduction="add"))

    def mapped(self, body: Expr) -> str:
        """An element for each iteration of the loops that are not reduced."""
        value = self._reduced(body) if isinstance(body, tirx.Reduce) else self._value(body)
        if len(value.axes) == self._count > 0:
            return value.name
        return str(self._graph.node("Expand", value.name, self._shape(range(self._count))))

    def _shape(self, axes: Sequence[int | None]) -> str:
        """A vector of the extents of loops; of None, one."""
        graph = self._graph
        known = [1 if axis is None else _number(self._ranges[axis]) for axis in axes]
        if all(extent is not None for extent in known):
            return graph.ints([int(extent) for extent in known if extent is not None])
        parts = [
            graph.ints([1])
            if axis is None
            else graph.node("Reshape", self.scalar(self._ranges[axis]), graph.ints([1]))
            for axis in axes
        ]
        return str(graph.node("Concat", *parts, axis=0))

    def _cast(self, name: str, dtype: str) -> str:
        return str(self._graph.node("Cast", name, to=elem_type(dtype)))

    def _spread_shape(self, axes: frozenset[int]) -> str:
        """The shape of a value that depends on some loops."""
        ranks = range(len(self._ranges))
        return self._shape([axis if axis in axes else None for axis in ranks])

    def _value(self, root: Expr) -> Value:
        """An expression, whose nodes are written once each."""
        root = inline_lets(root)
        self._roots.append(root)
        for node, parts in graph_of([root]):
            if identity(node) not in self._values:
                values = [self._values[identity(part)] for part in parts]
                self._values[identity(node)] = self._node(node, values)
        return self._values[identity(root)]

    def _node(self, node: Expr, parts: list[Value]) -> Value:
        names, axes = [part.name for part in parts], frozenset().union(*(p.axes for p in parts))
        kind, dtype, graph = type(node), str(node.ty), self._graph
        if kind in (prim.IntImm, prim.FloatImm):
            value = bool(node.value) if dtype == "bool" else node.value
            return Value(graph.constant(value, dtype), axes)
        if kind is tvm.ir.Var:
            return self._variable(node, dtype)
        if kind is prim.Cast:
            return Value(self._cast(names[0], dtype), axes)
        if is_load(node):
            return self._load(node, parts)
        if choice_of(node):
            return Value(_choice(graph, names, dtype), axes)
        if kind is prim.Not:
            return Value(graph.node("Not", names[0]), axes)
        if kind in _WRITTEN:
            return Value(_WRITTEN[kind](graph, names, dtype), axes)
        if kind in _SAME:
            return Value(graph.node(_SAME[kind], *names), axes)
        if called(node) in _CALLS:
            return Value(_CALLS[called(node)](graph, names, dtype), axes)
        raise UnwritableError(f"{called(node) or kind.__name__}")

    def _variable(self, node: Expr, dtype: str) -> Value:
        graph, axis = self._graph, self._loops.get(identity(node))
        if axis is None:
            scalar = self._environment.scalars.get(identity(node))
            if scalar is None:
                raise UnwritableError(f"the variable {node.name}")
            return Value(self._cast(scalar, dtype), frozenset())
        begin = self.scalar(self._begins[axis])
        end = graph.node("Add", begin, self.scalar(self._ranges[axis]))
        numbers = self._cast(graph.node("Range", begin, end, graph.constant(1)), dtype)
        shape = self._spread_shape(frozenset([axis]))
        return Value(graph.node("Reshape", numbers, shape, allowzero=1), frozenset([axis]))

    def _load(self, node: Expr, indices: list[Value]) -> Value:
        """An element of a tensor, by gathers along its axes, or by one of points.

        The second is for those of which several indices depend on one loop, or one on several.
        """
        tensor, expressions = loaded(node)
        extents = list(tensor.shape)
        name = self._environment.row(tensor, expressions[0]) if expressions else None
        if name is not None:
            if indices[0].axes:
                raise UnwritableError("many steps of a loop at once")
            extents, expressions, indices = extents[1:], expressions[1:], indices[1:]
        if 0 in map(_number, extents):  # which is not read
            return Value(self._graph.constant(0, str(tensor.dtype)), frozenset())
        name = self._environment.tensors[tensor_key(tensor)] if name is None else name
        used = [axis for index in indices for axis in index.axes]
        if len(used) == len(set(used)) and all(len(index.axes) <= 1 for index in indices):
            return self._load_by_axes(name, extents, expressions, indices)
        return self._load_points(name, extents, indices, frozenset(used))

    def _load_by_axes(
        self, name: str, extents: list[Any], expressions: list[Expr], indices: list[Value]
    ) -> Value:
        graph, order = self._graph, []
        for axis, (expression, index) in enumerate(zip(expressions, indices, strict=True)):
            (loop,) = index.axes or (None,)
            order.append(loop)
            extent = extents[axis]
            if loop is not None and self._is_whole(expression, loop, extent):
                continue
            flat = graph.node("Reshape", self._inside(index.name, extent), graph.ints([-1]))
            name = graph.node("Gather", name, flat, axis=axis)
        loops = sorted(loop for loop in order if loop is not None)
        alone = [axis for axis, loop in enumerate(order) if loop is None]
        perm = [*(order.index(loop) for loop in loops), *alone]
        if perm != sorted(perm):
            name = graph.permute(name, perm)
        axes = frozenset(loops)
        if not axes:
            return Value(graph.node("Reshape", name, graph.ints([])), axes)
        if order != [*range(len(self._ranges))]:
            name = graph.node("Reshape", name, self._spread_shape(axes), allowzero=1)
        return Value(name, axes)

    def _is_whole(self, expression: Expr, loop: int, extent: Any) -> bool:
        """Whether an index runs over an axis as a loop does."""
        is_variable = self._loops.get(identity(expression)) == loop
        starts = _number(self._begins[loop]) == 0
        same = tvm_ffi.structural_equal(self._ranges[loop], extent)
        known = _number(self._ranges[loop]), _number(extent)
        return is_variable and starts and (same or (None not in known and known[0] == known[1]))

    def _inside(self, index: str, extent: Any) -> str:
        """An index, int64, clamped to an axis: what is read outside is not looked at."""
        graph = self._graph
        last = graph.node("Sub", self.scalar(extent), graph.constant(1))
        return str(graph.node("Clip", self._cast(index, "int64"), graph.constant(0), last))

    def _load_points(
        self, name: str, extents: list[Any], indices: list[Value], axes: frozenset[int]
    ) -> Value:
        points = self._points(indices, extents, self._spread_shape(axes))
        return Value(self._graph.node("GatherND", name, points), axes)

    def _points(self, indices: Sequence[Value], extents: Sequence[Expr], shape: str) -> str:
        """Points of a tensor, their coordinates along a last axis.

        Parameters
        ----------
        indices : sequence of Value
        extents : sequence of Expr
            Of the tensor, which the points are in after this.
        shape : str
            The name of the shape of all points.
        """
        graph, rank = self._graph, len(self._ranges)
        coordinates = []
        for index, extent in zip(indices, extents, strict=True):
            inside = graph.node("Expand", self._inside(index.name, extent), shape)
            coordinates.append(graph.node("Unsqueeze", inside, graph.ints([rank])))
        return str(graph.node("Concat", *coordinates, axis=rank))

    def _reduced(self, body: Any) -> Value:
        """A reduction, of the rank of the result."""
        graph = self._graph
        source = body.source[0]
        operator = _REDUCTIONS.get(type(body.combiner.result[0]))
        if operator is None or len(body.source) > 1:
            raise UnwritableError(f"the reduction by {body.combiner.result}")
        factors = [source]
        if not _is_true(body.condition):
            factors = [tirx.Select(body.condition, source, body.combiner.identity_element[0])]
        elif operator == "ReduceSum":
            factors = _factors(inline_lets(source))
        values = self._with_all_reduced([self._value(factor) for factor in factors])
        spread = [value for value in values if value.axes]
        if len(spread) == 1:
            reduced = range(self._count, len(self._ranges))
            total = graph.reduce(operator, spread[0].name, list(reduced), False)
        else:
            total = self._contracted(spread)
        for scalar in (value for value in values if not value.axes):
            total = graph.node("Mul", total, scalar.name)
        axes = frozenset(axis for value in values for axis in value.axes if axis < self._count)
        for initial in body.init:
            other = self._value(initial)
            axes |= other.axes
            total = graph.node(_SAME[type(body.combiner.result[0])], total, other.name)
        return Value(total, axes)

    def _with_all_reduced(self, values: list[Value]) -> list[Value]:
        """Factors, the first of which depends on all loops of the reduction that none does."""
        axes = frozenset().union(*(value.axes for value in values))
        missing = frozenset(range(self._count, len(self._ranges))) - axes
        if not missing:
            return values
        first = values[0]
        all_axes = first.axes | missing
        name = self._graph.node("Expand", first.name, self._spread_shape(all_axes))
        return [Value(name, all_axes), *values[1:]]

    def _contracted(self, values: list[Value]) -> str:
        """The sum of a product, by Einsum; of the rank of the result."""
        graph, letters = self._graph, string.ascii_letters
        operands, terms = [], []
        for value in values:
            axes = sorted(value.axes)
            shape = self._shape(axes)
            operands.append(graph.node("Reshape", value.name, shape, allowzero=1))
            terms.append("".join(letters[axis] for axis in axes))
        result = sorted({axis for v in values for axis in v.axes if axis < self._count})
        equation = f"{','.join(terms)}->{''.join(letters[axis] for axis in result)}"
        total = graph.node("Einsum", *operands, equation=equation)
        shape = self._shape([axis if axis in result else None for axis in range(self._count)])
        return str(graph.node("Reshape", total, shape, allowzero=1)) if result else str(total)


def _number(extent: Any) -> int | None:
    """An extent that is known; None for any other."""
    if isinstance(extent, int | tirx.IntImm):
        return int(extent)
    return None


def _is_true(condition: Expr) -> bool:
    return isinstance(condition, tirx.IntImm) and bool(condition.value)


def _factors(source: Expr) -> list[Expr]:
    """The factors of a product."""
    if type(source) is prim.Mul:
        return [*_factors(source.a), *_factors(source.b)]
    return [source]


def _choice(graph: GraphWriter, names: Sequence[str], dtype: str) -> str:
    condition, x, y = names
    if dtype != "bool":
        return str(graph.node("Where", condition, x, y))
    # onnxruntime has no Where of booleans.
    chosen = graph.node("And", condition, x)
    return str(graph.node("Or", chosen, graph.node("And", graph.node("Not", condition), y)))


def _unequal(graph: GraphWriter, names: Sequence[str], _: str) -> str:
    return str(graph.node("Not", graph.node("Equal", *names)))


def _truncated_modulo(graph: GraphWriter, names: Sequence[str], _: str) -> str:
    return str(graph.node("Mod", *names, fmod=1))


def _floor_modulo(graph: GraphWriter, names: Sequence[str], dtype: str) -> str:
    if "int" not in dtype:
        raise UnwritableError(f"a remainder of {dtype}")
    return str(graph.node("Mod", *names))


def _floor_quotient(graph: GraphWriter, names: Sequence[str], dtype: str) -> str:
    """The division of what the remainder leaves, which is exact."""
    whole = graph.node("Sub", names[0], _floor_modulo(graph, names, dtype))
    return str(graph.node("Div", whole, names[1]))


def _reciprocal_root(graph: GraphWriter, names: Sequence[str], _: str) -> str:
    return str(graph.node("Reciprocal", graph.node("Sqrt", names[0])))


def _truncated(graph: GraphWriter, names: Sequence[str], _: str) -> str:
    whole = graph.node("Floor", graph.node("Abs", names[0]))
    return str(graph.node("Mul", graph.node("Sign", names[0]), whole))


def _logarithm_of_more(graph: GraphWriter, names: Sequence[str], dtype: str) -> str:
    """log(1 + x) with the digits of small x: x · log(u) / (u − 1) for u = 1 + x as it is rounded.

    N. Higham, *Accuracy and Stability of Numerical Algorithms* (2002), section 1.14.1.
    """
    (x,), one = names, graph.constant(1, dtype)
    u = graph.node("Add", x, one)
    ratio = graph.node("Div", graph.node("Log", u), graph.node("Sub", u, one))
    # An infinite u has the logarithm itself.
    exact = graph.node("Where", graph.node("IsInf", u), u, graph.node("Mul", x, ratio))
    return str(graph.node("Where", graph.node("Equal", u, one), x, exact))


_WRITTEN = {
    prim.NE: _unequal,
    prim.Mod: _truncated_modulo,
    prim.FloorMod: _floor_modulo,
    prim.FloorDiv: _floor_quotient,
}


def _intrinsic(operator: str) -> Any:
    return lambda graph, names, _: str(graph.node(operator, *names))


_CALLS = {
    **{name: _intrinsic(operator) for name, operator in _INTRINSICS.items()},
    "tirx.rsqrt": _reciprocal_root,
    "tirx.trunc": _truncated,
    "tirx.log1p": _logarithm_of_more,
}
