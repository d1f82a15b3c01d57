"""Nested loops as ONNX: each node of an expression is a tensor over all loops at once.

Such a tensor has an extent of one along the loops that it does not depend on: loads are
permutations and gathers, a sum of a product is an Einsum, and whatever else a map is is computed
element by element.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from ...fallback.indices.linear_system import Axis
from ...fallback.reductions.combiner import Combination, Combiner
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
from .float_bits import float_bits
from .graph import GraphWriter, UnwritableError, elem_type
from .loop_node import loop_node

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
        **{"fabs": "Abs", "ceil": "Ceil", "pow": "Pow", "isnan": "IsNaN"},
        "nearbyint": "Round",  # of two neighbors to the even one, as there
    }.items()
}

_REDUCTIONS = {
    Combination.SUM: "ReduceSum",
    Combination.PRODUCT: "ReduceProd",
    Combination.LARGEST: "ReduceMax",
    Combination.SMALLEST: "ReduceMin",
}

_BITS = ("float32", "int32")
"""The types between which a reinterpretation is written."""

_JOINED = {"ReduceSum": "Add", "ReduceProd": "Mul", "ReduceMax": "Max", "ReduceMin": "Min"}
"""What combines two results of a reduction."""


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
        self._axes = list(axes)
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
        if called(node) == "tirx.reinterpret" and (str(node.args[0].ty), dtype) == _BITS:
            return Value(float_bits(graph, names[0]), axes)
        if called(node) == "tirx.isinf":
            return Value(graph.is_infinite(names[0], str(node.args[0].ty)), axes)
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

    def folded(self, body: Any) -> list[str]:
        """The components of any reduction of tuples, one element of the tuples after another."""
        graph, inner = self._graph, range(self._count)
        whole, spatial = self._shape(range(len(self._ranges))), self._shape(inner)
        flat_shape = graph.node("Concat", spatial, graph.ints([-1]), axis=0)
        start, flat = body.combiner.identity_element, []
        for source, neutral in zip(body.source, start, strict=True):
            counted = _counted(source, body.condition, neutral)
            spread = graph.node("Expand", self._value(counted).name, whole)
            flat.append(graph.node("Reshape", spread, flat_shape))
        count = graph.node("Shape", flat[0], start=self._count, end=self._count + 1)
        first = [graph.node("Expand", self._value(value).name, spatial) for value in start]

        def combined(left: Sequence[str], right: Sequence[str]) -> list[str]:
            loops = Loops(self._environment, self._axes[: self._count], self._count)
            sides = zip([*body.combiner.lhs, *body.combiner.rhs], [*left, *right], strict=True)
            for var, name in sides:
                loops._values[identity(var)] = Value(name, frozenset(inner))
            return [loops.mapped(result) for result in body.combiner.result]

        def step(number: str, states: list[str]) -> tuple[list[str], list[str]]:
            elements = [graph.node("Gather", name, number, axis=self._count) for name in flat]
            return combined(states, elements), []

        dtypes, steps = [str(source.ty) for source in body.source], graph.ints([])
        steps = graph.node("Reshape", count, steps)
        results = loop_node(graph, "fold", steps, first, dtypes, step)
        starts = [graph.node("Expand", self._value(each).name, spatial) for each in body.init]
        return combined(results, starts) if starts else results

    def _reduced(self, body: Any) -> Value:
        """A reduction, of the rank of the result."""
        graph = self._graph
        source = body.source[0]
        operator = _REDUCTIONS.get(Combiner(body.combiner).combination([0]))
        if operator is None or len(body.source) > 1:
            return Value(self.folded(body)[body.value_index], frozenset(range(self._count)))
        factors = [_counted(source, body.condition, body.combiner.identity_element[0])]
        if operator == "ReduceSum":
            factors = _factors(inline_lets(factors[0]))
        values = self._with_all_reduced([self._value(factor) for factor in factors])
        spread = [value for value in values if value.axes]
        if len(spread) == 1:
            hands_nan_on = type(body.combiner.result[0]) not in _SAME
            total = self._along_all(operator, spread[0].name, str(source.ty), hands_nan_on)
        else:
            total = self._contracted(spread)
        for scalar in (value for value in values if not value.axes):
            total = graph.node("Mul", total, scalar.name)
        axes = frozenset(axis for value in values for axis in value.axes if axis < self._count)
        for initial in body.init:
            other = self._value(initial)
            axes |= other.axes
            total = graph.node(_JOINED[operator], total, other.name)
        return Value(total, axes)

    def _along_all(self, operator: str, x: str, dtype: str, hands_nan_on: bool) -> str:
        """A reduction along all loops that are reduced; an extreme perhaps NaN where one is."""
        graph, axes = self._graph, list(range(self._count, len(self._ranges)))
        if not hands_nan_on:
            return graph.reduce(operator, x, axes, False)
        is_nan, infinity = graph.node("IsNaN", x), math.inf
        nothing = graph.constant(-infinity if operator == "ReduceMax" else infinity, dtype)
        total = graph.reduce(operator, graph.node("Where", is_nan, nothing, x), axes, False)
        has_nan = graph.reduce("ReduceMax", self._cast(is_nan, "int32"), axes, False)
        return str(
            graph.node("Where", self._cast(has_nan, "bool"), graph.constant(math.nan, dtype), total)
        )

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


def _counted(source: Expr, condition: Expr, neutral: Expr) -> Expr:
    """An element of a reduction; what changes nothing where a condition leaves it out."""
    is_true = isinstance(condition, tirx.IntImm) and bool(condition.value)
    return source if is_true else tirx.Select(condition, source, neutral)


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
    exact = graph.node("Where", graph.is_infinite(u, dtype), u, graph.node("Mul", x, ratio))
    return str(graph.node("Where", graph.node("Equal", u, one), x, exact))


def _arctangent(graph: GraphWriter, names: Sequence[str], dtype: str) -> str:
    """The angle of the point (x, y), by that of y / x and the quadrant."""
    y, x = names
    zero, pi, right = (graph.constant(value, dtype) for value in (0, math.pi, math.pi / 2))
    angle = graph.node("Atan", graph.node("Div", y, x))
    below = graph.node("Less", y, zero)
    half_turn = graph.node("Where", below, graph.node("Neg", pi), pi)
    left = graph.node("Where", graph.node("Less", x, zero), half_turn, zero)
    upright = graph.node("Mul", graph.node("Sign", y), right)
    angle = graph.node("Add", angle, left)
    return str(graph.node("Where", graph.node("Equal", x, zero), upright, angle))


def _bitwise(operator: str) -> Any:
    def write(graph: GraphWriter, names: Sequence[str], _: str) -> str:
        graph.require(18, operator)
        return str(graph.node(operator, *names))

    return write


def _shifted(operation: Any) -> Any:
    """A shift, as a product with a power of two or a quotient; in int64, where that has a sign."""

    def write(graph: GraphWriter, names: Sequence[str], dtype: str) -> str:
        x, count = (graph.node("Cast", name, to=elem_type("int64")) for name in names)
        power = graph.node("Pow", graph.constant(2), count)
        return str(graph.node("Cast", operation(graph, [x, power], "int64"), to=elem_type(dtype)))

    return write


def _product(graph: GraphWriter, names: Sequence[str], _: str) -> str:
    return str(graph.node("Mul", *names))


_WRITTEN = {
    prim.BitwiseAnd: _bitwise("BitwiseAnd"),
    prim.BitwiseOr: _bitwise("BitwiseOr"),
    prim.BitwiseXor: _bitwise("BitwiseXor"),
    prim.LShift: _shifted(_product),
    prim.RShift: _shifted(_floor_quotient),
    prim.NE: _unequal,
    prim.Mod: _truncated_modulo,
    prim.FloorMod: _floor_modulo,
    prim.FloorDiv: _floor_quotient,
}


def _intrinsic(operator: str) -> Any:
    return lambda graph, names, _: str(graph.node(operator, *names))


_CALLS = {
    **{name: _intrinsic(operator) for name, operator in _INTRINSICS.items()},
    "tirx.atan2": _arctangent,
    "tirx.rsqrt": _reciprocal_root,
    "tirx.trunc": _truncated,
    "tirx.log1p": _logarithm_of_more,
}
