"""Tensor expressions evaluated by numpy: what a graph of stages means, without TVM's lowering.

A load outside its tensor reads NaN (an absurd number, if it holds integers), so that whatever a
condition fails to keep out is seen. Reductions run in row-major order of their axes, and honour
`where` and `init`.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.fallback.scatter import Scatter, scatter_of
from graphgrad.fallback.walk import (
    called,
    children,
    identity,
    is_load,
    loaded,
    postorder,
    tensor_key,
    without_lets,
)

_ABSURD = -(10**9)

_BINARY = {
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
    "fma": lambda a, b, c: a * b + c,
}  # fmt: skip


def evaluate(outputs: list[te.Tensor], known: list[tuple[te.Tensor, Any]]) -> list[np.ndarray]:
    """Return the values of tensors, given those of all placeholders that they depend on."""
    values = {tensor_key(tensor): np.asarray(array) for tensor, array in known}
    return [_tensor(output, values) for output in outputs]


def numpy_dtype(dtype: Any) -> np.dtype:
    """Return the numpy dtype of a TVM dtype."""
    return np.dtype(ml_dtypes.bfloat16 if str(dtype) == "bfloat16" else str(dtype))


def _tensor(tensor: te.Tensor, values: dict[Any, np.ndarray]) -> np.ndarray:
    stack = [tensor]
    while stack:
        top = stack[-1]
        waiting = [t for t in top.op.input_tensors if tensor_key(t) not in values]
        if tensor_key(top) in values:
            stack.pop()
        elif waiting:
            stack.extend(waiting)
        else:
            for number, array in enumerate(_stage(top.op, values)):
                values[tensor_key(top.op.output(number))] = array
    return values[tensor_key(tensor)]


def _stage(op: Any, values: dict[Any, np.ndarray]) -> list[np.ndarray]:
    scatter = scatter_of(op)
    if scatter is not None:
        return [_scattered(op, scatter, values)]
    axes = [*op.axis, *op.reduce_axis]
    extents = [int(axis.dom.extent) for axis in axes]
    grids = np.indices(extents, sparse=True) if extents else []
    variables = {
        identity(axis.var): grid + int(axis.dom.min) for axis, grid in zip(axes, grids, strict=True)
    }
    spatial = extents[: len(op.axis)]
    if isinstance(op.body[0], tirx.Reduce):
        results = _reduction(op.body[0], variables, values, extents, len(spatial))
        results = [results[int(body.value_index)] for body in op.body]
    else:
        results = [_expression(body, variables, values) for body in op.body]
    return [
        np.broadcast_to(r, spatial).astype(numpy_dtype(op.output(i).dtype), order="C")
        for i, r in enumerate(results)
    ]


def _scattered(op: Any, scatter: Scatter, values: dict[Any, np.ndarray]) -> np.ndarray:
    """Add in any order: numpy's `add.at` takes repeated indices."""
    out = np.zeros([int(e) for e in op.output(0).shape], numpy_dtype(op.output(0).dtype))
    extents = [int(axis.extent) for axis in scatter.axes]
    grids = np.indices(extents) if extents else []
    variables = {
        identity(axis.var): grid + int(axis.low)
        for axis, grid in zip(scatter.axes, grids, strict=True)
    }
    counts = np.ones(extents, bool)
    for guard in scatter.guards:
        counts &= np.asarray(_expression(guard, variables, values))
    at = [
        np.broadcast_to(_expression(index, variables, values), extents)[counts]
        for index in scatter.indices
    ]
    value = np.broadcast_to(_expression(scatter.value, variables, values), extents)[counts]
    np.add.at(out, tuple(at), value)
    return out


def _reduction(
    body: Any, variables: Any, values: Any, extents: list[int], spatial: int
) -> list[np.ndarray]:
    combiner = body.combiner
    kept = extents[:spatial]
    sources = [
        np.broadcast_to(_expression(source, variables, values), extents).reshape(*kept, -1)
        for source in body.source
    ]
    counts = np.broadcast_to(_expression(body.condition, variables, values), extents)
    counts = counts.reshape(*kept, -1)
    starts = list(body.init) or list(combiner.identity_element)
    state = [np.broadcast_to(_expression(e, variables, values), kept).copy() for e in starts]
    for step in range(counts.shape[-1]):
        bound = {identity(var): value for var, value in zip(combiner.lhs, state, strict=True)}
        for var, source in zip(combiner.rhs, sources, strict=True):
            bound[identity(var)] = source[..., step]
        new = [_expression(result, bound, values) for result in combiner.result]
        chosen = counts[..., step]
        state = [np.where(chosen, n, s) for n, s in zip(new, state, strict=True)]
    return state


def _expression(root: Any, variables: dict[int, Any], values: dict[Any, np.ndarray]) -> Any:
    results: dict[int, Any] = dict(variables)
    root = without_lets(root)
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
    if type(node) in _BINARY:
        return _BINARY[type(node)](*parts)
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
    poison = np.asarray(_ABSURD if array.dtype.kind in "iub" else np.nan).astype(array.dtype)
    return np.where(outside, poison, loaded_values)
