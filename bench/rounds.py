"""Rounds: every contender in turn, and again if the machine was busy with something else."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One contender's share of a round.

    Attributes
    ----------
    seconds : list of float
        Of each step.
    load : float
        Cores that other processes kept busy meanwhile.
    """

    seconds: list[float]
    load: float


Round = dict[str, Turn]


@dataclass(frozen=True)
class Result:
    """The rounds that count, and how many were taken to get them.

    Attributes
    ----------
    rounds : list of Round
    attempts : int
    quiet : bool
        Whether every round that counts stayed under the limit.
    """

    rounds: list[Round]
    attempts: int
    quiet: bool

    def median_seconds(self, name: str) -> float:
        """Return the median over rounds of a contender's median step."""
        return statistics.median(statistics.median(r[name].seconds) for r in self.rounds)


def load_of(turns: Round) -> float:
    """Return the highest load of any turn of a round."""
    return max(turn.load for turn in turns.values())


def take_rounds(
    take: Callable[[int], Round], count: int, limit: float, attempts: int, pause: float
) -> Result:
    """Take rounds until enough were quiet or the attempts are used up.

    Parameters
    ----------
    take : callable
        Takes the round with an index; an empty round, because nobody is left to run, ends it.
    count : int
        Rounds that count. If fewer were quiet, the least loaded of the others fill up.
    limit : float
        Load above which a round is rejected.
    attempts : int
        Rounds taken at most.
    pause : float
        Seconds to wait after a rejected round.
    """
    taken: list[Round] = []
    while len(taken) < attempts and sum(load_of(r) <= limit for r in taken) < count:
        if taken and load_of(taken[-1]) > limit:
            time.sleep(pause)
        turns = take(len(taken))
        if not turns:
            return Result([], len(taken), quiet=False)
        taken.append(turns)
    chosen = sorted(taken, key=load_of)[:count]
    quiet = len(chosen) == count and load_of(chosen[-1]) <= limit
    return Result(chosen, len(taken), quiet)
