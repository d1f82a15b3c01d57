"""Memory of a function that is taken once, and not at each call.

The virtual machine allocates each inner tensor of a function anew, out of a pool: some hundreds of
objects for a step, which takes longer than the kernels of a small network. Here the caller holds
the tensors, and hands them in behind the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from ..ir.kernel_calls import variables_of
from ..ir.rewrite import rebuilt, replace_body

_ALLOC_STORAGE = tvm.ir.Op.get("relax.vm.alloc_storage")
_ALLOC_TENSOR = tvm.ir.Op.get("relax.vm.alloc_tensor")
_KILL = tvm.ir.Op.get("relax.vm.kill_object")

_BUILTIN = "vm.builtin."
"""How the names of the machine's own functions begin, which keep no tensor."""

_MAX_WORKSPACE_BYTES = 16 << 20
"""A function that needs more keeps no memory: its kernels take long enough to hide allocations."""


def take_workspace(mod: tvm.IRModule, name: str) -> tuple[tvm.IRModule, str | None]:
    """Have a function take its inner tensors as further arguments, if it is small.

    Those that it returns, or gives to packed functions, it allocates itself as before. No two calls
    may run at the same time with the same tensors.

    Parameters
    ----------
    mod : IRModule
        Lowered to instructions of the virtual machine, of the host.
    name : str

    Returns
    -------
    mod : IRModule
        With the function changed, and one besides that returns a tuple of the tensors.
    workspace : str or None
        The name of that one; None if nothing is changed.
    """
    function = mod[name]
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    if any(isinstance(binding.value, relax.If) for binding in bindings):
        return mod, None  # what is allocated inside a branch is not seen here
    kept = _escaping_variables(mod, function, bindings)
    storages = {b.var: b for b in bindings if _calls(b, _ALLOC_STORAGE) and _is_movable(b, kept)}
    tensors = {
        b.var: b for b in bindings if _calls(b, _ALLOC_TENSOR) and b.value.args[0] in storages
    }
    if not tensors or sum(map(_bytes, storages.values())) > _MAX_WORKSPACE_BYTES:
        return mod, None
    workspace = f"{name}_workspace"
    changed = mod.clone()
    changed[name] = _take_tensors_as_arguments(function, {**storages, **tensors}, list(tensors))
    changed[workspace] = _workspace(workspace, [*storages.values(), *tensors.values()], tensors)
    return changed, workspace


def _escaping_variables(
    mod: tvm.IRModule, function: relax.Function, bindings: list[Any]
) -> set[Any]:
    """The variables of which something may be left when the function has returned.

    They are those of its result, those that it hands to functions which may keep them, and what
    these are made of.
    """
    values = {binding.var: binding.value for binding in bindings}
    waiting = list(variables_of(function.body.body))
    for value in values.values():
        if _may_keep(mod, value):
            waiting += variables_of(value)
    found: set[Any] = set()
    while waiting:
        variable = waiting.pop()
        if variable not in found:
            found.add(variable)
            waiting += variables_of(values[variable]) if variable in values else []
    return found


def _may_keep(mod: tvm.IRModule, value: Any) -> bool:
    """Whether a binding calls what may keep its arguments: no kernel, nothing of the machine's."""
    if not isinstance(value, tvm.ir.Call) or isinstance(value.op, tvm.ir.Op):
        return False
    if isinstance(value.op, relax.ExternFunc):
        return not str(value.op.global_symbol).startswith(_BUILTIN)
    is_known = isinstance(value.op, tvm.ir.GlobalVar)
    return not (is_known and isinstance(mod[value.op], tvm.tirx.PrimFunc))


def _calls(binding: Any, op: tvm.ir.Op) -> bool:
    return isinstance(binding.value, tvm.ir.Call) and binding.value.op == op


def _is_movable(storage: Any, kept: set[Any]) -> bool:
    size = storage.value.args[0]
    return storage.var not in kept and all(
        isinstance(extent, tvm.tirx.IntImm) for extent in size.values
    )


def _bytes(storage: Any) -> int:
    return math.prod(int(extent) for extent in storage.value.args[0].values)


def _take_tensors_as_arguments(
    function: relax.Function, moved: Mapping[Any, Any], tensors: list[Any]
) -> relax.Function:
    """A function that takes some tensors in place of allocating them."""

    def stays(binding: Any) -> bool:
        return binding.var not in moved and not (
            _calls(binding, _KILL) and binding.value.args[0] in moved
        )

    body = rebuilt(function.body, lambda binding: [binding] if stays(binding) else [])
    return replace_body(function, body, params=[*function.params, *tensors])


def _workspace(name: str, bindings: list[Any], tensors: Mapping[Any, Any]) -> relax.Function:
    """A function that makes some allocations and returns the tensors."""
    fresh = {binding.var: relax.Var(binding.var.name, binding.var.ty) for binding in bindings}
    made = [
        relax.VarBinding(
            fresh[binding.var],
            relax.Call(
                binding.value.op,
                [fresh.get(argument, argument) for argument in binding.value.args],
                binding.value.attrs,
                binding.value.ty_args,
            ),
        )
        for binding in bindings
    ]
    result = relax.Tuple([fresh[tensor] for tensor in tensors])
    types = relax.TupleType([tensor.ty for tensor in tensors])
    return relax.Function(
        [], relax.SeqExpr([relax.BindingBlock(made)], result), types, False
    ).with_attr("global_symbol", name)
