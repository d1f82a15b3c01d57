"""Calls that change memory, and the gradients that cannot be had for it.

A derivative is that of a function of values. Where a call writes to memory, three things could go
wrong without a word: what is read afterwards depends on what the call computed, in a way that
nobody knows; the sweep, which runs last, reads a value that is no longer there; a branch that the
sweep runs again changes memory again. Each is an error here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import tvm
from tvm import relax

from ..errors import MissingGradientError
from ..ir.calls import overwritten_by
from ..ir.program import Program, variables_in
from ..ir.provenance import read
from ..ir.tensor import Tensor
from ..memory.alias import Aliases, Module, Use
from ..memory.effect_order import may_write
from ..memory.regions import OUTSIDE, leaves
from ..registry.rule import find_function
from .activity import Activity, has_cotangent, op_name, stops_derivatives


def mutations_of(program: Program) -> Mutations | None:
    """The writes to memory of a program; None where it has none.

    Raises
    ------
    AliasError, ArgumentError
        What is declared of a packed function contradicts a call of it.
    """
    body = program.body()
    if not may_write(body):
        return None
    mutations = Mutations(program, body)
    return mutations if mutations.writes else None


class Mutations:
    """The writes of a program.

    A packed function with a rule is taken to compute its result and nothing else, unless something
    else is declared.
    """

    def __init__(self, program: Program, body: relax.SeqExpr):
        self.program = program
        module = Module(program.kernels, leaves_alone=lambda name: find_function(name) is not None)
        self.aliases = Aliases(module, program.params, body)
        self.writes: list[Use] = [use for use in self.aliases.uses if use.writes]

    def refuse_stale_names(self) -> None:
        """Raise if a value is used, under its old name, behind a call that overwrites it.

        Such a call hands on the memory of its argument as its result; whether the old name still
        means the old value is undefined.

        Raises
        ------
        MissingGradientError
        """
        for write in self.writes:
            call = self.aliases.calls.get(write.binding)
            if not any(write.value.same_as(value) for value in overwritten_by(call)):
                continue
            for name, where in self._later(write):
                if self.aliases.bound.get(name, 0) < write.position:
                    raise MissingGradientError(
                        f"{self._what(write)} overwrites {_name(write.value)}, which is used "
                        f"afterwards, as {_name(name)}{where}; call the function out of place, by "
                        "call_tir or call_dps_packed"
                    )

    def refuse_unknown_derivatives(self, activity: Activity) -> None:
        """Raise if an output depends on memory that a call has written differentiated values to.

        Raises
        ------
        MissingGradientError
        """
        carriers = self._carriers()
        for write in self.writes:
            call = self.aliases.calls.get(write.binding)
            if any(write.value.same_as(value) for value in overwritten_by(call)):
                continue  # its result says what it wrote
            if not self._depends(write, activity):
                continue
            for name, where in self._later(write, carriers):
                label = op_name(call)
                raise MissingGradientError(
                    f"{self._what(write)} may mutate {_name(write.value)}, on which outputs depend "
                    f"afterwards, through {_name(name)}{where}: the derivative of what it does is "
                    "unknown. Say by graphgrad.declare_effects what it leaves alone, or let it "
                    "return a new tensor and register its gradient",
                    [(label, [write.binding.name])],
                )

    def refuse_overwritten(self, var: Any, value: Any, names: Iterable[Any]) -> None:
        """Raise if the gradient of a binding reads a value that is overwritten before the sweep.

        Parameters
        ----------
        var, value
            The binding.
        names : variables of the program
            What the gradient reads.

        Raises
        ------
        MissingGradientError
        """
        position = self.aliases.bound[var]
        for name in names:
            is_result = name.same_as(var)
            for write in self._writes_to(name):
                late = write.position > position
                if late or (write.position == position and not is_result):
                    raise MissingGradientError(
                        f"{self._what(write)} overwrites {name.name}, which the gradient of "
                        f"{op_name(value)} at {_place(var, value)} reads afterwards; call the "
                        "function out of place, by call_tir or call_dps_packed, or say by "
                        "graphgrad.declare_effects what it leaves alone"
                    )

    def refuse_repeated(self, var: Any, value: relax.If) -> None:
        """Raise if a branch, which the sweep runs again, changes what exists outside of it.

        Raises
        ------
        MissingGradientError
        """
        position = self.aliases.bound[var]
        outer = {OUTSIDE} | {
            self.aliases.region(leaf)
            for name, at in self.aliases.bound.items()
            if at < position
            for leaf in leaves(self.aliases.values[name])
        }
        for write in self.writes:
            inside = any(number == position for number, _ in write.path)
            if inside and self.aliases.region(write.leaf) in outer:
                raise MissingGradientError(
                    f"{self._what(write)} may mutate {_name(write.value)} in a branch of "
                    f"{_place(var, value)}, and the gradient runs that branch again; call it "
                    "outside of the branch, or say by graphgrad.declare_effects what it leaves "
                    "alone"
                )

    @cached_property
    def _by_region(self) -> dict[int, list[Use]]:
        found: dict[int, list[Use]] = {}
        for write in self.writes:
            found.setdefault(self.aliases.region(write.leaf), []).append(write)
        return found

    def _writes_to(self, name: Any) -> Iterator[Use]:
        for leaf in leaves(self.aliases.values.get(name)):
            yield from self._by_region.get(self.aliases.region(leaf), [])

    def _later(self, write: Use, among: set[Any] | None = None) -> Iterator[tuple[Any, str]]:
        """Yield the uses of the memory after a write, and where; the program's results last."""
        region = self.aliases.region(write.leaf)
        for use in self.aliases.uses_of(region):
            if use.position <= write.position or use.excludes(write.path):
                continue
            if among is None or use.path or use.binding in among:
                yield use.value, f", by {self._what(use)}"
        for name in variables_in(self.program.result):
            held = leaves(self.aliases.values[name])
            if any(self.aliases.region(leaf) == region for leaf in held) and (
                among is None or has_cotangent(name.ty)
            ):
                yield name, ", as a result"

    def _carriers(self) -> set[Any]:
        """The variables through which values with derivatives reach the results."""
        carriers = {v for v in variables_in(self.program.result) if has_cotangent(v.ty)}
        for var, value in reversed(self.program.bindings):
            if var in carriers and not stops_derivatives(value):
                carriers.update(variables_in(value))
        return carriers

    def _depends(self, write: Use, activity: Activity) -> bool:
        """Whether what a call writes, or what it is written to, depends on what varies."""
        region = self.aliases.region(write.leaf)
        read = [use for use in self.aliases.uses if use.binding.same_as(write.binding)]
        named = [name for use in read for name in variables_in(use.value)]
        if any(name in activity.varied for name in named):
            return True
        return any(
            self.aliases.region(leaf) == region
            for name in activity.varied
            for leaf in leaves(self.aliases.values.get(name))
        )

    def _what(self, use: Use) -> str:
        call = self.aliases.calls.get(use.binding)
        if call is None:
            return _place(use.binding, None)
        return f"{op_name(call)} at {_place(use.binding, call)}"


class Reads:
    """Which values of a program the cotangents read that a sweep emits.

    Parameters
    ----------
    emitter : Emitter
    environment : dict
        The program's variables to their emitted values.
    """

    def __init__(self, emitter: Any, environment: dict[Any, Any]):
        self.emitter = emitter
        self._names: dict[Any, list[Any]] = {}
        for name, expr in environment.items():
            if isinstance(expr, tvm.ir.Var):
                self._names.setdefault(expr, []).append(name)
        self._seen: set[Any] = set()

    def of(self, cotangents: Any) -> list[Any]:
        """The program's variables that new cotangents read, themselves or through others.

        What was emitted for earlier cotangents, and found then, is left out.
        """
        waiting = list(_variables_of(cotangents))
        found: dict[Any, None] = {}
        while waiting:
            var = waiting.pop()
            if var in self._names:
                found.update(dict.fromkeys(self._names[var]))
            elif var not in self._seen:
                self._seen.add(var)
                value = self.emitter.builder.lookup_binding(var)
                waiting += variables_in(value) if value is not None else []
        return list(found)


def _variables_of(result: Any) -> Iterator[Any]:
    if isinstance(result, list | tuple):
        for part in result:
            yield from _variables_of(part)
    elif isinstance(result, Tensor) and result.fill is None:
        yield from variables_in(result.expr)


def _place(var: Any, value: Any) -> str:
    return (read(value.span).node if value is not None else None) or str(var.name)


def _name(value: Any) -> str:
    return str(value.name) if isinstance(value, tvm.ir.Var) else "what others hold"
