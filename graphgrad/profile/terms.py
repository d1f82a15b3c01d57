"""Values of a Relax function by what computes them, so that they are recognized after fusion.

The *term* of a value is the kernel that computes it and the terms of what that reads, down to
parameters and constants. Equal terms are equal values. A function that fusion has made of several
calls is read as these calls, so it changes no term.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Sequence
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
        self._groups = {
            variable.name_hint: function
            for variable, function in mod.functions.items()
            if isinstance(function, relax.Function)
            and function.attrs
            and function.attrs.get("Primitive")
        }

    def recognized(self, function: relax.Function) -> dict[Any, tuple[Any, ...]]:
        """Return, for each variable after fusion, those before fusion that its binding computes.

        Of equal values each is taken in turn: they may come from several nodes.
        """
        environment = self._parameters(function)
        found: dict[Any, tuple[Any, ...]] = {}
        for binding in bindings_of(function):
            computed: list[Term] = []
            environment[binding.var] = self._value(binding.value, environment, computed)
            found[binding.var] = tuple(v for term in computed for v in self._taken(term))
        return found

    def _taken(self, term: Term) -> list[Any]:
        waiting = self._bound.get(term)
        if not waiting:
            return []
        if len(waiting) > 1:
            return [waiting.popleft()]
        return [waiting[0]]

    def _parameters(self, function: relax.Function) -> dict[Any, Term]:
        return {var: self._number("parameter", i) for i, var in enumerate(function.params)}

    def _number(self, *key: Any) -> Term:
        return self._numbers.setdefault(key, len(self._numbers))

    def _value(self, value: Any, environment: dict[Any, Term], computed: list[Term]) -> Term:
        """The term of an expression; note the terms of the calls that it makes."""
        if isinstance(value, tvm.ir.Var):
            return environment[value] if value in environment else self._number("free", value)
        if isinstance(value, relax.Tuple):
            return self._tuple(tuple(self._value(f, environment, computed) for f in value.fields))
        if isinstance(value, relax.TupleGetItem):
            whole = self._value(value.tuple_value, environment, computed)
            index = int(value.index)
            return self._tuples[whole][index] if whole in self._tuples else self._item(whole, index)
        if isinstance(value, tvm.ir.GenericConst):
            array = value.value.numpy()
            digest = hashlib.sha256(array.tobytes()).hexdigest()
            return self._number("constant", str(array.dtype), array.shape, digest)
        if isinstance(value, tvm.ir.Call):
            return self._call(value, environment, computed)
        return self._number("other", tvm_ffi.structural_hash(value, map_free_vars=False))

    def _item(self, whole: Term, index: int) -> Term:
        return self._number("item", whole, index)

    def _tuple(self, fields: tuple[Term, ...]) -> Term:
        term = self._number("tuple", *fields)
        self._tuples[term] = fields
        return term

    def _call(self, call: Any, environment: dict[Any, Term], computed: list[Term]) -> Term:
        callee, given = (call.op, call.args)
        if calls_kernel(call):
            callee, given = call.args[0], call.args[1].fields
        arguments = [self._value(argument, environment, computed) for argument in given]
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
        environment = dict(zip(group.params, arguments, strict=True))
        for binding in bindings_of(group):
            environment[binding.var] = self._value(binding.value, environment, computed)
        return self._value(group.body.body, environment, computed)


def bindings_of(function: relax.Function) -> list[Any]:
    """The bindings of a function's outermost level, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def calls_kernel(value: Any) -> bool:
    """Whether an expression is a call of a PrimFunc."""
    return (
        isinstance(value, tvm.ir.Call)
        and isinstance(value.op, tvm.ir.Op)
        and str(value.op.name) in _KERNEL_CALLS
    )


def variables_read(value: Any) -> list[Any]:
    """The variables that an expression reads, each once."""
    found = nodes_in(value, tvm.ir.Var)
    return list(dict.fromkeys(v for v in found if not isinstance(v, tvm.ir.GlobalVar)))
