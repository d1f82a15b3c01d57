"""Writing a new Relax function into a module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import tvm
from tvm import relax

from ..errors import ArgumentError
from ..tvm_fixes.hooks import set_type
from .compile_lock import COMPILE_LOCK
from .inline import straight_line
from .program import Program, begin_program, emit_binding, emit_program, substitute
from .tensor import Emitter, Tensor, expression_of

Replacement: TypeAlias = Callable[[Emitter, Callable[[Any], Any]], Tensor]
"""Emits what takes a binding's place, given what expressions of the old program are in the new."""


def write_function(
    mod: tvm.IRModule,
    name: str,
    params: Sequence[Any],
    body: Callable[[Emitter], Any],
    *,
    pure: bool = True,
    dataflow: bool = True,
) -> tvm.IRModule:
    """The module with a function added, and with the kernels that its body adds and uses.

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
        Whether the function has no effect but its result.
    dataflow : bool
        Whether the bindings, which are then pure and free of control flow, go into one dataflow
        block.

    Raises
    ------
    ArgumentError
        The module has a function of that name.
    """
    written = _written(mod, name, params, body, pure, dataflow)
    existing = {variable.name_hint for variable in mod.get_global_vars()}
    extended = tvm.IRModule(mod.functions, attrs=mod.attrs)
    for variable in written.get_global_vars():
        if variable.name_hint == name or variable.name_hint not in existing:
            extended.update_func(variable, written[variable])
    return extended


def write_beside(
    program: Program,
    suffix: str,
    params: Sequence[Any],
    body: Callable[[Emitter], Any],
    mod: tvm.IRModule | None = None,
) -> tvm.IRModule:
    """A module with a function ``<name>_<suffix>`` that is made of a program.

    Parameters
    ----------
    program : Program
        Gives the name and the purity.
    suffix : str
    params, body
        As of `write_function`.
    mod : IRModule, optional
        The module to add it to; by default, one of the kernels that the program may call.
    """
    mod = tvm.IRModule(program.kernels) if mod is None else mod
    name, pure, dataflow = f"{program.name}_{suffix}", program.pure, program.dataflow
    return write_function(mod, name, params, body, pure=pure, dataflow=dataflow)


def write_program(program: Program, name: str, mod: tvm.IRModule | None = None) -> tvm.IRModule:
    """A module with a program as a function; without `mod`, of the kernels that it may call."""

    def body(emitter: Emitter) -> Any:
        return substitute(program.result, emit_program(program, emitter.builder))

    mod = tvm.IRModule(program.kernels) if mod is None else mod
    pure, dataflow = program.pure, program.dataflow
    return write_function(mod, name, program.params, body, pure=pure, dataflow=dataflow)


def continue_program(
    program: Program, name: str, params: Sequence[Any], body: Callable[[Emitter, Any], Any]
) -> Program:
    """A program with more bindings behind its own.

    Parameters
    ----------
    program : Program
        Not changed.
    name : str
        The name of the new program.
    params : sequence of relax.Var
        The parameters of the program, and further ones.
    body : callable
        Given an emitter and the program's result, emits further bindings and returns the new
        result, in the form that `write_function` takes.
    """

    def emitted(emitter: Emitter) -> Any:
        return body(emitter, substitute(program.result, emit_program(program, emitter.builder)))

    return new_program(program, name, params, emitted)


def new_program(
    program: Program, name: str, params: Sequence[Any], body: Callable[[Emitter], Any]
) -> Program:
    """A program that is free of dead code, and has the kernels and rules of another one.

    Parameters
    ----------
    program : Program
        Not changed.
    name : str
    params : sequence of relax.Var
    body : callable
        As of `write_function`.
    """
    base = tvm.IRModule(program.kernels)
    written = _written(base, name, params, body, program.pure, program.dataflow)
    functions = {variable.name_hint: variable for variable in written.get_global_vars()}
    function = written[functions.pop(name)]
    existing = {variable.name_hint for variable in program.kernels}
    added = {gv: written[gv] for hint, gv in functions.items() if hint not in existing}
    kernels = {**program.kernels, **added}
    return replace(straight_line(function, program), name=name, kernels=kernels)


def replace_bindings(
    program: Program, replacements: Mapping[Any, Replacement], dropped: Collection[Any]
) -> Program:
    """A program in which other bindings compute some values.

    Parameters
    ----------
    program : Program
        Not changed.
    replacements : mapping
        From variables to what emits their values.
    dropped : collection of variables
        Whose bindings are left out, because only what is replaced reads them.
    """

    def body(emitter: Emitter) -> Any:
        environment = begin_program(program, emitter.builder)

        def at(expr: Any) -> Any:
            return environment.get(expr, expr) if isinstance(expr, relax.Var) else expr

        for var, value in program.bindings:
            if var in replacements:
                with emitter.at(getattr(value, "span", None), var.name):
                    environment[var] = replacements[var](emitter, at).expr
            elif var not in dropped:
                environment[var] = emit_binding(emitter.builder, var, value, environment)
        return substitute(program.result, environment)

    return new_program(program, program.name, program.params, body)


def _written(
    mod: tvm.IRModule,
    name: str,
    params: Sequence[Any],
    body: Callable[[Emitter], Any],
    pure: bool,
    dataflow: bool,
) -> tvm.IRModule:
    """A new module of a new function and of whatever it uses of a given module."""
    if any(variable.name_hint == name for variable in mod.get_global_vars()):
        raise ArgumentError(f"the module has a function {name!r} already; rename or remove it")
    builder = relax.BlockBuilder(tvm.IRModule(mod.functions))
    emitter = Emitter(builder)
    with COMPILE_LOCK, builder.function(name, list(params), pure=pure):
        if dataflow:
            with builder.dataflow():
                result = _outputs(builder, body(emitter), set(params))
        else:
            result = expression_of(body(emitter))
        written_as = builder.emit_func_output(result)
    # The builder writes ``_`` in place of ``.``; nothing calls the function yet.
    variable = tvm.ir.GlobalVar(name)
    set_type(variable, written_as.ty)
    functions = dict(builder.get().functions.items())
    functions[variable] = functions.pop(written_as)
    # This also drops functions that the new one does not use.
    return relax.transform.DeadCodeElimination([name])(tvm.IRModule(functions))


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
