"""Tensor expressions evaluated by numpy: what a graph of stages means, without TVM's lowering.

A load outside its tensor reads NaN (an absurd number, if it holds integers), so that whatever a
condition fails to keep out is seen. Reductions run in row-major order of their axes, and honor
`where`, `init`, and extents that depend on other axes. An extern stage has no meaning but its
loops: it alone is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.fallback.graph import outputs_of, replace_inputs, sources
from graphgrad.fallback.scatter import Scatter, scatters_of
from graphgrad.fallback.walk import (
    called,
    children,
    identity,
    inline_lets,
    is_load,
    loaded,
    postorder,
    tensor_key,
)
from tests.running import compile_library

_ABSURD = -(10**9)

BINARY = {
    prim.Add: np.add, prim.Sub: np.subtract, prim.Mul: np.multiply,
    prim.FloorDiv: np.floor_divide, prim.FloorMod: np.mod, prim.Mod: np.fmod,
    prim.Min: np.minimum, prim.Max: np.maximum,
    prim.EQ: np.equal, prim.NE: np.not_equal,
    prim.LT: np.less, prim.LE: np.less_equal, prim.GT: np.greater, prim.GE: np.greater_equal,
    prim.And: np.logical_and, prim.Or: np.logical_or,
    prim.BitwiseAnd: np.bitwise_and, prim.BitwiseOr: np.bitwise_or,
    prim.BitwiseXor: np.bitwise_xor, prim.LShift: np.left_shift, prim.RShift: np.right_shift,
}  # fmt: skip

_CALLS = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh, "sinh": np.sinh,
    "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "fabs": np.abs,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.round,
    "pow": np.power, "atan2": np.arctan2, "hypot": np.hypot, "copysign": np.copysign,
    "fmod": np.fmod, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "likely": lambda x: x,
    "exp10": lambda x: 10.0**x, "isnan": np.isnan, "isfinite": np.isfinite, "isinf": np.isinf,
    "fma": lambda a, b, c: a * b + c, "erf": np.vectorize(math.erf, otypes=[float]),
    "ldexp": np.ldexp, "nextafter": np.nextafter, "nearbyint": np.rint,
    "shift_left": np.left_shift, "shift_right": np.right_shift,
}  # fmt: skip


def evaluate(outputs: Sequence[te.Tensor], known: Sequence[tuple[Any, Any]]) -> list[np.ndarray]:
    """Return the values of tensors, given those of all placeholders that they depend on.

    Parameters
    ----------
    outputs : sequence of Tensor
    known : sequence of (Tensor or Var, array or int)
        Tensors, also intermediate results, with their values; symbolic sizes with theirs.
    """
    values = {tensor_key(of): np.asarray(v) for of, v in known if isinstance(of, te.Tensor)}
    sizes = {identity(of): int(v) for of, v in known if not isinstance(of, te.Tensor)}
    return [_tensor(output, values, sizes) for output in outputs]


def numpy_dtype(dtype: Any) -> np.dtype:
    """Return the numpy dtype of a TVM dtype."""
    return np.dtype(ml_dtypes.bfloat16 if str(dtype) == "bfloat16" else str(dtype))


def _tensor(tensor: te.Tensor, values: dict[Any, np.ndarray], sizes: dict[int, int]) -> np.ndarray:
    stack = [tensor]
    while stack:
        top = stack[-1]
        waiting = [t for t in sources(top.op) if tensor_key(t) not in values]
        if tensor_key(top) in values:
            stack.pop()
        elif waiting:
            stack.extend(waiting)
        else:
            for result, array in zip(
                outputs_of(top.op), _stage(top.op, values, sizes), strict=True
            ):
                values.setdefault(tensor_key(result), array)
    return values[tensor_key(tensor)]


def _stage(op: Any, values: dict[Any, np.ndarray], sizes: dict[int, int]) -> list[np.ndarray]:
    scatters = scatters_of(op)
    if scatters:
        return [_scattered(op, scatters, values, sizes)]
    if isinstance(op, te.ExternOp):
        return _compiled(op, values)
    if isinstance(op, te.ScanOp):
        return _scanned(op, values, sizes)
    axes = [(axis.var, axis.dom.min, axis.dom.extent) for axis in [*op.axis, *op.reduce_axis]]
    variables, extents, inside = _loops(axes, sizes, values)
    spatial = extents[: len(op.axis)]
    if isinstance(op.body[0], tirx.Reduce):
        components = _reduction(op.body[0], variables, values, inside, len(spatial))
        results = [components[int(body.value_index)] for body in op.body]
    else:
        results = [_expression(body, variables, values) for body in op.body]
    return [
        np.broadcast_to(r, spatial).astype(numpy_dtype(op.output(i).dtype), order="C")
        for i, r in enumerate(results)
    ]


def _scanned(op: Any, values: dict[Any, np.ndarray], sizes: dict[int, int]) -> list[np.ndarray]:
    """Compute the updates of all times anew at each step, and keep the row of that time."""
    low, extent = (int(_expression(e, dict(sizes), {})) for e in _range(op.scan_axis))
    states = []
    for tensor, init in zip(outputs_of(op), op.init, strict=True):
        shape = [int(_expression(e, dict(sizes), {})) for e in tensor.shape]
        state = np.full(shape, _poison(numpy_dtype(tensor.dtype)))
        state[:low] = values[tensor_key(init)]
        states.append(state)
    placeholders = [tensor_key(placeholder) for placeholder in op.state_placeholder]
    for time in range(low, low + extent):
        known = {**values, **dict(zip(placeholders, states, strict=True))}
        rows = [_tensor(update, known, sizes)[time] for update in op.update]
        for state, row in zip(states, rows, strict=True):
            state[time] = row
    return states


def _range(axis: Any) -> tuple[Any, Any]:
    return axis.dom.min, axis.dom.extent


def _loops(
    axes: Sequence[tuple[Any, Any, Any]], sizes: dict[int, int], values: dict[Any, np.ndarray]
) -> tuple[dict[int, Any], list[int], np.ndarray]:
    """Return loop variables (of which each may bound those after it) as arrays, and their extents.

    The third result says which points of the box are inside all bounds.
    """
    variables: dict[int, Any] = dict(sizes)
    counts = []
    inside = np.asarray(True)
    for place, (var, low, extent) in enumerate(axes):
        first, count = (np.asarray(_expression(e, variables, values)) for e in (low, extent))
        counts.append(int(np.max(count, initial=0)))
        offset = np.arange(counts[-1]).reshape(-1, *[1] * (len(axes) - place - 1))
        variables[identity(var)] = first + offset
        inside = inside & (offset < count)
    return variables, counts, np.broadcast_to(inside, counts)


def _scattered(
    op: Any, scatters: Sequence[Scatter], values: dict[Any, np.ndarray], sizes: dict[int, int]
) -> np.ndarray:
    """Add in any order: numpy's `add.at` takes repeated indices."""
    shape = [int(_expression(e, sizes, {})) for e in op.output(0).shape]
    out = np.zeros(shape, numpy_dtype(op.output(0).dtype))
    for scatter in scatters:
        axes = [(axis.var, axis.low, axis.extent) for axis in scatter.axes]
        variables, extents, counts = _loops(axes, sizes, values)
        counts = counts.copy()
        for guard in scatter.guards:
            counts &= np.asarray(_expression(guard, variables, values))
        at = [
            np.broadcast_to(_expression(index, variables, values), extents)[counts]
            for index in scatter.indices
        ]
        value = np.broadcast_to(_expression(scatter.value, variables, values), extents)[counts]
        np.add.at(out, tuple(at), value if at else value.sum())
    return out


def _compiled(op: Any, values: dict[Any, np.ndarray]) -> list[np.ndarray]:
    """Run one stage alone, from the values of what it reads."""
    inputs = [te.placeholder(t.shape, str(t.dtype), name=t.op.name) for t in op.input_tensors]
    replaced = {tensor_key(t): p for t, p in zip(op.input_tensors, inputs, strict=True)}
    results = outputs_of(replace_inputs(op, replaced))
    executable = compile_library(te.create_prim_func([*inputs, *results]))
    arrays = [tvm.runtime.tensor(values[tensor_key(t)]) for t in op.input_tensors]
    outputs = [
        tvm.runtime.empty([int(e) for e in result.shape], str(result.dtype)) for result in results
    ]
    executable(*arrays, *outputs)
    return [output.numpy() for output in outputs]


def _reduction(
    body: Any, variables: Any, values: Any, inside: np.ndarray, spatial: int
) -> list[np.ndarray]:
    combiner = body.combiner
    kept = inside.shape[:spatial]
    points = (*kept, math.prod(inside.shape[spatial:]))
    sources = [
        np.broadcast_to(_expression(source, variables, values), inside.shape).reshape(points)
        for source in body.source
    ]
    counts = (inside & _expression(body.condition, variables, values)).reshape(points)
    starts = list(body.init) or list(combiner.identity_element)
    one_each = (*kept, *[1] * (inside.ndim - spatial))
    state = [
        np.broadcast_to(_expression(e, variables, values), one_each).reshape(kept) for e in starts
    ]
    for step in range(points[-1]):
        bound = {identity(var): value for var, value in zip(combiner.lhs, state, strict=True)}
        for var, source in zip(combiner.rhs, sources, strict=True):
            bound[identity(var)] = source[..., step]
        new = [_expression(result, bound, values) for result in combiner.result]
        chosen = counts[..., step]
        state = [np.where(chosen, n, s) for n, s in zip(new, state, strict=True)]
    return state


def _expression(root: Any, variables: dict[int, Any], values: dict[Any, np.ndarray]) -> Any:
    results: dict[int, Any] = dict(variables)
    root = inline_lets(root)
    nodes = postorder(root)
    with np.errstate(all="ignore"):
        for node in nodes:
            if identity(node) not in results:
                parts = [results[identity(child)] for child in children(node)]
                results[identity(node)] = _node(node, parts, values)
    return results[identity(root)]


def _node(node: Any, parts: list[Any], values: dict[Any, np.ndarray]) -> Any:
    dtype = numpy_dtype(node.ty)
    if isinstance(node, prim.IntImm | prim.FloatImm):
        return np.asarray(node.value, dtype)
    if isinstance(node, tvm.ir.Var):
        raise NameError(f"the variable {node.name} has no value here")
    if is_load(node):
        return _load(values[tensor_key(loaded(node)[0])], parts)
    if isinstance(node, prim.Cast):
        return np.asarray(parts[0]).astype(dtype)
    if isinstance(node, prim.Select) or called(node) == "prim.if_then_else":
        return np.where(*parts)
    if isinstance(node, prim.Not):
        return np.logical_not(parts[0])
    if isinstance(node, prim.Div):
        a, b = parts
        return np.divide(a, b) if dtype.kind not in "iu" else np.trunc(a / b).astype(dtype)
    if called(node) == "tirx.reinterpret":
        return np.asarray(parts[0]).view(dtype)
    if type(node) in BINARY:
        return BINARY[type(node)](*parts)
    return np.asarray(_CALLS[called(node).split(".")[-1]](*parts)).astype(dtype)


def _load(array: np.ndarray, indices: list[Any]) -> Any:
    outside = np.asarray(False)
    inside = []
    for index, extent in zip(indices, array.shape, strict=True):
        outside = outside | (index < 0) | (index >= extent)
        inside.append(np.clip(index, 0, max(extent - 1, 0)))
    if 0 in array.shape:
        loaded_values: Any = np.zeros(np.shape(outside), array.dtype)
    else:
        loaded_values = array[tuple(inside)]
    return np.where(outside, _poison(array.dtype), loaded_values)


def _poison(dtype: np.dtype) -> np.ndarray:
    return np.asarray(_ABSURD if dtype.kind in "iub" else np.nan).astype(dtype)
