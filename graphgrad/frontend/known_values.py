"""Values that are known at import: numbers, and expressions of the inputs' symbolic dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

LARGEST = 4096  # elements; what is larger than any shape or table of positions stays a tensor


class NotKnownError(Exception):
    """A value is not known exactly at import. This error never reaches the user."""


@dataclass(frozen=True)
class Ratio:
    """A float that is exactly ``numerator / denominator``, an integer expression and an int."""

    numerator: Any
    denominator: int


@dataclass(frozen=True)
class KnownValue:
    """A tensor each element of which is known.

    Attributes
    ----------
    elements : numpy.ndarray of objects
        Python ints and bools, numpy floats of the dtype, and where dimensions are symbolic TVM
        integer expressions and `Ratio`.
    dtype : str
    """

    elements: np.ndarray
    dtype: str

    @classmethod
    def vector(cls, values: Sequence[Any], dtype: str) -> KnownValue:
        """The value of rank 1 with these elements."""
        elements = np.empty(len(values), dtype=object)
        for index, value in enumerate(values):
            elements[index] = value
        return cls(elements, dtype)

    @classmethod
    def of_array(cls, array: np.ndarray) -> KnownValue:
        """The value of a numpy array."""
        elements = array.astype(object)
        if array.dtype.kind == "f":  # as numpy numbers, so that arithmetic rounds as the dtype does
            elements[...] = np.frompyfunc(array.dtype.type, 1, 1)(elements)
        return cls(elements, array.dtype.name)

    @property
    def is_concrete(self) -> bool:
        """Whether every element is a number."""
        return not any(map(is_symbolic, self.elements.flat))

    def array(self) -> np.ndarray:
        """A concrete value as a numpy array."""
        return np.array(self.elements.tolist(), dtype=self.dtype).reshape(self.elements.shape)

    def dimensions(self) -> list[Any] | None:
        """The elements as extents, or None if one of them is no integer."""
        integers = [integral(element) for element in self.elements.flat]
        return None if any(element is None for element in integers) else integers

    def shape_expression(self) -> relax.ShapeExpr | None:
        """An integer vector as a Relax shape; None for any other value."""
        dimensions = self.dimensions()
        if self.elements.ndim != 1 or dimensions is None:
            return None
        return relax.ShapeExpr(list(map(as_int64, dimensions)))

    def tensor(self, builder: relax.BlockBuilder) -> relax.Expr:
        """The value as a tensor: a constant, or emitted arithmetic on dimensions."""
        if self.is_concrete:
            return relax.const(self.array(), self.dtype)
        ratios = [as_ratio(element) for element in self.elements.flat]
        numerators = [as_int64(ratio.numerator) for ratio in ratios]
        # Dimensions become numbers of the program by way of a shape, which is a vector of int64.
        value = relax.op.shape_to_tensor(relax.ShapeExpr(numerators))
        value = relax.op.reshape(value, list(self.elements.shape))
        denominators = [ratio.denominator for ratio in ratios]
        if self.dtype != "int64":
            value = relax.op.astype(value, self.dtype)
        if any(denominator != 1 for denominator in denominators):
            divisor = np.array(denominators, dtype=self.dtype).reshape(self.elements.shape)
            value = relax.op.divide(value, relax.const(divisor, self.dtype))
        return builder.emit(value)


def is_symbolic(element: Any) -> bool:
    """Whether an element depends on a symbolic dimension."""
    return isinstance(element, Ratio | tvm.ir.Expr)


def integral(element: Any) -> Any:
    """An element as an int or an integer expression; None if it is a float."""
    if isinstance(element, int | np.integer):
        return int(element)
    return element if isinstance(element, tvm.ir.Expr) else None


def as_ratio(element: Any) -> Ratio:
    """An element as a ratio.

    Raises
    ------
    NotKnownError
        It is a float that is not finite, or has more digits than products with dimensions in
        float32 keep exactly.
    """
    if isinstance(element, Ratio):
        return element
    if isinstance(element, tvm.ir.Expr | int):
        return Ratio(element, 1)
    if not np.isfinite(element):
        raise NotKnownError
    numerator, denominator = float(element).as_integer_ratio()
    # float32 holds integers up to 2²⁴ exactly.
    if denominator > 1024 or abs(numerator) > 2**24:
        raise NotKnownError
    return Ratio(numerator, denominator)


def as_int64(value: Any) -> Any:
    """A Python int as an int64 expression; any other value is an expression already."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value
