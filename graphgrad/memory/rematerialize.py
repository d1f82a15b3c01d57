"""Rematerialization: which results of a program are computed a second time, to save memory.

A program is a line of steps. Its *turn* is the step at which most memory is in use: of a training
step, about where the backward pass begins. Results of earlier steps that later ones read are either
held across the turn, or dropped, and their steps repeated right before the first later step that
needs them. A step is repeated at most once, so that a program takes at most one forward pass more;
on request, what comes out is taken for a program and treated so again.

What is held is chosen in two stages, by sizes and times that are known:

1. The steps before the turn are cut into segments, as in T. Chen et al., *Training deep nets with
   sublinear memory cost* (2016). What a later segment reads is held; the last segment is not
   repeated at all (`segments`).
2. Of what is dropped then, the results that take the longest to compute for each of their bytes are
   held after all.

Both are done for a series of sizes: that makes some hundred schedules, none of which depends on a
budget. The quickest one that fits is taken; so a smaller budget never leads to a higher peak.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .packing import Lifetime, aligned, pack
from .segments import Segments

_MOST_SIZES = 40
"""How many sizes are tried for segments, by each measure."""

_MOST_STEPS = 1_000_000
"""Of all schedules that are tried for a program: fewer sizes are tried for long ones."""

_SHARES = (
    0,
    0.04,
    0.08,
    0.12,
    0.17,
    0.22,
    0.28,
    0.34,
    0.4,
    0.47,
    0.54,
    0.62,
    0.7,
    0.78,
    0.86,
    0.93,
)
"""Of the bytes that segments drop, the shares that are held after all."""

_AGAIN = (1.0, 1.04, 1.08, 1.12, 1.2, 1.3)
"""Where steps may be repeated more often: the bytes of the schedules that are taken for programs,
of the least that they came to."""

_NO_TIME = 0.015
"""Of a program's time, what repeated steps may take where nobody asked for less memory."""

_PARTS = 8
"""Into how many parts the steps that take next to no time are cut, to repeat only some."""

_NEARLY = 1.01
"""How much more than the least bytes are as good as these."""


class Step(NamedTuple):
    """A call of a program.

    Attributes
    ----------
    reads, writes : tuple of int
        Numbers of tensors, each once.
    seconds : float
        How long it takes, estimated.
    is_pure : bool
        Whether it does nothing but write to its tensors what depends on those that it reads, so
        that it may be moved and repeated.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    seconds: float
    is_pure: bool

    @property
    def tensors(self) -> set[int]:
        """All that it works on."""
        return {*self.reads, *self.writes}


@dataclass(frozen=True)
class Schedule:
    """Steps in an order, some of them repeated.

    Attributes
    ----------
    sizes : list of int
        In bytes, of its tensors by number. A repeated step writes to tensors of its own.
    steps : list of Step
        In terms of these tensors.
    step_of, tensor_of : list of int
        Which step of the program each step is, and which tensor of the program each tensor holds.
    seconds : float
        How long the repeated steps take.
    """

    sizes: list[int]
    steps: list[Step]
    step_of: list[int]
    tensor_of: list[int]
    seconds: float = 0.0

    @cached_property
    def lifetimes(self) -> dict[int, Lifetime]:
        """When tensors are in use; those that have no size are left out."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, step in enumerate(self.steps):
            for tensor in (*step.reads, *step.writes):
                first.setdefault(tensor, position)
                last[tensor] = position
        sizes = self.sizes
        return {t: Lifetime(sizes[t], begin, last[t]) for t, begin in first.items() if sizes[t]}

    @property
    def in_use(self) -> np.ndarray:
        """The bytes in use at each position."""
        sizes, first, last = np.array([*self.lifetimes.values()], np.int64).reshape(-1, 3).T
        changes = np.zeros(len(self.steps) + 1, dtype=np.int64)
        np.add.at(changes, first, sizes)
        np.add.at(changes, last + 1, -sizes)
        return changes.cumsum()

    @cached_property
    def least_bytes(self) -> int:
        """The most bytes that are in use at a time: no block can be smaller."""
        return int(self.in_use.max())

    @cached_property
    def packed(self) -> tuple[dict[int, int], int]:
        """The offset of each tensor that has a size and is in use, and the size of the block."""
        offsets, size = pack(list(self.lifetimes.values()))
        return dict(zip(self.lifetimes, offsets, strict=True)), size

    @property
    def block_bytes(self) -> int:
        """The size of the block that holds all tensors."""
        return self.packed[1]

    @property
    def repeated(self) -> int:
        """How many steps are repeated."""
        return len(self.step_of) - len(set(self.step_of))


class Program:
    """A line of steps, some of which may be repeated.

    Parameters
    ----------
    whole : Schedule
    latest : int, optional
        The last step of the program that `whole` is a schedule of that may be repeated, if not all
        may. What is behind its turn comes from nearly all that is before: the gradient of a weight,
        held for the update, would take most of a step to compute again.

    Attributes
    ----------
    whole : Schedule
    producer : list of int
        The step that writes a tensor, if it may be repeated; else -1.
    limit : list of int
        For each step the position before which it may be repeated: that of the first step that
        overwrites something that it reads. 0 if it must not be repeated.
    turn : int
        The step at which most memory is in use.
    """

    def __init__(self, whole: Schedule, latest: int | None = None):
        self.whole, self.sizes, self.steps = whole, whole.sizes, whole.steps
        writers: list[list[int]] = [[] for _ in self.sizes]
        for position, step in enumerate(self.steps):
            for tensor in step.writes:
                writers[tensor].append(position)
        self.producer = [-1] * len(self.sizes)
        self.limit = [0] * len(self.steps)
        for position, step in enumerate(self.steps):
            owns = all(writers[t] == [position] and self.sizes[t] for t in step.writes)
            is_early = latest is None or whole.step_of[position] <= latest
            if step.is_pure and step.writes and owns and is_early:
                later = (w for t in step.reads for w in writers[t] if w > position)
                self.limit[position] = min(later, default=len(self.steps))
                for tensor in step.writes:
                    self.producer[tensor] = position
        self.turn = int(whole.in_use.argmax())
        self._latest = self.turn if latest is None else latest

    @staticmethod
    def of(sizes: list[int], steps: list[Step]) -> Program:
        """The program of some steps.

        Parameters
        ----------
        sizes : list of int
            In bytes, of tensors by number. One of size 0 takes no part in the plan: somebody else
            has allocated it, or it is there to tell what must stay in order.
        steps : list of Step
        """
        sizes = [aligned(size) for size in sizes]
        return Program(Schedule(sizes, steps, [*range(len(steps))], [*range(len(sizes))]))

    def schedule(self, turn: int, dropped: Collection[int]) -> Schedule | None:
        """The schedule in which later steps have dropped ones repeated where they need them.

        None if a step would be repeated too late.

        Parameters
        ----------
        turn : int
            From behind this step on.
        dropped : collection of int
            Steps up to the turn that may be repeated.
        """
        positions = list(range(turn + 1))
        steps = self.steps[: turn + 1]
        sizes, tensor_of = list(self.sizes), list(self.whole.tensor_of)
        now: dict[int, int] = {}  # the tensors that repeated steps have written
        repeated: set[int] = set()

        def missing(position: int) -> list[int]:
            """The steps that have to be repeated before another one, in order."""
            needed: set[int] = set()
            unvisited = [position]
            while unvisited:
                for tensor in self.steps[unvisited.pop()].reads:
                    step = self.producer[tensor]
                    if step in dropped and step not in repeated and step not in needed:
                        needed.add(step)
                        unvisited.append(step)
            return sorted(needed)

        def run(position: int) -> None:
            step = self.steps[position]
            reads = tuple(now.get(tensor, tensor) for tensor in step.reads)
            writes = tuple(now.get(tensor, tensor) for tensor in step.writes)
            positions.append(position)
            steps.append(Step(reads, writes, step.seconds, step.is_pure))

        for position in range(turn + 1, len(self.steps)):
            for step in missing(position):
                if position > self.limit[step]:
                    return None
                repeated.add(step)
                for tensor in self.steps[step].writes:
                    now[tensor] = len(sizes)
                    sizes.append(self.sizes[tensor])
                    tensor_of.append(self.whole.tensor_of[tensor])
                run(step)
            run(position)
        seconds = self.whole.seconds + sum(self.steps[step].seconds for step in repeated)
        step_of = [self.whole.step_of[position] for position in positions]
        return Schedule(sizes, steps, step_of, tensor_of, seconds)

    def schedules(self, repeats: int = 1) -> list[Schedule]:
        """Schedules of less and less memory, the quickest first; see the module.

        Parameters
        ----------
        repeats : int
            How often what comes out is taken for a program and treated so again, and once more.
        """
        schedules = {frozenset[int](): self.whole}
        for dropped in self._choices() if repeats and self.steps else ():
            if dropped not in schedules:
                schedule = self.schedule(self.turn, dropped)
                if schedule is not None:
                    schedules[dropped] = schedule
        found = list(schedules.values())
        if repeats > 1:
            least = min(schedule.least_bytes for schedule in found)
            quickest = (
                next(s for s in _by_time(found) if s.least_bytes <= factor * least)
                for factor in _AGAIN
            )
            for start in list({id(schedule): schedule for schedule in quickest}.values()):
                found += Program(start, self._latest).schedules(repeats - 1)
        return _by_time(found)

    def frugal(self) -> Schedule:
        """The schedule that repeats what takes next to no time, from tensors that are held anyhow.

        Such are activations and normalized rows: maps of what the backward pass reads too. Repeated
        are as few as reach the least memory, nearly, and together they take at most `_NO_TIME` of
        the program's time.
        """
        turn, producer = self.turn, self.producer
        late_bytes: dict[int, int] = {}
        held = {tensor for tensor, size in enumerate(self.sizes) if not size}
        for tensor in {t for step in self.steps[turn + 1 :] for t in step.reads} - held:
            held.add(tensor)
            if 0 <= producer[tensor] <= turn:
                step = producer[tensor]
                late_bytes[step] = late_bytes.get(step, 0) + self.sizes[tensor]
        quick = [k for k in late_bytes if held.issuperset(self.steps[k].reads)]
        quick.sort(key=lambda k: (self.steps[k].seconds / late_bytes[k], k))
        seconds = np.cumsum([self.steps[k].seconds for k in quick])
        most_seconds = _NO_TIME * sum(step.seconds for step in self.steps)
        count = int(np.searchsorted(seconds, most_seconds, side="right"))
        found = [self.whole]
        for share in range(1, _PARTS + 1) if count else ():
            schedule = self.schedule(turn, frozenset(quick[: -(-count * share // _PARTS)]))
            if schedule is not None:
                found.append(schedule)
        least = min(schedule.least_bytes for schedule in found)
        return next(s for s in found if s.least_bytes <= _NEARLY * least)

    def _choices(self) -> Iterator[frozenset[int]]:
        """Yield sets of steps whose results may be dropped."""
        segments = Segments(self)
        tries = _MOST_STEPS // (2 * len(self.steps) * len(_SHARES))
        for held, end in segments.cuts(min(max(tries, 8), _MOST_SIZES)):
            dropped = frozenset(k for k in range(end) if self.limit[k] and k not in held)
            late = [k for k in dropped if segments.late_bytes[k]]
            late.sort(key=lambda k: (-self.steps[k].seconds / segments.late_bytes[k], k))
            bytes_held = np.cumsum([segments.late_bytes[k] for k in late])
            for share in _SHARES if late else ():
                number = int(np.searchsorted(bytes_held, share * bytes_held[-1], side="right"))
                yield dropped.difference(late[:number])


def _by_time(schedules: list[Schedule]) -> list[Schedule]:
    return sorted(schedules, key=lambda schedule: (schedule.seconds, schedule.least_bytes))
