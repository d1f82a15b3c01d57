"""Kernels as ONNX, by the tensor expressions that they compute.

A stage is written over the axes of its loops, those of the result first, then those of the
reduction. Each node of its expression is a tensor that has an extent of one along the axes that it
does not depend on: loads are permutations and gathers, a sum of a product is an Einsum, whatever
else a map is is computed element by element.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.ir import prim

from ...errors import MissingGradientError
from ...fallback.graph import Operation, operations, outputs_of
from ...fallback.indices.linear_system import Axis
from ...fallback.kernels.expressions import expressions_of
from ...fallback.lift.prim_func import TensorProgram
from ...fallback.scatter import Scatter, scatters_of
from ...fallback.walk import (
    BINARY,
    Expr,
    called,
    choice_of,
    depend,
    graph_of,
    identity,
    inline_lets,
    is_load,
    loaded,
    tensor_key,
)
from ...ir.calls import result_types
from ...ir.tensor import type_shape
from .graph import GraphWriter, Site, UnwritableError, elem_type, writes

KERNEL = "relax.call_tir"

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
        **{"round": "Round", "nearbyint": "Round"},
    }.items()
}

_REDUCTIONS = {
    prim.Add: "ReduceSum",
    prim.Mul: "ReduceProd",
    prim.Max: "ReduceMax",
    prim.Min: "ReduceMin",
}


@dataclass(frozen=True)
class _Value:
    """A tensor of the rank of the loops; a scalar, if it depends on none.

    Attributes
    ----------
    name : str
    axes : frozenset of int
        The loops that it depends on; it has an extent of one along others.
    """

    name: str
    axes: frozenset[int]


def kernel_obstacle(call: relax.Call, kernels: Mapping[Any, Any]) -> str | None:
    """Why a call of a kernel cannot be written; None if it can."""
    try:
        program = _program(call, kernels)
        for op in operations(*program.outputs):
            _check_stage(op)
    except (MissingGradientError, UnwritableError) as error:
        return str(error)
    return None


def _program(call: relax.Call, kernels: Mapping[Any, Any]) -> TensorProgram:
    if len(call.args) > 2:
        raise UnwritableError("numbers among the arguments")
    return expressions_of(kernels[call.args[0]], len(result_types(call.ty_args[0])))


def _check_stage(op: Operation) -> None:
    """Raise `UnwritableError` unless a stage consists of what is written."""
    if isinstance(op, te.PlaceholderOp):
        return
    scatters = scatters_of(op)
    for scatter in scatters:
        _check_expressions(op, scatter.expressions)
        variables = {identity(axis.var) for axis in scatter.axes}
        if depend([end for a in scatter.axes for end in (a.low, a.extent)], variables):
            raise UnwritableError(f"a loop of {op.name} whose range depends on another")
    if not (scatters or isinstance(op, te.ComputeOp)):
        raise UnwritableError(f"the {type(op).__name__} {op.name}")
    for body in [] if scatters else op.body:
        roots = [body]
        if isinstance(body, tirx.Reduce):
            if len(body.source) > 1 or type(body.combiner.result[0]) not in _REDUCTIONS:
                raise UnwritableError(f"the reduction of {op.name}")
            roots = [body.source[0], body.condition, *body.init]
        _check_expressions(op, roots)


def _check_expressions(op: Operation, roots: Sequence[Expr]) -> None:
    """Raise `UnwritableError` unless the nodes of some expressions are written."""
    for node, _ in graph_of(map(inline_lets, roots)):
        if type(node) in BINARY and type(node) not in {*_SAME, *_WRITTEN}:
            raise UnwritableError(f"{BINARY[type(node)]} in {op.name}")
        name = called(node)
        if name and not (is_load(node) or choice_of(node) or name in _CALLS):
            raise UnwritableError(f"{name} in {op.name}")


@writes(KERNEL)
def _kernel(site: Site) -> Any:
    program = _program(site.call, site.graph.kernels)
    tensors: dict[Any, str] = {}
    extents: dict[int, str] = {}
    typed: list[tuple[Any, Any]] = [*zip(program.outputs, result_types(site.ty), strict=True)]
    # Behind those of the arguments are the parameters of results.
    for parameter, name, argument in zip(
        program.parameters, site.names[1], site.call.args[1].fields, strict=False
    ):
        if parameter is None:
            continue
        if tvm.ir.is_prim_var(parameter):
            extents[identity(parameter)] = site.graph.scalar(argument)
        else:
            tensors[tensor_key(parameter)] = name
            typed.append((parameter, argument.ty))
    for tensor, ty in typed:
        for extent, known in zip(tensor.shape, type_shape(ty), strict=True):
            if isinstance(extent, tvm.ir.Var):
                extents.setdefault(identity(extent), site.graph.scalar(known))
    for op in operations(*program.outputs):
        if isinstance(op, te.ComputeOp):
            for output, body in zip(outputs_of(op), op.body, strict=True):
                tensors[tensor_key(output)] = _map(site.graph, tensors, extents, op, body)
        elif isinstance(op, te.ExternOp):
            (output,) = outputs_of(op)
            tensors[tensor_key(output)] = _scattered(site.graph, tensors, extents, op)
    results = [tensors[tensor_key(output)] for output in program.outputs]
    return results if isinstance(site.ty, relax.TupleType) else results[0]


def _map(
    graph: GraphWriter, tensors: dict[Any, str], extents: dict[int, str], op: Any, body: Expr
) -> str:
    """A body of a stage that computes each element, perhaps by a reduction."""
    reduced = list(body.axis) if isinstance(body, tirx.Reduce) else []
    axes = [Axis(loop.var, loop.dom.min, loop.dom.extent) for loop in [*op.axis, *reduced]]
    return _Loops(graph, tensors, extents, axes, len(op.axis)).mapped(body)


def _scattered(
    graph: GraphWriter, tensors: dict[Any, str], extents: dict[int, str], op: Any
) -> str:
    """A stage that adds values up where indices point."""
    shape = list(op.output(0).shape)
    total = _Loops(graph, tensors, extents, [], 0).zeros(shape, str(op.output(0).dtype))
    for scatter in scatters_of(op):
        loops = _Loops(graph, tensors, extents, scatter.axes, len(scatter.axes))
        total = loops.added(total, shape, scatter)
    return total


class _Loops:
    """Nested loops, over which tensors are written.

    Parameters
    ----------
    graph : GraphWriter
    tensors : dict
        The names of tensors that may be read.
    extents : dict of int to str
        The names of symbolic extents, int64 scalars, by the identities of their variables.
    axes : sequence of Axis
        Of the loops.
    count : int
        How many of them, the first ones, a result has; the others are reduced.
    """

    def __init__(
        self,
        graph: GraphWriter,
        tensors: dict[Any, str],
        extents: dict[int, str],
        axes: Sequence[Axis],
        count: int,
    ):
        self._graph, self._tensors, self._extents, self._count = graph, tensors, extents, count
        self._loops = {identity(axis.var): number for number, axis in enumerate(axes)}
        self._ranges = [axis.extent for axis in axes]
        self._begins = [axis.low for axis in axes]
        self._values: dict[int, _Value] = {}

    def zeros(self, shape: Sequence[Expr], dtype: str) -> str:
        """A tensor of zeros."""
        graph = self._graph
        parts = [
            graph.node("Reshape", self._cast(self._value(extent).name, "int64"), graph.ints([1]))
            for extent in shape
        ]
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

    def _extent(self, axis: int) -> str:
        """The extent of a loop, a scalar."""
        return self._value(self._ranges[axis]).name

    def _shape(self, axes: Sequence[int | None]) -> str:
        """A vector of the extents of loops; of None, one."""
        graph = self._graph
        known = [1 if axis is None else _number(self._ranges[axis]) for axis in axes]
        if all(extent is not None for extent in known):
            return graph.ints([int(extent) for extent in known if extent is not None])
        parts = [
            graph.ints([1])
            if axis is None
            else graph.node("Reshape", self._cast(self._extent(axis), "int64"), graph.ints([1]))
            for axis in axes
        ]
        return str(graph.node("Concat", *parts, axis=0))

    def _cast(self, name: str, dtype: str) -> str:
        return str(self._graph.node("Cast", name, to=elem_type(dtype)))

    def _spread_shape(self, axes: frozenset[int]) -> str:
        """The shape of a value that depends on some loops."""
        ranks = range(len(self._ranges))
        return self._shape([axis if axis in axes else None for axis in ranks])

    def _value(self, root: Expr) -> _Value:
        """An expression, whose nodes are written once each."""
        root = inline_lets(root)
        for node, parts in graph_of([root]):
            if identity(node) not in self._values:
                values = [self._values[identity(part)] for part in parts]
                self._values[identity(node)] = self._node(node, values)
        return self._values[identity(root)]

    def _node(self, node: Expr, parts: list[_Value]) -> _Value:
        names, axes = [part.name for part in parts], frozenset().union(*(p.axes for p in parts))
        kind, dtype, graph = type(node), str(node.ty), self._graph
        if kind in (prim.IntImm, prim.FloatImm):
            value = bool(node.value) if dtype == "bool" else node.value
            return _Value(graph.constant(value, dtype), axes)
        if kind is tvm.ir.Var:
            return self._variable(node, dtype)
        if kind is prim.Cast:
            return _Value(self._cast(names[0], dtype), axes)
        if is_load(node):
            return self._load(node, parts)
        if choice_of(node):
            return _Value(_choice(graph, names, dtype), axes)
        if kind is prim.Not:
            return _Value(graph.node("Not", names[0]), axes)
        if kind in _WRITTEN:
            return _Value(_WRITTEN[kind](graph, names, dtype), axes)
        if kind in _SAME:
            return _Value(graph.node(_SAME[kind], *names), axes)
        if called(node) in _CALLS:
            return _Value(_CALLS[called(node)](graph, names, dtype), axes)
        raise UnwritableError(f"{called(node) or kind.__name__}")

    def _variable(self, node: Expr, dtype: str) -> _Value:
        graph, axis = self._graph, self._loops.get(identity(node))
        if axis is None:
            if identity(node) not in self._extents:
                raise UnwritableError(f"the variable {node.name}")
            return _Value(self._cast(self._extents[identity(node)], dtype), frozenset())
        begin = self._cast(self._value(self._begins[axis]).name, "int64")
        end = graph.node("Add", begin, self._cast(self._extent(axis), "int64"))
        numbers = self._cast(graph.node("Range", begin, end, graph.constant(1)), dtype)
        shape = self._spread_shape(frozenset([axis]))
        return _Value(graph.node("Reshape", numbers, shape, allowzero=1), frozenset([axis]))

    def _load(self, node: Expr, indices: list[_Value]) -> _Value:
        """An element of a tensor: along each axis of which it is that of one loop, or of none, by
        a gather there, else by a gather of points."""
        tensor, expressions = loaded(node)
        name = self._tensors[tensor_key(tensor)]
        used = [axis for index in indices for axis in index.axes]
        if len(used) == len(set(used)) and all(len(index.axes) <= 1 for index in indices):
            return self._load_by_axes(name, tensor, expressions, indices)
        return self._load_points(name, tensor, indices, frozenset(used))

    def _load_by_axes(
        self, name: str, tensor: Any, expressions: list[Expr], indices: list[_Value]
    ) -> _Value:
        graph, order = self._graph, []
        for axis, (expression, index) in enumerate(zip(expressions, indices, strict=True)):
            (loop,) = index.axes or (None,)
            order.append(loop)
            extent = tensor.shape[axis]
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
            return _Value(graph.node("Reshape", name, graph.ints([])), axes)
        if order != [*range(len(self._ranges))]:
            name = graph.node("Reshape", name, self._spread_shape(axes), allowzero=1)
        return _Value(name, axes)

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
        last = graph.node("Sub", self._cast(self._value(extent).name, "int64"), graph.constant(1))
        return str(graph.node("Clip", self._cast(index, "int64"), graph.constant(0), last))

    def _load_points(
        self, name: str, tensor: Any, indices: list[_Value], axes: frozenset[int]
    ) -> _Value:
        points = self._points(indices, tensor.shape, self._spread_shape(axes))
        return _Value(self._graph.node("GatherND", name, points), axes)

    def _points(self, indices: Sequence[_Value], extents: Sequence[Expr], shape: str) -> str:
        """Points of a tensor, their coordinates along a last axis.

        Parameters
        ----------
        indices : sequence of _Value
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

    def _reduced(self, body: Any) -> _Value:
        """A reduction, of the rank of the result."""
        graph = self._graph
        source, dtype = body.source[0], str(body.source[0].ty)
        operator = _REDUCTIONS[type(body.combiner.result[0])]
        factors = [source]
        if not _is_true(body.condition):
            factors = [tirx.Select(body.condition, source, body.combiner.identity_element[0])]
        elif operator == "ReduceSum":
            factors = _factors(inline_lets(source))
        values = [self._value(factor) for factor in factors]
        values = self._with_all_reduced(values, dtype)
        if len(values) == 1:
            reduced = range(self._count, len(self._ranges))
            total = graph.reduce(operator, values[0].name, list(reduced), False)
        else:
            total = self._contracted(values)
        axes = frozenset(axis for value in values for axis in value.axes if axis < self._count)
        for initial in body.init:
            other = self._value(initial)
            axes |= other.axes
            total = graph.node(_SAME[type(body.combiner.result[0])], total, other.name)
        return _Value(total, axes)

    def _with_all_reduced(self, values: list[_Value], dtype: str) -> list[_Value]:
        """Factors, the first of which depends on all loops of the reduction that none does."""
        axes = frozenset().union(*(value.axes for value in values))
        missing = frozenset(range(self._count, len(self._ranges))) - axes
        if not missing:
            return values
        first = values[0]
        all_axes = first.axes | missing
        name = self._graph.node("Expand", first.name, self._spread_shape(all_axes))
        return [_Value(name, all_axes), *values[1:]]

    def _contracted(self, values: list[_Value]) -> str:
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
