"""Maps that interleave short sums, one for each remainder of a place: a thread has a whole period.

The data gradient of a convolution with stride 2 is four sums, of which each position of the image
takes one. A thread computes all four, of what they read together, and stores them side by side: so
no sum is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.kernel_structure import Load, is_among, static, stride, substitute_values
from ...ir.loops import index, load, loop, registers, sequence, store, variable
from ...ir.visits import nodes_in, replace_nodes
from .lanes import MIN_POINTS, each_lane, wide_lanes
from .reduction import Reduction
from .shared_loads import SharedLoads
from .threads import one_thread_per_point
from .windows import blocked

_MAX_PERIOD = 8
"""Points of a period at most: a thread has the results of all."""

_MAX_TERMS = 64
"""Terms of all sums of a period at most: they are straight code."""

_MAX_RESULTS = 64
"""Results of a thread that leave registers for what it reads."""


@dataclass(frozen=True)
class _Sum:
    """One of the sums that a thread has.

    Attributes
    ----------
    reduction : Reduction
    indices : list of Expr
        Of the result.
    held : Buffer
        In registers.
    """

    reduction: Reduction
    indices: list[Any]
    held: Any


def interleaved_launch(
    loops: Sequence[Any], stored: Any, reductions: Mapping[Any, Reduction]
) -> Any | None:
    """The launch of a map with the sums that it reads; None if it does not take turns with them.

    Parameters
    ----------
    loops : sequence of For
        Over the elements of the map; their variables and ranges alone are used.
    stored : BufferStore
        Of an element.
    reductions : mapping of Buffer to Reduction
        The sums, which nothing else reads.
    """
    extents = [static(each.extent) for each in loops]
    if None in extents or math.prod(extents) < MIN_POINTS:  # type: ignore[arg-type]
        return None
    moduli = {each.loop_var: _modulus(stored.value, each.loop_var) for each in loops}
    innermost = loops[-1]
    if (
        not 1 < math.prod(moduli.values()) <= _MAX_PERIOD
        or moduli[innermost.loop_var] > 1
        or any(static(each.min) != 0 for each in loops)
        or not all(map(_is_short, reductions.values()))
    ):
        return None
    accesses = [stored, *nodes_in(stored.value, Load)]
    accesses += [each for reduction in reductions.values() for each in reduction.loads]
    lanes = 1
    if stride(stored, innermost.loop_var) == 1:
        lanes = math.gcd(wide_lanes(accesses), int(innermost.extent))
    lanes = min(lanes, _MAX_RESULTS // math.prod(moduli.values()))
    return _Launch(loops, stored, reductions, moduli, lanes).statement()


def _modulus(value: Any, var: Any) -> int:
    """By what number an expression divides a variable to decide something; 1 if by none."""
    remainders = [
        each
        for each in nodes_in(value, tirx.FloorMod)
        if each.a.same_as(var) and static(each.b) is not None
    ]
    return max((int(each.b) for each in remainders), default=1)


def _is_short(reduction: Reduction) -> bool:
    """Whether a sum has so few terms that they are straight code, at places that are known."""
    extents = [static(each.extent) for each in reduction.reduced]
    (target,) = reduction.targets
    results = [each.loop_var for each in reduction.spatial]
    return (
        None not in extents
        and math.prod(extents) <= _MAX_TERMS  # type: ignore[arg-type]
        and all(static(each.min) == 0 for each in (*reduction.reduced, *reduction.spatial))
        and not any(nodes_in(list(each.indices), Load) for each in reduction.loads)
        and all(is_among(at, results) or static(at) == 0 for at in target.store.indices)
    )


class _Launch:
    """Writes the launch of a map and of the sums that it interleaves."""

    def __init__(
        self,
        loops: Sequence[Any],
        stored: Any,
        reductions: Mapping[Any, Reduction],
        moduli: Mapping[Any, int],
        lanes: int,
    ):
        self._loops, self._stored, self._reductions = loops, stored, reductions
        self._moduli, self._lanes, self._lane = moduli, lanes, variable("lane")
        self._sums: list[_Sum] = []
        outer: list[Any] = []
        inner: list[Any] = []
        self._values: dict[Any, Any] = {}
        groups: list[Any] = []
        for each in loops:
            modulus = moduli[each.loop_var]
            if modulus > 1:
                count = -(-int(each.extent) // modulus)
                groups.append(loop(variable("group"), count, tirx.Evaluate(0)))
                self._values[each.loop_var] = groups[-1].loop_var * modulus
                continue
            width = lanes if each is loops[-1] else 1
            number = blocked(each, width, width > 1, outer, inner)
            self._values[each.loop_var] = number * width + (self._lane if width > 1 else 0)
        self._threads = [*outer, *groups, *inner]
        self._analyzer = tvm.sym.Analyzer()
        for each in self._threads:
            self._analyzer.bind(each.loop_var, tvm.ir.Range(0, each.extent))
        self._analyzer.bind(self._lane, tvm.ir.Range(0, lanes))
        self._shared = SharedLoads(self._analyzer, self._lane, lanes)

    def statement(self) -> Any | None:
        """The launch; None if there is more to it than interleaving."""
        results = [self._result(values) for values in self._points()]
        terms = sum(
            math.prod(int(each.extent) for each in one.reduction.reduced) for one in self._sums
        )
        if terms > _MAX_TERMS or len(self._sums) > len(results):
            return None
        summed = [statement for one in self._sums for statement in self._summed(one)]
        body = sequence(
            *(tirx.AllocBuffer(one.held) for one in self._sums),
            *self._shared.statements(),
            *summed,
            *results,
        )
        return one_thread_per_point(self._threads, body)

    def _points(self) -> list[dict[Any, Any]]:
        """The values of the map's variables at each point of a period."""
        periods = [range(self._moduli[each.loop_var]) for each in self._loops]
        return [
            {
                each.loop_var: self._values[each.loop_var] + number
                for each, number in zip(self._loops, numbers, strict=True)
            }
            for numbers in product(*periods)
        ]

    def _each(self, *statements: Any) -> Any:
        """Statements for each lane."""
        return each_lane(self._lane, self._lanes, statements)

    def _result(self, values: Mapping[Any, Any]) -> Any:
        """The statement that stores the map at a point of a period."""
        stored = substitute_values(self._stored, values)
        value = self._shared.decide(stored.value)
        value = self._shared.read(replace_nodes(value, Load, self._of_sum))
        statement = self._each(store(stored.buffer, stored.indices, value))
        within = [
            values[each.loop_var] < each.extent
            for each in self._loops
            if int(each.extent) % self._moduli[each.loop_var]
        ]
        for condition in within:
            statement = tirx.IfThenElse(condition, statement, None)
        return statement

    def _of_sum(self, access: Any) -> Any:
        """What a thread has of a sum, in the place of a load."""
        reduction = self._reductions.get(access.source)
        if reduction is None:
            return access
        indices = [self._analyzer.simplify(at) for at in access.indices]
        for one in self._sums:
            if one.reduction is reduction and all(
                map(tvm_ffi.structural_equal, one.indices, indices)
            ):
                return load(one.held, [self._lane])
        held = registers("held", (self._lanes,), str(access.source.dtype))
        self._sums.append(_Sum(reduction, indices, held))
        return load(held, [self._lane])

    def _summed(self, one: _Sum) -> list[Any]:
        """The statements that compute a sum."""
        reduction = one.reduction
        (target,) = reduction.targets
        at = {each.loop_var: index(0) for each in reduction.spatial}
        at |= dict(zip(target.store.indices, one.indices, strict=True))
        so_far = load(one.held, [self._lane])
        (start,), (value,) = reduction.initial, reduction.update([so_far])
        updates = []
        for numbers in product(*(range(int(each.extent)) for each in reduction.reduced)):
            terms = {
                each.loop_var: index(number)
                for each, number in zip(reduction.reduced, numbers, strict=True)
            }
            read = self._shared.read(substitute_values(value, {**at, **terms}))
            updates.append(self._each(store(one.held, [self._lane], read)))
        started = store(one.held, [self._lane], substitute_values(start, at))
        return [self._each(started), *updates]
