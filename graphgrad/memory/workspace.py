"""The workspace of a function: memory for its inner tensors, which the caller holds.

The virtual machine allocates each inner tensor of a function in each call: some hundreds of objects
for a training step, which takes longer than the kernels of a small network. And its pool keeps all
memory for allocations of equal size alone. With a workspace the caller passes the tensors behind
the arguments, and may have one block of memory for many functions (`graphgrad.runtime.arena`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..ir.calls import callee, calls_op
from ..ir.kernel_structure import static
from ..ir.rewrite import bindings_of, rebuilt, replace_body
from ..runtime.arena import RELEASE, Workspace
from ..runtime.cudnn.engine import NAME as CUDNN
from .alias import Module
from .allocation import static_allocations
from .packing import aligned
from .regions import OUTSIDE


def take_workspace(
    mod: tvm.IRModule, name: str, results: bool = False
) -> tuple[tvm.IRModule, Workspace | None]:
    """Make a function take its inner tensors as further arguments.

    Tensors that packed functions may keep it still allocates itself, and those that it returns. No
    two calls may run at the same time with the same workspace.

    Parameters
    ----------
    mod : IRModule
        Lowered to instructions of the virtual machine.
    name : str
    results : bool
        Whether tensors that it returns are taken, too: the next call overwrites them.

    Returns
    -------
    mod : IRModule
        With the function changed.
    workspace : Workspace or None
        None if the module is returned as it was.
    """
    function = mod[name]
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    if any(isinstance(binding.value, relax.If) for binding in bindings):
        return mod, None  # what is allocated inside a branch is not seen here
    aliases = Module(mod.functions).function(mod.get_global_var(name))
    escaping = {OUTSIDE} if results else aliases.escaping()
    dynamic = {b.value.args[0] for b in bindings if _is_tensor(b.value) and _place(b.value) is None}
    begin: dict[Any, int] = {}
    size = 0
    for binding in static_allocations(function, "relax.vm.alloc_storage"):
        storage = binding.var
        if storage not in dynamic and aliases.region(aliases.values[storage]) not in escaping:
            begin[storage] = size
            size += aligned(static(binding.value.args[0].values[0]) or 0)
    tensors = {b.var: b.value for b in bindings if _is_tensor(b.value) and b.value.args[0] in begin}
    if not tensors:
        return mod, None
    # Of a tensor inside a block kernels get a view, which begins where the tensor does.
    views = {
        b.value.args[0]: b.var
        for b in bindings
        if isinstance(b.value, tvm.ir.Call)
        and callee(b.value) == "vm.builtin.ensure_zero_offset"
        and b.value.args[0] in tensors
    }
    places = []
    for value in tensors.values():
        place = _place(value)
        assert place is not None  # that of a storage with others only, which is not taken
        offset, shape, dtype = place
        places.append((begin[value.args[0]] + offset, shape, dtype))
    taken = [views.get(tensor, tensor) for tensor in tensors]
    changed = mod.clone()
    changed[name] = _take_as_arguments(function, {*begin, *tensors, *views.values()}, taken)
    return changed, Workspace(size, places)


def take_to_record(mod: tvm.IRModule, name: str) -> tuple[tvm.IRModule, Workspace | None]:
    """As `take_workspace`, with results, of a function that can be recorded as a CUDA graph.

    None where it cannot. What it allocates itself, others get after the call, and a graph uses it
    again; and what functions of the model do on the host would be done once. The module gets the
    function `RELEASE` besides.
    """
    taken, workspace = take_workspace(mod, name, results=True)
    if workspace is None or _allocates(taken, name) or _calls_others(taken, name):
        return mod, None
    nothing = relax.SeqExpr([], relax.Tuple([]))
    release = relax.Function([], nothing, relax.TupleType([]), is_pure=False)
    taken[RELEASE] = release.with_attr("global_symbol", RELEASE)
    return taken, workspace


def _allocates(mod: tvm.IRModule, name: str) -> bool:
    """Whether a function allocates, lowered as for `take_workspace`."""
    return any(calls_op(b.value, "relax.vm.alloc_storage") for b in bindings_of(mod[name].body))


def _calls_others(mod: tvm.IRModule, name: str) -> bool:
    """Whether a function calls packed functions that are neither TVM's nor graphgrad's own."""
    calls = (b.value for b in bindings_of(mod[name].body) if isinstance(b.value, tvm.ir.Call))
    packed = (callee(call) for call in calls if isinstance(call.op, relax.ExternFunc))
    return any(not each.startswith("vm.builtin.") and each != CUDNN for each in packed)


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor in a storage."""
    return calls_op(value, "relax.vm.alloc_tensor")


def _place(value: Any) -> tuple[int, list[int], str] | None:
    """The offset, shape and dtype of a tensor in its storage; None if they are no constants."""
    _, offset, shape, dtype, *_ = value.args
    numbers = [static(number) for number in (offset, *getattr(shape, "values", [None]))]
    begin, *extents = [number for number in numbers if number is not None] or [0]
    return (begin, extents, str(dtype.value)) if None not in numbers else None


def _take_as_arguments(
    function: relax.Function, dropped: set[Any], taken: list[Any]
) -> relax.Function:
    """A function that takes some tensors as arguments instead of allocating them.

    Parameters
    ----------
    function : relax.Function
    dropped : set of relax.Var
        The storages, tensors and views that are bound no more.
    taken : list of relax.Var
        Those among them which become parameters.
    """

    def stays(binding: Any) -> bool:
        # What the caller holds must not be freed at its last use either.
        return binding.var not in dropped and not (
            calls_op(binding.value, "relax.vm.kill_object") and binding.value.args[0] in dropped
        )

    body = rebuilt(function.body, lambda binding: [binding] if stays(binding) else [])
    return replace_body(function, body, params=[*function.params, *taken])
