"""Which value and which node of an ONNX graph each variable of a Relax function comes from."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax
from tvm.ir import Span
from tvm_ffi import structural_map

from .relax_main import attach_spans


class Origins:
    """The names of ONNX values and the spans of nodes, by variable.

    Parameters
    ----------
    builder : relax.BlockBuilder
        With which the function is being built.
    parameters : sequence of relax.Var
        Of the function; they have their names, and come from no node.
    """

    def __init__(self, builder: relax.BlockBuilder, parameters: Sequence[relax.Var]):
        self._builder = builder
        self._parameters = parameters
        self._spans: dict[relax.Var, Span | None] = dict.fromkeys(parameters)
        self._names: dict[relax.Var, str] = {}
        self._named: set[str] = set()

    def add(self, variable: relax.Var, name: str, span: Span) -> None:
        """Note what an ONNX value is, with all that its node bound for it, unless it is known.

        In a loop that is written out each step has a value of the name; the first keeps it.
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
        function = attach_spans(function, self._spans)
        taken = {*self._names.values(), *(var.name for var in self._parameters)}
        renamed = {var: type(var)(name, var.ty) for var, name in self._names.items()}
        for block in function.body.blocks:
            for binding in block.bindings:
                var = binding.var
                if var not in renamed and var.name in taken:
                    renamed[var] = type(var)(_unused(f"{var.name}.part", taken), var.ty)
        return structural_map(function, (relax.Var, lambda var: renamed.get(var, var)))

    def _claim(self, value: relax.Expr, span: Span) -> None:
        """Give a span to each binding that `value` depends on and that has none yet."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if isinstance(value, relax.Var):
                if value in self._spans:
                    continue
                self._spans[value] = span
                value = self._builder.lookup_binding(value)
            if isinstance(value, relax.Call):
                waiting.extend(value.args)
            elif isinstance(value, relax.Tuple):
                waiting.extend(value.fields)
            elif isinstance(value, relax.TupleGetItem):
                waiting.append(value.tuple_value)


def _unused(wanted: str, taken: set[str]) -> str:
    """A name that is not taken, and take it."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}{number}", number + 1
    taken.add(name)
    return name
