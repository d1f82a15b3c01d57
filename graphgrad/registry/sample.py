"""Samples: calls of an op, carried by its rule, on which the rule is checked.

``sample((2, 3), axis=1)`` stands for a call of the op on a random tensor of shape (2, 3) with that
attribute. An argument is one of

- a tuple: the shape of a random tensor in (-1, 1); a string in it is a symbolic dimension
- `tensor`: the same with bounds, kept away from kinks, or of integers
- a list of those: a tuple argument, as of ``concat``
- anything else: handed to the op as it is
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm


@dataclass(frozen=True)
class TensorArgument:
    """A random tensor argument of a sample.

    Attributes
    ----------
    shape : tuple of int or str
        A string names a symbolic dimension.
    low, high : float
        Bounds of the values; exclusive above.
    dtype : "float" or an integer dtype
        "float" is the dtype that a check chooses, float64 as a rule.
    distinct : bool
        All values differ by at least 0.05 or so: no ties for max and min.
    avoid : float or None
        Values stay at least 0.1 away from this kink.
    """

    shape: tuple[int | str, ...]
    low: float = -1.0
    high: float = 1.0
    dtype: str = "float"
    distinct: bool = False
    avoid: float | None = None

    def draw(
        self, generator: np.random.Generator, sizes: Mapping[str, int], dtype: str
    ) -> np.ndarray:
        """Random values; `sizes` gives the symbolic dimensions their extents."""
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in self.shape)
        if self.dtype != "float":
            low, high = int(self.low), int(self.high)
            return generator.integers(low, high, size=shape).astype(self.dtype)
        if self.distinct:
            steps = generator.permutation(int(np.prod(shape))).reshape(shape)
            return (self.low + 0.07 * (steps + 0.5)).astype(dtype)
        values = generator.uniform(self.low, self.high, size=shape)
        if self.avoid is not None:
            offset = values - self.avoid
            values = self.avoid + offset + np.where(offset >= 0, 0.1, -0.1)
        return values.astype(dtype)


@dataclass(frozen=True)
class Sample:
    """One call of an op: its arguments and attributes.

    Attributes
    ----------
    arguments : tuple
    attributes : mapping
    second_order : bool
        Whether the call is also checked to order two.
    """

    arguments: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    second_order: bool = True

    def __str__(self) -> str:
        arguments = [_describe(argument) for argument in self.arguments]
        attributes = [f"{key}={_describe(value)}" for key, value in self.attributes.items()]
        return ",".join(arguments + attributes).replace(" ", "")


def _describe(argument: Any) -> str:
    """An argument or attribute as short text."""
    if isinstance(argument, TensorArgument):
        kind = "" if argument.dtype == "float" else argument.dtype
        return kind + str(argument.shape)
    if isinstance(argument, (list, tuple)) and argument and not isinstance(argument[0], int):
        return "[" + ";".join(_describe(item) for item in argument) + "]"
    if isinstance(argument, tvm.ir.GenericConst):
        return f"const{tuple(argument.value.shape)}"
    if inspect.isfunction(argument):
        return argument.__name__
    return str(argument)


def tensor(
    shape: tuple[int | str, ...],
    low: float = -1.0,
    high: float = 1.0,
    *,
    dtype: str = "float",
    distinct: bool = False,
    avoid: float | None = None,
) -> TensorArgument:
    """Describe a random tensor argument; see `TensorArgument`."""
    return TensorArgument(shape, low, high, dtype, distinct, avoid)


def static(value: Any) -> Static:
    """Mark an argument that is handed to the op as it is, though it looks like a shape."""
    return Static(value)


@dataclass(frozen=True)
class Static:
    """An argument that is handed to the op as it is."""

    value: Any

    def __str__(self) -> str:
        return str(self.value)


def sample(*arguments: Any, second_order: bool = True, **attributes: Any) -> Sample:
    """Describe a call of an op; see the module's text for what an argument can be."""
    return Sample(tuple(map(_argument, arguments)), attributes, second_order)


def _argument(value: Any) -> Any:
    """An argument with its shapes read as random tensors."""
    if isinstance(value, tuple) and all(isinstance(item, (int, str)) for item in value):
        return TensorArgument(value)
    if isinstance(value, list) and value and isinstance(value[0], (tuple, TensorArgument)):
        return [_argument(item) for item in value]
    return value
