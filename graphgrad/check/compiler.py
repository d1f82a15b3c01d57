"""Compilation of the functions to be checked, with their gradients: in float64 where possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..autodiff.jvp import jvp
from ..autodiff.vjp import vjp
from .compare import Arrays
from .machine import Machine, UncompilableError
from .parts import Part
from .promote import promote_to_float64
from .promote_type import promote_array

_TOGETHER = 8
"""How many different parts are compiled at a time."""


@dataclass(frozen=True)
class Compiled:
    """A function ``name`` of a machine, with its vjp.

    Attributes
    ----------
    promoted : bool
        Whether it computes in float64, whatever dtype it was written in.
    note : str
        Why it does not; empty if it does.
    """

    machine: Machine
    name: str
    promoted: bool = True
    note: str = ""

    def point(self, arrays: Arrays) -> Arrays:
        """Values of the original function in the dtypes that this one takes."""
        return [promote_array(array) for array in arrays] if self.promoted else arrays


def compile_function(
    mod: tvm.IRModule,
    name: str,
    positions: Sequence[int],
    order: int,
    modes: Sequence[str] = ("rev",),
) -> Compiled:
    """Compile a function with its vjp, and the vjp of that with order 2.

    With forward mode, each function that has a vjp has a jvp, too.

    Parameters
    ----------
    mod : IRModule
    name : str
    positions : sequence of int
        The parameters that are differentiated.
    order : 1 or 2
    modes : sequence of str

    Raises
    ------
    UncompilableError
        It cannot be compiled in any dtype.
    """
    promoted, obstacles = promote_to_float64(mod)
    note = "; ".join(obstacles)
    if not obstacles:
        try:
            machine = Machine(_differentiated(promoted, {name: positions}, order, modes))
            return Compiled(machine, name)
        except UncompilableError as error:
            note = f"in float64 it {error}"
    machine = Machine(_differentiated(mod, {name: positions}, order, modes))
    return Compiled(machine, name, False, note)


class PartCompiler:
    """A compiler of a function's parts: several at once, and parts that are equal only once.

    Attributes
    ----------
    keys : list
        For each part what it shares with those that are equal to it.
    """

    def __init__(self, parts: Sequence[Part], order: int, modes: Sequence[str] = ("rev",)):
        self._parts = parts
        self._order = order
        self._modes = modes
        self.keys = [_key(part) for part in parts]
        self._compiled: dict[Any, Compiled] = {}

    def __getitem__(self, index: int) -> Compiled:
        """A part, compiled together with some of those that follow it."""
        if self.keys[index] not in self._compiled:
            batch: dict[Any, Part] = {}
            for key, part in zip(self.keys[index:], self._parts[index:], strict=True):
                if key not in self._compiled and len(batch) < _TOGETHER:
                    batch.setdefault(key, part)
            self._compile(batch)
        return self._compiled[self.keys[index]]

    def _compile(self, parts: dict[Any, Part]) -> None:
        """Compile some parts, by key: all that can be promoted in one module, others alone."""
        promotable = [key for key, part in parts.items() if not promote_to_float64(part.mod)[1]]
        if promotable:
            joint = tvm.IRModule()
            for key in promotable:
                joint.update(parts[key].mod)
            # Together, because parts may call the same kernel.
            joint, _ = promote_to_float64(joint)
            positions = {parts[key].name: parts[key].positions for key in promotable}
            try:
                machine = Machine(_differentiated(joint, positions, self._order, self._modes))
                self._compiled |= {key: Compiled(machine, parts[key].name) for key in promotable}
            except UncompilableError:  # because of one: compiled alone below, it shows which
                promotable = []
        for key, part in parts.items():
            if key not in promotable:
                self._compiled[key] = compile_function(
                    part.mod, part.name, part.positions, self._order, self._modes
                )


def _key(part: Part) -> Any:
    """A key that parts share if they have equal functions and differentiate the same inputs."""
    function = part.mod[part.name].without_attr("global_symbol")
    return tvm_ffi.StructuralKey(function), tuple(part.positions)


def _differentiated(
    mod: tvm.IRModule,
    positions: Mapping[str, Sequence[int]],
    order: int,
    modes: Sequence[str],
) -> tvm.IRModule:
    """Some functions of a module with their gradients, each by the positions given for it.

    They are added to one module one after another, so that no two kernels get the same name.
    """
    names = []
    for root, wrt_positions in positions.items():
        name, chosen = root, list(wrt_positions)
        names.append(name)
        for _ in range(order):
            params = mod[name].params
            wrt = [params[position] for position in chosen]
            if "fwd" in modes:
                mod = jvp(mod, name, wrt=wrt)
                names.append(f"{name}_jvp")
            mod = vjp(mod, name, wrt=wrt)
            name = f"{name}_vjp"
            names.append(name)
            # With respect to the same values and to all cotangents, as `check_orders` expects.
            chosen += range(len(params), len(mod[name].params))
    return relax.transform.DeadCodeElimination(names)(mod)
