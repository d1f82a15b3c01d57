"""Loops of a fixed number of steps: Scan, and Loop whose trip count is known at import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...errors import ArgumentError, ModelError
from ...ir.tensor import Dimension, Tensor, dimension_text, expression_of
from ...ops import functional as op
from ...ops.scan import scan
from ..known_values import KnownValue
from ..node_limit import nodes_in, refuse_many_nodes
from .node import Node, converter

_TRUE = KnownValue.of_array(np.array(True))

_MAX_UNROLLED_STEPS = 256
"""The most steps of a loop that are written out: a graph of more would take long to compile."""


@converter("Loop")
def loop(node: Node) -> tuple[Any, ...]:
    """State variables behind M steps of the body, and what each step adds to the results.

    A body that does the same at each step becomes one loop. Where the number of the step decides
    shapes, positions or the end, or the state grows or is a sequence, the steps are written out.
    """
    count = _trip_count(node)
    reason: Exception | str = "its state is a sequence"
    if not any(map(_is_sequence, node.inputs[2:])):
        # If the body cannot be traced once for all steps, each step is translated on its own.
        try:
            return _repeated(node, count)
        except (ModelError, ArgumentError) as error:
            reason = error
            if not isinstance(count, int):
                raise
    if not isinstance(count, int):
        raise ModelError(
            f"{reason}, for which its trip count must be a number; it is {dimension_text(count)}: "
            "import with shapes= that give it"
        )
    return _unrolled(node, count, reason)


def _is_sequence(value: Any) -> bool:
    """Whether an input is a sequence, or an optional without a value."""
    return not isinstance(value, relax.Expr) or isinstance(value.ty, relax.TupleType)


def _repeated(node: Node, count: Dimension) -> tuple[Tensor, ...]:
    """The outputs of a loop whose steps are all alike."""
    start = [node.tensor(index) for index in range(2, len(node.inputs))]

    def step(state: list[Tensor], number: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        goes_on, values, _ = _stepped(node, number, state)
        # The body is translated once for all steps: it ends the loop in each of them or in none.
        if not goes_on:
            raise ModelError("its body ends it after the first step")
        return values[: len(state)], values[len(state) :]

    last, results = scan(step, start, op.indices(node.emitter, count))
    return (*last, *results)


def _unrolled(node: Node, count: int, reason: Exception | str) -> tuple[Any, ...]:
    """The outputs of a loop whose steps are written out, each knowing its number.

    Raises
    ------
    ModelError
        They are too many; `reason` says why they are written out.
    """
    steps = min(count, _MAX_UNROLLED_STEPS)
    refuse_many_nodes(steps * nodes_in(node.attribute("body")), "writing out its steps")
    state = [node.value(index) for index in range(2, len(node.inputs))]
    last, rows, goes_on = list(node.inputs[2:]), [], True
    for number in range(steps):
        step = KnownValue.of_array(np.array(number, "int64"))
        goes_on, values, known = _stepped(node, step, state)
        last = values[: len(state)]
        rows.append(values[len(state) :])
        # What is known of the state stays known in the next step, whose shapes may depend on it.
        pairs = zip(last, known, strict=False)
        state = [value if known_value is None else known_value for value, known_value in pairs]
        if not goes_on:
            break
    if goes_on and count > _MAX_UNROLLED_STEPS:
        raise ModelError(
            f"it takes more than {_MAX_UNROLLED_STEPS} steps, which are too many to be written "
            f"out one by one, as they have to be: {reason}"
        )
    if rows:
        results = [
            op.concat([op.expand_dims(row, [0]) for row in column], axis=0)
            for column in zip(*rows, strict=True)
        ]
    elif len(node.attribute("body").output) == 1 + len(last):
        results = []
    else:  # a step that nothing reads tells the shapes of their rows
        _, values, _ = _stepped(node, KnownValue.of_array(np.array(0, "int64")), state)
        results = [
            node.emitter.full(0.0, [0, *row.shape], row.dtype) for row in values[len(state) :]
        ]
    return (*map(expression_of, last), *results)


def _stepped(
    node: Node, number: Tensor | KnownValue, state: Sequence[Any]
) -> tuple[bool, list[Any], list[KnownValue | None]]:
    """Whether a step is followed by another, what it computes, and what of it is known.

    Raises
    ------
    ModelError
        Whether there is a next step depends on data.
    """
    (_, *values), (goes_on, *known) = node.inline(node.attribute("body"), [number, _TRUE, *state])
    if goes_on is None or not goes_on.is_concrete:
        raise ModelError(
            "its body computes whether to go on: a trip count that depends on data has no "
            "gradient; export the loop with a fixed number of steps"
        )
    return bool(goes_on.array().all()), values, known


def _trip_count(node: Node) -> Dimension:
    """The number of steps that a Loop node takes.

    Raises
    ------
    ModelError
        It is not known at import.
    """
    goes_on = node.constant(1)  # the condition before the first step, which may be left out
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
    values = [node.tensor(index) for index in range(len(node.inputs))]
    count = _scanned_count(node, len(values))
    start, rows = values[:-count], values[-count:]
    axes = _per_tensor(node, "scan_input_axes", count)
    backwards = _per_tensor(node, "scan_input_directions", count)
    rows = [_along(x, axis % x.ndim, 0) for x, axis in zip(rows, axes, strict=True)]
    last, results = _scanned(node, start, _flip_backwards(rows, backwards))
    axes = _per_tensor(node, "scan_output_axes", len(results))
    results = _flip_backwards(results, _per_tensor(node, "scan_output_directions", len(results)))
    moved = [_along(y, 0, axis % y.ndim) for y, axis in zip(results, axes, strict=True)]
    return (*last, *moved)


def _batched_scan(node: Node) -> tuple[Tensor, ...]:
    """The outputs of a Scan of version 8: for each element of a batch, a loop of its own."""
    if node.has(0):
        raise ModelError("its sequence_lens is not served: export with opset 9 or later")
    values = [node.tensor(index) for index in range(1, len(node.inputs))]
    count = _scanned_count(node, len(values))
    backwards = _per_tensor(node, "directions", count)

    def element(carry: None, row: list[Tensor]) -> tuple[None, list[Tensor]]:
        last, results = _scanned(node, row[:-count], _flip_backwards(row[-count:], backwards))
        return carry, [*last, *results]

    return tuple(scan(element, None, values)[1])


def _scanned(
    node: Node, start: Sequence[Tensor], rows: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The last states of a loop over the first axis of tensors, and its results."""
    body = node.attribute("body")

    def step(state: list[Tensor], row: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        values, _ = node.inline(body, [*state, *row])
        return values[: len(state)], values[len(state) :]

    return scan(step, list(start), list(rows))


def _scanned_count(node: Node, most: int) -> int:
    """How many of the inputs, of which there are `most`, a Scan goes along."""
    count = node.attribute("num_scan_inputs")
    if not 1 <= count <= most:
        raise ModelError(f"its num_scan_inputs is {count}, but it has {most} inputs")
    return count


def _per_tensor(node: Node, name: str, count: int) -> list[int]:
    """An attribute with a number for each of some tensors, 0 where it is left out."""
    numbers = list(node.attribute(name, (0,) * count))
    if len(numbers) != count:
        raise ModelError(f"its {name} has {len(numbers)} numbers for {count} tensor(s)")
    return numbers


def _flip_backwards(tensors: Sequence[Tensor], backwards: Sequence[int]) -> list[Tensor]:
    """Tensors with those that are read or written backwards flipped."""
    flagged = zip(tensors, backwards, strict=True)
    return [op.flip(tensor, 0) if is_backwards else tensor for tensor, is_backwards in flagged]


def _along(x: Tensor, source: int, target: int) -> Tensor:
    """A tensor with one axis moved."""
    order: list[Any] = [axis for axis in range(x.ndim) if axis != source]
    order.insert(target, source)
    return op.permute_dims(x, order)
