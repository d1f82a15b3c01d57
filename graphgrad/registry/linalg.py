"""Rules of matrix products."""

from __future__ import annotations

from ..ops import functional as op
from ..ops.tensor import Tensor
from .rule import bilinear
from .sample import sample

MATMUL = [
    ((2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((2, 1, 2, 3), (4, 3, 2)),
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    (("n", 3), (3, 4)),
    ((1, 1), (1, 1)),
]


@bilinear("relax.matmul", samples=[sample(*shapes) for shapes in MATMUL])
def matmul(a: Tensor, b: Tensor, ct: Tensor) -> tuple[Tensor, Tensor]:
    """ā = ȳ bᵀ,  b̄ = aᵀ ȳ; a vector counts as a row of a and as a column of b"""
    a, b, ct = op.same_dtype(a, b, ct)
    if a.ndim == 1 and b.ndim == 1:
        return ct * b, ct * a
    if b.ndim == 1:
        column = op.reshape(ct, [*ct.shape, 1])
        b_bar = op.transpose(a) @ column
        return column * b, op.reshape(b_bar, b_bar.shape[:-1])
    if a.ndim == 1:
        row = op.reshape(ct, [*ct.shape[:-1], 1, ct.shape[-1]])
        a_bar = row @ op.transpose(b)
        a_bar = op.reshape(a_bar, [*a_bar.shape[:-2], a_bar.shape[-1]])
        return a_bar, op.reshape(a, [*a.shape, 1]) * row
    return ct @ op.transpose(b), op.transpose(a) @ ct
