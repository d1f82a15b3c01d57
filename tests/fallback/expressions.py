"""Random tensor expressions: index maps, guards, sharing, sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import te, tirx


@dataclass
class Program:
    """A graph of stages and arrays for its placeholders."""

    output: te.Tensor
    inputs: list[te.Tensor]
    arrays: list[np.ndarray]


def random_program(seed: int) -> Program:
    """Return one or two stages over two placeholders, all of float64."""
    generator = np.random.default_rng(seed)
    inputs, arrays = [], []
    for name in "AB":
        shape = tuple(int(e) for e in generator.integers(1, 5, generator.integers(1, 4)))
        inputs.append(te.placeholder(shape, "float64", name=name))
        arrays.append(generator.uniform(-1.5, 1.5, shape))
    first = _stage(generator, inputs, "C")
    if generator.random() < 0.5:
        return Program(first, inputs, arrays)
    return Program(_stage(generator, [*inputs, first], "D"), inputs, arrays)


def _stage(generator: np.random.Generator, tensors: list[te.Tensor], name: str) -> te.Tensor:
    shape = [int(e) for e in generator.integers(1, 5, generator.integers(0, 3))]
    reduced = [
        te.reduce_axis((int(generator.integers(-1, 2)), int(e)), name=f"r{i}")
        for i, e in enumerate(generator.integers(2, 5, generator.integers(0, 3)))
    ]

    def body(*position):
        axes = [*position, *(axis.var for axis in reduced)]
        ranges = [*((0, e) for e in shape)]
        ranges += [(int(r.dom.min), int(r.dom.min) + int(r.dom.extent)) for r in reduced]
        value = _value(generator, tensors, axes, ranges, depth=3)
        return te.sum(value, axis=reduced) if reduced else value

    return te.compute(tuple(shape), body, name=name)


def _value(generator, tensors, axes, ranges, depth):
    kind = generator.choice(
        ["load", "add", "multiply", "subtract", "tanh", "exp", "maximum", "select", "square"],
        p=[0.3, 0.1, 0.15, 0.05, 0.1, 0.05, 0.1, 0.1, 0.05],
    )
    if depth == 0 or kind == "load":
        return _load(generator, tensors, axes, ranges)
    a = _value(generator, tensors, axes, ranges, depth - 1)
    if kind in ("tanh", "exp"):
        return getattr(tirx, kind)(a * 0.5)
    if kind == "square":
        return a * a
    b = _value(generator, tensors, axes, ranges, depth - 1)
    if kind == "select":
        return tirx.if_then_else(_condition(generator, axes, a), a, b)
    return {
        "add": lambda: a + b,
        "multiply": lambda: a * b,
        "subtract": lambda: a - b,
        "maximum": lambda: tirx.max(a, b),
    }[kind]()


def _condition(generator, axes, a):
    if not axes or generator.random() < 0.3:
        return a > 0.1
    axis = axes[generator.integers(len(axes))]
    return tirx.LT(tirx.floormod(axis, 2), 1) if generator.random() < 0.5 else axis > 0


def _load(generator, tensors, axes, ranges):
    tensor = tensors[generator.integers(len(tensors))]
    indices, guards = [], []
    for extent in tensor.shape:
        index, low, high = _index(generator, axes, ranges)
        index = index - int(generator.integers(low, max(low + 1, high - int(extent) + 1)))
        if generator.random() < 0.1:
            index = int(extent) - 1 - index
        indices.append(index)
        guards.append(tirx.all(index >= 0, index < int(extent)))
    if not guards:
        return tensor()
    return tirx.if_then_else(tirx.all(*guards), tensor(*indices), tirx.const(0.25, "float64"))


def _index(generator, axes, ranges):
    """Return a random index and its bounds, both inclusive."""
    if not axes:
        return tirx.const(0, "int32"), 0, 0
    index, low, high = tirx.const(0, "int32"), 0, 0
    for number in generator.choice(len(axes), generator.integers(1, 3)):
        factor = int(generator.choice([1, 1, 1, 2, 3, -1]))
        term, first, last = axes[number], ranges[number][0], ranges[number][1] - 1
        choice = generator.random()
        if choice < 0.15:
            term, first, last = tirx.floordiv(term, 2), first // 2, last // 2
        elif choice < 0.3:
            term, first, last = tirx.floormod(term, 3), 0, 2
        index = index + term * factor
        low += min(factor * first, factor * last)
        high += max(factor * first, factor * last)
    return index, low, high
