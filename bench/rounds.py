"""Rounds: every contender takes a turn, and another if the machine was busy with something else."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Turn:
    """Some steps of one contender.

    Attributes
    ----------
    seconds : list of float
        Of each step.
    load : float
        Cores that other processes kept busy meanwhile.
    """

    seconds: list[float]
    load: float


@dataclass(frozen=True)
class Rules:
    """When a contender has had its turns.

    Attributes
    ----------
    count : int
        Quiet turns that are wanted.
    max_load : float
        Cores that others may keep busy in a quiet turn.
    attempts : int
        Turns taken at most.
    seconds : float
        No further turn once the timed steps took this long: the slow must not hold up the rest.
    pause : float
        Seconds to wait after a loaded turn.
    until : float
        On the clock of `time.monotonic`: no further turn of anybody from then on.
    """

    count: int
    max_load: float
    attempts: int
    seconds: float
    pause: float
    until: float = math.inf


@dataclass
class Record:
    """The turns of one contender under some rules."""

    rules: Rules
    turns: list[Turn] = field(default_factory=list)

    @property
    def quiet(self) -> list[Turn]:
        """The turns during which nothing else kept the machine busy."""
        return [turn for turn in self.turns if turn.load <= self.rules.max_load]

    @property
    def counted(self) -> list[Turn]:
        """The turns that the figures come from: the quiet ones; all of them only if none was."""
        return self.quiet or self.turns

    @property
    def done(self) -> bool:
        spent = sum(sum(turn.seconds) for turn in self.turns)
        return (
            len(self.quiet) >= self.rules.count
            or len(self.turns) >= self.rules.attempts
            or spent >= self.rules.seconds
            or time.monotonic() >= self.rules.until
        )

    def median_seconds(self) -> float:
        """Return the median over turns of the median step."""
        return statistics.median(statistics.median(turn.seconds) for turn in self.counted)


def figures_of(record: Record) -> dict[str, Any]:
    """Return what was measured of one contender, as `--json` prints it."""
    return {
        "step_ms": 1e3 * record.median_seconds(),
        "quiet": bool(record.quiet),
        "turns_taken": len(record.turns),
        "turns": [
            {"load": turn.load, "step_ms": [1e3 * each for each in turn.seconds]}
            for turn in record.counted
        ],
    }


def take_rounds(
    names: Iterable[str], take: Callable[[str], Turn | None], rules: Rules
) -> dict[str, Record]:
    """Let contenders take turns, in rounds, until each is done.

    Parameters
    ----------
    names : iterable of str
    take : callable
        Takes a turn of the named contender; None if it failed, which removes it.
    rules : Rules

    Returns
    -------
    dict of str to Record
        Of the contenders that did not fail.
    """
    records = {name: Record(rules) for name in names}
    order = list(records)
    while any(not record.done for record in records.values()):
        for name in [name for name in order if name in records and not records[name].done]:
            turn = take(name)
            if turn is None:
                del records[name]
                continue
            records[name].turns.append(turn)
            if turn.load > rules.max_load:
                time.sleep(rules.pause)
        order = order[1:] + order[:1]  # nobody always follows the same one
    return records
