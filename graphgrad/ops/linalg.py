"""Matrix products: their lowerings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te

from ..ir.kernel_structure import static
from ..ir.tensor import Emitter, accumulator_dtype, type_shape
from . import functional as op
from .legalize import legalization


@legalization("relax.matmul")
def matmul(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Lower matmul as TVM does, but add up half precision in float32.

    A sum of no terms is a tensor of zeros: the pipeline takes a kernel that reads nothing for a
    reshape of an empty operand, and fails.
    """
    dtype = str(call.ty.dtype)
    if any(extent == 0 for argument in call.args for extent in type_shape(argument.ty)):
        return relax.op.zeros(call.ty.shape, dtype)
    if accumulator_dtype(dtype) == dtype:
        return builder.call_te(
            matrix_product, *call.args, call.ty.shape, dtype, primfunc_name_hint="matmul"
        )
    emitter = Emitter(builder)
    with emitter.at(call.span, ""):
        a, b = op.same_dtype(*map(emitter.lift, call.args))
        return (a @ b).astype(dtype).expr


def matrix_product(
    a: te.Tensor, b: te.Tensor, shape: list[Any], dtype: str, order: Sequence[int] | None = None
) -> te.Tensor:
    """The product of two stacks of matrices; a vector is a row on the left, else a column.

    The shapes of the stacks are broadcast, as NumPy's matmul does.

    Parameters
    ----------
    a, b : te.Tensor
        Or what has a shape and is read as one.
    shape : list
        Of the product.
    dtype : str
        In which it is computed.
    order : sequence of int, optional
        For each axis of the result, the axis of the product that it is; by default the same one.
    """
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    stack = len(shape) - rows - columns
    k = te.reduce_axis((0, a.shape[-1]), name="k")

    def within(stack_indices: Sequence[Any], extents: Sequence[Any]) -> list[Any]:
        """The indices into a factor's stack, which may have fewer axes: 0 where it is broadcast."""
        missing = len(stack_indices) - len(extents)
        pairs = zip(stack_indices[missing:], extents, shape[missing:stack], strict=True)
        return [0 if static(extent) == 1 != static(full) else i for i, extent, full in pairs]

    def element(*indices: Any) -> Any:
        stack_indices, matrix_indices = indices[:stack], indices[stack:]
        left = a(*within(stack_indices, a.shape[:-2]), *matrix_indices[:rows], k)
        right = b(
            *within(stack_indices, b.shape[:-2]),
            k,
            *matrix_indices[len(matrix_indices) - columns :],
        )
        return te.sum(left.astype(dtype) * right.astype(dtype), axis=k)

    if order is None:
        return te.compute(shape, element, name="matmul")
    # For each axis of the product, the axis of the result.
    inverse = [order.index(axis) for axis in range(len(order))]
    permuted = [shape[axis] for axis in order]
    return te.compute(permuted, lambda *i: element(*(i[axis] for axis in inverse)), name="matmul")
