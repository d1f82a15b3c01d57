"""Results of equal kernel calls, computed once where they are small.

A gradient rule states again what it needs of the forward pass, such as a batch's statistics. What
is small beside the tensors that it is computed from is better kept than computed again. What is
large is not, because it would take memory from its first use to its last. An exception are views,
that is, tensors in another shape: they take no memory of their own. Equal views become one, so that
calls that read them read the same variable, and can then be found to be equal themselves.

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
from ...ir.kernel_structure import substitute_values
from ...ir.passes import Phase, compiler_pass

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
    """The bindings of a block without those that compute an earlier result again.

    `views` are the kernels that only give a tensor another shape.
    """
    escaping = _escaping(bindings, views)
    first_with_key: dict[Any, Any] = {}
    replacements: dict[Any, Any] = {}
    remaining = []
    for binding in bindings:
        renamed_binding = substitute_values(binding, replacements) if replacements else binding
        key = _key(renamed_binding, views)
        representative = (
            first_with_key.setdefault(key, renamed_binding.var)
            if key is not None
            else renamed_binding.var
        )
        # Items of one tuple share its memory anyway, so nothing is gained by keeping them apart.
        both_escape = {representative, renamed_binding.var} <= escaping and not isinstance(
            renamed_binding.value, relax.TupleGetItem
        )
        is_inner = isinstance(binding.var, relax.DataflowVar)
        if representative.same_as(renamed_binding.var) or not is_inner or both_escape:
            remaining.append(renamed_binding)
        else:
            replacements[binding.var] = representative
            # From here on the representative is what leaves the block: a third equal result that
            # leaves it too must not be replaced by it.
            if renamed_binding.var in escaping:
                escaping.add(representative)
    return remaining


def _escaping(bindings: list[Any], views: Container[Any]) -> set[Any]:
    """The variables in whose memory a value may lie that is used after the block."""
    escaping: set[Any] = set()
    for binding in reversed(bindings):
        if not isinstance(binding.var, relax.DataflowVar):
            escaping.add(binding.var)
        value = binding.value
        # A kernel writes to memory of its own. A view, a tuple or an item of one may lie in that of
        # its operands.
        if binding.var in escaping and not (is_kernel_call(value) and value.args[0] not in views):
            escaping.update(variables_of(value))
    return escaping


def _key(binding: Any, views: Container[Any]) -> Any | None:
    """The key by which equal bindings are found; None if the result is not worth keeping."""
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
    """An argument in a form that can be compared and hashed; None if it has no such form."""
    if isinstance(expr, tvm.ir.GenericConst):
        array = expr.value.numpy()
        return (str(array.dtype), array.tobytes()) if array.ndim == 0 else None
    return expr if isinstance(expr, tvm.ir.Var) else None
