"""The callee of a Relax call, and which of its arguments carry data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tvm
from tvm import relax

from .passes import Phase, compiler_pass
from .rewrite import map_functions
from .tensor import expression_of, type_shape
from .visits import nodes_in

RESHAPES = tuple(
    f"relax.{name}" for name in ("expand_dims", "flatten", "nn.batch_flatten", "reshape", "squeeze")
)
"""Ops whose results have the elements of their first arguments in the same order."""

_CALLS_WITH_TUPLE = frozenset(
    f"relax.{name}"
    for name in ("call_tir", "call_tir_inplace", "call_tir_with_grad", "call_dps_packed")
)
"""Ops whose first argument is the callee, and whose second is a tuple of the data."""

WITH_TE_GRADIENT = tvm.ir.Op.get("relax.call_tir_with_grad")
"""A ``call_tir`` that names its gradient, see `graphgrad.autodiff.te_gradients`."""

_CALLS_WITH_CALLEE = frozenset(("relax.call_pure_packed", "relax.call_inplace_packed"))
"""Ops whose first argument is the callee, and whose further ones are the data."""

_OVERWRITING = [tvm.ir.Op.get(f"relax.call_{name}") for name in ("tir_inplace", "inplace_packed")]
"""Ops whose results are written over arguments."""

_CALLING = _CALLS_WITH_TUPLE | _CALLS_WITH_CALLEE


_op: Callable[[str], Any] = cache(tvm.ir.Op.get)
"""An op by its name: there is one object of each."""


def calls_op(value: Any, name: str) -> bool:
    """Whether a value is a call of an op, given its name."""
    return isinstance(value, tvm.ir.Call) and value.op.same_as(_op(name))


def result_types(ty: Any) -> list[Any]:
    """The types of a call's results, given its type: the fields of a tuple, or the type alone."""
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def callee(call: Any) -> str:
    """The name of the kernel or packed function that a call calls; empty for an op."""
    if isinstance(call.op, relax.ExternFunc):
        return str(call.op.global_symbol)
    if not isinstance(call.op, tvm.ir.Op) or call.op.name not in _CALLING:
        return ""
    target = call.args[0]
    return str(target.global_symbol if isinstance(target, relax.ExternFunc) else target.name_hint)


def data_of(call: Any) -> list[Any]:
    """The arguments of a call that carry data, in the order in which gradient rules see them."""
    if isinstance(call.op, tvm.ir.Op) and call.op.name in _CALLS_WITH_TUPLE:
        data = call.args[1]
        return list(data.fields) if isinstance(data, relax.Tuple) else [data]
    if isinstance(call.op, tvm.ir.Op) and call.op.name in _CALLS_WITH_CALLEE:
        return list(call.args[1:])
    return list(call.args)


def with_data(call: Any, data: Sequence[Any]) -> relax.Call:
    """A call of the same callee and attributes, of other data, without a span."""
    values = [expression_of(value) for value in data]
    if isinstance(call.op, tvm.ir.Op) and call.op.name in _CALLS_WITH_TUPLE:
        arguments = [call.args[0], relax.Tuple(values), *call.args[2:]]
    elif isinstance(call.op, tvm.ir.Op) and call.op.name in _CALLS_WITH_CALLEE:
        arguments = [call.args[0], *values]
    else:
        arguments = values
    return relax.Call(call.op, arguments, call.attrs, call.ty_args)


def overwritten_by(call: Any) -> list[Any]:
    """The arguments of a call that its results overwrite."""
    if not isinstance(call, relax.Call) or call.op not in _OVERWRITING:
        return []
    data = data_of(call)
    return [data[int(index)] for index in call.attrs.inplace_indices if int(index) >= 0]


@compiler_pass(
    Phase.GRAPH, before={"specialize_kernels": "it looks at call_tir and call_tir_inplace alone"}
)
def drop_te_gradients(mod: tvm.IRModule, name: str | None = None) -> tvm.IRModule:
    """Replace ``call_tir_with_grad`` by ``call_tir``, which computes the same.

    If a name is given, only in the function of that name.
    """

    def changed(variable: Any, function: relax.Function) -> relax.Function:
        calls = nodes_in(function, tvm.ir.Call) if name in (None, variable.name_hint) else []
        is_meant = any(call.op == WITH_TE_GRADIENT for call in calls)
        return _ToCallTir(mod).visit_expr(function) if is_meant else function

    return map_functions(mod, changed)


@relax.expr_functor.mutator
class _ToCallTir(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        """Replace one call."""
        call = self.visit_expr_post_order(call)
        if call.op != WITH_TE_GRADIENT:
            return call
        kernel, arguments, *extents = call.args
        (ty,) = call.ty_args
        types = list(ty.fields) if isinstance(ty, relax.TupleType) else ty
        return relax.call_tir(kernel, arguments, types, *extents)


def axes_of_permutation(permutation: Any) -> list[int]:
    """Which axis of its argument each axis of a permutation is."""
    rank = len(type_shape(permutation.ty))
    axes = permutation.attrs.axes
    return list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]
