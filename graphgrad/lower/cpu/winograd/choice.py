"""The choice for a layer: whether minimal filtering pays, with which tiles, and in which order.

Costs are counted in vector multiply-adds of one core. They depend on the layer and the processor
alone (`tuning`), so that a kernel is the same wherever it is compiled for the same target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..contraction.matrices import MIN_PAIRS
from ..tuning import Processor, WinogradCosts
from .cook_toom import Filtering, filtering
from .forward import TAPS, Convolution
from .multiply import Panel
from .transforms import Images
from .weight import WeightGradient

_MIN_CHANNELS = 16
"""With fewer, transforms take longer than products."""

_TILE_SIDES = (2, 4)
"""Results of a tile along rows and columns; for weight gradients, cotangents of a tile."""

_MAX_RELATIVE_COST = 0.9
"""Share of the direct kernel's cost up to which minimal filtering is preferred."""

_MIN_TERM_COST = 8
"""Time of one term of a register tile at least, in multiply-adds, however small the tile is."""

_MIN_PARALLEL_PARTS = 8
"""Independent parts of a kernel that give a few threads enough to do."""

_MANY_PARALLEL_PARTS = 64
"""Parts that give many threads enough to do, where having so many costs nothing."""

_MIN_BLOCK_ROWS = 32
"""Rows of weights of a block at least: two register tiles, and a part of a third."""

_TERMS_IN_TILES = 8
"""Half of what follows from the cycles of both instructions; see `contraction/matrices.py`."""

_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Blocks:
    """The order in which a kernel goes over its tiles.

    Attributes
    ----------
    images, rows : int
        The images of a block, and the rows of tiles of each. `images` is 0 if there are no blocks,
        but the factors of all tiles are computed first.
    depth : int
        Without blocks, the channels (of a weight gradient, the rows of weights) at a time.
    """

    images: int = 0
    rows: int = 0
    depth: int = 0


@dataclass(frozen=True)
class Choice:
    """The kernel chosen for a layer: its transforms, its register tile, its order."""

    filtering: Filtering
    panel: Panel
    blocks: Blocks


def choose_convolution(conv: Convolution, processor: Processor) -> Choice | None:
    """The kernel of a convolution; None if minimal filtering does not apply or does not pay."""
    images = conv.images
    panel = _panel(images.channels, conv.filters, processor)
    if panel is None:
        return None
    costs = processor.winograd
    pairs = images.channels * conv.filters // panel.lanes
    direct_cost = images.count * conv.rows * conv.columns * TAPS**2 * pairs
    direct_cost //= _terms_at_once(images, processor, images.channels)

    def cost(step: int) -> float:
        algorithm = filtering(step, TAPS)
        tiles = images.count * _tiles(conv.rows, conv.columns, step)
        move_cost = tiles * (images.channels + conv.filters) // panel.lanes * costs.vector_move_cost
        tile_height = min(tiles, panel.rows)
        # A register tile with few vectors has too little work for each term.
        slowdown = max(1.0, _MIN_TERM_COST / (tile_height * panel.vectors))
        return algorithm.products**2 * (
            tiles * pairs * slowdown + move_cost + pairs * costs.tap_move_cost
        )

    step = _cheapest(direct_cost, cost)
    if step is None:
        return None
    return Choice(filtering(step, TAPS), panel, _convolution_blocks(conv, step, panel, costs))


def choose_weight_gradient(gradient: WeightGradient, processor: Processor) -> Choice | None:
    """The kernel of a weight gradient; None if minimal filtering does not apply or does not pay."""
    data, cotangent = gradient.data, gradient.cotangent
    columns = cotangent.channels if gradient.data_in_rows else data.channels
    panel = _panel(data.channels, cotangent.channels, processor, columns)
    if panel is None:
        return None
    costs = processor.winograd
    pairs = data.channels * cotangent.channels // panel.lanes
    direct_cost = data.count * cotangent.rows * cotangent.columns * TAPS**2 * pairs
    direct_cost //= _terms_at_once(data, processor)

    def cost(step: int) -> float:
        algorithm = filtering(TAPS, step)
        tiles = data.count * _tiles(cotangent.rows, cotangent.columns, step)
        vectors = tiles * (data.channels + cotangent.channels) // panel.lanes
        move_cost = vectors * costs.vector_move_cost
        return algorithm.products**2 * (tiles * pairs + move_cost + pairs * costs.sum_move_cost)

    step = _cheapest(direct_cost, cost)
    if step is None:
        return None
    return Choice(filtering(TAPS, step), panel, _gradient_blocks(gradient, step, panel, costs))


def _terms_at_once(images: Images, processor: Processor, channels: int = 0) -> int:
    """How many terms of a sum the direct kernel adds in the time of one of float32.

    `channels` are those that it sums over, where it does.
    """
    if not processor.multiplies_pairs or str(images.buffer.dtype) != "bfloat16":
        return 1
    in_tiles = processor.multiplies_matrices and channels and channels % (2 * MIN_PAIRS) == 0
    return _TERMS_IN_TILES if in_tiles else 2


def _cheapest(direct_cost: int, cost: Callable[[int], float]) -> int | None:
    """The tile side of the least cost; None if it gains too little, or nothing is computed at all.

    Parameters
    ----------
    direct_cost : int
        The multiply-adds of the direct kernel.
    cost : callable
        From the side of a tile to the cost with it.
    """
    if not direct_cost:
        return None
    step = min(_TILE_SIDES, key=cost)
    return step if cost(step) <= _MAX_RELATIVE_COST * direct_cost else None


def _panel(
    channels: int, filters: int, processor: Processor, columns: int | None = None
) -> Panel | None:
    """The register tile; None if the channels are too few, or do not make whole vectors.

    `columns` are the channels along which vectors lie; the filters, if it is None.
    """
    lanes = processor.lanes("float32")
    counts = (channels, filters)
    if any(count < _MIN_CHANNELS or count % lanes for count in counts):
        return None
    # Four registers are left for the operands of a step.
    vectors = 2 if (columns or filters) % (2 * lanes) == 0 else 1
    return Panel((processor.registers - 4) // vectors, vectors, lanes)


def _convolution_blocks(conv: Convolution, step: int, panel: Panel, costs: WinogradCosts) -> Blocks:
    """The order of a convolution's tiles."""
    images = conv.images
    tiles_down, tiles_across = -(-conv.rows // step), -(-conv.columns // step)
    products = (step + TAPS - 1) ** 2
    bytes_per_channel = products * _FLOAT32_BYTES
    weight_bytes = bytes_per_channel * images.channels * conv.filters
    data_bytes = bytes_per_channel * images.channels * images.count * tiles_down * tiles_across
    # Weights that fit a core's cache, of which an image block takes half, stay beside the block.
    is_streamed = weight_bytes > 2 * costs.image_block_bytes
    # Weights whose factors do not fit the shared cache, or are many beside those of the data, are
    # transformed panel by panel, and each panel is multiplied with all tiles at once, so that its
    # factors are computed once.
    if weight_bytes > costs.shared_bytes or (
        is_streamed and data_bytes <= costs.reread_share * weight_bytes
    ):
        return Blocks(depth=_divisor(images.channels, costs.depth_channels, panel.lanes))
    bytes_per_row = bytes_per_channel * (images.channels + conv.filters) * tiles_across
    block_bytes = costs.streamed_block_bytes if is_streamed else costs.image_block_bytes
    max_rows = min(block_bytes // bytes_per_row, images.count * tiles_down // _MIN_PARALLEL_PARTS)
    return _blocks(images.count, tiles_down, max_rows)


def _gradient_blocks(
    gradient: WeightGradient, step: int, panel: Panel, costs: WinogradCosts
) -> Blocks:
    """The order of a weight gradient's tiles."""
    data, cotangent = gradient.data, gradient.cotangent
    tiles_down, tiles_across = -(-cotangent.rows // step), -(-cotangent.columns // step)
    bytes_per_tile = (step + TAPS - 1) ** 2 * _FLOAT32_BYTES * (data.channels + cotangent.channels)
    rows, columns = data.channels, cotangent.channels
    if not gradient.data_in_rows:
        rows, columns = columns, rows
    # With the factors of all tiles at hand, blocks of weights are independent. If they are too few
    # for the threads, or the factors too many, products are added up block by block of images.
    depth = _divisor(rows, costs.depth_channels, 1)
    parts = rows // depth * (columns // panel.width)
    if (
        parts >= _MIN_PARALLEL_PARTS
        and bytes_per_tile * data.count * tiles_down * tiles_across <= costs.max_whole_bytes
    ):
        sufficient = rows * (columns // panel.width) // _MANY_PARALLEL_PARTS
        return Blocks(depth=_divisor(rows, min(depth, max(sufficient, _MIN_BLOCK_ROWS)), 1))
    max_rows = costs.gradient_block_bytes // (bytes_per_tile * tiles_across)
    return _blocks(data.count, tiles_down, max_rows)


def _blocks(images: int, tiles_down: int, max_rows: int) -> Blocks:
    """Blocks of at most `max_rows` rows of tiles, but at least one; of whole images if possible."""
    if max_rows < tiles_down or images == 1:
        return Blocks(1, _divisor(tiles_down, max(max_rows, 1), 1))
    return Blocks(_divisor(images, max_rows // tiles_down, 1), tiles_down)


def _tiles(rows: int, columns: int, step: int) -> int:
    """The number of tiles that cover an image."""
    return -(-rows // step) * -(-columns // step)


def _divisor(extent: int, largest: int, unit: int) -> int:
    """The largest divisor of an extent that is a multiple of `unit` and at most `largest`.

    If there is none, it is `unit`.
    """
    candidates: Iterable[int] = range(min(largest, extent), unit - 1, -1)
    return next(
        (
            candidate
            for candidate in candidates
            if extent % candidate == 0 and candidate % unit == 0
        ),
        unit,
    )
