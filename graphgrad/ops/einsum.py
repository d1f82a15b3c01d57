"""Einstein summation as diagonals, sums, and matrix products of two operands at a time."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from ..errors import ArgumentError
from ..ir.tensor import Dimension, Emitter, Tensor, broadcast_shape, same_dimension
from . import functional as op
from .legalize import legalization_by_ops

Labels = list[str]
"""A label for each axis: a letter, or ``.k`` for the k-th axis from the right in the ellipsis."""

_ASSUMED_SYMBOLIC_EXTENT = 256
"""The extent that a symbolic dimension is taken for when the costs of products are compared."""


def einsum(equation: str, operands: Sequence[Tensor]) -> Tensor:
    """The sum over products that an equation such as ``"bij,bjk->bik"`` describes.

    Operands may repeat a label (a diagonal) and broadcast along axes of extent 1; ``...`` stands
    for leading axes that broadcast. Half precision adds up in float32.

    Parameters
    ----------
    equation : str
        With ``->``, or without: then the labels that occur once, in alphabetical order.
    operands : sequence of Tensor
        Of one float dtype.

    Returns
    -------
    Tensor

    Raises
    ------
    ArgumentError
        The equation is malformed, or does not fit the operands.
    """
    inputs, output = parse(equation, [t.ndim for t in operands])
    extents = _extents(equation, inputs, operands)
    terms = [
        _take_diagonals(op.widen(t), labels, extents)
        for t, labels in zip(operands, inputs, strict=True)
    ]
    terms = [
        _summed(t, labels, [labels_j for j, (_, labels_j) in enumerate(terms) if j != i], output)
        for i, (t, labels) in enumerate(terms)
    ]
    # Greedy: the cheapest pair is multiplied first, until one operand is left.
    while len(terms) > 1:
        first, second = _cheapest(terms, output, extents)
        remaining = [term for term in terms if term is not first and term is not second]
        terms = [*remaining, _product(first, second, [labels for _, labels in remaining], output)]
    (result, labels) = terms[0]
    result = op.permute_dims(result, [labels.index(label) for label in output])
    result = op.broadcast_to(result, [extents[label] for label in output])
    return result.astype(operands[0].dtype)


@legalization_by_ops("relax.einsum")
def lower_einsum(operands: Sequence[Tensor], attrs: Any) -> Tensor:
    """Lower einsum to matrix products.

    The stock form is one loop nest: it takes the product of three operands point by point, and adds
    up half precision in half precision.
    """
    return einsum(attrs.subscripts, operands)


def parse(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of each operand's axes, and those of the output.

    Raises
    ------
    ArgumentError
        The equation is malformed, or does not fit operands of these ranks.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    subscripts = left.split(",")
    if len(subscripts) != len(ranks):
        raise ArgumentError(
            f"the equation {equation!r} has {len(subscripts)} operand(s), {len(ranks)} are given"
        )
    inputs = [_axes(equation, s, rank) for s, rank in zip(subscripts, ranks, strict=True)]
    all_labels = list(itertools.chain(*inputs))
    ellipsis = sorted({x for x in all_labels if x[0] == "."}, key=lambda x: -int(x[1:]))
    if arrow:
        # The output's ellipsis stands for all axes that any operand's ellipsis stands for.
        named = _axes(equation, right, len(right.replace("...", "")) + len(ellipsis))
        output = [x for x in named if x[0] != "." or x in ellipsis]
    else:
        letters = sorted(x for x in all_labels if x[0] != "." and all_labels.count(x) == 1)
        output = [*ellipsis, *letters]
    unknown = [label for label in output if label not in all_labels]
    if unknown or len(set(output)) != len(output):
        raise ArgumentError(
            f"the output of the equation {equation!r} must name each label once, and only labels "
            "of its operands"
        )
    return inputs, output


def _axes(equation: str, subscript: str, rank: int) -> Labels:
    """One label per axis of an operand."""
    if not re.fullmatch(r"[A-Za-z]*(\.\.\.[A-Za-z]*)?", subscript):
        raise ArgumentError(
            f"{subscript!r} in the equation {equation!r} is malformed: labels are letters, with "
            "at most one '...'"
        )
    before, dots, after = subscript.partition("...")
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise ArgumentError(
            f"{subscript!r} in the equation {equation!r} does not fit an operand of {rank} axes"
        )
    return [*before, *(f".{k}" for k in reversed(range(hidden))), *after]


def _extents(
    equation: str, inputs: Sequence[Labels], operands: Sequence[Tensor]
) -> dict[str, Dimension]:
    """The extent of each label, after broadcasting."""
    extents: dict[str, Dimension] = {}
    for labels, t in zip(inputs, operands, strict=True):
        for label, extent in zip(labels, t.shape, strict=True):
            (joint,) = broadcast_shape([extents.get(label, 1)], [extent])
            if isinstance(joint, int) and isinstance(extent, int) and extent not in (1, joint):
                raise ArgumentError(
                    f"label {label!r} of the equation {equation!r} has the extents {joint} and "
                    f"{extent}"
                )
            extents[label] = joint
    return extents


def _take_diagonals(
    x: Tensor, labels: Labels, extents: dict[str, Dimension]
) -> tuple[Tensor, Labels]:
    """The diagonal along each label that is repeated, as an axis of its own."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            # Along a repeated label one axis may have extent 1, which broadcasts to the other's.
            full = [extents[v] if v == label else d for v, d in zip(labels, x.shape, strict=True)]
            chosen = op.where(
                _equal_indices(x.emitter, full, first, second), op.broadcast_to(x, full), 0.0
            )
            x, labels = op.reduce_sum(chosen, [second]), labels[:second] + labels[second + 1 :]
    return x, labels


def _equal_indices(emitter: Emitter, shape: list[Dimension], first: int, second: int) -> Tensor:
    """The mask of equal indices along two axes, of a shape that broadcasts to `shape`."""

    def index(axis: int) -> Tensor:
        along = [d if a == axis else 1 for a, d in enumerate(shape)]
        return op.reshape(op.indices(emitter, shape[axis]), along)

    return op.equal(index(first), index(second))


def _summed(
    x: Tensor, labels: Labels, others: Sequence[Labels], output: Labels
) -> tuple[Tensor, Labels]:
    """Sum over the labels that neither another operand nor the output has."""
    needed = [*output, *itertools.chain(*others)]
    summed_axes = [axis for axis, label in enumerate(labels) if label not in needed]
    return op.reduce_sum(x, summed_axes), [label for label in labels if label in needed]


def _cheapest(
    terms: Sequence[tuple[Tensor, Labels]], output: Labels, extents: dict[str, Dimension]
) -> tuple[tuple[Tensor, Labels], tuple[Tensor, Labels]]:
    """The two operands whose product takes the fewest multiplications."""

    def cost(pair: Sequence[tuple[Tensor, Labels]]) -> int:
        labels = {*pair[0][1], *pair[1][1]}
        sizes = [extents[label] for label in labels]
        return math.prod(
            size if isinstance(size, int) else _ASSUMED_SYMBOLIC_EXTENT for size in sizes
        )

    first, second = min(itertools.combinations(terms, 2), key=cost)
    return first, second


def _product(
    first: tuple[Tensor, Labels],
    second: tuple[Tensor, Labels],
    others: Sequence[Labels],
    output: Labels,
) -> tuple[Tensor, Labels]:
    """Multiply two operands, and sum over the labels that nothing else has.

    The labels of a matrix product are the common ones that remain (batch), those of one operand
    (rows, columns), and the common ones that are summed over (contracted).
    """
    (a, a_labels), (b, b_labels) = first, second
    needed = {*output, *itertools.chain(*others)}
    shared = [label for label in a_labels if label in b_labels]
    batch = [label for label in shared if label in needed]
    contracted = [label for label in shared if label not in needed]
    rows = [label for label in a_labels if label not in shared]
    columns = [label for label in b_labels if label not in shared]
    a, b = (
        _sum_broadcast_labels(a, a_labels, b, b_labels, contracted),
        _sum_broadcast_labels(b, b_labels, a, a_labels, contracted),
    )
    if not contracted:
        labels = batch + rows + columns
        return _permute_to(a, a_labels, labels) * _permute_to(b, b_labels, labels), labels
    a = op.permute_dims(a, [a_labels.index(label) for label in batch + rows + contracted])
    b = op.permute_dims(b, [b_labels.index(label) for label in batch + contracted + columns])
    # Where the batch ends, the rows of `a`, and the contracted axes of `b`.
    batch_end, rows_end, contracted_end = (
        len(batch),
        len(batch) + len(rows),
        len(batch) + len(contracted),
    )
    if not rows and not columns:
        return op.reduce_sum(a * b, list(range(batch_end, contracted_end))), batch
    lead_a, lead_b = a.shape[:batch_end], b.shape[:batch_end]
    row_extents, column_extents = a.shape[batch_end:rows_end], b.shape[contracted_end:]
    depth = _volume(a.shape[rows_end:])
    a = op.reshape(a, [*lead_a, _volume(row_extents), depth])
    b = op.reshape(b, [*lead_b, depth, _volume(column_extents)])
    y = a @ b
    return op.reshape(
        y, [*y.shape[:batch_end], *row_extents, *column_extents]
    ), batch + rows + columns


def _sum_broadcast_labels(
    x: Tensor, labels: Labels, other: Tensor, other_labels: Labels, contracted: Labels
) -> Tensor:
    """Sum a factor over the labels along which the other is broadcast: Σ a xₖ = a Σ xₖ."""
    extents = dict(zip(other_labels, other.shape, strict=True))
    broadcast = [label for label in contracted if same_dimension(extents[label], 1)]
    axes = [labels.index(label) for label in broadcast]
    return op.reduce_sum(x, axes, keepdims=True)


def _volume(extents: Sequence[Dimension]) -> Dimension:
    total: Dimension = 1
    for extent in extents:
        total = total * extent
    return total


def _permute_to(x: Tensor, labels: Labels, order: Labels) -> Tensor:
    """The tensor with its axes in the order of labels, and extent 1 for labels that it lacks."""
    present = [label for label in order if label in labels]
    x = op.permute_dims(x, [labels.index(label) for label in present])
    extents = dict(zip(present, x.shape, strict=True))
    return op.reshape(x, [extents.get(label, 1) for label in order])
