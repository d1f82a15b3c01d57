"""What a case of a topi function is: a call, and how its arguments are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te


@dataclass(frozen=True)
class Values:
    """A placeholder and what it holds: floats or integers of a range, high not included.

    Attributes
    ----------
    shape : tuple of int
    low, high : float
    dtype : str
    spread : bool
        Each value once, evenly spread: nothing ties, and nothing comes close to it.
    """

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    dtype: str = "float64"
    spread: bool = False

    def placeholder(self, name: str) -> te.Tensor:
        return te.placeholder(self.shape, self.dtype, name=name)

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        if self.spread:
            count = int(np.prod(self.shape))
            values = np.linspace(self.low, self.high, count, endpoint=False) + 0.3 / count
            return generator.permutation(values).reshape(self.shape).astype(self.dtype)
        if self.dtype == "bool":
            return generator.random(self.shape) < 0.5
        if self.dtype.startswith(("int", "uint")):
            return generator.integers(int(self.low), int(self.high), self.shape, self.dtype)
        return generator.uniform(self.low, self.high, self.shape).astype(self.dtype)


def reals(*shape: int, low: float = -1.0, high: float = 1.0, dtype: str = "float64") -> Values:
    """Return floats of a range."""
    return Values(shape, low, high, dtype)


def spread(*shape: int, low: float = -1.0, high: float = 1.0) -> Values:
    """Return floats of a range that are far from each other."""
    return Values(shape, low, high, spread=True)


def singles(*shape: int, low: float = -1.0, high: float = 1.0) -> Values:
    """Return floats for a function that takes no float64."""
    return Values(shape, low, high, "float32")


def integers(*shape: int, below: int, low: int = 0, dtype: str = "int32") -> Values:
    """Return integers from `low`, smaller than `below`."""
    return Values(shape, low, below, dtype)


def booleans(*shape: int) -> Values:
    """Return truth values."""
    return Values(shape, dtype="bool")


@dataclass(frozen=True)
class Case:
    """One call of a topi function.

    Attributes
    ----------
    function : str
        Its name below ``topi``.
    variant : str
        What is particular about this call; empty for the plain one.
    call : callable
        Takes one placeholder per argument; returns a tensor or several.
    arguments : tuple of Values
    """

    function: str
    variant: str
    call: Callable[..., te.Tensor | Sequence[te.Tensor]]
    arguments: tuple[Values, ...]

    def __str__(self) -> str:
        return f"{self.function}: {self.variant}" if self.variant else self.function

    def build(self) -> tuple[list[te.Tensor], list[te.Tensor]]:
        """Return the outputs, and the placeholders."""
        placeholders = [values.placeholder(f"x{i}") for i, values in enumerate(self.arguments)]
        found = self.call(*placeholders)
        return [found] if isinstance(found, te.Tensor) else list(found), placeholders

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """Return values for the placeholders."""
        generator = np.random.default_rng(seed)
        return [values.draw(generator) for values in self.arguments]


def case(
    function: str,
    call: Callable[..., Any],
    *arguments: Values | tuple[int, ...],
    variant: str = "",
) -> Case:
    """Return a case; a shape stands for floats between -1 and 1."""
    values = tuple(a if isinstance(a, Values) else reals(*a) for a in arguments)
    return Case(function, variant, call, values)
