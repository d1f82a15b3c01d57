"""The workspace of a function: memory for its inner tensors, allocated once and not at each call.

The virtual machine allocates each inner tensor of a function in each call, out of a pool: some
hundreds of objects for a training step, which takes longer than the kernels of a small network.
With a workspace the caller holds the tensors, and passes them behind the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from ..ir.calls import calls_op
from ..ir.rewrite import rebuilt, replace_body
from .alias import Module
from .allocation import bytes_taken, static_allocations

_MAX_WORKSPACE_BYTES = 16 << 20
"""A function that needs more gets no workspace: beside its kernels' time, allocation is cheap."""


def take_workspace(mod: tvm.IRModule, name: str) -> tuple[tvm.IRModule, str | None]:
    """Make a function take its inner tensors as further arguments, if they are small.

    Tensors that it returns or passes to packed functions it still allocates itself. No two calls
    may run at the same time with the same workspace.

    Parameters
    ----------
    mod : IRModule
        Lowered to instructions of the virtual machine, of the host.
    name : str

    Returns
    -------
    mod : IRModule
        With the function changed, and a new function that returns a tuple of the tensors.
    workspace : str or None
        The name of the new function; None if the module is returned as it was.
    """
    function = mod[name]
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    if any(isinstance(binding.value, relax.If) for binding in bindings):
        return mod, None  # what is allocated inside a branch is not seen here
    aliases = Module(mod.functions).function(mod.get_global_var(name))
    escaping = aliases.escaping()
    storages = {
        b.var: b
        for b in static_allocations(function, "relax.vm.alloc_storage")
        if aliases.region(aliases.values[b.var]) not in escaping
    }
    tensors = {
        b.var: b
        for b in bindings
        if calls_op(b.value, "relax.vm.alloc_tensor") and b.value.args[0] in storages
    }
    if not tensors or sum(map(bytes_taken, storages.values())) > _MAX_WORKSPACE_BYTES:
        return mod, None
    workspace = f"{name}_workspace"
    changed = mod.clone()
    changed[name] = _take_tensors_as_arguments(function, {**storages, **tensors}, list(tensors))
    changed[workspace] = _workspace(workspace, [*storages.values(), *tensors.values()], tensors)
    return changed, workspace


def _take_tensors_as_arguments(
    function: relax.Function, moved: Mapping[Any, Any], tensors: list[Any]
) -> relax.Function:
    """A function that takes some tensors as arguments instead of allocating them.

    Parameters
    ----------
    function : relax.Function
    moved : mapping
        From variables to the allocations of storages and tensors that are dropped.
    tensors : list of relax.Var
        The tensors among these, which become parameters.
    """

    def stays(binding: Any) -> bool:
        # What the caller holds must not be freed at its last use either.
        return binding.var not in moved and not (
            calls_op(binding.value, "relax.vm.kill_object") and binding.value.args[0] in moved
        )

    body = rebuilt(function.body, lambda binding: [binding] if stays(binding) else [])
    return replace_body(function, body, params=[*function.params, *tensors])


def _workspace(name: str, bindings: list[Any], tensors: Mapping[Any, Any]) -> relax.Function:
    """A function that makes some allocations and returns the tensors among them as a tuple."""
    new_vars = {binding.var: relax.Var(binding.var.name, binding.var.ty) for binding in bindings}
    allocations = [
        relax.VarBinding(
            new_vars[binding.var],
            relax.Call(
                binding.value.op,
                [new_vars.get(argument, argument) for argument in binding.value.args],
                binding.value.attrs,
                binding.value.ty_args,
            ),
        )
        for binding in bindings
    ]
    result = relax.Tuple([new_vars[tensor] for tensor in tensors])
    types = relax.TupleType([tensor.ty for tensor in tensors])
    return relax.Function(
        [], relax.SeqExpr([relax.BindingBlock(allocations)], result), types, False
    ).with_attr("global_symbol", name)
