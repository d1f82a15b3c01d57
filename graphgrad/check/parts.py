"""Splitting a function into parts: each ONNX node's bindings as a small function of its own.

A part takes the tensors that its bindings read and returns those that others read of it. It is
checked at the values that arise in the whole function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from ..autodiff.activity import Activity, has_cotangent, location, op_name, variables_in
from ..ir.program import Program, emit_program, substitute
from ..ir.provenance import read
from ..ir.write import write_function
from ..registry.rule import user_rule

VALUES = "values"


@dataclass(frozen=True)
class Part:
    """The bindings of one ONNX node, or one call where there is no node.

    Attributes
    ----------
    name : str
        Of its function.
    node : str or None
        Name of the ONNX node.
    site : str
        Name of the node, or of the variable where there is none.
    ops : list of str
        Names of the ops on the way of the gradient.
    mod : IRModule
    sources : list of relax.Var
        The program's variables that it takes.
    positions : list of int
        Which of them are differentiated.
    rule : str or None
        Where the rules of users are written that its gradient is made of.
    """

    name: str
    node: str | None
    site: str
    ops: list[str]
    mod: tvm.IRModule
    sources: list[Any]
    positions: list[int]
    rule: str | None = None

    @property
    def label(self) -> str:
        """What it is called in messages: ``relax.nn.conv2d (node 'Conv_3')``."""
        kind = "node" if self.node is not None else "value"
        return f"{', '.join(self.ops)} ({kind} {self.site!r})"


def split(program: Program, activity: Activity, mod: tvm.IRModule) -> list[Part]:
    """The parts of a program that a gradient passes through, in order.

    Parameters
    ----------
    program : Program
    activity : Activity
        Of the program.
    mod : IRModule
        The module of the program: its kernels go into the parts that call them.
    """
    defined = dict(program.bindings)
    groups = list(_runs(program))
    readers: dict[Any, set[int]] = defaultdict(set)
    for index, bindings in enumerate(groups):
        for _, value in bindings:
            for source in variables_in(value):
                readers[source].add(index)
    for source in variables_in(program.result):
        readers[source].add(len(groups))  # the result reads as a further group would
    parts: list[Part] = []
    prefix = "part"  # parts may be compiled beside the functions of the module
    while any(var.name_hint.startswith(prefix) for var in mod.functions):
        prefix = f"_{prefix}"
    for index, bindings in enumerate(groups):
        # A part returns what other groups, or the result, read of the way of the gradient.
        outputs = [
            var
            for var, _ in bindings
            if var in activity.needed and readers[var] - {index} and has_cotangent(var.ty)
        ]
        ops = [
            op_name(value)
            for var, value in bindings
            if var in activity.needed and isinstance(value, relax.Call | relax.If)
        ]
        if outputs and ops:
            closed = list(_closed(bindings, defined))
            name = f"{prefix}{len(parts)}"
            parts.append(_part(name, program, activity, mod, closed, outputs, ops))
    return parts


def _runs(program: Program) -> Iterator[list[tuple[Any, Any]]]:
    """Yield the bindings of each node, or each binding by itself, in order."""
    group: list[tuple[Any, Any]] = []
    current: str | None = None
    for var, value in program.bindings:
        node = read(value.span).node
        # Bindings without a node are groups of their own.
        if group and (node is None or node != current):
            yield group
            group = []
        group.append((var, value))
        current = node
    if group:
        yield group


def _closed(
    bindings: Iterable[tuple[Any, Any]], defined: dict[Any, Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield bindings, each behind the bindings of the shapes and tuples that it reads.

    A part takes tensors alone, so that it computes any other value that it reads itself.
    """
    seen: set[Any] = set()

    def visit(var: Any, value: Any) -> Iterator[tuple[Any, Any]]:
        if var in seen:
            return
        seen.add(var)
        for source in variables_in(value):
            if source in defined and not isinstance(source.ty, relax.TensorType):
                yield from visit(source, defined[source])
        yield var, value

    for var, value in bindings:
        yield from visit(var, value)


def _part(
    name: str,
    program: Program,
    activity: Activity,
    mod: tvm.IRModule,
    bindings: list[tuple[Any, Any]],
    outputs: list[Any],
    ops: list[str],
) -> Part:
    """The part that consists of some bindings and returns some of their variables."""
    inside = {var for var, _ in bindings}
    sources = list(
        dict.fromkeys(
            source_var
            for _, value in bindings
            for source_var in variables_in(value)
            if source_var not in inside
        )
    )
    params = [relax.Var(source.name, source.ty) for source in sources]
    result = relax.Tuple(outputs)
    part_program = replace(program, params=sources, bindings=bindings, result=result)
    part_mod = _written(part_program, name, params, outputs, mod)
    positions = [
        index
        for index, source in enumerate(sources)
        if source in activity.varied and has_cotangent(source.ty)
    ]
    first_var, value = next((var, value) for var, value in bindings if var in activity.needed)
    node = read(value.span).node
    site = location(first_var, value)
    rules = [activity.rules[var] for var, _ in bindings if var in activity.rules]
    locations = dict.fromkeys(filter(None, map(user_rule, rules)))
    rule = ", ".join(locations) or None
    return Part(name, node, site, ops, part_mod, sources, positions, rule)


def values_function(program: Program, parts: list[Part], mod: tvm.IRModule) -> tuple[Any, list]:
    """A module with a function that returns all values that parts take, and their variables.

    Parameters of the program are left out.
    """
    taken = dict.fromkeys(source for part in parts for source in part.sources)
    parameters = set(program.params)
    sources = [source for source in taken if source not in parameters]
    params = [relax.Var(param.name, param.ty) for param in program.params]
    return _written(program, VALUES, params, sources, mod), sources


def _written(
    program: Program, name: str, params: list[Any], outputs: list[Any], mod: tvm.IRModule
) -> tvm.IRModule:
    """Write a function that computes some values of a program."""

    def body(emitter: Any) -> Any:
        environment = emit_program(program, emitter.builder, params)
        return tuple(substitute(output, environment) for output in outputs)

    kernels = {
        variable: function
        for variable, function in mod.functions.items()
        if not isinstance(function, relax.Function)
    }
    module = tvm.IRModule(kernels)
    return write_function(module, name, params, body, pure=program.pure, dataflow=program.dataflow)
