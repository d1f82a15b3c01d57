"""Specialization of kernels: symbolic extents become the numbers that their calls have.

A module whose shapes were bound after its kernels were made calls symbolic kernels on tensors of
known shape. These are slower than static ones. And TVM's fusion aborts where a kernel with symbolic
extents reads what one with static extents has written: it takes the tensor for two different ones.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import SBlockRealize

from ...ir.calls import data_of, result_types
from ...ir.loops import block
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import map_functions, map_kernels
from ...ir.visits import nodes_in, replace_nodes
from ...ops.define import OPAQUE
from ...tvm_fixes.hooks import identity
from .long_indices import lengthen_indices

_CALLS = ("relax.call_tir", "relax.call_tir_inplace")


@compiler_pass(
    Phase.GRAPH, before={"FuseOps": "it aborts where a kernel is symbolic and what it reads is not"}
)
def specialize_kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """Call static kernels where the shapes at the call are known."""
    called = _called_kernels(mod)
    if not called:
        return mod
    mod = _normalize_kernels(mod, called)
    mutator = _Calls(mod)
    return map_functions(mod, lambda _, func: mutator.visit_expr(func), mutator.builder_)


def _called_kernels(mod: tvm.IRModule) -> list[tvm.ir.GlobalVar]:
    """The kernels that a module's functions call, each once."""
    called = {
        call.args[0].name_hint: call.args[0]
        for function in mod.functions.values()
        if isinstance(function, relax.Function)
        for call in nodes_in(function, tvm.ir.Call)
        if isinstance(call.op, tvm.ir.Op) and call.op.name in _CALLS
    }
    return list(called.values())


def _normalize_kernels(mod: tvm.IRModule, called: list[tvm.ir.GlobalVar]) -> tvm.IRModule:
    """A module whose called kernels have, as TVM's own do, a root block and 64-bit indices."""
    names = {variable.name_hint for variable in called}

    def changed(variable: Any, kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        is_called = variable.name_hint in names
        return lengthen_indices(_wrap_in_block(kernel)) if is_called else kernel

    return map_kernels(mod, changed)


def _wrap_in_block(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose body is a block; bare loops are wrapped, and fused with nothing.

    TVM looks into the block of each kernel that is called, and aborts if there is none.
    """
    if isinstance(kernel.body, SBlockRealize):
        return kernel
    return kernel.with_body(block("root", kernel.body)).with_attr(OPAQUE)


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    """Gives each call a kernel of its extents; equal calls share one."""

    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.mod = mod
        self.made: dict[tuple[Any, ...], Any] = {}

    def visit_call_(self, call: Any) -> Any:
        """A call of a kernel that is specialized for its extents; other calls are unchanged."""
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name not in _CALLS:
            return call
        types = [_evaluate_extents(ty) for ty in call.ty_args]
        call = relax.Call(call.op, call.args, call.attrs, types, call.span)
        kernel = self.mod[call.args[0]]
        extents = _known_extents(call, kernel)
        if not extents:
            return call
        key = (call.args[0].name_hint, *((var, int(extent)) for var, extent in extents.items()))
        if key not in self.made:
            static_kernel = _bind_extents(kernel, extents)
            self.made[key] = self.builder_.add_func(static_kernel, call.args[0].name_hint)
        arguments = [self.made[key], *call.args[1:]]
        return relax.Call(call.op, arguments, call.attrs, call.ty_args, call.span)


def _evaluate_extents(ty: Any) -> Any:
    """A type with its extents computed: binding T to 4 in T + 1 leaves a sum, 4 + 1."""
    simplify = tvm.sym.Analyzer().simplify

    def changed(shape: relax.ShapeExpr) -> relax.ShapeExpr:
        return relax.ShapeExpr([simplify(extent) for extent in shape.values])

    return replace_nodes(ty, relax.ShapeExpr, changed)


def _known_extents(call: Any, kernel: tirx.PrimFunc) -> dict[int, tirx.IntImm]:
    """The values of a kernel's symbolic extents and scalars in a call, where they are numbers.

    They are keyed by the identity of the variable.
    """
    results = result_types(call.ty_args[0])
    extents: dict[int, tirx.IntImm] = {}
    # In place, results have no parameters of their own.
    for parameter, value in zip(kernel.params, [*data_of(call), *results], strict=False):
        if isinstance(value, tirx.IntImm):
            extents[identity(parameter)] = value
        for extent, actual in zip(_shape(parameter), _shape(value), strict=False):
            if isinstance(extent, tvm.ir.Var) and isinstance(actual, tirx.IntImm):
                extents[identity(extent)] = tirx.IntImm(str(extent.ty), int(actual))
    return extents


def _shape(value: Any) -> list[Any]:
    """The extents of a buffer, a tensor or a tensor's type; none for a scalar."""
    shape = getattr(getattr(value, "ty", value), "shape", None)
    return list(getattr(shape, "values", shape) or [])


def _bind_extents(kernel: tirx.PrimFunc, extents: dict[int, tirx.IntImm]) -> tirx.PrimFunc:
    """A kernel of the same signature in which some extents are numbers."""
    tensors = [param for param in kernel.params if identity(param) not in extents]
    inner = tirx.PrimFunc(tensors, kernel.body, kernel.ret_type, kernel.attrs)
    replace = (tvm.ir.Var, lambda var: extents.get(identity(var), var))
    inner = tvm_ffi.structural_map(inner, replace)
    remaining_params = iter(inner.params)
    # The signature stays: a scalar that is a number now gets a new parameter, which nothing reads.
    params = [
        tirx.Var(p.name, str(p.ty)) if identity(p) in extents else next(remaining_params)
        for p in kernel.params
    ]
    return tirx.PrimFunc(params, inner.body, inner.ret_type, inner.attrs)
