"""Random choices that can be played back, so that what they led to can be made smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Choices:
    """A tape of numbers from 0 to 1, each of which decides something.

    The smaller a number, the simpler what it stands for: options are listed with the simplest
    first, and 0 declines. Behind its end a tape without a seed goes on with zeros.

    Parameters
    ----------
    seed : int, optional
        Of the numbers behind the tape's end.
    tape : sequence of float
    """

    def __init__(self, seed: int | None = None, tape: Sequence[float] = ()):
        self.tape = list(tape)
        self._generator = None if seed is None else np.random.default_rng(seed)
        self._position = 0

    def number(self) -> float:
        """Return the next number of the tape."""
        if self._position == len(self.tape):
            self.tape.append(0.0 if self._generator is None else float(self._generator.random()))
        self._position += 1
        return self.tape[self._position - 1]

    def chance(self, probability: float) -> bool:
        """Return whether something happens."""
        return self.number() > 1 - probability

    def integer(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both inclusive."""
        return low + int(self.number() * (high - low + 1))

    def pick(self, options: Sequence[T]) -> T:
        """Return one of some options."""
        return options[int(self.number() * len(options))]


def smallest(
    tape: Sequence[float], fails: Callable[[Sequence[float]], bool], tries: int
) -> list[float]:
    """Return a shorter tape that still fails, found by leaving out parts or making them zero."""
    best = list(tape)
    length = len(best)
    while length:
        for shorter in _simpler(best, length):
            tries -= 1
            if fails(shorter):
                best = shorter
                break
            if not tries:
                return best
        else:
            length //= 2
        length = min(length, len(best))
    return best


def _simpler(tape: list[float], length: int) -> Iterator[list[float]]:
    """Yield the tapes with `length` neighbors left out, or zero."""
    for start in range(0, len(tape), length):
        end = start + length
        yield tape[:start] + tape[end:]
        if any(tape[start:end]):
            yield tape[:start] + [0.0] * len(tape[start:end]) + tape[end:]
