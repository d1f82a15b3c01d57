"""Random programs: graphs of stages over a few placeholders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import te, tirx, topi

from tests.fallback.choices import Choices
from tests.fallback.expressions import DATA, Expressions, Sources, loop_indices
from tests.fallback.interpreter import numpy_dtype

Value = tuple[te.Tensor, np.ndarray]


@dataclass
class Program:
    """A graph of stages.

    Attributes
    ----------
    outputs : list of Tensor
    inputs : list of Tensor
        By which it is differentiated: placeholders and intermediate results, of floats.
    known : list of (Tensor, array)
        All placeholders.
    """

    outputs: list[te.Tensor]
    inputs: list[te.Tensor]
    known: list[Value]


def random_program(choices: Choices, dtype: str = "float64", smooth: bool = False) -> Program:
    """Return a program of up to four stages.

    Parameters
    ----------
    choices : Choices
    dtype : str
        Of all floats. The structure does not depend on it.
    smooth : bool
        Nothing that rounding could take from one side of a kink to the other, or make huge.
    """
    return _Builder(choices, dtype, smooth).program()


@dataclass
class _Builder:
    choices: Choices
    dtype: str
    smooth: bool
    known: list[Value] = field(default_factory=list)
    stages: list[te.Tensor] = field(default_factory=list)

    def program(self) -> Program:
        self.index_dtype = self.choices.pick(["int32", "int32", "int64"])
        kinks = self.choices.chance(0.7) and not self.smooth
        generator = np.random.default_rng(self.choices.integer(0, 1 << 30))
        floats = [self._placeholder(generator, name, self.dtype) for name in "AB"]
        integers = [self._placeholder(generator, "N", self.choices.pick(["int32", "int64"]))]
        self.sources = Sources(list(floats), integers, self.dtype, kinks)
        self._stage("S0")
        for number in range(1, 4):
            if self.choices.chance(0.45):
                self._stage(f"S{number}")
        outputs, inputs = [self.stages[-1]], floats
        if len(self.stages) > 1:
            if self.choices.chance(0.15):
                outputs.append(self.stages[0])
            if self.choices.chance(0.15):
                inputs = [*inputs, self.stages[0]]
        return Program(outputs, inputs, self.known)

    # Tensors

    def _placeholder(self, generator: np.random.Generator, name: str, dtype: str) -> te.Tensor:
        shape = self._shape(self.choices.integer(0 if dtype == self.dtype else 1, 3))
        if dtype == self.dtype:
            array = generator.uniform(-1.5, 1.5, shape).astype(numpy_dtype(dtype))
        else:
            shape = [max(extent, 1) for extent in shape]
            array = generator.integers(DATA[0], DATA[1] + 1, shape).astype(dtype)
        tensor = te.placeholder(self._extents(shape), dtype, name=name)
        self.known.append((tensor, array))
        return tensor

    def _shape(self, rank: int) -> list[int]:
        return [self.choices.pick([1, 2, 3, 4, 3, 5]) for _ in range(rank)]

    def _extents(self, shape: Sequence[int]) -> tuple[Any, ...]:
        return tuple(tirx.const(extent, self.index_dtype) for extent in shape)

    def _stage(self, name: str) -> None:
        kinds: list[Callable[[str], Any]] = [
            self._map, self._map, self._several, self._view, self._view, self._constant,
            self._sum, self._sum, self._sum, self._sum, self._sums, self._product, self._weighted,
        ]  # fmt: skip
        if not self.smooth:
            kinds += [self._combined]
        if self.sources.kinks:
            kinds += [self._extreme, self._extreme, self._chosen]
        results = self.choices.pick(kinds)(name)
        for result in [results] if isinstance(results, te.Tensor) else results:
            if "int" in str(result.dtype):
                self.sources.integers.append(result)
            else:
                self.sources.floats += [result, result]  # more often than what is older
                self.stages.append(result)

    # Stages without reductions

    def _compute(self, name: str, body: Callable[[Expressions], Any], least: int = 0) -> Any:
        shape = self._shape(self.choices.integer(least, 3))
        if self.choices.chance(0.02):
            shape = [0, *shape[1:]]

        def at(*position: Any) -> Any:
            axes = loop_indices([(v, 0, e) for v, e in zip(position, shape, strict=True)])
            return body(Expressions(self.choices, self.sources, axes))

        return te.compute(self._extents(shape), at, name=name)

    def _map(self, name: str) -> Any:
        return self._compute(name, lambda expressions: expressions.value())

    def _several(self, name: str) -> Any:
        return self._compute(name, lambda e: (e.value(), e.value()), least=1)

    def _constant(self, name: str) -> Any:
        """A table: a stage that reads nothing."""

        def body(expressions: Expressions) -> Any:
            total = expressions.constant(0.5)
            for axis in expressions.axes:
                total = total * (axis.expr.astype(self.dtype) - expressions.constant(0.75))
            return total

        return self._compute(name, body)

    def _view(self, name: str) -> Any:
        tensor = self.choices.pick(self.sources.floats)
        shape = [int(extent) for extent in tensor.shape]
        if not shape or 0 in shape:
            return self._map(name)
        rank = len(shape)
        kinds: list[Callable[[], te.Tensor]] = [
            lambda: topi.transpose(tensor, list(range(rank))[::-1]),
            lambda: topi.nn.pad(tensor, [self.choices.integer(0, 2) for _ in shape], [1] * rank),
            lambda: topi.reshape(tensor, (*shape[2:], math.prod(shape[:2]))),
            lambda: topi.strided_slice(
                tensor, [self.choices.integer(0, e - 1) for e in shape], shape,
                [self.choices.integer(1, 2) for _ in shape],
            ),
            lambda: topi.concatenate([tensor, tensor], self.choices.integer(0, rank - 1)),
            lambda: topi.flip(tensor, self.choices.integer(0, rank - 1)),
            lambda: topi.expand_dims(tensor, self.choices.integer(0, rank)),
        ]  # fmt: skip
        return self.choices.pick(kinds)()

    # Reductions

    def _reduced(
        self, name: str, body: Callable[[Expressions, list[Any]], Any], empty: bool = False
    ) -> Any:
        """Return a stage whose body is told the axes that it must reduce."""

        def with_loops(expressions: Expressions) -> Any:
            loops = [self._loop(f"r{i}", empty) for i in range(self.choices.integer(1, 2))]
            if expressions.axes and self.choices.chance(0.15):
                loops[0] = self._triangular(expressions)
            for loop in loops:
                low, high = self._bounds(loop, expressions)
                expressions.axes.append(loop_indices([(loop.var, low, high - low)])[0])
            return body(expressions, loops)

        return self._compute(name, with_loops)

    def _loop(self, name: str, empty: bool) -> Any:
        low = self.choices.pick([0, 0, 0, 1, -1])
        extent = self.choices.pick([2, 3, 4, 1])
        if empty and self.choices.chance(0.03):
            extent = 0
        bounds = (tirx.const(bound, self.index_dtype) for bound in (low, low + extent))
        return te.reduce_axis(tuple(bounds), name=name)

    def _triangular(self, expressions: Expressions) -> Any:
        axis = self.choices.pick(expressions.axes)
        bounds = self.choices.pick([(0, axis.expr + 1), (axis.expr, axis.high + 1)])
        return te.reduce_axis(bounds, name="t")

    def _bounds(self, loop: Any, expressions: Expressions) -> tuple[int, int]:
        """Return the first value of a loop and the one behind its last."""
        if loop.var.name == "t":
            return 0, max(axis.high for axis in expressions.axes) + 1
        low = int(loop.dom.min)
        return low, low + int(loop.dom.extent)

    def _where(self, expressions: Expressions) -> Any:
        return expressions.condition() if self.choices.chance(0.15) else None

    def _sum(self, name: str) -> Any:
        def body(expressions: Expressions, loops: list[Any]) -> Any:
            where = self._where(expressions)
            init = expressions.constant(0.5) if self.choices.chance(0.1) else None
            return te.sum(expressions.value(), loops, where, init)

        return self._reduced(name, body, empty=True)

    def _weighted(self, name: str) -> Any:
        return self._reduced(name, lambda e, loops: te.sum(e.weighted(len(loops)), loops))

    def _extreme(self, name: str) -> Any:
        reduce = self.choices.pick([te.max, te.min])
        return self._reduced(name, lambda e, loops: reduce(e.value(), loops))

    def _product(self, name: str) -> Any:
        product = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1.0, t), "product")
        return self._reduced(
            name, lambda e, loops: product(e.value(2), loops, self._where(e)), empty=True
        )

    def _sums(self, name: str) -> Any:
        """Two sums at once."""
        both = te.comm_reducer(
            lambda a, b: (a[0] + b[0], a[1] + b[1]),
            lambda s, t: (tirx.const(0.0, s), tirx.const(0.0, t)),
            "sums",
        )
        return self._reduced(
            name, lambda e, loops: both((e.value(2), e.value(2)), loops, self._where(e)), empty=True
        )

    def _chosen(self, name: str) -> Any:
        """The greatest value with its position, and another value there."""

        def choose(a: Any, b: Any) -> tuple[Any, ...]:
            first = tirx.any(a[1] > b[1], tirx.all(tirx.EQ(a[1], b[1]), a[0] <= b[0]))
            return tuple(tirx.Select(first, x, y) for x, y in zip(a, b, strict=True))

        def start(*dtypes: Any) -> tuple[Any, ...]:
            return (
                tirx.const(1 << 20, dtypes[0]),
                tirx.min_value(dtypes[1]),
                tirx.const(0.0, dtypes[2]),
            )

        chosen = te.comm_reducer(choose, start, "chosen")

        def body(expressions: Expressions, loops: list[Any]) -> Any:
            position = tirx.const(0, self.index_dtype)
            for loop in loops:
                position = position * 8 + loop.var
            return chosen((position, expressions.value(2), expressions.value(2)), loops)

        return self._reduced(name, body)

    def _combined(self, name: str) -> Any:
        """Pairs by an associative operation that is no sum."""
        combine, start = self.choices.pick(
            [(_composed, (1.0, 0.0)), (_multiplied, (1.0, 0.0)), (_log_sum, (-1e3, 0.0))]
        )
        reducer = te.comm_reducer(
            combine, lambda *t: tuple(tirx.const(s, d) for s, d in zip(start, t, strict=True)),
            combine.__name__,
        )  # fmt: skip
        return self._reduced(name, lambda e, loops: reducer((e.value(2), e.value(2)), loops))


def _composed(a: Any, b: Any) -> tuple[Any, Any]:
    """x ↦ a₀ · x + a₁, then the same of b."""
    return b[0] * a[0], b[0] * a[1] + b[1]


def _multiplied(a: Any, b: Any) -> tuple[Any, Any]:
    """Complex numbers."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _log_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Sums of s · exp(m), written with the greatest m."""
    greatest = tirx.max(a[0], b[0])
    return greatest, a[1] * tirx.exp(a[0] - greatest) + b[1] * tirx.exp(b[0] - greatest)
