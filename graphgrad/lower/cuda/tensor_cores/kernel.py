"""Contractions on tensor cores, Σ A·B in float32 of bfloat16, float16 or TF32.

They are recognized by the structure of a stage, as other contractions are: matrix products and
convolutions, their gradients, and products in tensor expressions are one thing here. The axes of
the result that only the left factor is read along are the *rows*, those of the right one the
*columns*, and those of both number the *products* of a batch.

A block of threads computes a tile of rows and columns. Per stage of terms, each thread loads 16
bytes a few times, and stores them to shared memory while warps multiply the stage before
(`device.py`). Two stages take turns, so that there is one barrier for each. Where an index is
outside its range, or a border of zeros is read, zeros are stored and nothing is loaded. Maps of the
factors are computed on the way to shared memory, and a map of the result on the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from ....ir.kernel_structure import Axis, Load, Stage, loop_nest, substitute_values
from ....ir.loops import bound, ceil_div, index, load, loop, registers, sequence, store, variable
from ....ir.visits import replace_nodes
from ....ir.warps import WARP
from ...kernels.contraction import Contraction, contraction_of
from ...kernels.epilogue import Epilogue
from ..architecture import compute_capability
from ..compiler import arch_of
from ..lanes import over_lanes
from ..reduction import Target, reduction_of
from ..threads import barrier
from .device import FRAGMENT, HALVES, STAGE_CHUNKS, TF32, Warp, chunk_elements
from .operand import Copy, Operand, operand_of, point, points

MIN_EXTENT = 8
"""Rows, columns and terms from which on most of a tile is not padding."""

_MIN_ARCHITECTURE = 80
"""The first GPUs whose tensor cores take all of bfloat16, float16 and TF32."""

_MAX_TERMS = 8192
"""Terms of one sum. Tensor cores add up 8 or 16 terms at a time, and may cut off, not round."""

_MIN_TERMS_PER_PART = 512
"""Terms that a part must have for cutting a sum to be worth a launch."""

_MIN_BUSY_BLOCKS = 128
"""Blocks of threads that keep a large GPU busy: one for each of its processors."""


@dataclass(frozen=True)
class Tile:
    """What a block of threads computes.

    Attributes
    ----------
    rows, columns : int
    warps : (int, int)
        Along rows and along columns.
    share : float
        Of the rate of tensor cores, relative to the largest tile: an assumption. Small tiles read
        more of shared memory, and of global memory, for each product.
    """

    rows: int
    columns: int
    warps: tuple[int, int]
    share: float

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.warps) * WARP


_TILES = (
    Tile(128, 128, (2, 4), 1.0),
    Tile(128, 64, (2, 2), 0.85),
    Tile(64, 128, (1, 4), 0.85),
    Tile(64, 64, (2, 2), 0.7),
    Tile(128, 32, (4, 1), 0.55),
    Tile(32, 128, (1, 4), 0.55),
    Tile(32, 32, (2, 2), 0.3),
)


_KINDS = (
    (True, True, False),
    (True, False, False),
    (False, True, False),
    (True, True, True),
)
"""Of axes of the batch, of rows, of columns and of terms: whether the left factor is read along
them, whether the right one is, and whether they are summed over."""


@dataclass(frozen=True)
class Product:
    """A contraction for tensor cores.

    Attributes
    ----------
    number : str
        What tensor cores read factors as.
    factors : (Expr, Expr)
        The left and the right one, in that dtype, in the variables of the axes.
    batch, rows, columns, terms : list of Axis
    """

    number: str
    factors: tuple[Any, Any]
    batch: list[Axis]
    rows: list[Axis]
    columns: list[Axis]
    terms: list[Axis]

    @property
    def tile(self) -> Tile:
        """The tile that takes the least time, as far as is known."""
        return min(_TILES, key=self._cost)

    def blocks(self, tile: Tile) -> int:
        """Blocks of threads."""
        rows, columns = _count(self.rows), _count(self.columns)
        return _count(self.batch) * ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns)

    @property
    def parts(self) -> int:
        """Into how many parts to cut each sum, at least."""
        terms = _count(self.terms)
        wished = math.ceil(_MIN_BUSY_BLOCKS / self.blocks(self.tile))
        return max(min(wished, terms // _MIN_TERMS_PER_PART), math.ceil(terms / _MAX_TERMS))

    def _cost(self, tile: Tile) -> float:
        blocks = self.blocks(tile)
        busy = blocks * max(1, _count(self.terms) // _MIN_TERMS_PER_PART)
        idle = max(1.0, _MIN_BUSY_BLOCKS / busy)
        return blocks * tile.rows * tile.columns / tile.share * idle


def product_of(stage: Stage, realize: Any, target: tvm.target.Target, tf32: bool) -> Product | None:
    """The product that a stage computes, for tensor cores; None if it is none for them.

    Parameters
    ----------
    stage : Stage
    realize : SBlockRealize
        Its block.
    target : Target
    tf32 : bool
        Whether factors of float32 may be rounded to TF32.
    """
    if any(not axis.extent for axis in stage.axes):
        return None
    if compute_capability(arch_of(target)) < _MIN_ARCHITECTURE:
        return None
    contraction = contraction_of(stage, realize)
    numbers = None if contraction is None else _numbers(contraction, tf32)
    if contraction is None or numbers is None:
        return None
    number, factors = numbers
    kinds: dict[tuple[bool, ...], list[Axis]] = {}
    for axis in contraction.axes:
        if axis.extent != 1:
            along = (contraction.depends(0, axis), contraction.depends(1, axis))
            kinds.setdefault((*along, axis.reduced), []).append(axis)
    batch, left, right, terms = (kinds.pop(kind, []) for kind in _KINDS)
    if kinds or min(map(_count, (left, right, terms))) < MIN_EXTENT:
        return None
    # Threads store neighboring columns: those should be neighbors in memory.
    if contraction.spatial and _last_long(contraction) in left:
        left, right, factors = right, left, factors[::-1]
    return Product(number, factors, batch, left, right, terms)


def _count(axes: Sequence[Axis]) -> int:
    return math.prod(axis.extent or 1 for axis in axes)


def _last_long(contraction: Contraction) -> Axis | None:
    long_axes = [axis for axis in contraction.spatial if axis.extent != 1]
    return long_axes[-1] if long_axes else None


def _numbers(contraction: Contraction, tf32: bool) -> tuple[str, tuple[Any, Any]] | None:
    """What tensor cores read the factors of a contraction as, and the factors in that."""
    factors = contraction.factors
    if contraction.dtype == "float32" and all(
        isinstance(each, tirx.Cast) and str(each.value.ty) in HALVES for each in factors
    ):
        factors = (factors[0].value, factors[1].value)
    dtypes = {str(each.ty) for each in factors}
    for number in HALVES:
        # Sums of halves in halves are added up in float32, and rounded once.
        if dtypes == {number} and contraction.dtype in (number, "float32"):
            return number, factors
    return (TF32, factors) if tf32 and dtypes == {"float32"} == {contraction.dtype} else None


def tensor_core_launch(
    product: Product,
    stage: Stage,
    nest: Any,
    maps: Sequence[Stage],
    epilogues: Sequence[Epilogue],
) -> Any:
    """The launch of a product.

    Parameters
    ----------
    product : Product
    stage : Stage
    nest : Stmt
        Its loops.
    maps : sequence of Stage
        What factors are, computed on the way; each `is_plain`.
    epilogues : sequence of Epilogue
        The map of the result, if one is computed here.
    """
    parts = loop_nest(nest)
    assert parts is not None
    loops, realize = parts
    loop_of = {axis.var: each for axis, each in zip(stage.axes, loops, strict=True)}

    def over(axes: Sequence[Axis]) -> list[Any]:
        return [loop_of[axis.var] for axis in axes]

    batch, terms = over(product.batch), over(product.terms)
    variables = {var: each.loop_var for var, each in loop_of.items()}
    left, right = (
        operand_of(
            product.number,
            substitute_values(_with_maps(factor, maps), variables),
            batch,
            over(rows),
            terms,
        )
        for factor, rows in zip(product.factors, (product.rows, product.columns), strict=True)
    )
    (target,) = reduction_of(stage, loops, realize.block, epilogues).targets
    single = {each.loop_var: each.min for each in loops if int(each.extent) == 1}
    return _Launch(product.tile, left, right, target, single).statement()


def is_plain(stage: Stage) -> bool:
    """Whether a map stores its elements at its axes, so that a read can be its expression."""
    (store,) = stage.stores
    axes = [axis.var for axis in stage.axes if axis.extent != 1]
    indices = [i for i in store.indices if not isinstance(i, tirx.IntImm)]
    of_long_axes = [i for i in indices if any(i.same_as(var) for var in axes)]
    return len(of_long_axes) == len(axes) and all(isinstance(i, tvm.ir.Var) for i in indices)


def _with_maps(factor: Any, maps: Sequence[Stage]) -> Any:
    """A factor with the expressions of maps in the place of reads of what they store."""

    def inlined(read: Any) -> Any:
        for each in maps:
            (store,) = each.stores
            if store.buffer.same_as(read.source):
                values = {axis.var: index(0) for axis in each.axes}
                values |= {
                    var: at
                    for var, at in zip(store.indices, read.indices, strict=True)
                    if isinstance(var, tvm.ir.Var)
                }
                return substitute_values(store.value, values)
        return read

    return replace_nodes(factor, Load, inlined)


class _Launch:
    """Writes the launch of a product."""

    def __init__(
        self, tile: Tile, left: Operand, right: Operand, target: Target, single: dict[Any, Any]
    ):
        self._tile, self._left, self._right = tile, left, right
        self._target, self._single = target, single
        self._block, self._thread = variable("block"), variable("thread")
        self._copies = (
            Copy.of(left, tile.rows, tile.threads, "left"),
            Copy.of(right, tile.columns, tile.threads, "right"),
        )
        along_rows, along_columns = tile.warps
        self._warp = Warp(
            self._copies[0].layout,
            self._copies[1].layout,
            tile.rows // along_rows,
            tile.columns // along_columns,
        )
        self._sums = registers("sums", (self._warp.sums,))
        tiles = [
            ceil_div(operand.row_count, extent)
            for operand, extent in ((left, tile.rows), (right, tile.columns))
        ]
        self._blocks = points(left.batch) * math.prod(tiles)
        number, column = _divided(self._block, tiles[1])
        self._product, row = _divided(number, tiles[0])
        self._tiles = (row, column)
        self._warp_number, self._lane = _divided(self._thread, WARP)
        warp_row, warp_column = _divided(self._warp_number, along_columns)
        self._warp_first = (warp_row * self._warp.rows, warp_column * self._warp.columns)

    def statement(self) -> Any:
        """The launch."""
        at, zero = variable("i"), tirx.const(0, "float32")
        buffers = [b for copy in self._copies for b in (copy.held, copy.tiles)]
        body = sequence(
            *(tirx.AllocBuffer(buffer) for buffer in (*buffers, self._sums)),
            _unrolled(at, self._warp.sums, store(self._sums, [at], zero)),
            self._stages(),
            self._stored(),
        )
        inner = bound(self._thread, index(self._tile.threads), "threadIdx.x", body)
        return bound(self._block, index(self._blocks), "blockIdx.x", inner)

    def _stages(self) -> Any:
        """The loop over stages: loads of one are under way while the one before is multiplied."""
        stage = variable("stage")
        count = ceil_div(self._left.term_count, STAGE_CHUNKS * chunk_elements(self._left.number))
        fetched = [
            copy.fetched(self._thread, self._product, tile, stage)
            for copy, tile in zip(self._copies, self._tiles, strict=True)
        ]
        current, previous = tirx.floormod(stage, 2), tirx.floormod(stage + 1, 2)
        stored = [copy.shared(self._thread, current) for copy in self._copies]
        multiplied = self._warp.multiply(
            tirx.address_of(load(self._sums, [index(0)])),
            [tirx.address_of(load(copy.tiles, [previous, index(0)])) for copy in self._copies],
            [first.astype("int32") for first in self._warp_first],
        )
        is_left, has_previous = stage < count, stage > 0
        body = sequence(
            tirx.IfThenElse(is_left, sequence(*fetched), None),
            tirx.IfThenElse(has_previous, tirx.Evaluate(multiplied), None),
            tirx.IfThenElse(is_left, sequence(*stored), None),
            barrier(),
        )
        return loop(stage, count + 1, body)

    def _stored(self) -> Any:
        """The statement that stores a thread's sums, or the map of them."""
        rows, columns = self._warp.rows // FRAGMENT[0], self._warp.columns // FRAGMENT[1]
        i, lower, j, lane = (variable(name) for name in ("i", "lower", "j", "lane"))
        (tile_row, tile_column), (warp_row, warp_column) = self._tiles, self._warp_first
        group, pair = _divided(self._lane, 4)
        row = tile_row * self._tile.rows + warp_row + i * FRAGMENT[0] + lower * 8 + group
        column = tile_column * self._tile.columns + warp_column + j * FRAGMENT[1] + pair * 2
        sum_at = (i * columns + j) * 4 + lower * 2
        width = 2 if self._right.row_count % 2 == 0 else 1
        body = sequence(
            *(
                self._stored_lanes(row, column + first, sum_at + first, lane, width)
                for first in range(0, 2, width)
            )
        )
        for var, trips in ((j, columns), (lower, 2), (i, rows)):
            body = _unrolled(var, trips, body)
        return body

    def _stored_lanes(self, row: Any, column: Any, sum_at: Any, lane: Any, width: int) -> Any:
        own = variable(lane.name) if width > 1 else index(0)
        left, right = self._left, self._right
        values = {
            **self._single,
            **point(left.batch, self._product),
            **point(left.rows, row),
            **point(right.rows, column + own),
        }
        result = load(self._sums, [sum_at + own]).astype(str(self._target.result.dtype))
        stores = [substitute_values(each, values) for each in self._target.stored(result)]
        body = over_lanes(own, width, sequence(*stores)) if width > 1 else sequence(*stores)
        inside = []
        if left.row_count % self._tile.rows:
            inside.append(row < left.row_count)
        if right.row_count % self._tile.columns:
            inside.append(column < right.row_count)
        return tirx.IfThenElse(tirx.all(*inside), body, None) if inside else body


def _divided(number: Any, divisor: int) -> tuple[Any, Any]:
    return tirx.floordiv(number, divisor), tirx.floormod(number, divisor)


def _unrolled(var: Any, trips: int, body: Any) -> Any:
    """A loop that nvcc unrolls: what stands once in the source is lowered once."""
    if trips == 1:
        return substitute_values(body, {var: index(0)})
    marks = {"pragma_unroll_explicit": index(0)}
    return tirx.For(var, index(0), index(trips), tirx.ForKind.UNROLLED, body, None, marks)
