"""Terms: numbers for the values of a Relax function, by which they are recognized after fusion.

The *term* of a value is the kernel that computes it and the terms of what that reads, down to
parameters and constants. Equal terms are equal values. A function that fusion has made of several
calls is read as these calls, so it changes no term.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax

from ..ir.visits import nodes_in

Term: TypeAlias = int
"""The number of a term among all that are known."""

_KERNEL_CALLS = ("relax.call_tir", "relax.call_tir_inplace")


class Terms:
    """The terms of a function, and the groups that fusion has made of its calls."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], Term] = {}
        self._tuples: dict[Term, tuple[Term, ...]] = {}
        self._groups: dict[str, relax.Function] = {}
        self._bound: dict[Term, deque[Any]] = defaultdict(deque)

    def learn(self, function: relax.Function) -> None:
        """Number the values of a function before fusion."""
        environment = self._parameters(function)
        for binding in bindings_of(function):
            term = self._value(binding.value, environment, [])
            environment[binding.var] = term
            if isinstance(binding.value, tvm.ir.Call):
                self._bound[term].append(binding.var)

    def learn_groups(self, mod: tvm.IRModule) -> None:
        """Read the functions that fusion has made."""
        # TVM's FuseOps marks the functions that it makes by the attribute "Primitive".
        self._groups = {
            variable.name_hint: function
            for variable, function in mod.functions.items()
            if isinstance(function, relax.Function)
            and function.attrs
            and function.attrs.get("Primitive")
        }

    def recognized(self, function: relax.Function) -> dict[Any, tuple[Any, ...]]:
        """For each variable after fusion, the variables before fusion that its binding computes.

        Equal values are matched one after another: they may come from several nodes.
        """
        environment = self._parameters(function)
        computed_by: dict[Any, tuple[Any, ...]] = {}
        for binding in bindings_of(function):
            computed: list[Term] = []
            environment[binding.var] = self._value(binding.value, environment, computed)
            computed_by[binding.var] = tuple(
                variable for term in computed for variable in self._taken(term)
            )
        return computed_by

    def _taken(self, term: Term) -> list[Any]:
        """The next unmatched variable of a term, the last one again and again; empty if none is."""
        unmatched = self._bound.get(term)
        if not unmatched:
            return []
        if len(unmatched) > 1:
            return [unmatched.popleft()]
        return [unmatched[0]]

    def _parameters(self, function: relax.Function) -> dict[Any, Term]:
        """The terms of a function's parameters, the same for all functions: by position."""
        return {var: self._number("parameter", i) for i, var in enumerate(function.params)}

    def _number(self, *key: Any) -> Term:
        """The number of a term, given what identifies it; a new one if it is not known."""
        return self._numbers.setdefault(key, len(self._numbers))

    def _value(self, value: Any, environment: dict[Any, Term], computed: list[Term]) -> Term:
        """The term of an expression; note the terms of the calls that it makes."""
        if isinstance(value, tvm.ir.Var):
            return environment[value] if value in environment else self._number("free", value)
        if isinstance(value, relax.Tuple):
            return self._tuple(tuple(self._value(f, environment, computed) for f in value.fields))
        if isinstance(value, relax.TupleGetItem):
            tuple_term = self._value(value.tuple_value, environment, computed)
            index = int(value.index)
            return (
                self._tuples[tuple_term][index]
                if tuple_term in self._tuples
                else self._item(tuple_term, index)
            )
        if isinstance(value, tvm.ir.GenericConst):
            array = value.value.numpy()
            digest = hashlib.sha256(array.tobytes()).hexdigest()
            return self._number("constant", str(array.dtype), array.shape, digest)
        if isinstance(value, tvm.ir.Call):
            return self._call(value, environment, computed)
        return self._number("other", tvm_ffi.structural_hash(value, map_free_vars=False))

    def _item(self, tuple_term: Term, index: int) -> Term:
        """The term of an item of a tuple whose fields are not known, as of a call."""
        return self._number("item", tuple_term, index)

    def _tuple(self, fields: tuple[Term, ...]) -> Term:
        """The term of a tuple of known fields."""
        term = self._number("tuple", *fields)
        self._tuples[term] = fields
        return term

    def _call(self, call: Any, environment: dict[Any, Term], computed: list[Term]) -> Term:
        """The term of a call; one of a group that fusion made is read as the calls inside."""
        callee, operands = (call.op, call.args)
        if calls_kernel(call):
            callee, operands = call.args[0], call.args[1].fields
        arguments = [self._value(argument, environment, computed) for argument in operands]
        name = str(getattr(callee, "name_hint", None) or getattr(callee, "name", callee))
        group = self._groups.get(name)
        if group is not None and len(group.params) == len(arguments):
            return self._grouped(group, arguments, computed)
        attributes = 0 if call.attrs is None else tvm_ffi.structural_hash(call.attrs)
        term = self._number("call", name, attributes, *arguments)
        computed.append(term)
        return term

    def _grouped(
        self, group: relax.Function, arguments: Sequence[Term], computed: list[Term]
    ) -> Term:
        """The term of the result of a group, given those of its arguments."""
        environment = dict(zip(group.params, arguments, strict=True))
        for binding in bindings_of(group):
            environment[binding.var] = self._value(binding.value, environment, computed)
        return self._value(group.body.body, environment, computed)


def bindings_of(function: relax.Function) -> list[Any]:
    """The bindings of a function's outermost level, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def calls_kernel(value: Any) -> bool:
    """Whether an expression is a call of a PrimFunc."""
    return _calls(value, _KERNEL_CALLS)


def calls_packed(value: Any) -> bool:
    """Whether an expression is a call of a packed function that writes into tensors it is given."""
    return _calls(value, ("relax.call_dps_packed",))


def _calls(value: Any, ops: Collection[str]) -> bool:
    return (
        isinstance(value, tvm.ir.Call)
        and isinstance(value.op, tvm.ir.Op)
        and str(value.op.name) in ops
    )


def variables_read(value: Any) -> list[Any]:
    """The variables that an expression reads, each once."""
    variables = nodes_in(value, tvm.ir.Var)
    return list(
        dict.fromkeys(
            variable for variable in variables if not isinstance(variable, tvm.ir.GlobalVar)
        )
    )
