"""Whether minimal filtering pays for a layer, with which tiles, and in which order.

Costs are counted in vector multiply-adds of one core. Their constants were fitted to 30 layers, of
16 to 512 channels and 2 to 224 rows, on a core with vectors of 512 bits (AMD Zen 4, L2 of 1 MB, L3
of 32 MB). They depend on the layer and the vector unit alone, so that a kernel is the same wherever
it is compiled for the same processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..vector_unit import VectorUnit
from .cook_toom import Filtering, filtering
from .forward import TAPS, Convolution
from .multiply import Panel
from .weight import WeightGradient

_MIN_CHANNELS = 16
"""With fewer, transforms take longer than products."""

_TILE_SIDES = (2, 4)
"""Results of a tile along rows and columns, or cotangents where the weights are the results."""

_VECTOR_MOVE_COST = 15
"""What it costs to compute and store, or to load, a vector of factors or of products."""

_TAP_MOVE_COST = 5
"""The same for the factors of weights."""

_SUM_MOVE_COST = 10
"""The same for the products of a weight gradient, which are stored as sums over all tiles."""

_SHARED_CACHE_BYTES = 16 << 20
"""Bytes of the weights' factors up to which they are computed first: the cache that cores share."""

_MAX_RELATIVE_COST = 0.9
"""The part of the direct kernel's cost that another one may have to be preferred."""

_MIN_TERM_COST = 8
"""Multiply-adds that one term of a tile takes at least, however small the tile."""

_IMAGE_BLOCK_BYTES = 1 << 19
"""Bytes of factors and products that are kept at a time for a block of images: half of the cache of
a core."""

_GRADIENT_BLOCK_BYTES = 4 << 20
"""Bytes of factors that are kept at a time for a weight gradient: the cache that cores share."""

_MAX_WHOLE_BYTES = 20 << 20
"""Bytes of the factors of all tiles from which they are not kept all at once."""

_DEPTH_CHANNELS = 64
"""Channels, or rows of weights, whose factors and products a core keeps in its cache."""

_MIN_PARALLEL_PARTS = 8
"""Independent parts of a kernel that are enough for the threads."""

_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Blocks:
    """How a kernel goes over its tiles.

    Attributes
    ----------
    images, rows : int
        Of tiles, at a time. No images: the factors of all tiles are computed first.
    depth : int
        Channels, or rows of weights, at a time, where the factors of all tiles come first.
    """

    images: int = 0
    rows: int = 0
    depth: int = 0


@dataclass(frozen=True)
class Choice:
    """The kernel chosen for a layer."""

    filtering: Filtering
    panel: Panel
    blocks: Blocks


def choose_convolution(conv: Convolution, unit: VectorUnit) -> Choice | None:
    """The kernel of a convolution; None if the direct one is as good."""
    images = conv.images
    panel = _panel(images.channels, conv.filters, unit)
    if panel is None:
        return None
    pairs = images.channels * conv.filters // panel.lanes
    direct = images.count * conv.rows * conv.columns * TAPS**2 * pairs

    def cost(step: int) -> float:
        one = filtering(step, TAPS)
        tiles = images.count * _tiles(conv.rows, conv.columns, step)
        moved = tiles * (images.channels + conv.filters) // panel.lanes * _VECTOR_MOVE_COST
        height = min(tiles, panel.rows)
        slow = max(1.0, _MIN_TERM_COST / (height * panel.vectors))
        return one.products**2 * (tiles * pairs * slow + moved + pairs * _TAP_MOVE_COST)

    step = _cheapest(direct, cost)
    if step is None:
        return None
    return Choice(filtering(step, TAPS), panel, _convolution_blocks(conv, step, panel))


def choose_weight_gradient(gradient: WeightGradient, unit: VectorUnit) -> Choice | None:
    """The kernel of a weight gradient; None if the direct one is as good."""
    data, cotangent = gradient.data, gradient.cotangent
    columns = cotangent.channels if gradient.data_in_rows else data.channels
    panel = _panel(data.channels, cotangent.channels, unit, columns)
    if panel is None:
        return None
    pairs = data.channels * cotangent.channels // panel.lanes
    direct = data.count * cotangent.rows * cotangent.columns * TAPS**2 * pairs

    def cost(step: int) -> float:
        one = filtering(TAPS, step)
        tiles = data.count * _tiles(cotangent.rows, cotangent.columns, step)
        moved = tiles * (data.channels + cotangent.channels) // panel.lanes * _VECTOR_MOVE_COST
        return one.products**2 * (tiles * pairs + moved + pairs * _SUM_MOVE_COST)

    step = _cheapest(direct, cost)
    if step is None:
        return None
    return Choice(filtering(TAPS, step), panel, _gradient_blocks(gradient, step, panel))


def _cheapest(direct: int, cost: Callable[[int], float]) -> int | None:
    """The tile of the least cost; None if that is no gain, or nothing is to be computed."""
    if not direct:
        return None
    step = min(_TILE_SIDES, key=cost)
    return step if cost(step) <= _MAX_RELATIVE_COST * direct else None


def _panel(
    channels: int, filters: int, unit: VectorUnit, columns: int | None = None
) -> Panel | None:
    """The tile of registers; None if the channels are too few, or no whole vectors."""
    lanes = unit.lanes("float32")
    counts = (channels, filters)
    if any(count < _MIN_CHANNELS or count % lanes for count in counts):
        return None
    vectors = 2 if (columns or filters) % (2 * lanes) == 0 else 1
    return Panel((unit.registers - 4) // vectors, vectors, lanes)


def _convolution_blocks(conv: Convolution, step: int, panel: Panel) -> Blocks:
    images = conv.images
    down, across = -(-conv.rows // step), -(-conv.columns // step)
    products = (step + TAPS - 1) ** 2
    if products * _FLOAT32_BYTES * images.channels * conv.filters > _SHARED_CACHE_BYTES:
        return Blocks(depth=_divisor(images.channels, _DEPTH_CHANNELS, panel.lanes))
    per_row = products * _FLOAT32_BYTES * (images.channels + conv.filters) * across
    most = min(_IMAGE_BLOCK_BYTES // per_row, images.count * down // _MIN_PARALLEL_PARTS)
    return _blocks(images.count, down, most)


def _gradient_blocks(gradient: WeightGradient, step: int, panel: Panel) -> Blocks:
    data, cotangent = gradient.data, gradient.cotangent
    down, across = -(-cotangent.rows // step), -(-cotangent.columns // step)
    per_tile = (step + TAPS - 1) ** 2 * _FLOAT32_BYTES * (data.channels + cotangent.channels)
    rows, columns = data.channels, cotangent.channels
    if not gradient.data_in_rows:
        rows, columns = columns, rows
    depth = _divisor(rows, _DEPTH_CHANNELS, 1)
    parts = rows // depth * (columns // panel.width)
    if parts >= _MIN_PARALLEL_PARTS and per_tile * data.count * down * across <= _MAX_WHOLE_BYTES:
        return Blocks(depth=depth)
    return _blocks(data.count, down, _GRADIENT_BLOCK_BYTES // (per_tile * across))


def _blocks(images: int, down: int, most: int) -> Blocks:
    """Blocks of at most so many rows of tiles, of whole images if possible."""
    if most < down or images == 1:
        return Blocks(1, _divisor(down, max(most, 1), 1))
    return Blocks(_divisor(images, most // down, 1), down)


def _tiles(rows: int, columns: int, step: int) -> int:
    return -(-rows // step) * -(-columns // step)


def _divisor(extent: int, most: int, unit: int) -> int:
    """The largest divisor of an extent that is a multiple of `unit`, at most so large."""
    candidates: Iterable[int] = range(min(most, extent), unit - 1, -1)
    return next((d for d in candidates if extent % d == 0 and d % unit == 0), unit)
