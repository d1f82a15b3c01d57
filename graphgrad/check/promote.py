"""Promotion of a module to float64, the dtype in which gradients are checked.

Every float16, bfloat16 and float32 becomes float64: parameters, constants, the types of values, and
the attributes that name a dtype. A cast to a lower float becomes a cast to float64, so the promoted
function is the mathematics that the model means, without its rounding.

A kernel is promoted by its expressions, or by its loops. What has its dtype built in (a kernel
with constants that were rounded, a packed function, an op that takes no float64) is left as it is,
between casts, and reported: a gradient behind it is checked in float32.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..autodiff.activity import location, op_name
from ..errors import ArgumentError
from ..fallback.kernels.expressions import attached, retype_kernel
from ..ir.rewrite import replace_bindings, replace_body
from ..tvm_fixes.hooks import change_attributes, set_type
from .promote_kernel import promote_kernel
from .promote_type import (
    LOW_FLOATS,
    WIDE,
    is_low,
    promote_array,
    promote_dtype,
    promote_prim_type,
    promote_type,
)

_TYPED_KERNELS = ("relax.call_tir", "relax.call_dps_packed")
"""How names of ops begin that call a kernel, whose buffers have dtypes."""

_UNPROMOTABLE_CALLS = (
    "relax.call_builtin_with_ctx",
    "relax.call_inplace_packed",
    "relax.call_pure_packed",
    "relax.call_py_func",
    "relax.invoke_closure",
    "relax.invoke_pure_closure",
    "relax.memory.view",
)


def promote_to_float64(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[str]]:
    """A module with float64 in the place of every lower float.

    Parameters
    ----------
    mod : IRModule
        Not changed.

    Returns
    -------
    promoted : IRModule
        With the same functions, parameter names, symbolic shapes and spans. Its Relax functions
        take and return float64 where those of `mod` take and return a lower float.
    obstacles : list of str
        The calls that still compute in a lower float, and why. Where there are any, what the
        module computes must not be taken for a float64 result.

    Raises
    ------
    ArgumentError
        `mod` is no IRModule.
    """
    if not isinstance(mod, tvm.IRModule):
        raise ArgumentError(f"expected an IRModule, given a {type(mod).__name__}")
    promotion = _Promotion(relax.transform.Normalize()(mod))
    return promotion.module(), promotion.obstacles


class _Promotion:
    """The promotion of one module: its functions call each other by new global variables."""

    def __init__(self, mod: tvm.IRModule):
        self.obstacles: list[str] = []
        self._mod = mod
        self._builder = relax.BlockBuilder()
        self._values: dict[Any, Any] = {}
        self._bindings: list[Any] = []
        self._bound_kind: type = relax.Var
        self._functions: dict[Any, Any] = {}
        self._kernels: dict[Any, Any] = {}
        # All types first, because functions may call each other in any order.
        for var, function in mod.functions.items():
            if isinstance(function, relax.Function):
                renamed = tvm.ir.GlobalVar(var.name_hint)
                set_type(renamed, promote_type(function.ty))
                self._functions[var] = renamed
            elif (kernel := _promoted_kernel(function)) is not None:
                self._kernels[var] = kernel
                self._functions[var] = tvm.ir.GlobalVar(var.name_hint)
                set_type(self._functions[var], kernel.ty)

    def module(self) -> tvm.IRModule:
        """The promoted module."""
        functions = {
            self._functions.get(var, var): self._kernels.get(var) or self._promoted(function)
            for var, function in self._mod.functions.items()
        }
        promoted = tvm.IRModule(functions, attrs=self._mod.attrs)
        return relax.transform.Normalize()(promoted)

    def _promoted(self, function: Any) -> Any:
        """A Relax function promoted; anything else, such as an opaque kernel, as it is."""
        return self._function(function) if isinstance(function, relax.Function) else function

    def _function(self, function: relax.Function) -> relax.Function:
        """A Relax function with parameters, body and result in float64."""
        params = [self._defined(param, promote_type(param.ty)) for param in function.params]
        body = self._sequence(function.body)
        return replace_body(function, body, params=params, ret_ty=promote_type(function.ret_ty))

    def _sequence(self, body: relax.SeqExpr) -> relax.SeqExpr:
        """The blocks of a function or a branch, with their bindings promoted."""
        # Blocks nest: a branch is visited while a binding of the enclosing block is made.
        enclosing_block = self._bindings, self._bound_kind
        blocks = []
        for block in body.blocks:
            is_dataflow = isinstance(block, relax.DataflowBlock)
            self._bindings, self._bound_kind = [], relax.DataflowVar if is_dataflow else relax.Var
            for binding in block.bindings:
                self._binding(binding)
            blocks.append(replace_bindings(block, self._bindings))
        self._bindings, self._bound_kind = enclosing_block
        result = self._expr(body.body)
        sequence = relax.SeqExpr(blocks, result)
        set_type(sequence, result.ty)
        return sequence

    def _binding(self, binding: Any) -> None:
        """Append the promoted form of a binding to the current block."""
        var, value = binding.var, binding.value
        promoted_type = promote_type(var.ty)
        if isinstance(binding, relax.MatchCast):
            promoted_var = self._defined(var, promoted_type)
            self._bindings.append(relax.MatchCast(promoted_var, self._expr(value), promoted_type))
            return
        promoted = self._call(var, value) if isinstance(value, relax.Call) else self._expr(value)
        self._bindings.append(relax.VarBinding(self._defined(var, promoted_type), promoted))

    def _defined(self, var: Any, ty: Any) -> Any:
        """A new variable of a type that stands for an old one from here on."""
        self._values[var] = promoted_var = type(var)(var.name, ty, var.span)
        return promoted_var

    def _expr(self, expr: Any) -> Any:
        """The promoted form of anything but a call."""
        if isinstance(expr, relax.Var):
            return self._values.get(expr, expr)
        if isinstance(expr, tvm.ir.GlobalVar):
            return self._functions.get(expr, expr)
        if isinstance(expr, tvm.ir.GenericConst) and is_low(expr.ty):
            return relax.const(promote_array(expr.value.numpy()), WIDE)
        if isinstance(expr, tvm.tirx.FloatImm) and is_low(expr.ty):
            return tvm.tirx.FloatImm(WIDE, expr.value)
        if isinstance(expr, relax.Tuple):
            fields = [self._expr(field) for field in expr.fields]
            return self._builder.normalize(relax.Tuple(fields, expr.span))
        if isinstance(expr, relax.TupleGetItem):
            item = relax.TupleGetItem(self._expr(expr.tuple_value), expr.index, expr.span)
            return self._builder.normalize(item)
        if isinstance(expr, relax.Function):
            return self._function(expr)
        if isinstance(expr, relax.SeqExpr):
            return self._sequence(expr)
        if isinstance(expr, relax.If):
            return self._branches(expr)
        return expr

    def _branches(self, expr: relax.If) -> relax.If:
        """An If with both of its branches promoted."""
        branches = [self._sequence(branch) for branch in (expr.true_branch, expr.false_branch)]
        promoted = relax.If(self._expr(expr.cond), *branches, expr.span)
        set_type(promoted, promote_type(expr.ty))
        return promoted

    def _call(self, var: Any, call: relax.Call) -> Any:
        """The promoted value of a variable bound to a call; notes an obstacle if there is one."""
        types = [
            call.ty,
            *(argument.ty for argument in call.args if not isinstance(argument, tvm.ir.GlobalVar)),
        ]
        if not any(map(is_low, types)):
            return self._rebuild_call(call, call.attrs, call.ty_args)
        reason = None if self._calls_promoted(call) else _built_in_dtype(call)
        if reason is None:
            attributes = _promote_attributes(call.attrs)
            types = [promote_type(ty) for ty in call.ty_args]
            try:
                promoted = self._rebuild_call(call, attributes, types)
            except Exception:  # type inference refuses in many ways
                reason = "it takes no float64"
            else:
                if not is_low(promoted.ty):
                    return promoted
                reason = "its result is never float64"
        self.obstacles.append(f"{op_name(call)} at {location(var, call)}: {reason}")
        return self._kept(var, call)

    def _calls_promoted(self, call: relax.Call) -> bool:
        """Whether a call is of a kernel that there is in float64."""
        return bool(call.args) and call.args[0] in self._kernels

    def _rebuild_call(self, call: relax.Call, attributes: Any, types: Any) -> Any:
        """A call on promoted arguments, with its type inferred anew."""
        arguments = [self._expr(argument) for argument in call.args]
        rebuilt = relax.Call(self._expr(call.op), arguments, attributes, types, call.span)
        return self._builder.normalize(rebuilt)

    def _kept(self, var: Any, call: relax.Call) -> Any:
        """Make a call in its own dtypes, between casts; return its promoted value."""
        arguments = [self._narrowed(argument) for argument in call.args]
        unpromoted_call = relax.Call(call.op, arguments, call.attrs, call.ty_args, call.span)
        if not is_low(call.ty):
            return self._builder.normalize(unpromoted_call)
        value = self._bound(unpromoted_call, f"{var.name}.kept")
        return self._cast(value, promote_type(call.ty))

    def _narrowed(self, argument: Any) -> Any:
        """An argument in the dtype that the unpromoted call takes."""
        if isinstance(argument, relax.Tuple):
            return relax.Tuple([self._narrowed(field) for field in argument.fields])
        if not isinstance(argument, relax.Var):
            return argument
        return self._cast(self._expr(argument), argument.ty)

    def _cast(self, value: Any, ty: Any) -> Any:
        """A value with its tensors in the dtypes of a type."""
        if isinstance(ty, relax.TupleType):
            items = [
                self._bound(relax.TupleGetItem(value, index), f"{value.name}.{index}")
                for index in range(len(ty.fields))
            ]
            fields = zip(items, ty.fields, strict=True)
            return relax.Tuple([self._cast(item, field) for item, field in fields])
        if not isinstance(ty, relax.TensorType) or value.ty.dtype == ty.dtype:
            return value
        dtype = str(ty.dtype)
        return self._bound(relax.op.astype(value, dtype), f"{value.name}.{dtype}")

    def _bound(self, value: Any, name: str) -> Any:
        """A variable bound to a value, in the current block."""
        value = self._builder.normalize(value)
        var = self._bound_kind(name, value.ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var


def _promoted_kernel(func: Any) -> tvm.tirx.PrimFunc | None:
    """A kernel in float64, by its expressions or by its loops; None if it is to stay as it is."""
    if not isinstance(func, tvm.tirx.PrimFunc):
        return None
    if attached(func) is not None:
        return retype_kernel(func, promote_dtype)
    promoted, _ = promote_kernel(func)
    return None if promoted.same_as(func) else promoted


def _built_in_dtype(call: relax.Call) -> str | None:
    """Why a call cannot be made in float64 as it stands; None if it can."""
    if isinstance(call.op, relax.ExternFunc):
        return "a packed function has the dtypes that it was written for"
    if not isinstance(call.op, tvm.ir.Op):
        return None
    if call.op.name.startswith(_TYPED_KERNELS):
        return "a kernel has the dtypes of its buffers built in"
    if call.op.name in _UNPROMOTABLE_CALLS:
        return "it has the dtypes that it was written for"
    return None


def _promote_attributes(attributes: Any) -> Any:
    """Attributes with float64 for every value that names a lower float."""
    if attributes is None:
        return None
    return change_attributes(attributes, lambda _, value: _promote_value(value))


def _promote_value(value: Any) -> Any:
    """The value of an attribute; one that names a lower float names float64 instead."""
    if isinstance(value, tvm.ir.PrimType):
        return promote_prim_type(value)
    if isinstance(value, tvm_ffi.dtype):
        return tvm_ffi.dtype(WIDE) if str(value) in LOW_FLOATS else value
    return WIDE if isinstance(value, str) and value in LOW_FLOATS else value
