"""The effects of calls on memory: what they read, write, keep, and return.

`record_call` takes one call into an alias analysis. It records each use of an argument's memory,
and joins the classes of whatever may share memory because of the call. A call is *opaque* if
nothing is known of what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax, tirx

from ..errors import AliasError, ArgumentError
from ..ir.calls import RESHAPES, callee, data_of, overwritten_by
from ..ir.kernel_calls import ALLOCATION, KERNEL_OF_COPY
from .effects import NOTHING, Effects, effects_of
from .regions import OUTSIDE, Leaf, Tree, leaves
from .stores import stored_parameters

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
    "relax.vm.kill_object",
)
"""Ops that are not pure in TVM's sense but write to no memory."""


def may_be_view(operator: Any) -> bool:
    """Whether the result of an op may be its first argument, in its memory."""
    name = getattr(operator, "name", "")
    return name in _IDENTITY_OPS or name in RESHAPES


def may_write(value: Any) -> bool:
    """Whether a binding's value may write to memory that it has not allocated itself.

    By the op alone, as no analysis is needed for most programs: calls of packed functions, of
    closures and of Relax functions may, and ops that overwrite arguments or that are not known to
    leave memory alone.
    """
    if not isinstance(value, tvm.ir.Call):
        return False
    if not isinstance(value.op, tvm.ir.Op):
        return True
    return bool(overwritten_by(value)) or not _only_reads(value.op)


def _only_reads(operator: tvm.ir.Op) -> bool:
    """Whether an op that calls nothing writes to no memory."""
    return bool(operator.get_attr("FPurity")) or str(operator.name) in _READ_ONLY_OPS


def record_call(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take a call into the analysis of a function; the memory of its result.

    Parameters
    ----------
    aliases : Aliases
        Receives the uses of the arguments, and the classes that the call joins.
    call : relax.Call
    var : relax.Var
        The variable that the call is bound to.
    """
    operator = call.op
    if isinstance(operator, relax.ExternFunc):
        return _extern(aliases, call, var)
    if isinstance(operator, tvm.ir.GlobalVar):
        return _function(aliases, call, operator, list(call.args), var)
    if not isinstance(operator, tvm.ir.Op):
        # The operator is a variable: a closure, which may have captured anything.
        return _record_opaque_call(aliases, call, [operator, *call.args], var, writes=True)
    name = str(operator.name)
    if name == ALLOCATION:
        return aliases.allocated(call, var)
    record = _EFFECTS_BY_OP.get(name)
    if record is not None:
        tree: Tree = record(aliases, call, var)
        return tree
    trees = [aliases.value(argument) for argument in call.args]
    for argument, tree in zip(call.args, trees, strict=True):
        aliases.use(argument, tree, var, writes=False)
    if name in RESHAPES and aliases.module.views:
        # Lowering makes a view of all of the argument, where it can.
        return trees[0]
    if name in _IDENTITY_OPS:
        result = aliases.regions.fresh(call.ty, ("call", var))
        aliases.regions.unify(result, trees[0])
        return result
    if _only_reads(operator):
        return aliases.regions.fresh(call.ty, ("call", var))
    return _record_opaque_call(aliases, call, call.args, var, writes=True)


def _record_opaque_call(
    aliases: Aliases, call: Any, arguments: Sequence[Any], var: Any, writes: bool
) -> Tree:
    """Take in a call that may keep, return and, if `writes`, write to whatever it can reach."""
    trees = [aliases.value(argument) for argument in arguments]
    result = aliases.regions.fresh(call.ty, ("call", var))
    aliases.regions.join(OUTSIDE, *(leaf.node for leaf in leaves([*trees, result])))
    for argument, tree in zip(arguments, trees, strict=True):
        aliases.use(argument, tree, var, writes)
    if writes:
        # It may also write to memory that an earlier call has kept.
        aliases.use(call, Leaf(OUTSIDE, ("outside",)), var, writes)
    return result


def _extern(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take in a call of a packed function by its name.

    A `call_dps_packed` becomes one when its results are allocated. These are arguments then, and of
    arguments the function is declared to leave alone what it does not name: but what is allocated
    for a call, and used by nothing before, is there to be written.
    """
    effects = effects_of(callee(call))
    if effects is not None:
        results = {number for number, each in enumerate(call.args) if aliases.is_unused(each)}
        effects = replace(effects, mutates=effects.mutates | results)
    return _packed(aliases, call, call.args, var, effects)


def _packed(
    aliases: Aliases,
    call: Any,
    arguments: Sequence[Any],
    var: Any,
    effects: Effects | None,
    results: int = 0,
) -> Tree:
    """Take in a call of a packed function.

    Parameters
    ----------
    aliases, call, var
        As of `record_call`.
    arguments : sequence of relax expressions
    effects : Effects or None
        What is declared of the function; None if nothing is.
    results : int
        How many result tensors the function is passed behind the arguments.
    """
    if effects is None:
        writes = not aliases.module.leaves_alone(callee(call))
        return _record_opaque_call(aliases, call, arguments, var, writes)
    _check_positions(call, effects, len(arguments) + results)
    trees = [aliases.value(argument) for argument in arguments]
    result = aliases.regions.fresh(call.ty, ("call", var))
    for position, (argument, tree) in enumerate(zip(arguments, trees, strict=True)):
        aliases.use(argument, tree, var, position in effects.mutates)
        nodes = [leaf.node for leaf in leaves(tree)]
        if position in effects.keeps:
            aliases.regions.join(OUTSIDE, *nodes)
        if position in effects.returns_alias_of:
            aliases.regions.join(*nodes, *(leaf.node for leaf in leaves(result)))
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
    # Positions behind the arguments are those of the results, which it is there to write.
    mutated = [position for position in sorted(effects.mutates) if position < len(arguments)]
    if mutated:
        raise AliasError(
            f"{callee(call)} is declared to mutate its argument {mutated[0]}, but {name} (of "
            f"{var.name}) promises that a call has no effect but its result, so that passes "
            "may drop or move it; call it by R.call_packed in a function with pure=False"
        )
    return _packed(aliases, call, arguments, var, effects, results)


def _kernel(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take in a `call_tir`: the kernel's results are fresh memory, unless it may become a view."""
    kernel = aliases.module.functions.get(call.args[0])
    arguments = data_of(call)
    written = stored_parameters(kernel) if isinstance(kernel, tirx.PrimFunc) else frozenset()
    trees = [aliases.value(argument) for argument in arguments]
    for position, (argument, tree) in enumerate(zip(arguments, trees, strict=True)):
        aliases.use(argument, tree, var, position in written)
    result = aliases.regions.fresh(call.ty, ("call", var))
    if aliases.module.views and _may_be_view(aliases, kernel, var):
        aliases.regions.unify(result, trees)
    return result


def _may_be_view(aliases: Aliases, kernel: Any, var: Any) -> bool:
    """Whether TVM's `RewriteDataflowReshape` may make a view of a kernel's result."""
    return (
        isinstance(var, relax.DataflowVar)
        and isinstance(kernel, tirx.PrimFunc)
        and KERNEL_OF_COPY not in (kernel.attrs or {})
        and relax.analysis.has_reshape_pattern(kernel)
    )


def _in_place(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take in a call that writes some of its results over arguments, which it then returns."""
    indices = [int(index) for index in call.attrs.inplace_indices]
    is_packed = str(call.op.name) == "relax.call_inplace_packed"
    effects = effects_of(callee(call)) if is_packed else NOTHING
    mutates = (effects or NOTHING).mutates | {index for index in indices if index >= 0}
    if effects is None:
        # The op names the arguments that are written, so of an undeclared function only keeping and
        # returning is assumed; the named writes are recorded below.
        result = _record_opaque_call(aliases, call, data_of(call), var, writes=False)
    else:
        result = _packed(aliases, call, data_of(call), var, replace(effects, mutates=mutates))
    trees = [aliases.value(argument) for argument in data_of(call)]
    for position in mutates if effects is None else ():
        aliases.use(data_of(call)[position], trees[position], var, writes=True)
    is_tuple = isinstance(call.ty, relax.TupleType)
    # An index of -1 stands for a result in memory of its own.
    shared = [
        trees[number] if number >= 0 else field
        for number, field in zip(indices, result if is_tuple else [result], strict=True)
    ]
    written_over = shared if is_tuple else shared[0]
    if not is_packed:
        return written_over
    # A packed function is not known to return the very tensor that it has written to.
    aliases.regions.unify(result, written_over)
    return result


def _invocation(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take in a call of a closure.

    It is a call of the closure's function, with what was captured behind the arguments. It is
    opaque where the closure was not made in this function.
    """
    closure = aliases.calls.get(call.args[0])
    arguments = list(call.args[1].fields)
    if closure is None or closure.op != tvm.ir.Op.get("relax.make_closure"):
        return _record_opaque_call(aliases, call, [call.args[0], *arguments], var, writes=True)
    return _function(aliases, call, closure.args[0], [*arguments, *closure.args[1].fields], var)


def _function(aliases: Aliases, call: Any, name: Any, arguments: list[Any], var: Any) -> Tree:
    """Take in a call of a function of the module, by the summary of that function."""
    function = aliases.module.functions.get(name)
    if isinstance(function, tirx.PrimFunc):
        # Called without `call_tir`, a kernel gets its outputs as arguments and returns nothing.
        for argument in arguments:
            aliases.use(argument, aliases.value(argument), var, writes=True)
        return None
    summary = aliases.module.summary(name) if isinstance(function, relax.Function) else None
    # The function is recursive, or the call does not fit it.
    if summary is None or len(arguments) != len(summary.params):
        return _record_opaque_call(aliases, call, arguments, var, writes=True)
    trees = [aliases.value(argument) for argument in arguments]
    result = aliases.regions.fresh(call.ty, ("call", var))
    # What the called function lets escape escapes here as well.
    node_of_region: dict[int, int] = {OUTSIDE: OUTSIDE}
    for inner, outer in zip([*summary.params, summary.result], [*trees, result], strict=True):
        _translate(aliases, summary, inner, outer, node_of_region)
    for argument, tree, inner in zip(arguments, trees, summary.params, strict=True):
        writes = any(summary.is_written(region) for region in summary.regions_of(inner))
        aliases.use(argument, tree, var, writes)
    if summary.is_written(OUTSIDE):
        aliases.use(call, Leaf(OUTSIDE, ("outside",)), var, writes=True)
    return result


def _translate(
    aliases: Aliases, summary: Aliases, inner: Tree, outer: Tree, node_of_region: dict[int, int]
) -> None:
    """Join classes of the caller where the summary of the called function joins classes.

    Parameters
    ----------
    aliases, summary : Aliases
        The analyses of the caller and of the called function.
    inner, outer : Tree
        A parameter or the result in the called function, and what it is in the call.
    node_of_region : dict
        From a class of the called function to a node of the caller in the class that it is there.
        It is extended.
    """
    if isinstance(inner, list) and isinstance(outer, list) and len(inner) == len(outer):
        for inner_member, outer_member in zip(inner, outer, strict=True):
            _translate(aliases, summary, inner_member, outer_member, node_of_region)
        return
    nodes = [leaf.node for leaf in leaves(outer)]
    for leaf in leaves(inner):
        region = summary.region(leaf)
        aliases.regions.join(
            *nodes, *([node_of_region[region]] if region in node_of_region else [])
        )
        if nodes:
            node_of_region.setdefault(region, nodes[0])


def _dynamic_kernel(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take in a `vm.call_tir_dyn`, which hands a kernel a tuple of arguments."""
    return _function(aliases, call, call.args[0], list(call.args[1].fields), var)


def _captured(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take in a `make_closure`: its first argument is the function, the others are captured."""
    return aliases.closure([aliases.value(argument) for argument in call.args[1:]], var)


def _python(aliases: Aliases, call: Any, var: Any) -> Tree:
    """Take in a call of a Python function, which may keep and return its arguments."""
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
"""By the name of an op that calls a function: how such a call is taken into the analysis."""


def _check_positions(call: Any, effects: Effects, count: int) -> None:
    """Raise if a declaration names an argument that a call does not have."""
    named = effects.mutates | effects.keeps | effects.returns_alias_of
    beyond = sorted(position for position in named if position >= count)
    if beyond:
        raise ArgumentError(
            f"{callee(call)} is declared with effects on its argument {beyond[0]}, but is called "
            f"with {count} argument(s); correct graphgrad.declare_effects or the call"
        )
