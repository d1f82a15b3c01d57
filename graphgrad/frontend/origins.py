"""The ONNX value and the ONNX node that each variable of a Relax function comes from."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax
from tvm.ir import Span

from ..ir.kernel_structure import substitute_values
from .relax_main import attach_spans


class Origins:
    """The names of ONNX values and the spans of nodes, by variable.

    Parameters
    ----------
    builder : relax.BlockBuilder
        With which the function is being built.
    parameters : sequence of relax.Var
        The parameters of the function. They have their names already, and come from no node.
    """

    def __init__(self, builder: relax.BlockBuilder, parameters: Sequence[relax.Var]):
        self._builder = builder
        self._parameters = parameters
        self._spans: dict[relax.Var, Span | None] = dict.fromkeys(parameters)
        self._names: dict[relax.Var, str] = {}
        self._named: set[str] = set()

    def add(self, variable: relax.Var, name: str, span: Span) -> None:
        """Record the variable of an ONNX value, and its node's span on all that was bound for it.

        A variable that is recorded already stays as it is. In a loop that is unrolled, each step
        has a value of this name; the first one keeps it.
        """
        if variable not in self._spans:
            if name not in self._named:
                self._names[variable] = name
            self._named.add(name)
            self._claim(variable, span)

    def move_name(self, name: str, value: relax.Expr, variable: relax.Var) -> None:
        """Name a variable; a value that had the name loses it: one of two would be ambiguous."""
        if self._names.get(value) == name:
            del self._names[value]
        self._names[variable] = name

    def written(self, function: relax.Function) -> relax.Function:
        """The function that was built, with its spans and names.

        The block builder altered names. A variable that stands for no ONNX value, inside what a
        converter writes, gets another name if it has that of one: a name belongs to one variable.
        """
        # Spans first: they are recorded by the variables that are renamed below.
        function = attach_spans(function, self._spans)
        used_names = {*self._names.values(), *(var.name for var in self._parameters)}
        # `type(var)` because a dataflow variable must stay one.
        renamed = {var: type(var)(name, var.ty) for var, name in self._names.items()}
        for block in function.body.blocks:
            for binding in block.bindings:
                var = binding.var
                if var not in renamed and var.name in used_names:
                    renamed[var] = type(var)(_unused(f"{var.name}.part", used_names), var.ty)
        return substitute_values(function, renamed)

    def _claim(self, value: relax.Expr, span: Span) -> None:
        """Give a span to each binding that `value` depends on and that has none yet."""
        worklist = [value]
        while worklist:
            value = worklist.pop()
            if isinstance(value, relax.Var):
                if value in self._spans:
                    continue  # a parameter, or bound for a value that was recorded earlier
                self._spans[value] = span
                value = self._builder.lookup_binding(value)
            if isinstance(value, relax.Call):
                worklist.extend(value.args)
            elif isinstance(value, relax.Tuple):
                worklist.extend(value.fields)
            elif isinstance(value, relax.TupleGetItem):
                worklist.append(value.tuple_value)


def _unused(base: str, used_names: set[str]) -> str:
    """`base`, with a number if it is used already; the name is added to `used_names`."""
    name, number = base, 1
    while name in used_names:
        name, number = f"{base}{number}", number + 1
    used_names.add(name)
    return name
