"""How fast a user's rule is beside the derivation that would take its place."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm

from ..autodiff.vjp import vjp_of_program
from ..errors import LoweringError, MissingGradientError
from ..ir.inline import inline_calls
from .compare import Arrays
from .machine import Machine, UncompilableError

_RUNS = 7
"""Runs of each gradient; the median counts."""

_RUN_SECONDS = 1e-3
"""A run calls a gradient as often as takes this long."""

_MOST_SECONDS = 0.5
"""Seconds for all runs of both gradients; where a call of each takes longer, it is the only one."""


@dataclass(frozen=True)
class Speed:
    """How long value and gradient take, in seconds: medians of a few runs.

    Attributes
    ----------
    rule, derived : float
        By the user's rule, and by what is derived where no rule is registered.
    dtype : str
        Of the first input.
    """

    rule: float
    derived: float
    dtype: str

    @property
    def ratio(self) -> float:
        """The time by the rule in that of the derivation: below 1 the rule is faster."""
        return self.rule / self.derived

    def __str__(self) -> str:
        is_faster = self.ratio <= 1
        factor = 1 / self.ratio if is_faster else self.ratio
        return (
            f"with the rule, value and gradient take {_time_text(self.rule)}, derived "
            f"{_time_text(self.derived)} ({self.dtype}, these sizes): the rule is {factor:.2f} "
            f"times as {'fast' if is_faster else 'slow'}"
        )

    def to_json(self) -> dict[str, Any]:
        """The facts as a dictionary of plain values."""
        return {
            "rule_s": self.rule,
            "derived_s": self.derived,
            "ratio": self.ratio,
            "dtype": self.dtype,
        }


def measure_speed(
    mod: tvm.IRModule, name: str, positions: Sequence[int], arrays: Arrays
) -> Speed | None:
    """Time the gradient of a function by the users' rules, and as it is derived without them.

    Parameters
    ----------
    mod : IRModule
    name : str
        Of a Relax function.
    positions : sequence of int
        The parameters that are differentiated.
    arrays : list of arrays
        Its arguments, in its dtypes.

    Returns
    -------
    Speed or None
        None where there is nothing to derive a gradient from, or it cannot be compiled.
    """
    names = {"auto": f"{name}_by_rule", "none": f"{name}_derived"}
    compiled = mod
    try:
        for rules, new_name in names.items():
            program = replace(inline_calls(mod, name), name=new_name, rules=rules)
            wrt = [program.params[position] for position in positions]
            compiled = vjp_of_program(program, wrt, mod=compiled)
        machine = Machine(compiled, "llvm")
    except (MissingGradientError, LoweringError, UncompilableError):
        return None
    cotangents = machine.run(name, arrays)
    calls = [machine.caller(f"{each}_vjp", [*arrays, *cotangents]) for each in names.values()]
    by_rule, derived = _medians(*calls)
    return Speed(by_rule, derived, str(arrays[positions[0]].dtype))


def _medians(*calls: Callable[[], Any]) -> list[float]:
    """The seconds of some calls, which take turns."""
    for call in calls:
        call()  # the first call of a library also starts threads
    first = [_seconds(call, 1) for call in calls]
    counts = [max(1, math.ceil(_RUN_SECONDS / seconds)) for seconds in first]
    turn = sum(count * seconds for count, seconds in zip(counts, first, strict=True))
    if turn > _MOST_SECONDS / 2:
        return first
    turns = min(_RUNS, int(_MOST_SECONDS / turn))
    times = [
        [_seconds(call, count) for call, count in zip(calls, counts, strict=True)]
        for _ in range(turns)
    ]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def _seconds(call: Callable[[], Any], count: int) -> float:
    """The time of one of several calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return max((time.perf_counter() - start) / count, 1e-9)


def _time_text(seconds: float) -> str:
    """A time in a unit in which it has few digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
