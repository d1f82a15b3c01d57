"""Products of matrices, and determinants."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Tensor, dimension_text, same_dimension
from ...ops import functional as op
from ...ops.einsum import parse
from ...ops.scan import scan
from .node import Node, converter


@converter("Det")
def det(node: Node) -> Tensor:
    """The determinant of each of a batch of square matrices.

    By elimination with complete pivoting: the product of the pivots, with the sign of the order in
    which their rows and columns were taken. Each pivot is the largest element that is left, so no
    factor of a row exceeds 1, and only the last pivot of a matrix of rank n − 1 is 0, by which
    nothing is divided. The derivative, det(A) · A⁻ᵀ where that exists, is therefore right for
    singular matrices too: the matrix of cofactors, which is 0 below rank n − 1. (Golub and Van
    Loan, *Matrix computations*, 4th edition, 3.4.8.) A second derivative needs rank n − 1.
    """
    x = node.tensor(0)
    if x.ndim < 2 or not same_dimension(x.shape[-1], x.shape[-2]):
        extents = ", ".join(map(dimension_text, x.shape))
        raise ModelError(f"its input has the shape ({extents}): its last two axes must be equal")
    size = x.shape[-1]
    if not isinstance(size, int):
        raise ModelError(
            f"its matrices have {dimension_text(size)} rows, which must be a number: import with "
            "shapes= that give it"
        )
    batch, count = x.shape[:-2], math.prod(x.shape[:-2])
    if size == 0:
        return node.emitter.full(1.0, batch, x.dtype)
    matrices = op.reshape(op.widen(x), [count, size, size])
    free = node.emitter.full(1.0, [count, size], "bool")
    _, (pivots, rows, columns) = scan(_eliminated, [matrices, free, free], None, size)
    product = op.prod(pivots, axis=[0]) * _sign(rows, pivots.dtype) * _sign(columns, pivots.dtype)
    return op.reshape(product, batch).astype(x.dtype)


def _eliminated(carry: list[Tensor], _: None) -> tuple[list[Tensor], list[Tensor]]:
    """Take one step of the elimination; return what is left, and the pivot with its row and column.

    The carry is the matrices (batch, n, n), and whether each of their rows and columns (batch, n)
    is free. Those that are not hold zeros, but must not be chosen where all is zero.
    """
    a, *free = carry
    count, size, _ = a.shape
    free_rows, free_columns = (
        op.expand_dims(is_free, [axis]) for is_free, axis in zip(free, (2, 1), strict=True)
    )
    # −1 is less than any magnitude: a row or column that was taken is never taken again.
    magnitude = op.where(op.logical_and(free_rows, free_columns), op.abs(a), -1.0)
    flat_index = a.emitter.emit(
        relax.op.argmax(op.reshape(magnitude, [count, size * size]), axis=1)
    )
    indices, flat_indices = op.indices(a.emitter, size), op.expand_dims(flat_index, [1])
    pivot_position = _row_and_column(flat_indices, size)
    in_row, in_column = (op.equal(number, indices) for number in pivot_position)
    row = op.reduce_sum(op.where(op.expand_dims(in_row, [2]), a, 0.0), [1])
    column = op.reduce_sum(op.where(op.expand_dims(in_column, [1]), a, 0.0), [2])
    pivot = op.reduce_sum(op.where(in_column, row, 0.0), [1], keepdims=True)
    is_zero = op.equal(pivot, 0.0)  # then all that is left is 0, and nothing is to be eliminated
    factor = op.where(is_zero, 0.0, column / op.where(is_zero, 1.0, pivot))
    remaining = a - op.expand_dims(factor, [2]) * op.expand_dims(row, [1])
    still_free = [
        op.logical_and(is_free, op.logical_not(is_pivot))
        for is_free, is_pivot in zip(free, (in_row, in_column), strict=True)
    ]
    return [remaining, *still_free], [
        op.reshape(result, [count]) for result in (pivot, *pivot_position)
    ]


def _row_and_column(flat_index: Tensor, size: int) -> list[Tensor]:
    """The row and the column of flattened indices into matrices of `size` columns."""
    return [
        flat_index.emitter.emit(function(flat_index.expr, relax.const(size, "int64")))
        for function in (relax.op.floor_divide, relax.op.floor_mod)
    ]


def _sign(permutation: Tensor, dtype: str) -> Tensor:
    """1 for even permutations and −1 for odd ones, given as (n, batch): (batch,)."""
    size = permutation.shape[0]
    # By the number of inversions: pairs in which the earlier element is the greater one.
    is_earlier = np.triu(np.ones((size, size), "bool"), 1)[:, :, None]
    is_greater = op.greater(op.expand_dims(permutation, [1]), op.expand_dims(permutation, [0]))
    is_inversion = op.logical_and(
        is_greater, permutation.emitter.lift(relax.const(is_earlier, "bool"))
    )
    count = op.reduce_sum(is_inversion.astype("int64"), [0, 1])
    parity = permutation.emitter.emit(relax.op.floor_mod(count.expr, relax.const(2, "int64")))
    return 1.0 - 2.0 * parity.astype(dtype)


@converter("Einsum")
def einsum(node: Node) -> Tensor:
    """Keep the summation as one op; TVM's importer makes it a kernel, which has no gradient."""
    equation = node.attribute("equation").decode()
    operands = [node.tensor(index) for index in range(len(node.inputs))]
    parse(equation, [operand.ndim for operand in operands])
    return node.emitter.emit(relax.op.einsum([operand.expr for operand in operands], equation))
