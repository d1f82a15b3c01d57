"""Time the steps of one model: a process for each contender, turns in rounds, one at a time."""

from __future__ import annotations

import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nvidia
import paths  # noqa: F401 (where `process` and `rounds` are found)
from journal import BROKEN, FAILED, MEASURED, NO_TIME, OUT_OF_MEMORY, SKIPPED, Line, say
from kit import NO_TORCH, Kit, environment, has_torch
from predictions import furthest
from process import ContenderError, Stepping
from rounds import Rules, Turn, take_rounds
from timed import step_name, steps_for

_RACER = Path(__file__).resolve().with_name("racer.py")

LOSS_TOLERANCE = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 2e-2}
"""Relative difference, by precision, from the initial loss of the first contender in fp32."""

_MEMORY = re.compile("out ?of ?memory|more memory than", re.IGNORECASE)
"""In the errors of CUDA, of torch and of exported steps."""

WARM_UP = 5
WATCHED_STEPS = 3
"""Steps whose calls are timed one by one."""

MOST_STEPS = 200


@dataclass(frozen=True)
class Settings:
    """How long a race takes.

    Attributes
    ----------
    rounds : int
        Turns of each contender.
    turn_seconds : float
        About how long a turn takes.
    limit : float
        Seconds that a contender's first step, with compilation, may take, and each later answer.
    until : float
        On the clock of `time.monotonic`: nothing is begun from then on.
    """

    rounds: int
    turn_seconds: float
    limit: float
    until: float

    @property
    def left(self) -> float:
        """Seconds until the limit, or until everything must end."""
        return min(self.limit, self.until - time.monotonic())


@dataclass
class Standing:
    """One contender of a race."""

    process: Stepping
    steps: int = 1
    turns: list[Turn] = field(default_factory=list)
    gpu: list[dict[str, str]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return what was measured so far."""
        seconds = [statistics.median(turn.seconds) for turn in self.turns]
        return {
            **self.process.facts,
            "step_ms": 1e3 * statistics.median(seconds),
            "turns_ms": [[1e3 * each for each in turn.seconds] for turn in self.turns],
            "steps_per_turn": self.steps,
            "memory": self.process.memory,
            "gpu": _medians(self.gpu),
        }


class Race:
    """A race on one timed model; its lines go to `add` as they come.

    Parameters
    ----------
    kit : Kit
    name : str
        Of a timed model.
    settings : Settings
    add : function
        Takes each `Line`; a later one about the same contender replaces the earlier.
    """

    def __init__(self, kit: Kit, name: str, settings: Settings, add: Callable[[Line], None]):
        self._kit, self._name, self._settings, self._add = kit, name, settings, add
        self._standings: dict[str, Standing] = {}
        self._expected: float | None = None

    def run(self, contenders: list[str]) -> None:
        """Start the contenders, in this order, and let them race until all have had their turns."""
        settings = self._settings
        try:
            for contender in contenders:
                self._start(contender)
            # Others' use of the GPU is told by no counter that holds for the last second alone.
            left = settings.rounds - 1  # the first turn of each has followed its start
            rules = Rules(left, 1.0, left, math.inf, 0.0, settings.until)
            take_rounds(list(self._standings), self._turn, rules)
            for contender in list(self._standings):
                self._compare_calls(contender)
        finally:
            for standing in self._standings.values():
                standing.process.close()

    def _start(self, contender: str) -> None:
        system = contender.split(maxsplit=1)[0]
        step, failed = step_name(self._name, contender), self._kit.about["failed"]
        if system == "graphgrad" and step in failed:
            self._line(contender, BROKEN, f"not packed: {failed[step]}")
            return
        reason = self._unavailable(contender)
        if reason:
            self._line(contender, SKIPPED, reason)
            return
        say(f"  {self._name}: {contender}: first step")
        start = time.monotonic()
        command = [sys.executable, str(_RACER), self._name, contender]
        # The packed packages would go before torch's own.
        packed = environment() if system == "graphgrad" else {}
        try:
            process = Stepping(contender, command, packed, self._settings.left)
        except ContenderError as error:
            self._fall(contender, error, time.monotonic() - start)
            return
        if self._differs(process.facts["initial_loss"], contender):
            process.close()
            reason = f"initial loss {process.facts['initial_loss']}, expected {self._expected}"
            self._line(contender, FAILED, reason)
            return
        self._standings[contender] = standing = Standing(process)
        reason = "its first step is made, but no turn was taken"
        self._line(contender, SKIPPED, reason, process.facts, time.monotonic() - start)
        self._guarded(contender, lambda: self._warm_up(standing))
        # At once: should time run out while others compile, this one has been measured.
        if contender in self._standings and self._settings.left > 0:
            self._turn(contender)

    def _unavailable(self, contender: str) -> str:
        """Return why a contender does not even start; nothing if it does."""
        if self._settings.left <= 0:
            return NO_TIME
        is_ours = contender.startswith("graphgrad")
        if is_ours and contender not in steps_for(self._kit.device):
            return f"not packed for a {self._kit.device}: it would be another contender's step"
        if not is_ours and not has_torch():
            return NO_TORCH
        if self._kit.device == "cpu" and contender.endswith("tf32"):
            return "not available: a CPU has no TF32"
        return ""

    def _differs(self, loss: float, contender: str) -> bool:
        """Return whether an initial loss is another one than that of the first in fp32."""
        precision = contender.rsplit(maxsplit=1)[-1]
        if self._expected is None and precision == "fp32":
            self._expected = loss
        expected = loss if self._expected is None else self._expected
        return not math.isclose(loss, expected, rel_tol=LOSS_TOLERANCE[precision])

    def _warm_up(self, standing: Standing) -> None:
        """Make untimed steps, and choose how many fill a turn."""
        seconds = statistics.median(standing.process.run(WARM_UP))
        wanted = self._settings.turn_seconds / seconds
        standing.steps = max(1, min(MOST_STEPS, round(wanted)))

    def _turn(self, contender: str) -> Turn | None:
        standing = self._standings[contender]

        def take() -> Turn:
            # After a stop the first step is slow, with memory to be got again.
            seconds = standing.process.run(standing.steps, untimed=2)
            return Turn(seconds, load=0.0)

        turn = self._guarded(contender, take)
        if turn is not None:
            standing.turns.append(turn)
            standing.gpu += filter(None, [nvidia.now()])
            self._line(contender, MEASURED, "", standing.figures())
        return turn

    def _compare_calls(self, contender: str) -> None:
        """Add the kernels that are furthest from their prediction to a contender's line."""
        standing = self._standings[contender]
        predicted = self._kit.calls(step_name(self._name, contender))
        if not contender.startswith("graphgrad") or predicted is None or self._settings.left <= 0:
            return

        answer = self._guarded(contender, lambda: standing.process.ask({"calls": WATCHED_STEPS}))
        if answer is None or not standing.turns:
            return
        figures = standing.figures()
        figures["predicted_ms"] = 1e3 * sum(call["seconds"] for call in predicted)
        reason = ""
        try:
            calls = [(name, seconds) for name, seconds in answer["calls"]]
            figures["furthest"] = furthest(calls, predicted)
        except ValueError as error:
            reason = str(error)
        self._line(contender, MEASURED, reason, figures)

    def _guarded(self, contender: str, work: Callable[[], Any]) -> Any:
        """Do something with a contender; if that fails, it is out."""
        try:
            return work()
        except ContenderError as error:
            standing = self._standings.pop(contender)
            standing.process.close()
            self._fall(contender, error, 0.0, standing.figures() if standing.turns else None)
            return None

    def _fall(
        self,
        contender: str,
        error: ContenderError,
        seconds: float,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell that a contender is out; what it has measured before stays."""
        if time.monotonic() >= self._settings.until:
            status, reason = (MEASURED, "") if figures else (SKIPPED, NO_TIME)
        else:
            reason = str(error)
            status = OUT_OF_MEMORY if _MEMORY.search(reason) else BROKEN
        self._line(contender, status, reason, figures, seconds)

    def _line(
        self,
        contender: str,
        status: str,
        reason: str,
        figures: Mapping[str, Any] | None = None,
        seconds: float = 0.0,
    ) -> None:
        found = dict(figures or {})
        self._add(Line("benchmark", self._name, contender, status, reason, seconds, found))


def _medians(readings: list[dict[str, str]]) -> dict[str, str] | None:
    """Return the reading in the middle of each field; of what is no number, some one."""
    if not readings:
        return None
    return {
        key: sorted((each[key] for each in readings), key=_number)[len(readings) // 2]
        for key in readings[0]
    }


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf
