"""Results of equal kernel calls, computed once where they are small.

A gradient rule states what it needs of the forward pass again, such as a batch's statistics. What
is small beside the tensors that it is computed from is better kept than computed again. What is
large is not: it would be kept in memory from one place to the other. Unless it is a tensor in
another shape, which takes no memory: two of these are one, so that what is read of them is alike.

Two results that both leave their block stay two: what writes to one of them must not be seen in the
other.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import tvm
from tvm import relax, tirx

from ...ir.kernel_calls import (
    arguments_of,
    bytes_of,
    is_kernel_call,
    map_dataflow_blocks,
    variables_of,
)
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import renamed

_MIN_SIZE_RATIO = 8
"""How many times smaller than its arguments a result is at least."""

_MAX_TINY_BYTES = 1 << 14
"""Bytes of a result that is kept whatever it is computed from."""


@compiler_pass(
    Phase.KERNELS,
    after={"replace_tuples": "equal calls read the same names, and an item of a tuple is a second"},
    before={"FuseOps": "until then equal ops call the same kernel"},
)
def share_results(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute no small result twice in a dataflow block."""
    views = {
        variable
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and relax.analysis.has_reshape_pattern(func)
    }
    return map_dataflow_blocks(mod, lambda bindings: _shared(bindings, views))


def _shared(bindings: list[Any], views: Container[Any]) -> list[Any]:
    leaving = _escaping(bindings, views)
    known: dict[Any, Any] = {}
    names: dict[Any, Any] = {}
    kept = []
    for binding in bindings:
        new = renamed(binding, names) if names else binding
        key = _key(new, views)
        same = known.setdefault(key, new.var) if key is not None else new.var
        both_leave = {same, new.var} <= leaving and not isinstance(new.value, relax.TupleGetItem)
        is_inner = isinstance(binding.var, relax.DataflowVar)
        if same.same_as(new.var) or not is_inner or both_leave:
            kept.append(new)
        else:
            names[binding.var] = same
            if new.var in leaving:
                leaving.add(same)
    return kept


def _escaping(bindings: list[Any], views: Container[Any]) -> set[Any]:
    """The variables in whose memory may be a value that is used behind the block."""
    leaving: set[Any] = set()
    for binding in reversed(bindings):
        if not isinstance(binding.var, relax.DataflowVar):
            leaving.add(binding.var)
        value = binding.value
        if binding.var in leaving and not (is_kernel_call(value) and value.args[0] not in views):
            leaving.update(variables_of(value))
    return leaving


def _key(binding: Any, views: Container[Any]) -> Any | None:
    """The key of a binding whose result is worth keeping, by which bindings are compared."""
    if not isinstance(binding, relax.VarBinding):
        return None
    value = binding.value
    if isinstance(value, relax.TupleGetItem):
        return value.tuple_value, int(value.index)
    if not is_kernel_call(value) or not (value.args[0] in views or _is_small(value)):
        return None
    arguments = tuple(map(_argument, arguments_of(value)))
    return None if None in arguments else (value.args[0], arguments)


def _is_small(call: Any) -> bool:
    size = bytes_of(call.ty)
    sizes = [bytes_of(argument.ty) or 0 for argument in arguments_of(call)]
    return size is not None and size <= max(_MAX_TINY_BYTES, sum(sizes) // _MIN_SIZE_RATIO)


def _argument(expr: Any) -> Any | None:
    """An argument in a form that can be compared; None if there is none."""
    if isinstance(expr, tvm.ir.GenericConst):
        array = expr.value.numpy()
        return (str(array.dtype), array.tobytes()) if array.ndim == 0 else None
    return expr if isinstance(expr, tvm.ir.Var) else None
