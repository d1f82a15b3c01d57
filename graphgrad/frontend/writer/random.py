"""Dropout, by the same bits as `ops.random`.

They are computed in int64, which the runtimes add and multiply, and stay below 2⁶³.
"""

from __future__ import annotations

import math
from typing import Any

from ...ops.random import (
    ROUNDS,
    WORD,
    factor_parts,
    first_kept,
    numbered_axes,
    scale_of_kept,
    stream_word,
)
from .graph import GraphWriter, Site, writes

_BITWISE = 18
"""The first version that has bitwise operators."""


@writes("graphgrad.dropout")
def _dropout(site: Site) -> Any:
    scale = site.graph.constant(scale_of_kept(site.attributes), site.dtype)
    zero = site.graph.constant(0.0, site.dtype)
    return site.graph.node("Where", _mask(site), site.graph.node("Mul", site.names[0], scale), zero)


@writes("graphgrad.dropout_mask")
def _mask(site: Site) -> Any:
    """The mask, which the dropouts of the forward and of the backward pass share."""
    attributes = site.attributes
    facts = (attributes.rate, attributes.stream, _order(site), str(site.shape))
    return site.graph.once(("dropout", site.names[1], *facts), lambda: _new_mask(site))


def _new_mask(site: Site) -> str:
    site.graph.require(_BITWISE, site.call.op.name)
    graph, attributes, shape = site.graph, site.attributes, site.shape
    order = numbered_axes(_order(site), len(shape))
    numbered_shape = [shape[order.index(axis)] for axis in range(len(shape))]
    count = math.prod(shape)
    key = _key(graph, site.names[1], stream_word(attributes))
    position = graph.node("Range", graph.constant(0), graph.scalar(count), graph.constant(1))
    # Of known extents the upper halves of all positions are zero, and have one hash.
    is_short = isinstance(count, int) and count <= WORD
    above = graph.constant(0) if is_short else _shifted(graph, position, 32)
    upper = _hash(graph, _word(graph, graph.node("Add", above, key)))
    drawn = _hash(graph, _xor(graph, _word(graph, position), key))
    drawn = _hash(graph, _xor(graph, drawn, upper))
    kept = graph.node("GreaterOrEqual", drawn, graph.constant(first_kept(attributes)))
    kept = graph.reshape(kept, numbered_shape)
    return graph.permute(kept, order) if _order(site) else kept


def _order(site: Site) -> tuple[int, ...]:
    """The attribute of that name, which may be missing."""
    return tuple(getattr(site.attributes, "order", ()))


def _key(graph: GraphWriter, seed: str, stream: int) -> str:
    """The start of a mask's hash, a scalar."""
    lower = _word(graph, seed)
    # Without the lower half the division is exact, of negative seeds, too.
    upper = graph.node("BitwiseAnd", seed, graph.constant(-WORD - 1))
    upper = _word(graph, _shifted(graph, upper, 32))
    hashed = _hash(graph, _xor(graph, lower, graph.constant(stream)))
    return _hash(graph, _xor(graph, hashed, upper))


def _hash(graph: GraphWriter, value: str) -> str:
    """The hash, below 2³², of numbers below 2³²."""
    for shift, factor in ROUNDS:
        value = _times(graph, _xor(graph, value, _shifted(graph, value, shift)), factor)
    return _xor(graph, value, _shifted(graph, value, ROUNDS[0][0]))


def _times(graph: GraphWriter, value: str, factor: int) -> str:
    """The low 32 bits of the product of numbers below 2³² and a factor."""
    low, high = factor_parts(factor)
    product = graph.node("Mul", value, graph.constant(low))
    if high:
        lowest = graph.node("BitwiseAnd", value, graph.constant(1))
        moved = graph.node("Mul", lowest, graph.constant(1 << 31))
        product = graph.node("Add", product, moved)
    return _word(graph, product)


def _word(graph: GraphWriter, value: str) -> str:
    """The low 32 bits."""
    return str(graph.node("BitwiseAnd", value, graph.constant(WORD)))


def _xor(graph: GraphWriter, x: str, y: str) -> str:
    return str(graph.node("BitwiseXor", x, y))


def _shifted(graph: GraphWriter, value: str, bits: int) -> str:
    """Numbers shifted to the right; of negative ones, those that are multiples of 2ᵇⁱᵗˢ."""
    # Not by BitShift, which takes unsigned numbers alone.
    return str(graph.node("Div", value, graph.constant(1 << bits)))
