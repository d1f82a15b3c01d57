"""Learning rates as functions of the step number, computed on the host."""

import math
from collections.abc import Callable

from ..errors import ArgumentError

Schedule = Callable[[int], float]


def constant(rate: float) -> Schedule:
    """Return the schedule that gives `rate` at every step."""
    return lambda step: rate


def warmup_cosine(peak: float, steps: int, warmup: int) -> Schedule:
    """Return a linear rise to `peak` over `warmup` steps, then half a cosine down to zero.

    Parameters
    ----------
    peak : float
        The highest rate, reached at step ``warmup - 1``.
    steps : int
        Length of the whole run; the rate would be zero at step `steps`.
    warmup : int
        Length of the rise, fewer than `steps`.

    Returns
    -------
    Schedule
        From the step number, counted from zero, to the learning rate.
    """
    if not 0 <= warmup < steps:
        raise ArgumentError(
            f"a warm-up of {warmup} steps does not fit a run of {steps} steps; "
            "it is at least 0 and shorter than the run"
        )

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))

    return rate
