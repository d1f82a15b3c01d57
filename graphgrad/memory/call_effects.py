"""What calls do to memory: what they read, write, keep, and return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax, tirx

from ..errors import AliasError, ArgumentError
from ..ir.calls import callee, data_of
from ..ops.copy import KERNEL_OF_COPY
from .effects import NOTHING, Effects, effects_of
from .regions import OUTSIDE, Leaf, Tree, leaves

if TYPE_CHECKING:
    from .alias import Aliases

_IDENTITY_OPS = frozenset(
    f"relax.{name}"
    for name in (
        "builtin.stop_lift_params",
        "grad.end_checkpoint",
        "grad.no_grad",
        "grad.start_checkpoint",
        "hint_on_device",
        "memory.alloc_tensor",
        "memory.ensure_zero_offset",
        "memory.view",
        "to_vdevice",
        "vm.alloc_tensor",
        "wrap_param",
    )
)
"""Ops whose result may be the memory of their first argument."""

_READ_ONLY_OPS = (
    "relax.assert_op",
    "relax.memory.kill_storage",
    "relax.memory.kill_tensor",
    "relax.print",
)
"""Ops that are not pure and change no memory."""


def record_call(aliases: Aliases, call: Any, var: Any) -> Tree:
    """The memory of a call's result; note the uses of its arguments and what they join."""
    operator = call.op
    if isinstance(operator, relax.ExternFunc):
        return _packed(aliases, call, call.args, var, effects_of(callee(call)))
    if isinstance(operator, tvm.ir.GlobalVar):
        return _function(aliases, call, operator, list(call.args), var)
    if not isinstance(operator, tvm.ir.Op):
        return _record_opaque_call(aliases, call, [operator, *call.args], var, writes=True)
    name = str(operator.name)
    special = _EFFECTS_BY_OP.get(name)
    if special is not None:
        tree: Tree = special(aliases, call, var)
        return tree
    trees = [aliases.value(argument) for argument in call.args]
    for argument, tree in zip(call.args, trees, strict=True):
        aliases.use(argument, tree, var, writes=False)
    if name in _IDENTITY_OPS or (name == "relax.reshape" and aliases.module.views):
        result = aliases.regions.fresh(call.ty, ("call", var))
        aliases.regions.unify(result, trees[0])
        return result
    if operator.get_attr("FPurity") or name in _READ_ONLY_OPS:
        return aliases.regions.fresh(call.ty, ("call", var))
    return _record_opaque_call(aliases, call, call.args, var, writes=True)


def _record_opaque_call(
    aliases: Aliases, call: Any, arguments: Sequence[Any], var: Any, writes: bool
) -> Tree:
    """Take in a call that may do anything with what it can reach."""
    trees = [aliases.value(argument) for argument in arguments]
    result = aliases.regions.fresh(call.ty, ("call", var))
    aliases.regions.join(OUTSIDE, *(leaf.node for leaf in leaves([*trees, result])))
    for argument, tree in zip(arguments, trees, strict=True):
        aliases.use(argument, tree, var, writes)
    if writes:
        aliases.use(call, Leaf(OUTSIDE, ("outside",)), var, writes)
    return result


def _packed(
    aliases: Aliases,
    call: Any,
    arguments: Sequence[Any],
    var: Any,
    effects: Effects | None,
    results: int = 0,
) -> Tree:
    """Take in a call of a packed function; `results` are passed to it besides."""
    if effects is None:
        writes = not aliases.module.leaves_alone(callee(call))
        return _record_opaque_call(aliases, call, arguments, var, writes)
    _check_positions(call, effects, len(arguments) + results)
    trees = [aliases.value(argument) for argument in arguments]
    result = aliases.regions.fresh(call.ty, ("call", var))
    for number, (argument, tree) in enumerate(zip(arguments, trees, strict=True)):
        aliases.use(argument, tree, var, number in effects.mutates)
        held = [leaf.node for leaf in leaves(tree)]
        if number in effects.keeps:
            aliases.regions.join(OUTSIDE, *held)
        if number in effects.returns_alias_of:
            aliases.regions.join(*held, *(leaf.node for leaf in leaves(result)))
    return result


def _pure_packed(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take in a call that is promised to have no effect but its result."""
    name = str(call.op.name)
    arguments = data_of(call)
    effects = effects_of(callee(call))
    if effects is None:
        return _record_opaque_call(aliases, call, arguments, var, writes=False)
    is_dps = name == "relax.call_dps_packed"
    results = len(list(leaves(aliases.regions.fresh(call.ty, ())))) if is_dps else 0
    mutated = [number for number in sorted(effects.mutates) if number < len(arguments)]
    if mutated:
        raise AliasError(
            f"{callee(call)} is declared to mutate its argument {mutated[0]}, but {name} (of "
            f"{var.name}) promises that a call has no effect but its result, so that passes "
            "may drop or move it; call it by R.call_packed in a function with pure=False"
        )
    return _packed(aliases, call, arguments, var, effects, results)


def _kernel(aliases: Aliases, call: Any, var: Any) -> Tree:
    kernel = aliases.module.functions.get(call.args[0])
    arguments = data_of(call)
    written = aliases.module.written(kernel) if isinstance(kernel, tirx.PrimFunc) else frozenset()
    trees = [aliases.value(argument) for argument in arguments]
    for number, (argument, tree) in enumerate(zip(arguments, trees, strict=True)):
        aliases.use(argument, tree, var, number in written)
    result = aliases.regions.fresh(call.ty, ("call", var))
    if aliases.module.views and _may_be_view(aliases, kernel, var):
        aliases.regions.unify(result, trees)
    return result


def _may_be_view(aliases: Aliases, kernel: Any, var: Any) -> bool:
    return (
        isinstance(var, relax.DataflowVar)
        and isinstance(kernel, tirx.PrimFunc)
        and KERNEL_OF_COPY not in (kernel.attrs or {})
        and relax.analysis.has_reshape_pattern(kernel)
    )


def _in_place(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take in a call some of whose results are its arguments, changed."""
    indices = [int(index) for index in call.attrs.inplace_indices]
    packed = str(call.op.name) == "relax.call_inplace_packed"
    effects = effects_of(callee(call)) if packed else NOTHING
    mutates = (effects or NOTHING).mutates | {index for index in indices if index >= 0}
    if effects is None:
        result = _record_opaque_call(aliases, call, data_of(call), var, writes=False)
    else:
        result = _packed(aliases, call, data_of(call), var, replace(effects, mutates=mutates))
    trees = [aliases.value(argument) for argument in data_of(call)]
    for number in mutates if effects is None else ():
        aliases.use(data_of(call)[number], trees[number], var, writes=True)
    fields = result if isinstance(call.ty, relax.TupleType) else [result]
    shared = [trees[i] if i >= 0 else f for i, f in zip(indices, fields, strict=True)]
    return shared if isinstance(call.ty, relax.TupleType) else shared[0]


def _invocation(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take in a call of a closure: of its function, behind the arguments what it captured."""
    closure = aliases.calls.get(call.args[0])
    arguments = list(call.args[1].fields)
    if closure is None or closure.op != tvm.ir.Op.get("relax.make_closure"):
        return _record_opaque_call(aliases, call, [call.args[0], *arguments], var, writes=True)
    return _function(aliases, call, closure.args[0], [*arguments, *closure.args[1].fields], var)


def _function(aliases: Aliases, call: Any, name: Any, arguments: list[Any], var: Any) -> Tree:
    """Take in a call of a function of the module, by what is known of it."""
    callee = aliases.module.functions.get(name)
    if isinstance(callee, tirx.PrimFunc):
        for argument in arguments:
            aliases.use(argument, aliases.value(argument), var, writes=True)
        return None
    known = aliases.module.summary(name) if isinstance(callee, relax.Function) else None
    if known is None or len(arguments) != len(known.params):
        return _record_opaque_call(aliases, call, arguments, var, writes=True)
    trees = [aliases.value(argument) for argument in arguments]
    result = aliases.regions.fresh(call.ty, ("call", var))
    here: dict[int, int] = {OUTSIDE: OUTSIDE}
    for inner, outer in zip([*known.params, known.result], [*trees, result], strict=True):
        _translate(aliases, known, inner, outer, here)
    for argument, tree, inner in zip(arguments, trees, known.params, strict=True):
        regions = {known.region(leaf) for leaf in leaves(inner)}
        writes = any(known.is_written(region) for region in regions)
        aliases.use(argument, tree, var, writes)
    if known.is_written(OUTSIDE):
        aliases.use(call, Leaf(OUTSIDE, ("outside",)), var, writes=True)
    return result


def _translate(
    aliases: Aliases, known: Aliases, inner: Tree, outer: Tree, here: dict[int, int]
) -> None:
    """Join the memory of a call's arguments and results as that of its parameters is."""
    if isinstance(inner, list) and isinstance(outer, list) and len(inner) == len(outer):
        for i, o in zip(inner, outer, strict=True):
            _translate(aliases, known, i, o, here)
        return
    nodes = [leaf.node for leaf in leaves(outer)]
    for leaf in leaves(inner):
        region = known.region(leaf)
        aliases.regions.join(*nodes, *([here[region]] if region in here else []))
        if nodes:
            here.setdefault(region, nodes[0])


def _dynamic_kernel(aliases: Aliases, call: Any, var: Any) -> Tree:
    return _function(aliases, call, call.args[0], list(call.args[1].fields), var)


def _captured(aliases: Aliases, call: Any, var: Any) -> Tree:
    return aliases.closure([aliases.value(argument) for argument in call.args[1:]], var)


def _python(aliases: Aliases, call: Any, var: Any) -> Tree:
    return _record_opaque_call(aliases, call, call.args, var, writes=False)


_EFFECTS_BY_OP: dict[str, Any] = {
    "relax.call_dps_packed": _pure_packed,
    "relax.call_inplace_packed": _in_place,
    "relax.call_pure_packed": _pure_packed,
    "relax.call_py_func": _python,
    "relax.call_tir": _kernel,
    "relax.call_tir_inplace": _in_place,
    "relax.call_tir_with_grad": _kernel,
    "relax.invoke_closure": _invocation,
    "relax.invoke_pure_closure": _invocation,
    "relax.make_closure": _captured,
    "relax.vm.call_tir_dyn": _dynamic_kernel,
}
"""What is called by ops that call something: how each is taken in."""


def _check_positions(call: Any, effects: Effects, count: int) -> None:
    """Raise if a declaration names an argument that a call does not have."""
    named = effects.mutates | effects.keeps | effects.returns_alias_of
    beyond = sorted(position for position in named if position >= count)
    if beyond:
        raise ArgumentError(
            f"{callee(call)} is declared with effects on its argument {beyond[0]}, but is called "
            f"with {count} argument(s); correct graphgrad.declare_effects or the call"
        )
