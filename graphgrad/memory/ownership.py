"""Constants and views are kept from memory that somebody outside may write to; copies stay copies.

TVM returns a constant as it is in the executable's pool, so that a caller who writes into the
result changes later calls. And it turns reshapes into views also where the view is returned, kept
or written to. Here a constant of this kind is copied in each call, and a reshape of this kind stays
a kernel. A parameter that is returned stays what it is: the caller's own tensor.

It also makes a view of any other kernel that leaves all elements in their order. For a reshape that
is wanted, but who asks for a copy wants memory that is shared with nothing.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx, topi

from ..ir.calls import calls_op
from ..ir.kernel_calls import KERNEL_OF_COPY
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import leave_dataflow, map_functions, rebuilt, replace_body
from ..tvm_fixes.hooks import set_type
from .alias import Aliases, Module

_COPY = "copy_of_constant"


@compiler_pass(
    Phase.GRAPH,
    Phase.KERNELS,
    before={"FuseOps": "it puts constants in the place of their names"},
    repeatable=True,
    because="once more on kernels: functions that have been local are seen then",
)
def own_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Copy constants where they are exposed.

    Memory is exposed if the function returns it, if packed functions may keep or return it, or if
    it is written to.

    Raises
    ------
    AliasError, ArgumentError
        What is declared of a packed function contradicts a call of it.
    """
    analyzed = Module(mod.functions)
    changed = mod
    for name, func in mod.functions.items():
        if isinstance(func, relax.Function):
            changed = _Ownership(mod, func, analyzed.function(name)).copy_exposed_constants(
                changed, name
            )
    return changed


@compiler_pass(
    Phase.FUSED,
    before={"RewriteDataflowReshape": "it makes views"},
    because="fusion decides which kernels do nothing but reshape",
)
def own_views(mod: tvm.IRModule) -> tvm.IRModule:
    """Bind reshaping kernels so that exposed ones do not become views.

    A reshape is also exposed if the memory of its argument is written to.

    Raises
    ------
    AliasError, ArgumentError
        As `own_constants`.
    """
    analyzed = Module(mod.functions)

    def changed(variable: Any, func: relax.Function) -> relax.Function:
        return _Ownership(mod, func, analyzed.function(variable)).bind_exposed_reshapes()

    return map_functions(mod, changed)


@compiler_pass(
    Phase.DONATED,
    before={"RewriteDataflowReshape": "it makes a view of a copy that stays in its dataflow block"},
)
def keep_copies(mod: tvm.IRModule) -> tvm.IRModule:
    """Bind copies to variables that are visible outside of their dataflow blocks."""

    def is_copy(binding: Any) -> bool:
        kernel = _kernel(mod, binding.value)
        return kernel is not None and KERNEL_OF_COPY in (kernel.attrs or {})

    return map_functions(mod, lambda _, func: leave_dataflow(func, is_copy))


class _Ownership:
    """The memory that one function exposes (see `own_constants`), and the changes for it."""

    def __init__(self, mod: tvm.IRModule, func: relax.Function, aliases: Aliases):
        self.mod, self.func, self.aliases = mod, func, aliases
        self.escaping = aliases.escaping()

    def bind_exposed_reshapes(self) -> relax.Function:
        """The function with exposed reshapes bound so that they do not become views."""
        return leave_dataflow(self.func, self._is_exposed_view)

    def copy_exposed_constants(self, mod: tvm.IRModule, name: Any) -> tvm.IRModule:
        """The module with the function changed to copy the constants that it exposes."""
        exposed = [
            constant
            for constant in self.aliases.constants
            if self._is_exposed(self.aliases.region(constant.leaf))
        ]
        if not exposed:
            return mod
        constants_at: dict[Any, list[Any]] = {}
        for constant in exposed:
            constants = constants_at.setdefault(constant.location, [])
            if not any(constant.value.same_as(added) for added in constants):
                constants.append(constant.value)
        builder = relax.BlockBuilder(mod)

        def copied(location: Any, value: Any) -> tuple[list[Any], Any]:
            bindings = []
            for constant in constants_at.get(location, []):
                call = builder.call_te(
                    topi.identity,
                    constant,
                    primfunc_name_hint=_COPY,
                    primfunc_attrs={KERNEL_OF_COPY: True},
                )
                copy = builder.normalize(call)
                var = relax.Var("copy", copy.ty)
                bindings.append(relax.VarBinding(var, copy))
                value = _replaced(value, constant, var)
            return bindings, value

        def in_binding(binding: Any) -> list[Any]:
            if binding.var not in constants_at:
                return [binding]
            # The copies are made right before the binding that holds the constants.
            bindings, value = copied(binding.var, binding.value)
            kind = relax.MatchCast if isinstance(binding, relax.MatchCast) else relax.VarBinding
            cast_type = (binding.ty,) if isinstance(binding, relax.MatchCast) else ()
            return [*bindings, kind(binding.var, value, *cast_type, binding.span)]

        body = rebuilt(self.func.body, in_binding, result=lambda body: copied(body, body.body))
        builder.update_func(name, replace_body(self.func, body))
        return builder.get()

    def _is_exposed(self, region: int) -> bool:
        """Whether a class of memory is exposed."""
        return region in self.escaping or self.aliases.is_written(region)

    def _is_exposed_view(self, binding: Any) -> bool:
        """Whether a binding is a reshape of what is written to, or is itself exposed."""
        kernel = _kernel(self.mod, binding.value)
        if kernel is None or not relax.analysis.has_reshape_pattern(kernel):
            return False
        values = self.aliases.values
        arguments = [values.get(argument) for argument in binding.value.args[1].fields]
        result = self.aliases.regions_of(values[binding.var])
        return any(map(self._is_exposed, result)) or any(
            map(self.aliases.is_written, self.aliases.regions_of(arguments))
        )


def _kernel(mod: tvm.IRModule, value: Any) -> tirx.PrimFunc | None:
    """The kernel that a value calls by `call_tir`; None if it is something else."""
    return mod[value.args[0]] if calls_op(value, "relax.call_tir") else None


def _replaced(value: Any, constant: Any, var: Any) -> Any:
    """A binding's value with a constant in it replaced, also in tuples and arguments of calls."""
    if value.same_as(constant):
        return var
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_replaced(field, constant, var) for field in value.fields])
    if isinstance(value, tvm.ir.Call):
        arguments = [_replaced(argument, constant, var) for argument in value.args]
        call = relax.Call(value.op, arguments, value.attrs, value.ty_args, value.span)
        set_type(call, value.ty)
        return call
    return value
