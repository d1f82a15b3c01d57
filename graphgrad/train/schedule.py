"""Learning rates as functions of the step number, computed on the host.

The schedules made here can be pickled, because each is a function of this module with its settings.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..errors import ArgumentError
from .optimizer import check_rate

Schedule = Callable[[int], float]


def constant(rate: float) -> Schedule:
    """The schedule that gives `rate` at every step.

    Raises
    ------
    ArgumentError
        As all schedules: a rate is negative or not finite.
    """
    check_rate("constant: rate", rate)
    return partial(_constant_rate, rate)


def step_decay(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """The schedule that multiplies the rate by `factor` after each `every` steps.

    Raises
    ------
    ArgumentError
        `every` is no whole number, or below one; `factor` is negative or not finite.
    """
    check_rate("step_decay: rate", rate)
    check_rate("step_decay: factor", factor)
    _check_count("step_decay: every", every, 1)
    return partial(_decayed_rate, rate, every, factor)


def cosine(peak: float, steps: int, lowest: float = 0.0) -> Schedule:
    """Half a cosine from `peak` down to `lowest`, reached at step `steps` and kept.

    Loshchilov and Hutter, *SGDR* (2017), equation 5, without restarts.

    Raises
    ------
    ArgumentError
        `steps` is no whole number, or below one.
    """
    check_rate("cosine: peak", peak)
    check_rate("cosine: lowest", lowest)
    _check_count("cosine: steps", steps, 1)
    return partial(_cosine_rate, peak, steps, lowest)


def warmup(schedule: Schedule, steps: int) -> Schedule:
    """A linear rise over `steps` steps to the first rate of `schedule`, which then begins.

    The first rate is not zero but one part in `steps`; the last step of the rise has the full rate.

    Raises
    ------
    ArgumentError
        `schedule` is no function, or `steps` no whole number or negative.
    """
    if not callable(schedule):
        raise ArgumentError(
            f"warmup: {schedule!r} is no schedule; for one rate give schedule.constant(rate)"
        )
    _check_count("warmup: steps", steps, 0)
    return partial(_warmup_rate, schedule, steps)


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
        The share is not between 0 and 1, a divisor is not above 0, or there are too few steps for
        both parts.
    """
    for name, value in {
        "peak": peak,
        "warmup_share": warmup_share,
        "initial_divisor": initial_divisor,
        "final_divisor": final_divisor,
    }.items():
        check_rate(f"one_cycle: {name}", value)
        if "divisor" in name and value == 0:
            raise ArgumentError(f"one_cycle: {name}={value!r} must be above 0")
    _check_count("one_cycle: steps", steps, 1)
    # Counted from 0, and a fraction in general: torch places the peak so.
    peak_step = warmup_share * steps - 1
    if not (0 < warmup_share < 1 and 0 < peak_step < steps - 1):
        raise ArgumentError(
            f"one_cycle: {steps} steps with warmup_share={warmup_share} are too few; the rise and "
            "the fall each need more than one, and the share is between 0 and 1"
        )
    first = peak / initial_divisor
    return partial(_one_cycle_rate, first, peak, first / final_divisor, peak_step, steps - 1)


def _constant_rate(rate: float, step: int) -> float:
    return rate


def _decayed_rate(rate: float, every: int, factor: float, step: int) -> float:
    return rate * factor ** (step // every)


def _cosine_rate(peak: float, steps: int, lowest: float, step: int) -> float:
    return _between(peak, lowest, min(step, steps) / steps)


def _warmup_rate(schedule: Schedule, steps: int, step: int) -> float:
    if step < steps:
        return schedule(0) * (step + 1) / steps
    return schedule(step - steps)


def _one_cycle_rate(
    first: float, peak: float, last: float, peak_step: float, last_step: int, step: int
) -> float:
    if step <= peak_step:
        return _between(first, peak, step / peak_step)
    return _between(peak, last, min((step - peak_step) / (last_step - peak_step), 1.0))


def _between(start: float, end: float, share: float) -> float:
    """The value of half a cosine from `start` to `end`, with `share` of the way behind it."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


def _check_count(name: str, value: Any, least: int) -> None:
    """Raise unless a value is a whole number of at least `least`."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < least:
        raise ArgumentError(f"{name}={value!r} must be a whole number, at least {least}")
