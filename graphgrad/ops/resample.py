"""Resampling along one axis: every output is a weighted sum of a few inputs, known in advance.

Resizing an image and adaptive average pooling are separable: one such step per axis. A step is an
op of ours, `resample`, that carries its own transpose. Its gradient is the same op with the two
exchanged, so that derivatives exist to any order and none of them scatters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ..ir.tensor import Tensor, accumulator_dtype
from ..layout.rule import along_axis, layout_rule
from .define import call_op, define_op
from .elementwise import cast

_NO_INPUT = -1
"""The number that fills a row of a table whose output reads fewer inputs than others."""


@dataclass(frozen=True)
class Table:
    """The inputs of each output along an axis, and their weights.

    Attributes
    ----------
    rows : sequence of mappings
        For each output, the weight of each input that it reads.
    extent : int
        The number of inputs.
    """

    rows: Sequence[Mapping[int, float]]
    extent: int

    @property
    def is_identity(self) -> bool:
        """Whether every output is the input of the same number."""
        return len(self.rows) == self.extent and all(
            row == {output: 1.0} for output, row in enumerate(self.rows)
        )

    def transposed(self) -> Table:
        """The table of the transpose: the outputs that read each input, with the same weights."""
        rows: list[dict[int, float]] = [{} for _ in range(self.extent)]
        for output, row in enumerate(self.rows):
            for position, weight in row.items():
                rows[position][output] = weight
        return Table(rows, len(self.rows))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Two arrays (outputs, taps): numbers of inputs as int32, −1 for none, and weights."""
        # At least one, so that no sum is empty.
        taps = max([1, *map(len, self.rows)])
        index = np.full((len(self.rows), taps), _NO_INPUT, "int32")
        weight = np.zeros((len(self.rows), taps))
        for output, row in enumerate(self.rows):
            index[output, : len(row)] = list(row.keys())
            weight[output, : len(row)] = list(row.values())
        return index, weight


def resample(x: Tensor, table: Table, axis: int) -> Tensor:
    """The weighted sums of x along one axis; half precision adds up in float32."""
    if table.is_identity:
        return x
    tables = [*table.arrays(), *table.transposed().arrays()]
    return resample_by(x, [_constant(x, array) for array in tables], axis)


def resample_by(x: Tensor, tables: Sequence[Tensor], axis: int) -> Tensor:
    """`resample` by tables that are tensors: index, weight, and those of the transpose."""
    return x.emitter.emit(call_op(_RESAMPLE, [x.expr, *(t.expr for t in tables)], axis=axis))


def _constant(x: Tensor, array: np.ndarray) -> Tensor:
    return x.emitter.lift(relax.const(array, str(array.dtype)))


def _infer_type(call: relax.Call) -> relax.TensorType:
    data, index = call.args[:2]
    shape = list(data.ty.shape)
    shape[int(call.attrs["axis"])] = index.ty.shape[0]
    return relax.TensorType(shape, data.ty.dtype)


def _expression(
    call: relax.Call, x: te.Tensor, index: te.Tensor, weight: te.Tensor, *_: te.Tensor
) -> te.Tensor:
    """The sums y[…, o, …] = Σ weight[o, t] · x[…, index[o, t], …] over the taps t."""
    axis = int(call.attrs["axis"])
    dtype = str(x.dtype)
    accumulator = accumulator_dtype(dtype)
    shape = [weight.shape[0] if k == axis else extent for k, extent in enumerate(x.shape)]

    def term(indices: Sequence[Any], tap: Any) -> Any:
        output = indices[axis]
        position = index[output, tap]
        input_index = [position.astype("int64") if k == axis else i for k, i in enumerate(indices)]
        product = x(*input_index).astype(accumulator) * weight[output, tap].astype(accumulator)
        # No Select, which would read at the position −1.
        return tirx.if_then_else(position >= 0, product, tirx.const(0, accumulator))

    if int(weight.shape[1]) == 1:
        return te.compute(shape, lambda *i: term(i, 0).astype(dtype), name="resample")
    tap = te.reduce_axis((0, weight.shape[1]), "tap")
    total = te.compute(shape, lambda *i: te.sum(term(i, tap), axis=tap), name="resample")
    return cast(total, dtype)


_RESAMPLE = define_op(
    "resample",
    ["data", "index", "weight", "transposed_index", "transposed_weight"],
    _infer_type,
    _expression,
)
layout_rule("graphgrad.resample")(along_axis)
