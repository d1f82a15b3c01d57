"""Rewriting of Relax: the functions of a module, and their bodies block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from ..tvm_fixes.hooks import set_type
from .kernel_structure import substitute_values

Change = Callable[[Any], list[Any]]
"""From a binding, or a block, to those that take its place."""

FunctionChange = Callable[[Any, Any], Any]
"""From a global variable and its function to the function that takes its place."""


def map_functions(
    mod: tvm.IRModule, change: FunctionChange, builder: relax.BlockBuilder | None = None
) -> tvm.IRModule:
    """A module whose Relax functions are changed; itself where none is.

    Parameters
    ----------
    mod : IRModule
        It is not changed.
    change : callable
    builder : BlockBuilder, optional
        Of the same module, to which `change` adds kernels: the result has these too.
    """
    return _map(mod, relax.Function, change, builder)


def map_kernels(mod: tvm.IRModule, change: FunctionChange) -> tvm.IRModule:
    """A module whose kernels are changed; itself where none is."""
    return _map(mod, tirx.PrimFunc, change)


def _map(
    mod: tvm.IRModule,
    kind: type,
    change: FunctionChange,
    builder: relax.BlockBuilder | None = None,
) -> tvm.IRModule:
    functions = [(v, func) for v, func in mod.functions.items() if isinstance(func, kind)]
    pairs = [(variable, func, change(variable, func)) for variable, func in functions]
    if builder is None and all(new.same_as(old) for _, old, new in pairs):
        return mod
    result = mod.clone() if builder is None else builder
    # TVM moves a function that is updated behind the others. All of this kind are updated, so that
    # they keep their order.
    for variable, _, new in pairs:
        result.update_func(variable, new)
    return result if builder is None else builder.get()


def unchanged(item: Any) -> list[Any]:
    """A binding, or a block, as it is."""
    return [item]


def rebuilt(
    body: relax.SeqExpr,
    binding: Change = unchanged,
    block: Change = unchanged,
    result: Callable[[relax.SeqExpr], tuple[list[Any], Any]] | None = None,
) -> relax.SeqExpr:
    """A body with its bindings, its blocks or its result changed, also in branches.

    Parameters
    ----------
    body : relax.SeqExpr
    binding : callable
        Returns the bindings that take a binding's place. The branches of an If have been rebuilt
        when it is given.
    block : callable
        Returns the blocks that take a block's place, given the block with its bindings rebuilt.
    result : callable, optional
        Given each sequence as it was, returns bindings to be added at its end, and its new result.
    """

    def branch(part: Any) -> relax.SeqExpr:
        return rebuilt(part, binding, block, result)

    def inside(old: Any) -> Any:
        if not isinstance(old.value, relax.If):
            return old
        value = old.value
        branches = (branch(value.true_branch), branch(value.false_branch))
        conditional = _typed(relax.If(value.cond, *branches, value.span), value)
        return relax.VarBinding(old.var, conditional, old.span)

    def changed(old: Any) -> list[Any]:
        return block(replace_bindings(old, [n for b in old.bindings for n in binding(inside(b))]))

    blocks = [new for old in body.blocks for new in changed(old)]
    added, value = ([], body.body) if result is None else result(body)
    if added:
        blocks.append(relax.BindingBlock(added))
    sequence: relax.SeqExpr = _typed(relax.SeqExpr(blocks, value, body.span), body)
    return sequence


def map_bindings(blocks: Iterable[relax.BindingBlock], change: Change) -> list[relax.BindingBlock]:
    """Blocks with their bindings changed, but not those in branches."""
    return [
        replace_bindings(block, [new for old in block.bindings for new in change(old)])
        for block in blocks
    ]


def replace_bindings(block: relax.BindingBlock, bindings: Sequence[Any]) -> relax.BindingBlock:
    """A block of the same kind with other bindings."""
    return type(block)(bindings, block.span)


def replace_body(
    function: relax.Function,
    body: relax.SeqExpr,
    *,
    params: Sequence[relax.Var] | None = None,
    ret_ty: Any = None,
) -> relax.Function:
    """A function with another body; its parameters and type stay unless others are given."""
    return relax.Function(
        function.params if params is None else params,
        body,
        function.ret_ty if ret_ty is None else ret_ty,
        function.is_pure,
        attrs=function.attrs,
        span=function.span,
    )


def begin_with(function: relax.Function, bindings: list[Any]) -> relax.Function:
    """A function that makes some bindings before all else."""
    blocks = [relax.BindingBlock(bindings), *function.body.blocks]
    return replace_body(function, relax.SeqExpr(blocks, function.body.body, function.body.span))


def leave_dataflow(function: relax.Function, chosen: Callable[[Any], bool]) -> relax.Function:
    """A function in which chosen bindings are visible outside of their dataflow blocks.

    TVM makes views only of kernels that are bound to dataflow variables; so these become none.
    """
    pinned = {
        binding.var: relax.Var(binding.var.name, binding.var.ty, binding.var.span)
        for binding in bindings_of(function.body)
        if isinstance(binding.var, relax.DataflowVar) and chosen(binding)
    }
    return replace_body(function, substitute_values(function.body, pinned)) if pinned else function


def bindings_of(body: relax.SeqExpr) -> list[Any]:
    """The bindings of a body in order, also of its branches and local functions."""
    bindings: list[Any] = []
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                bindings += bindings_of(binding.value.true_branch)
                bindings += bindings_of(binding.value.false_branch)
            elif isinstance(binding.value, relax.Function):
                bindings += bindings_of(binding.value.body)
            bindings.append(binding)
    return bindings


def _typed(expr: Any, like: Any) -> Any:
    """A new expression with the type of another one, which TVM would otherwise not know."""
    set_type(expr, like.ty)
    return expr
