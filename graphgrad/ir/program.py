"""A Relax function as a straight line of bindings, as `inline_calls` makes it.

Layout and differentiation work on this form, and `emit_program` writes it into a new function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tvm
from tvm import relax

from ..errors import ArgumentError
from .calls import calls_op
from .visits import replace_nodes


@dataclass
class Program:
    """A function to be differentiated.

    Attributes
    ----------
    name : str
    params : list of relax.Var
        Fresh variables: a new function may take them as its own parameters.
    bindings : list of (relax.Var, relax expression or relax.MatchCast)
        In order of execution.
    result : relax expression
        The returned variable, constant or tuple of those.
    pure : bool
        Whether running it has no effect but its result.
    dataflow : bool
        Whether all bindings are pure and free of control flow, so that they fit in one dataflow
        block.
    renamed : dict
        From the variables of the original function to those of this program.
    aliases : dict
        From names that bindings of the original function once had to the names of equal values
        that it still has.
    kernels : dict
        The PrimFuncs that may be called, by GlobalVar.
    rules : str
        ``"auto"``; or ``"derived"``: graphgrad's own rules are not used; or ``"none"``: nor are
        those of users. What is declared not differentiable stays so.
    derived : dict
        Rules that were derived, by the variable that the call is bound to. It is a cache, which
        `graphgrad.autodiff.activity` fills. Copies made by `dataclasses.replace` share it, which is
        right because no variable is bound twice.
    """

    name: str
    params: list[Any]
    bindings: list[tuple[Any, Any]] = field(default_factory=list)
    result: Any = None
    pure: bool = True
    dataflow: bool = True
    renamed: dict[Any, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    kernels: dict[Any, Any] = field(default_factory=dict)
    rules: str = "auto"
    derived: dict[Any, Any] = field(default_factory=dict)

    def variable(self, key: Any) -> Any:
        """The variable that a name, or a variable of the original function, stands for.

        A name is looked up among the parameters first, then among the function's own bindings,
        then among those of the functions that it calls.

        Raises
        ------
        KeyError
            There is none.
        ArgumentError
            Several have the name.
        """
        if not isinstance(key, str):
            is_own = any(key in names.get(key.name, []) for names in self._by_name)
            return key if is_own else self.renamed[key]
        candidates = next((names[key] for names in self._by_name if key in names), [])
        if not candidates and key in self.aliases:
            return self.variable(self.aliases[key])
        if not candidates:
            raise KeyError(key)
        if len(candidates) > 1:
            raise ArgumentError(
                f"{len(candidates)} values of {self.name!r} have the name {key!r}; give the Relax "
                "variable in its place"
            )
        return candidates[0]

    def calls(self, op: str) -> bool:
        """Whether a binding calls an op, by the op's name."""
        return any(calls_op(value, op) for _, value in self.bindings)

    def variables(self) -> list[Any]:
        """The parameters and all bound variables, in order."""
        return [*self.params, *(var for var, _ in self.bindings)]

    def body(self) -> relax.SeqExpr:
        """The bindings and the result, as the body of a function."""
        bindings = [
            value if isinstance(value, relax.MatchCast) else relax.VarBinding(var, value)
            for var, value in self.bindings
        ]
        block = relax.DataflowBlock if self.dataflow else relax.BindingBlock
        return relax.SeqExpr([block(bindings)], self.result)

    @cached_property
    def _by_name(self) -> list[dict[str, list[Any]]]:
        """The parameters, the function's own bindings and those that were inlined, by name."""
        of_function = set(self.renamed.values())
        bound = [var for var, _ in self.bindings]
        groups = [
            self.params,
            [var for var in bound if var in of_function],
            [var for var in bound if var not in of_function],
        ]
        by_name: list[dict[str, list[Any]]] = [{} for _ in groups]
        for names, group in zip(by_name, groups, strict=True):
            for var in group:
                names.setdefault(var.name, []).append(var)
        return by_name


def emit_program(
    program: Program, builder: relax.BlockBuilder, arguments: Sequence[Any] | None = None
) -> dict[Any, Any]:
    """Emit a program's bindings into the current block.

    Parameters
    ----------
    program : Program
    builder : relax.BlockBuilder
    arguments : sequence of expressions, optional
        The values of the program's parameters; by default, the parameters themselves.

    Returns
    -------
    environment : dict
        From each variable of the program to the expression that now holds its value.
    """
    environment = begin_program(program, builder, arguments)
    for var, value in program.bindings:
        environment[var] = emit_binding(builder, var, value, environment)
    return environment


def begin_program(
    program: Program, builder: relax.BlockBuilder, arguments: Sequence[Any] | None = None
) -> dict[Any, Any]:
    """What `emit_program` does before it emits the bindings: the environment that these read."""
    values = program.params if arguments is None else arguments
    environment: dict[Any, Any] = dict(zip(program.params, values, strict=True))
    existing = set(builder.get().get_global_vars())
    for variable, kernel in program.kernels.items():
        if variable not in existing:
            environment[variable] = builder.add_func(kernel, variable.name_hint)
    return environment


def emit_binding(
    builder: relax.BlockBuilder, var: Any, value: Any, environment: Mapping[Any, Any]
) -> Any:
    """Emit one binding of a program, given what holds the values that it reads; what holds its."""
    if isinstance(value, relax.MatchCast):
        return builder.match_cast(substitute(value.value, environment), value.ty, var.name)
    new_value = substitute(value, environment)
    if isinstance(new_value, relax.Var):
        return new_value
    return _emit_named(builder, new_value, var.name)


def _emit_named(builder: relax.BlockBuilder, value: Any, name: str) -> Any:
    """Emit a binding under this very name; ``BlockBuilder.emit`` would change ``layer1.conv``."""
    normalized = builder.normalize(value)
    kind = relax.DataflowVar if builder.current_block_is_dataflow() else relax.Var
    var = kind(name, normalized.ty)
    builder.emit_normalized(relax.VarBinding(var, normalized))
    return var


def substitute(expr: Any, environment: Mapping[Any, Any]) -> Any:
    """Replace the variables in one binding's value."""
    if isinstance(expr, relax.Var | tvm.ir.GlobalVar):
        return environment.get(expr, expr)
    if isinstance(expr, relax.Call):
        arguments = [substitute(argument, environment) for argument in expr.args]
        operator = substitute(expr.op, environment) if isinstance(expr.op, relax.Var) else expr.op
        return relax.Call(operator, arguments, expr.attrs, expr.ty_args, expr.span)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substitute(item, environment) for item in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substitute(expr.tuple_value, environment), expr.index)
    if isinstance(expr, (relax.If, relax.Function)):
        # A branch may be emitted more than once, and no variable may be bound twice.
        new_bound = {var: type(var)(var.name, var.ty) for var in _bound_in_branches(expr)}
        replacements = {**environment, **new_bound}
        variables = (tvm.ir.Var, tvm.ir.GlobalVar)
        return replace_nodes(expr, variables, lambda var: replacements.get(var, var))
    return expr


def _bound_in_branches(expr: Any) -> Iterable[Any]:
    """Yield the variables that the branches of an If bind; nothing for other expressions."""
    if not isinstance(expr, relax.If):
        return
    for branch in (expr.true_branch, expr.false_branch):
        for block in branch.blocks:
            for binding in block.bindings:
                yield binding.var
                yield from _bound_in_branches(binding.value)


def variables_in(expr: Any) -> Iterable[Any]:
    """Yield the variables that a binding's value reads as data."""
    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.Call):
        if isinstance(expr.op, relax.Var):
            yield expr.op
        for argument in expr.args:
            yield from variables_in(argument)
    elif isinstance(expr, relax.Tuple):
        for item in expr.fields:
            yield from variables_in(item)
    elif isinstance(expr, relax.TupleGetItem):
        yield from variables_in(expr.tuple_value)
    elif isinstance(expr, relax.MatchCast):
        yield from variables_in(expr.value)
    elif isinstance(expr, (relax.If, relax.Function)):
        yield from relax.analysis.free_vars(
            expr if isinstance(expr, relax.Function) else _as_sequence(expr)
        )


def _as_sequence(expr: Any) -> relax.SeqExpr:
    return relax.SeqExpr([], expr)
