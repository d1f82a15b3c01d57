"""Random scalar expressions over loads: what the stages of random programs compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import te, tirx
from tvm.ir import prim

from tests.fallback.choices import Choices
from tests.fallback.index_maps import Index, clamped, constant, fitted, random_index

DATA = (-2, 5)
"""The least and the greatest of the integers in the tensors that indices are read from."""


@dataclass
class Sources:
    """What an expression may read.

    Attributes
    ----------
    floats : list of Tensor
    integers : list of Tensor
        Of indices, which may be outside of what they index.
    dtype : str
        Of the expressions; loads of other floats are cast.
    kinks : bool
        Whether conditions may depend on floats.
    """

    floats: list[te.Tensor]
    integers: list[te.Tensor]
    dtype: str
    kinks: bool


@dataclass
class Expressions:
    """Expressions at one point of some loops.

    Attributes
    ----------
    choices : Choices
    sources : Sources
    axes : list of Index
        The loop variables.
    """

    choices: Choices
    sources: Sources
    axes: list[Index]
    made: list[Any] = field(default_factory=list)

    def value(self, depth: int = 3) -> Any:
        """Return a float; parts of it may be shared with those returned before."""
        kinds: list[Callable[[int], Any]] = [self._load] * 4
        if depth:
            kinds += [self._sum, self._product, self._product, self._function, self._quotient]
            kinds += [self._integer, self._guarded, self._guarded, self._masked, self._let]
        if depth and self.sources.kinks:
            kinds += [self._extreme, self._extreme, self._restricted, self._rounded]
        if self.made and self.choices.chance(0.1):
            return self.choices.pick(self.made)
        self.made.append(self.choices.pick(kinds)(depth - 1))
        return self.made[-1]

    def weighted(self, loops: int) -> Any:
        """A product in which the last axes, those of a reduction, are masked.

        One factor varies with the other axes alone, so it may be moved out of a sum.
        """
        outside = replace(self, axes=self.axes[: len(self.axes) - loops])
        factor = self.choices.pick(
            [lambda: tirx.exp(outside._load(0)), lambda: outside._function(0)]
        )
        return factor() * (self._load(0) * self._masked(0))

    def condition(self) -> Any:
        """Return a boolean."""
        kinds = [self._position, self._position, self._parity, self._order, self._data_dependent]
        if self.sources.kinks:
            kinds += [self._sign, self._sign]
        first = self.choices.pick(kinds)()
        if self.choices.chance(0.2):
            joined = self.choices.pick([tirx.all, tirx.any])
            return joined(first, self.choices.pick(kinds)())
        return tirx.Not(first) if self.choices.chance(0.1) else first

    def constant(self, value: float) -> Any:
        """Return a constant of the expressions' dtype."""
        return tirx.const(value, self.sources.dtype)

    # Values

    def _load(self, depth: int) -> Any:
        tensor = self.choices.pick(self.sources.floats)
        at, guard = self._place(tensor)
        loaded = tensor(*at)
        if str(tensor.dtype) != self.sources.dtype:
            loaded = loaded.astype(self.sources.dtype)
        if guard is None:
            return loaded
        other = self.constant(self.choices.pick([0.0, 0.25]))
        return tirx.if_then_else(guard, loaded, other)

    def _sum(self, depth: int) -> Any:
        a, b = self.value(depth), self.value(depth)
        return a + b if self.choices.chance(0.5) else a - b

    def _product(self, depth: int) -> Any:
        return self.value(depth) * self.value(depth)

    def _quotient(self, depth: int) -> Any:
        divisor = self.value(depth)
        return self.value(depth) / (divisor * divisor + self.constant(0.75))

    def _function(self, depth: int) -> Any:
        x = self.value(depth)
        positive = x * x + self.constant(0.5)
        functions: list[Callable[[], Any]] = [
            lambda: tirx.tanh(x),
            lambda: tirx.sin(x),
            lambda: tirx.exp(tirx.tanh(x)),
            lambda: tirx.sigmoid(x),
            lambda: tirx.sqrt(positive),
            lambda: tirx.log(positive),
            lambda: tirx.pow(positive, self.constant(0.75)),
            lambda: tirx.atan(x),
        ]
        return self.choices.pick(functions)()

    def _integer(self, depth: int) -> Any:
        """Something of which no float is the reason."""
        index = random_index(self.choices, self.axes, self._data)
        return index.expr.astype(self.sources.dtype) * self.constant(0.25)

    def _guarded(self, depth: int) -> Any:
        select = self.choices.pick([tirx.if_then_else, tirx.Select])
        return select(self.condition(), self.value(depth), self.value(depth))

    def _masked(self, depth: int) -> Any:
        """Exact zeros."""
        return tirx.if_then_else(self.condition(), self.value(depth), self.constant(0.0))

    def _let(self, depth: int) -> Any:
        value = self.value(depth)
        var = tirx.Var("v", self.sources.dtype)
        return prim.Let(var, value, var * var + self.value(depth))

    def _extreme(self, depth: int) -> Any:
        a, b = self.value(depth), self.value(depth)
        return self.choices.pick([tirx.max, tirx.min])(a, b)

    def _restricted(self, depth: int) -> Any:
        """A function outside whose domain the result does not depend on it."""
        x = self.value(depth)
        function = self.choices.pick([tirx.sqrt, tirx.log, tirx.rsqrt])
        return tirx.if_then_else(x > self.constant(0.125), function(x), self.value(depth))

    def _rounded(self, depth: int) -> Any:
        x = self.value(depth)
        return self.choices.pick([tirx.abs(x), tirx.floor(x) * x])

    # Conditions

    def _axis(self) -> Index:
        return self.choices.pick(self.axes) if self.axes else constant(0)

    def _position(self) -> Any:
        axis = self._axis()
        return axis.expr > self.choices.integer(axis.low, max(axis.low, axis.high))

    def _parity(self) -> Any:
        rest = tirx.floormod(self._axis().expr, self.choices.integer(2, 3))
        return tirx.EQ(rest, tirx.const(self.choices.integer(0, 1), str(rest.ty)))

    def _order(self) -> Any:
        return self._axis().expr <= self._axis().expr + self.choices.integer(-1, 1)

    def _data_dependent(self) -> Any:
        return self._data().expr > 1

    def _sign(self) -> Any:
        return self.value(1) > self.constant(0.125)

    # Places

    def _place(self, tensor: te.Tensor) -> tuple[list[Any], Any]:
        """Return indices of an element, and a condition for it to be inside if there is one."""
        at, guards = [], []
        for extent in tensor.shape:
            index = random_index(self.choices, self.axes, self._data)
            expr, guard = fitted(self.choices, index, int(extent))
            at.append(expr)
            guards += [] if guard is None else [guard]
        return at, tirx.all(*guards) if guards else None

    def _data(self) -> Index:
        """Return an integer that is read, at indices that are not."""
        tensor = self.choices.pick(self.sources.integers)
        at = [clamped(self._axis().expr, int(extent)) for extent in tensor.shape]
        return Index(tensor(*at), *DATA)


def loop_indices(axes: Sequence[tuple[Any, int, int]]) -> list[Index]:
    """Return loop variables, given with their first value and how many there are, as indices."""
    return [Index(var, low, low + extent - 1) for var, low, extent in axes]
