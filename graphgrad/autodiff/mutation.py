"""Calls that write to memory, and the gradients that they would make wrong.

A derivative is that of a function of values. Where a call writes to memory, a gradient could be
silently wrong in three ways, each of which is an error here:

- A value that is read afterwards depends on what the call wrote, but no rule says how.
- The reverse sweep, which runs last, reads a value that has been overwritten.
- The reverse sweep runs a branch again, which then writes to memory again.
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
from ..memory.regions import OUTSIDE
from ..registry.rule import find_function
from .activity import Activity, has_cotangent, op_name, stops_derivatives


def mutations_of(program: Program) -> Mutations | None:
    """The analysis of a program's writes to memory; None if it has no writes.

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
    """The writes of a program to memory, and the checks of gradients against them.

    A packed function with a gradient rule is assumed to write to no memory, unless its effects are
    declared.
    """

    def __init__(self, program: Program, body: relax.SeqExpr):
        self.program = program
        module = Module(program.kernels, leaves_alone=lambda name: find_function(name) is not None)
        self.aliases = Aliases(module, program.params, body)
        self.writes: list[Use] = [use for use in self.aliases.uses if use.writes]

    def refuse_stale_names(self) -> None:
        """Raise if a value is used under its old name after a call that overwrites it.

        The result of such a call is the new value in the memory of its argument. Whether the old
        name still stands for the old value is undefined.

        Raises
        ------
        MissingGradientError
        """
        for write in self.writes:
            call = self.aliases.calls.get(write.binding)
            if not any(write.value.same_as(value) for value in overwritten_by(call)):
                continue
            for name, where in self._later(write):
                # A name that is bound after the write stands for the new value.
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

    def refuse_overwritten(
        self, var: Any, value: Any, names: Iterable[Any], at_once: bool = False
    ) -> None:
        """Raise if the gradient of a binding reads a value that is overwritten before the sweep.

        Parameters
        ----------
        var, value
            The binding.
        names : variables of the program
            What the gradient reads.
        at_once : bool
            Whether it reads right behind the binding, as a tangent does: what later calls write
            does no harm.

        Raises
        ------
        MissingGradientError
        """
        position = self.aliases.bound[var]
        for name in names:
            is_result = name.same_as(var)
            for write in self._writes_to(name):
                # A write by the binding itself spoils its arguments for the gradient, but not its
                # result.
                is_later = write.position > position and not at_once
                if is_later or (write.position == position and not is_result):
                    raise MissingGradientError(
                        f"{self._what(write)} overwrites {name.name}, which the gradient of "
                        f"{op_name(value)} at {_node_name(var, value)} reads afterwards; call the "
                        "function out of place, by call_tir or call_dps_packed, or say by "
                        "graphgrad.declare_effects what it leaves alone"
                    )

    def refuse_repeated(self, var: Any, value: relax.If) -> None:
        """Raise if a branch, which the reverse sweep runs again, writes to memory outside of it.

        Raises
        ------
        MissingGradientError
        """
        position = self.aliases.bound[var]
        bound_before = [
            self.aliases.values[name]
            for name, bound_at in self.aliases.bound.items()
            if bound_at < position
        ]
        outer = {OUTSIDE, *self.aliases.regions_of(bound_before)}
        for write in self.writes:
            is_inside = any(if_position == position for if_position, _ in write.path)
            if is_inside and self.aliases.region(write.leaf) in outer:
                raise MissingGradientError(
                    f"{self._what(write)} may mutate {_name(write.value)} in a branch of "
                    f"{_node_name(var, value)}, and the gradient runs that branch again; call it "
                    "outside of the branch, or say by graphgrad.declare_effects what it leaves "
                    "alone"
                )

    @cached_property
    def _by_region(self) -> dict[int, list[Use]]:
        writes: dict[int, list[Use]] = {}
        for write in self.writes:
            writes.setdefault(self.aliases.region(write.leaf), []).append(write)
        return writes

    def _writes_to(self, name: Any) -> Iterator[Use]:
        for region in self.aliases.regions_of(self.aliases.values.get(name)):
            yield from self._by_region.get(region, [])

    def _later(self, write: Use, carriers: set[Any] | None = None) -> Iterator[tuple[Any, str]]:
        """Yield the values by which memory is used after a write, each with text that says where.

        The program's results come last. With `carriers`, only uses are yielded by which a value
        with a derivative may reach the results.
        """
        region = self.aliases.region(write.leaf)
        for use in self.aliases.uses_of(region):
            if use.position <= write.position or use.excludes(write.path):
                continue
            # A variable bound in a branch is no carrier itself, so any use in a branch counts.
            if carriers is None or use.path or use.binding in carriers:
                yield use.value, f", by {self._what(use)}"
        for name in variables_in(self.program.result):
            if region in self.aliases.regions_of(self.aliases.values[name]) and (
                carriers is None or has_cotangent(name.ty)
            ):
                yield name, ", as a result"

    def _carriers(self) -> set[Any]:
        """The variables through which values with derivatives reach the results."""
        carriers = {v for v in variables_in(self.program.result) if has_cotangent(v.ty)}
        for var, value in reversed(self.program.bindings):
            if var in carriers and not stops_derivatives(self.program, value):
                carriers.update(variables_in(value))
        return carriers

    def _depends(self, write: Use, activity: Activity) -> bool:
        """Whether a call that writes reads a varied variable, or may write to the memory of one."""
        region = self.aliases.region(write.leaf)
        uses_by_call = [use for use in self.aliases.uses if use.binding.same_as(write.binding)]
        arguments = [name for use in uses_by_call for name in variables_in(use.value)]
        if any(name in activity.varied for name in arguments):
            return True
        return any(
            region in self.aliases.regions_of(self.aliases.values.get(name))
            for name in activity.varied
        )

    def _what(self, use: Use) -> str:
        """The call of a use, for messages."""
        call = self.aliases.calls.get(use.binding)
        if call is None:
            return _node_name(use.binding, None)
        return f"{op_name(call)} at {_node_name(use.binding, call)}"


class Reads:
    """The values of a program that the cotangents emitted by a sweep read.

    Parameters
    ----------
    emitter : Emitter
    environment : dict
        From the program's variables to their emitted values.
    """

    def __init__(self, emitter: Any, environment: dict[Any, Any]):
        self.emitter = emitter
        self._names: dict[Any, list[Any]] = {}
        self._seen: set[Any] = set()
        for name, expr in environment.items():
            self.add(name, expr)

    def add(self, name: Any, expr: Any) -> None:
        """Know a further variable of the program by its emitted value."""
        if isinstance(expr, tvm.ir.Var):
            self._names.setdefault(expr, []).append(name)

    def of(self, cotangents: Any) -> list[Any]:
        """The program's variables that new cotangents read, directly or through other bindings.

        Bindings that earlier calls have visited are not visited again: what they read was
        returned then.
        """
        waiting = list(_variables_of(cotangents))
        read_variables: dict[Any, None] = {}
        while waiting:
            var = waiting.pop()
            if var in self._names:
                read_variables.update(dict.fromkeys(self._names[var]))
            elif var not in self._seen:
                self._seen.add(var)
                value = self.emitter.builder.lookup_binding(var)
                waiting += variables_in(value) if value is not None else []
        return list(read_variables)


def _variables_of(result: Any) -> Iterator[Any]:
    """Yield the variables in cotangents; zeros and ones that are not emitted have none."""
    if isinstance(result, list | tuple):
        for part in result:
            yield from _variables_of(part)
    elif isinstance(result, Tensor) and result.fill is None:
        yield from variables_in(result.expr)


def _node_name(var: Any, value: Any) -> str:
    """The name of a binding in messages: that of its ONNX node, else that of its variable."""
    return (read(value.span).node if value is not None else None) or str(var.name)


def _name(value: Any) -> str:
    """The name of a value in messages; it has none in memory that is held outside."""
    return str(value.name) if isinstance(value, tvm.ir.Var) else "what others hold"
