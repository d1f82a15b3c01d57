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
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx

from ....ir.kernel_structure import Axis, Load, Stage, loop_nest, static, substitute_values
from ....ir.loops import bound, ceil_div, index, load, loop, registers, sequence, store, variable
from ....ir.visits import nodes_in, replace_nodes
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
from .tile import Extents, Tile

_MIN_ARCHITECTURE = 80
"""The first GPUs whose tensor cores take all of bfloat16, float16 and TF32."""

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
    merged : dict
        The variables of the stage's axes that are split in two of these, in terms of those.
    """

    number: str
    factors: tuple[Any, Any]
    batch: list[Axis]
    rows: list[Axis]
    columns: list[Axis]
    terms: list[Axis]
    merged: dict[Any, Any]

    @property
    def extents(self) -> Extents:
        """How many there are of each."""
        return Extents(*map(_count, (self.batch, self.rows, self.columns, self.terms)))


def has_tensor_cores(target: tvm.target.Target) -> bool:
    """Whether kernels for a target multiply on tensor cores, in precisions that these have."""
    return str(target.kind.name) == "cuda" and (
        compute_capability(arch_of(target)) >= _MIN_ARCHITECTURE
    )


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
    if not has_tensor_cores(target):
        return None
    contraction = contraction_of(stage, realize)
    contraction, merged = (None, {}) if contraction is None else _with_groups(contraction)
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
    product = Product(number, factors, batch, left, right, terms, merged)
    if kinds or not product.extents.fits:
        return None
    # Threads store neighboring columns: those should be neighbors in memory.
    if contraction.spatial and _last_long(contraction) in left:
        return replace(product, factors=factors[::-1], rows=right, columns=left)
    return product


def _with_groups(contraction: Contraction) -> tuple[Contraction, dict[Any, Any]]:
    """A contraction over groups, and places in a group, where a read has a quotient of an axis.

    A convolution of groups reads channel ``k // 4 * 8 + c`` for filter k. With k = 4 · g + i, both
    factors are read along g, and one of them along i.

    Returns
    -------
    (Contraction, dict)
        The variables that are split, in terms of those of the new axes.
    """
    loads = [each for factor in contraction.factors for each in nodes_in(factor, Load)]
    divisors: dict[Any, set[int | None]] = {}
    for node in nodes_in([list(each.indices) for each in loads], (tirx.FloorDiv, tirx.FloorMod)):
        divisors.setdefault(node.a, set()).add(static(node.b))
    analyzer = tvm.sym.Analyzer()
    merged: dict[Any, Any] = {}
    axes: dict[Any, tuple[Axis, ...]] = {}
    for axis in contraction.axes:
        size, *others = divisors.get(axis.var, {None})
        if others or not size or not axis.extent or axis.extent % size:
            continue
        group, place = (tvm.ir.Var(name, str(axis.var.ty.dtype)) for name in ("group", "place"))
        axes[axis.var] = (
            Axis(group, axis.extent // size, axis.reduced),
            Axis(place, size, axis.reduced),
        )
        for each in axes[axis.var]:
            analyzer.bind(each.var, tvm.ir.Range(0, each.extent))
        merged[axis.var] = group * size + place

    def read(node: Any) -> Any:
        indices = [analyzer.simplify(substitute_values(at, merged)) for at in node.indices]
        return load(node.source, indices)

    def split(before: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(part for axis in before for part in axes.get(axis.var, (axis,)))

    first, second = (replace_nodes(factor, Load, read) for factor in contraction.factors)
    return replace(
        contraction,
        spatial=split(contraction.spatial),
        reduced=split(contraction.reduced),
        factors=(first, second),
    ), merged


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
    merged = {loop_of[var].loop_var: value for var, value in product.merged.items()}
    for axis in (*product.batch, *product.rows, *product.columns, *product.terms):
        if axis.var not in loop_of:
            loop_of[axis.var] = loop(axis.var, axis.extent, tirx.Evaluate(0))

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
    return _Launch(product.extents.tile, left, right, target, single | merged).statement()


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
        self, tile: Tile, left: Operand, right: Operand, target: Target, others: dict[Any, Any]
    ):
        self._tile, self._left, self._right = tile, left, right
        self._target, self._others = target, others
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
            **point(left.batch, self._product),
            **point(left.rows, row),
            **point(right.rows, column + own),
        }
        values |= {var: substitute_values(at, values) for var, at in self._others.items()}
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
