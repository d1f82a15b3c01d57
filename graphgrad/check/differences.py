"""The derivative of a function along a line, by differences, and whether a gradient agrees with it.

From values at 0, ±h/2, ±h and ±2h come two five-point estimates,
``D(h) = (8 (f(h) − f(−h)) − (f(2h) − f(−2h))) / 12h`` with an error of order h⁴, and from both, by
Richardson's extrapolation, ``(16 D(h/2) − D(h)) / 15`` with an error of order h⁶; and one estimate
from each side alone. What rounding adds is bounded by the size of the terms, over h.

Where a gradient does not agree, and the estimates do not agree among themselves either, the line
has perhaps a kink or a steep bend within the step. So smaller steps are tried, as long as rounding
leaves them a meaning. Agreement at a smaller step is agreement, but is reported; and where the two
sides keep different slopes or values however small the step, the point itself is a kink, and no
gradient can be judged there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kink = Literal["", "near", "exact"]

Line = Callable[[float], tuple[float, float]]
"""Maps t to the value there, and to the size of the terms that were summed to get it."""

_MAX_ROUNDINGS = 64
"""How many roundings of the summed terms' size a difference may be off by."""

_DOUBT_FACTOR = 30
"""A disagreement of this many times what the estimates at a step differ by is not the step's fault:
the gradient is wrong, and smaller steps need not be tried."""


@dataclass(frozen=True)
class Precision:
    """The steps and tolerances by which a function that computes in some dtype is judged.

    Attributes
    ----------
    name : str
    epsilon : float
        Spacing of the numbers next to one.
    rtol : float
        Relative error that passes.
    steps : tuple of float
        In the order in which they are tried.
    limit : float
        Steps at which rounding is a larger share of the derivative than this are not tried.
    """

    name: str
    epsilon: float
    rtol: float
    steps: tuple[float, ...]
    limit: float


FLOAT64 = Precision("float64", 2.0**-52, 1e-8, (1e-3, 1e-4, 1e-5, 1e-6, 1e-7), 1e-4)
HALF = Precision("half precision", 2.0**-8, 5e-2, (0.25,), 1.0)
FLOAT32 = Precision("float32", 2.0**-23, 1e-3, (0.125, 0.03, 0.01), 1e-2)


@dataclass(frozen=True)
class Slope:
    """Estimates of a derivative with one step; `noise` bounds what rounding adds to them."""

    step: float
    value: float
    uncertainty: float
    left: float
    right: float
    noise: float

    @property
    def jump(self) -> float:
        """By how much the slope changes at the point."""
        return abs(self.right - self.left)


@dataclass(frozen=True)
class Verdict:
    """Whether a derivative agrees with differences.

    Attributes
    ----------
    agrees : bool
    error : float
        Relative to the scale of the derivative.
    kink : "", "near" or "exact"
        "near": it agrees only where the step is smaller than the usual one. "exact": the two sides
        have different slopes.
    slope : Slope
        The best estimate.
    """

    agrees: bool
    error: float
    kink: Kink
    slope: Slope


def measure(line: Line, step: float, epsilon: float) -> Slope:
    """Estimate the derivative of a function at 0 with one step."""
    values: dict[float, float] = {}
    size = 0.0
    for offset in (0.0, step / 2, -step / 2, step, -step, 2 * step, -2 * step):
        values[offset], terms = line(offset)
        size = max(size, terms)

    def five_point(h: float) -> float:
        near, far = values[h] - values[-h], values[2 * h] - values[-2 * h]
        return (8 * near - far) / (12 * h)

    fine = five_point(step / 2)
    value = (16 * fine - five_point(step)) / 15
    # One-sided differences of second order with the step h / 2; a negative h is the left side.
    right, left = ((4 * values[h / 2] - values[h] - 3 * values[0.0]) / h for h in (step, -step))
    return Slope(
        step, value, abs(value - fine), left, right, _MAX_ROUNDINGS * epsilon * size / step
    )


def judge(
    line: Line,
    derivative: float,
    scale: float,
    precision: Precision,
    rtol: float | None = None,
    atol: float | None = None,
) -> Verdict:
    """Compare a derivative with differences.

    Parameters
    ----------
    line : Line
    derivative : float
        Given for t = 0.
    scale : float
        What the error is relative to, if the derivative itself is smaller.
    precision : Precision
    rtol : float, optional
        Relative tolerance; by default that of the precision.
    atol : float, optional
        Absolute tolerance; by default the bound on what rounding adds.
    """
    rtol = precision.rtol if rtol is None else rtol
    slopes: list[Slope] = []
    # From the largest step to the smallest: rounding adds least at large ones.
    for step in precision.steps:
        slope = measure(line, step, precision.epsilon)
        size = max(scale, abs(slope.value))
        # The first step is always judged. Of a derivative of 0 beside a jump, rounding is compared
        # with the slope of the jump. "Not at most", so that NaN ends the search, too.
        if slopes and not slope.noise <= precision.limit * max(size, abs(slopes[-1].value)):
            break
        slopes.append(slope)
        difference = abs(slope.value - derivative)
        if difference <= rtol * size + (slope.noise if atol is None else atol):
            kink: Kink = "near" if len(slopes) > 1 else ""
            return Verdict(True, difference / size if size else 0.0, kink, slope)
        if difference > _DOUBT_FACTOR * (slope.jump + slope.uncertainty):
            break
    best = min(slopes, key=lambda slope: slope.uncertainty + slope.noise)
    exact = _is_kink(slopes, scale, derivative)
    reported = slopes[-1] if exact else best
    size = max(scale, abs(reported.value))
    error = abs(reported.value - derivative) / size if size else float("inf")
    return Verdict(False, error, "exact" if exact else "", reported)


def _is_kink(slopes: list[Slope], scale: float, derivative: float) -> bool:
    """Whether the two sides keep different slopes, or values, while the step shrinks.

    The jump of a bend shrinks with the step, that of a kink does not, and that of a function that
    is not continuous grows by as much as the step shrinks. It has to be large against rounding,
    and against the slopes themselves or the error, which it explains then.
    """
    smallest = slopes[-1]
    size = max(scale, abs(smallest.left), abs(smallest.right))
    change = smallest.step * smallest.jump
    persists = all(slope.step * slope.jump > 0.5 * change for slope in slopes[-3:])
    least = min(1e-3 * size, abs(smallest.value - derivative))
    return len(slopes) > 1 and persists and smallest.jump > max(100 * smallest.noise, least)
