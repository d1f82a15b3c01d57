"""Learning rates as functions of the step number, computed on the host."""

import math
from collections.abc import Callable

from ..errors import ArgumentError

Schedule = Callable[[int], float]


def constant(rate: float) -> Schedule:
    """The schedule that gives `rate` at every step."""
    return lambda step: rate


def step_decay(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """The schedule that multiplies the rate by `factor` after each `every` steps.

    Raises
    ------
    ArgumentError
        `every` is below one.
    """
    if every < 1:
        raise ArgumentError(f"step_decay: every={every} must be at least 1")
    return lambda step: rate * factor ** (step // every)


def cosine(peak: float, steps: int, lowest: float = 0.0) -> Schedule:
    """Half a cosine from `peak` down to `lowest`, reached at step `steps` and kept.

    Loshchilov and Hutter, *SGDR* (2017), equation 5, without restarts.

    Raises
    ------
    ArgumentError
        `steps` is below one.
    """
    if steps < 1:
        raise ArgumentError(f"cosine: steps={steps} must be at least 1")
    return lambda step: _between(peak, lowest, min(step, steps) / steps)


def warmup(schedule: Schedule, steps: int) -> Schedule:
    """A linear rise over `steps` steps to the first rate of `schedule`, which then begins.

    The first rate is not zero but one part in `steps`; the last step of the rise has the full rate.

    Raises
    ------
    ArgumentError
        `steps` is negative.
    """
    if steps < 0:
        raise ArgumentError(f"warmup: steps={steps} must be at least 0")

    def rate(step: int) -> float:
        if step < steps:
            return schedule(0) * (step + 1) / steps
        return schedule(step - steps)

    return rate


def one_cycle(
    peak: float,
    steps: int,
    warmup_share: float = 0.3,
    initial_divisor: float = 25.0,
    final_divisor: float = 1e4,
) -> Schedule:
    """One cycle: half a cosine up to `peak`, then half a cosine down to almost nothing.

    Smith and Topin, *Super-convergence* (2018), with the conventions of
    ``torch.optim.lr_scheduler.OneCycleLR``.

    Parameters
    ----------
    peak : float
    steps : int
        Length of the whole run; the last step has the lowest rate, which is then kept.
    warmup_share : float
        The share of the steps that rise, between 0 and 1.
    initial_divisor : float
        The first rate is the peak over this.
    final_divisor : float
        The last rate is the first one over this.

    Raises
    ------
    ArgumentError
        The share is not between 0 and 1, or there are too few steps for both parts.
    """
    # Counted from 0, and a fraction in general: torch places the peak so.
    peak_step = warmup_share * steps - 1
    if not (0 < warmup_share < 1 and 0 < peak_step < steps - 1):
        raise ArgumentError(
            f"one_cycle: {steps} steps with warmup_share={warmup_share} are too few; the rise and "
            "the fall each need more than one, and the share is between 0 and 1"
        )
    first = peak / initial_divisor
    last = first / final_divisor

    def rate(step: int) -> float:
        if step <= peak_step:
            return _between(first, peak, step / peak_step)
        return _between(peak, last, min((step - peak_step) / (steps - 1 - peak_step), 1.0))

    return rate


def _between(start: float, end: float, share: float) -> float:
    """The value of half a cosine from `start` to `end`, with `share` of the way behind it."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))
