"""Sorting and searching: any dtype and axis, stable, and with a place for NaN.

The stock sort serves few dtypes, and compares NaN inconsistently, by which the result of its
library sort is undefined. `order` is a stable merge sort, with NaN after every number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx, topi

from ..ir.loops import Indices, Statement, sequence, serial, store
from ..ir.tensor import is_float
from ..layout.rule import along_axis, layout_rule
from .define import OPAQUE
from .indexing import Indexing, gather, outside_value, within
from .legalize import checked_axis, legalization
from .opaque_kernel import KERNEL, Nest, extern, fill

_MAX_DOUBLINGS = 40
"""Doublings of a run's length along an axis of symbolic extent: enough for 2⁴⁰ ≈ 10¹² elements."""


ORDER = f"{KERNEL}order"
"""The tag of the stage of `order`, whose second output is left undefined."""


def order(x: te.Tensor, axis: int, descending: bool) -> te.Tensor:
    """The indices (int64) along an axis that sort x; equal elements keep their order.

    NaN counts as greater than every number, so it comes last, or first where descending: what
    NumPy and PyTorch do.
    """

    def build(ins: list[Any], outs: list[Any]) -> Statement:
        (values,), (indices, spare) = ins, outs
        return _MergeSort(values, indices, spare, axis, descending).build()

    shapes, attributes = [x.shape, x.shape], {"axis": axis, "descending": descending}
    sorted_indices, _ = extern("order", shapes, ["int64", "int64"], [x], build, attributes)
    return sorted_indices


@dataclass(frozen=True)
class _MergeSort:
    """A merge sort from below: sorted runs of length 1, 2, 4, … of `indices` are merged in pairs.

    Pairs are merged into `spare` and copied back. A *line* is the indices along all other axes.
    """

    values: Any
    indices: Any
    spare: Any
    axis: int
    descending: bool

    @property
    def extent(self) -> Any:
        """The number of elements of a line."""
        return self.values.shape[self.axis]

    def build(self) -> Statement:
        """The loops that sort all lines, which are independent of each other."""
        lines = [e for d, e in enumerate(self.values.shape) if d != self.axis]
        nest = Nest(lines, range(len(lines), len(lines)), work=self.extent)
        return sequence(fill(self.indices, lambda i: i[self.axis]), nest.build(self.sort))

    def at(self, line: Indices, i: Any) -> list[Any]:
        """The indices of the element `i` of a line."""
        return [*line[: self.axis], i, *line[self.axis :]]

    def sort(self, line: Indices) -> Statement:
        """The loops that sort one line."""
        is_static = isinstance(self.extent, tirx.IntImm)
        doublings = max(int(self.extent) - 1, 0).bit_length() if is_static else _MAX_DOUBLINGS

        def double(doubling: Any) -> Statement:
            width = tirx.shift_left(tirx.const(1, "int64"), doubling)
            pairs = tirx.floordiv(self.extent + 2 * width - 1, 2 * width)
            merge = serial(pairs, lambda pair: self.merge(line, pair * 2 * width, width))
            back = serial(self.extent, lambda i: self.copy_back(line, i))
            # A symbolic extent may be sorted after fewer doublings.
            return tirx.IfThenElse(width < self.extent, sequence(merge, back), None)

        return serial(doublings, double)

    def copy_back(self, line: Indices, i: Any) -> Statement:
        """The copy of one element from the spare buffer, where runs have been merged."""
        position = self.at(line, i)
        return store(self.indices, position, self.spare[tuple(position)])

    def merge(self, line: Indices, start: Any, width: Any) -> Statement:
        """Merge two neighboring runs; of equal elements, the one on the left goes first."""
        middle = tirx.min(start + width, self.extent)
        stop = tirx.min(start + 2 * width, self.extent)
        left_taken = tirx.decl_buffer((1,), "int64", "taken", scope="local")
        zero = tirx.const(0, "int64")

        def step(i: Any) -> Statement:
            # i elements are merged: those not from the left run are from the right one.
            left = start + left_taken[zero]
            right = middle + i - left_taken[zero]
            a, b = (self.indices[tuple(self.at(line, side))] for side in (left, right))
            # Conditionals, not conjunctions: what lies beyond the end of a run is never read.
            keeps_order = tirx.if_then_else(
                right < stop, self.in_order(line, a, b), tirx.const(True, "bool")
            )
            from_left = tirx.if_then_else(left < middle, keeps_order, tirx.const(False, "bool"))
            position = self.at(line, start + i)
            take_left = sequence(
                store(self.spare, position, a),
                store(left_taken, [zero], left_taken[zero] + 1),
            )
            return tirx.IfThenElse(from_left, take_left, store(self.spare, position, b))

        return sequence(
            tirx.AllocBuffer(left_taken),
            store(left_taken, [zero], zero),
            serial(stop - start, step),
        )

    def in_order(self, line: Indices, i: Any, j: Any) -> Any:
        """Whether an element may stand before another.

        Said without a negation: the compiler turns ``not a < b`` to ``b <= a``, which NaN is not.
        """
        a, b = (self.values[tuple(self.at(line, index))] for index in (i, j))
        ordered = a >= b if self.descending else a <= b
        if not is_float(str(self.values.dtype)):
            return ordered
        last = a if self.descending else b
        if str(self.values.dtype) == "bfloat16":
            last = last.astype("float32")  # TVM asks no other whether it is a number
        return tirx.any(ordered, tirx.isnan(last))


@legalization("relax.argsort")
def argsort(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower argsort; the stock one refuses 8-bit integers, and is undefined with NaN."""
    axis, dtype = checked_axis(call), str(call.attrs.dtype)

    def expression(x: te.Tensor) -> te.Tensor:
        sorted_indices = order(x, axis, bool(call.attrs.descending))
        return te.compute(x.shape, lambda *i: sorted_indices(*i).astype(dtype), name="argsort")

    return builder.call_te(
        expression, call.args[0], primfunc_name_hint="argsort", primfunc_attrs=OPAQUE
    )


@legalization("relax.sort")
def sort(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower sort as the elements in the order of argsort."""
    axis = checked_axis(call)

    def expression(x: te.Tensor) -> te.Tensor:
        return _at(x, order(x, axis, bool(call.attrs.descending)), axis)

    return builder.call_te(
        expression, call.args[0], primfunc_name_hint="sort", primfunc_attrs=OPAQUE
    )


@legalization("relax.topk")
def topk(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower topk as the first of the sorted elements: of ties, the first ones.

    The stock one refuses symbolic shapes. Where there are fewer than k elements, NaN (0 in
    integers) and the index −1 stand for the others.
    """
    axis, returned, dtype = checked_axis(call), str(call.attrs.ret_type), str(call.attrs.dtype)
    result = call.ty.fields[0] if isinstance(call.ty, relax.TupleType) else call.ty
    count = result.shape[axis]

    def expression(x: te.Tensor) -> te.Tensor | list[te.Tensor]:
        sorted_indices = order(x, axis, bool(call.attrs.largest))
        shape = [count if d == axis else extent for d, extent in enumerate(x.shape)]

        def position(*i: Any) -> Any:
            inside = tirx.all(True, *within([i[axis]], [x.shape[axis]], [count]))
            return tirx.if_then_else(inside, sorted_indices(*i), tirx.const(-1, "int64"))

        positions = te.compute(shape, position, name="places")
        values = _at(x, positions, axis)
        indices = te.compute(shape, lambda *i: positions(*i).astype(dtype), name="indices")
        return {"values": values, "indices": indices, "both": [values, indices]}[returned]

    return builder.call_te(
        expression, call.args[0], primfunc_name_hint="topk", primfunc_attrs=OPAQUE
    )


@legalization("relax.bucketize")
def bucketize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower bucketize so that NaN goes behind every boundary; the stock one puts it before."""
    dtype = "int32" if call.attrs.out_int32 else "int64"

    def expression(x: te.Tensor, boundaries: te.Tensor) -> te.Tensor:
        bucket = topi.searchsorted(boundaries, x, bool(call.attrs.right), dtype)
        if not is_float(str(x.dtype)):
            return bucket
        last = boundaries.shape[0].astype(dtype)
        return te.compute(
            x.shape, lambda *i: tirx.Select(tirx.isnan(x(*i)), last, bucket(*i)), name="bucketize"
        )

    return builder.call_te(
        expression, *call.args, primfunc_name_hint="bucketize", primfunc_attrs=OPAQUE
    )


def _at(x: te.Tensor, positions: te.Tensor, axis: int) -> te.Tensor:
    """The elements at positions along an axis; NaN, or 0 in integers, at a negative one."""
    return gather(Indexing("elements", axis, "nan"), x, positions, outside_value(str(x.dtype)))


layout_rule("relax.argsort", "relax.sort", "relax.topk")(along_axis)
