"""What a linear system is made of: unknowns, equations, and divisions that define unknowns."""

from __future__ import annotations

from dataclasses import dataclass

from ..walk import Expr
from . import polynomial
from .polynomial import Form, plus


@dataclass(frozen=True)
class Unknown:
    """What a system is solved for.

    Attributes
    ----------
    name : str
    low, high : Form
        Its range, both inclusive, free of unknowns.
    axis : int
        The axis that it is, or is a part of.
    bounded : bool
        It must be kept in this range; otherwise the equations and the others' ranges do that.
    """

    name: str
    low: Form
    high: Form
    axis: int
    bounded: bool = True

    @property
    def extent(self) -> Form:
        """How many values it takes."""
        return plus(plus(self.high, self.low, -1), polynomial.constant(1))


@dataclass(frozen=True)
class Row:
    """An equation: a form without a constant, and what it must be."""

    form: Form
    right: Expr


@dataclass(frozen=True)
class Division:
    """dividend = divisor · quotient + remainder, where the last two are unknowns."""

    dividend: Form
    divisor: Form
    quotient: int
    remainder: int
