"""Writing a new Relax function into a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from ..errors import ArgumentError
from .compile_lock import COMPILE_LOCK
from .tensor import Emitter, expression_of


def write_function(
    mod: tvm.IRModule,
    name: str,
    params: Sequence[Any],
    body: Callable[[Emitter], Any],
    *,
    pure: bool = True,
    dataflow: bool = True,
) -> tvm.IRModule:
    """Return the module with a function added; what the function does not use is left out of it.

    Parameters
    ----------
    mod : IRModule
        Not changed. The new function may call its functions.
    name : str
    params : sequence of relax.Var
    body : callable
        Emits the function's bindings and returns its value: a `Tensor`, a Relax expression, or a
        (nested) tuple of those.
    pure : bool
        The function has no effect but its result.
    dataflow : bool
        The bindings are pure and free of control flow, and go into one dataflow block.

    Raises
    ------
    ArgumentError
        The module has a function of that name.
    """
    known = {variable.name_hint for variable in mod.get_global_vars()}
    if name in known:
        raise ArgumentError(f"the module has a function {name!r} already; rename or remove it")
    builder = relax.BlockBuilder(tvm.IRModule(mod.functions))
    emitter = Emitter(builder)
    with COMPILE_LOCK, builder.function(name, list(params), pure=pure):
        if dataflow:
            with builder.dataflow():
                result = _outputs(builder, body(emitter), set(params))
        else:
            result = expression_of(body(emitter))
        builder.emit_func_output(result)
    written = relax.transform.DeadCodeElimination([name])(builder.get())
    extended = tvm.IRModule(mod.functions, attrs=mod.attrs)
    for variable in written.get_global_vars():
        if variable.name_hint == name or variable.name_hint not in known:
            extended.update_func(variable, written[variable])
    return extended


def _outputs(builder: relax.BlockBuilder, value: Any, params: set[Any]) -> Any:
    """Make each variable in a returned value an output of the dataflow block."""
    expr = value if isinstance(value, tuple) else expression_of(value)
    if isinstance(expr, relax.Tuple):
        expr = tuple(expr.fields)
    if isinstance(expr, tuple):
        return relax.Tuple([_outputs(builder, item, params) for item in expr])
    if isinstance(expr, relax.Var) and expr not in params:
        return builder.emit_output(expr)
    return expr
