"""Loops of a fixed number of steps: Scan, and Loop whose trip count is known at import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ModelError
from ...ops import functional as op
from ...ops.scan import scan
from ...ops.tensor import Dimension, Tensor
from ..known_values import KnownValue
from .node import Node, converter

_TRUE = KnownValue.of_array(np.array(True))


@converter("Loop")
def loop(node: Node) -> tuple[Tensor, ...]:
    """State variables behind M steps of the body, and what each step adds to the results."""
    start = [node.tensor(index) for index in range(2, len(node.inputs))]
    body = node.attribute("body")

    def step(state: list[Tensor], number: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        (_, *values), (goes_on, *_) = node.inline(body, [number, _TRUE, *state])
        if goes_on is None or not goes_on.is_concrete or not goes_on.array().all():
            raise ModelError(
                "its body computes whether to go on: a trip count that depends on data has no "
                "gradient; export the loop with a fixed number of steps"
            )
        return values[: len(state)], values[len(state) :]

    numbers = op.indices(node.emitter, _trip_count(node))
    last, results = scan(step, start, numbers)
    return (*last, *results)


def _trip_count(node: Node) -> Dimension:
    """Return the number of steps that a Loop node takes.

    Raises
    ------
    ModelError
        It is not known at import.
    """
    goes_on = node.constant(1)
    if goes_on is not None and not goes_on.all():
        return 0
    count = node.dimensions(0)
    if count is None:
        raise ModelError("it has no trip count: export the loop with a fixed number of steps")
    (number,) = count
    return max(number, 0) if isinstance(number, int) else number


@converter("Scan")
def scan_node(node: Node) -> tuple[Tensor, ...]:
    """State variables behind the steps of the body, one for each slice of the inputs."""
    if node.opset < 9:
        return _batched_scan(node)
    count = node.attribute("num_scan_inputs")
    values = [node.tensor(index) for index in range(len(node.inputs))]
    start, rows = values[:-count], values[-count:]
    axes = _per_tensor(node, "scan_input_axes", count)
    backwards = _per_tensor(node, "scan_input_directions", count)
    rows = [_along(x, axis % x.ndim, 0) for x, axis in zip(rows, axes, strict=True)]
    last, results = _scanned(node, start, _turned(rows, backwards))
    axes = _per_tensor(node, "scan_output_axes", len(results))
    results = _turned(results, _per_tensor(node, "scan_output_directions", len(results)))
    moved = [_along(y, 0, axis % y.ndim) for y, axis in zip(results, axes, strict=True)]
    return (*last, *moved)


def _batched_scan(node: Node) -> tuple[Tensor, ...]:
    """Return the outputs of a Scan of version 8: for each element of a batch, a loop of its own."""
    if node.has(0):
        raise ModelError("its sequence_lens is not served: export with opset 9 or later")
    count = node.attribute("num_scan_inputs")
    values = [node.tensor(index) for index in range(1, len(node.inputs))]
    backwards = _per_tensor(node, "directions", count)

    def element(carry: None, row: list[Tensor]) -> tuple[None, list[Tensor]]:
        last, results = _scanned(node, row[:-count], _turned(row[-count:], backwards))
        return carry, [*last, *results]

    return tuple(scan(element, None, values)[1])


def _scanned(
    node: Node, start: Sequence[Tensor], rows: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the last states of a loop over the first axis of tensors, and its results."""
    body = node.attribute("body")

    def step(state: list[Tensor], row: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        values, _ = node.inline(body, [*state, *row])
        return values[: len(state)], values[len(state) :]

    return scan(step, list(start), list(rows))


def _per_tensor(node: Node, name: str, count: int) -> list[int]:
    """Return an attribute with a number for each of some tensors, 0 where it is left out."""
    numbers = list(node.attribute(name, (0,) * count))
    if len(numbers) != count:
        raise ModelError(f"its {name} has {len(numbers)} numbers for {count} tensor(s)")
    return numbers


def _turned(tensors: Sequence[Tensor], backwards: Sequence[int]) -> list[Tensor]:
    """Return tensors with those that are read or written backwards flipped."""
    pairs = zip(tensors, backwards, strict=True)
    return [op.flip(tensor, 0) if turned else tensor for tensor, turned in pairs]


def _along(x: Tensor, source: int, target: int) -> Tensor:
    """Return a tensor with one axis moved."""
    order: list[Any] = [axis for axis in range(x.ndim) if axis != source]
    order.insert(target, source)
    return op.permute_dims(x, order)
