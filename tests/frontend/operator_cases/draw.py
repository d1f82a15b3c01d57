"""Random choices for the cases of one operator, and the registry of those who make them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from onnx import helper

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int8", "int16", "uint8", "uint16", "uint32", "uint64")

_ORDER = (*FLOATS, *INTEGERS, "bool")

_SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0)


@dataclass(frozen=True)
class Constant:
    """An input of a node that is an initializer of the model."""

    array: np.ndarray


@dataclass
class Drawn:
    """A node's inputs and attributes.

    Attributes
    ----------
    inputs : list
        An array, a `Constant`, the name of a value that a node in `before` gives, or None for an
        input that is left out.
    attributes : dict
    outputs : int or list of bool
        How many outputs are asked for, or for each whether it is.
    before, after : lists of NodeProto
        Nodes around the node, such as those that make and unmake a sequence. Inputs of the node
        are x0, x1, …, its outputs y0, y1, …; where `results` is given, it names the outputs of the
        model.
    extra : dict
        Further inputs of the model by name, which nodes in `before` and inner graphs read.
    """

    inputs: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int | list[bool] = 1
    before: list[Any] = field(default_factory=list)
    after: list[Any] = field(default_factory=list)
    results: list[str] | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)


class Draw:
    """Random choices for one case.

    Attributes
    ----------
    operator : str
    opset : int
    schema : OpSchema or None
        None for the operators of other domains that onnx has no schema of.
    """

    def __init__(self, operator: str, opset: int, schema: Any, generator: np.random.Generator):
        self.operator, self.opset, self.schema = operator, opset, schema
        self.generator = generator

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.generator.uniform() < probability)

    def integer(self, low: int, high: int) -> int:
        """An integer, both ends included."""
        return int(self.generator.integers(low, high + 1))

    def integers(self, count: int, low: int, high: int) -> list[int]:
        return [self.integer(low, high) for _ in range(count)]

    def real(self, low: float = -2.0, high: float = 2.0) -> float:
        """A number that float32 holds, as files store attributes in it."""
        return round(float(self.generator.uniform(low, high)) * 64) / 64

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def shape(
        self, low: int = 0, high: int = 4, extents: tuple[int, int] = (1, 5), empty: float = 0.03
    ) -> list[int]:
        """A shape of a rank between two; rarely with an extent of 0."""
        shape = self.integers(self.integer(low, high), *extents)
        if shape and self.chance(empty):
            shape[self.integer(0, len(shape) - 1)] = 0
        return shape

    def axis(self, rank: int) -> int:
        return self.integer(-rank, rank - 1)

    def axes(self, rank: int, low: int = 1) -> list[int]:
        """Some different axes in any order, each counted from either end."""
        chosen = self.generator.permutation(rank)[: self.integer(min(low, rank), rank)]
        return [int(axis) - rank * self.chance() for axis in chosen]

    def broadcast(self, shape: Sequence[int], one_way: bool = False) -> list[int]:
        """A shape that broadcasts with another: leading axes left out, extents 1."""
        kept = list(shape)[self.integer(0, len(shape)) :] if self.chance(0.4) else list(shape)
        result = [1 if self.chance(0.25) else extent for extent in kept]
        return result if one_way or self.chance(0.8) else [self.integer(1, 3), *shape]

    def has(self, attribute: str) -> bool:
        """Whether the operator has an attribute in this version."""
        return self.schema is None or attribute in self.schema.attributes

    def always(self, **attributes: Any) -> dict[str, Any]:
        """Those attributes that the operator has in this version."""
        return {name: value for name, value in attributes.items() if self.has(name)}

    def some(self, **attributes: Any) -> dict[str, Any]:
        """Some of those attributes that the operator has in this version."""
        return {n: v for n, v in self.always(**attributes).items() if self.chance(0.65)}

    def dtypes(self, constraint: str = "T") -> list[str]:
        """The dtypes that numpy has of those that a type of the schema may be."""
        for item in self.schema.type_constraints:
            if item.type_param_str == constraint:
                texts = item.allowed_type_strs
                break
        else:  # the type of a formal parameter that is written out
            texts = [constraint]
        names = {text.removeprefix("tensor(").removesuffix(")") for text in texts}
        names |= {{"float": "float32", "double": "float64"}.get(name, name) for name in names}
        return [name for name in _ORDER if name in names]

    def dtype(self, constraint: str = "T", among: Sequence[str] = _ORDER) -> str:
        """One of the dtypes of a type; half of the time the first, which is float32 if any."""
        allowed = [name for name in self.dtypes(constraint) if name in among]
        return allowed[0] if self.chance() else str(self.choice(allowed))

    def values(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        low: float = -3.0,
        high: float = 3.0,
        special: float = 0.0,
    ) -> np.ndarray:
        """Values of a dtype between two numbers.

        Floats are at times multiples of one half, so that there are ties; with the probability
        `special` some are not finite or zero, or integers the extremes of their dtype.
        """
        if dtype == "bool":
            return self.generator.uniform(size=shape) < 0.5
        array = np.asarray(self.generator.uniform(low, high, shape))
        if dtype in INTEGERS:
            info = np.iinfo(dtype)
            result = np.clip(np.round(array), info.min, info.max).astype(dtype)
            return self._sprinkled(result, (info.min, info.max, 0), special)
        if self.chance(0.2):
            array = np.clip(np.round(array * 2) / 2, low, high)
        return self._sprinkled(array, _SPECIAL, special).astype(_numpy(dtype))

    def _sprinkled(self, array: np.ndarray, values: Sequence[Any], chance: float) -> np.ndarray:
        """An array with some elements replaced, if chance wills it."""
        if not self.chance(chance):
            return array
        chosen = self.generator.uniform(size=array.shape) < 0.25
        choices = self.generator.integers(0, len(values), array.shape)
        return np.where(chosen, np.array(values, array.dtype)[choices], array)

    def indices(
        self, shape: Sequence[int], extent: int, dtype: str = "int64", negative: bool = True
    ) -> np.ndarray:
        """Indices into an axis, some of them counted from its end."""
        low = -extent if negative else 0
        return self.generator.integers(low, max(extent, low + 1), shape).astype(dtype)

    def ints(self, values: Any, dtype: str = "int64", constant: float = 1.0) -> Any:
        """An input of integers, by some probability a constant."""
        return self.fixed(np.array(values, dtype), constant)

    def fixed(self, array: np.ndarray, probability: float = 1.0) -> Any:
        """An input that is a constant, by some probability."""
        return Constant(array) if self.chance(probability) else array


Drawer = Callable[[Draw], Drawn]

DRAWERS: dict[tuple[str, str], Drawer] = {}
"""Who draws the cases of an operator, by domain and operator."""


def drawer(*operators: str, domain: str = "") -> Callable[[Drawer], Drawer]:
    """Register who draws the cases of operators."""

    def register(function: Drawer) -> Drawer:
        for operator in operators:
            DRAWERS[domain, operator] = function
        return function

    return register


def element_type(dtype: Any) -> int:
    """ONNX's number of a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(_numpy(str(dtype)))))


def _numpy(dtype: str) -> Any:
    return bfloat16 if dtype == "bfloat16" else dtype
