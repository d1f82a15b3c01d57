"""The contenders of a comparison: those that run, and what became of those that failed."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass

from load import LoadMeter
from process import ContenderError, Stepping
from rounds import Record, Rules, Turn, take_rounds

WARM_UP = 5


@dataclass(frozen=True)
class Pace:
    """How long contenders compete.

    Attributes
    ----------
    rules : Rules
    turn_seconds : float
        About how long a contender's turn takes.
    most_steps : int
        In one turn.
    """

    rules: Rules
    turn_seconds: float
    most_steps: int


class Field:
    """The contenders on one piece of work.

    Parameters
    ----------
    pace : Pace
    told : callable
        Told of each turn, with the contender's name.

    Attributes
    ----------
    running : dict of str to Stepping
    errors : dict of str to str
        Of the contenders that failed, which are out.
    """

    def __init__(self, pace: Pace, told: Callable[[str, Turn], None] = lambda name, turn: None):
        self._pace, self._told = pace, told
        self._steps: dict[str, int] = {}
        self.running: dict[str, Stepping] = {}
        self.errors: dict[str, str] = {}

    def enter(self, name: str, start: Callable[[], Stepping]) -> None:
        """Start a contender, or note why it does not start."""
        try:
            self.running[name] = start()
        except ContenderError as error:
            self.errors[name] = str(error)

    def fail(self, name: str, reason: str) -> None:
        """Note why a contender that has started is out."""
        self.errors[name] = reason
        self.running.pop(name).close()

    def compete(self) -> dict[str, Record]:
        """Warm every contender up and take the rounds; return what those did that did not fail."""
        for name in list(self.running):
            self._guarded(name, self._warm_up)
        return take_rounds(
            list(self.running), lambda name: self._guarded(name, self._turn), self._pace.rules
        )

    def close(self) -> None:
        """End all processes."""
        for contender in self.running.values():
            contender.close()

    def _guarded(self, name: str, work: Callable[[str, Stepping], Turn]) -> Turn | None:
        """Do something with a contender; if that fails, it is out."""
        try:
            return work(name, self.running[name])
        except ContenderError as error:
            self.fail(name, str(error))
            return None

    def _warm_up(self, name: str, contender: Stepping) -> Turn:
        """Make untimed steps, and choose how many fill a turn."""
        seconds = contender.run(1)
        if seconds[0] < self._pace.turn_seconds:
            seconds = contender.run(WARM_UP)
        wanted = self._pace.turn_seconds / statistics.median(seconds)
        self._steps[name] = max(1, min(self._pace.most_steps, round(wanted)))
        return Turn(seconds, load=0.0)

    def _turn(self, name: str, contender: Stepping) -> Turn:
        steps = self._steps[name]
        meter = LoadMeter(contender.pid)
        # The first step after a stop is slow, with cold caches and threads asleep: a turn of
        # several steps starts with one that does not count.
        turn = Turn(contender.run(steps, untimed=int(steps > 1)), meter.foreign_cores())
        self._told(name, turn)
        return turn


def add_pace(
    parser: argparse.ArgumentParser,
    rounds: int,
    turn_seconds: float,
    max_load: float,
    pause: float,
    most_seconds: float,
) -> None:
    """Add the arguments that `chosen_pace` reads, with the benchmark's defaults."""
    add = parser.add_argument
    add("--rounds", type=positive, default=rounds, help="quiet turns of each contender")
    add("--attempts", type=positive, help="turns taken at most; default three times --rounds")
    add(
        "--turn-seconds",
        type=float,
        default=turn_seconds,
        help="about how long a contender's turn takes",
    )
    add(
        "--most-seconds",
        type=float,
        default=most_seconds,
        help="no further turn for a contender whose timed steps took this long",
    )
    add(
        "--max-load",
        type=float,
        default=max_load,
        help="cores others may keep busy in a quiet turn",
    )
    add("--pause", type=float, default=pause, help="seconds to wait after a loaded turn")


def add_clock(parser: argparse.ArgumentParser) -> None:
    """Add the argument that times the processor instead of the wall clock."""
    parser.add_argument(
        "--cpu-time",
        dest="clock",
        action="store_const",
        const="process_time",
        default="perf_counter",
        help="time the processor, not the wall clock, whatever others do; one thread alone",
    )


def check_clock(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End the program if several threads are timed by the processor; its load is then no matter."""
    if arguments.clock == "process_time":
        if arguments.threads > 1:
            parser.error("--cpu-time adds up all threads; give --threads 1")
        arguments.max_load = math.inf


def chosen_pace(arguments: argparse.Namespace, most_steps: int) -> Pace:
    """Return what the command line says."""
    rules = Rules(
        arguments.rounds,
        arguments.max_load,
        arguments.attempts or 3 * arguments.rounds,
        arguments.most_seconds,
        arguments.pause,
    )
    return Pace(rules, arguments.turn_seconds, most_steps)


def positive(text: str) -> int:
    """Read a number above zero."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number above zero, given {text}")
    return value


def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return what reads names out of those known, with commas between them."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {unknown}; there are {list(known)}")
        return names

    return read


def say(text: str) -> None:
    """Tell of progress where it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)
