"""Rules of matrix products."""

from __future__ import annotations

import math
from typing import Any

from ..ir.tensor import Tensor
from ..ops import functional as op
from ..ops.einsum import einsum as written_out
from .rule import bilinear, composite
from .sample import Sample, sample

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
    ((2, "k"), ("k", 4)),
    (("b", 2, 3), (1, 3, 4)),
    (("b", "m", 3), (3, 4)),
    ((1, 1), (1, 1)),
    ((2, 0), (0, 3)),
    ((0, 2), (2, 3)),
]

EINSUM: list[tuple[str, Any]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]),
    ("i,j->ji", [(2,), (3,)]),
    ("i,i->", [(3,), (3,)]),
    ("bi,bi->b", [(2, 3), (2, 3)]),
    ("ij->", [(2, 3)]),
    ("ij->ji", [(2, 3)]),
    ("ba", [(2, 3)]),
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("iji,jj->ij", [(2, 3, 2), (3, 3)]),
    ("iii->", [(2, 2, 2)]),
    ("ij,k->k", [(2, 3), (4,)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("ij,kl,jk->il", [(2, 3), (4, 2), (3, 4)]),
    ("i,ij,j,->", [(2,), (2, 3), (3,), ()]),
    ("...ij,...jk->...ik", [(2, 1, 2, 3), (4, 3, 2)]),
    ("...i,j...->j...", [(2, 3), (4, 2)]),
    ("i...->...", [(2, 3)]),
    ("ij,ij->i", [(2, 3), (1, 1)]),
    ("ij,jk->ik", [(2, 1), (3, 4)]),
    ("bij,bjk->bik", [("n", 2, 3), ("n", 3, 2)]),
    ("nij,nj->ni", [("n", 2, "m"), ("n", "m")]),
    ("ii->i", [("n", "n")]),
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
    if b.ndim == 2:
        # One sum over all rows: a product for each matrix of the stack would be added up behind it.
        a, rows = _rows(a), _rows(ct)
        return ct @ op.transpose(b), op.transpose(a) @ rows
    return ct @ op.transpose(b), op.transpose(a) @ ct


def _rows(x: Tensor) -> Tensor:
    """A stack of matrices as one matrix, with the rows of all."""
    return x if x.ndim == 2 else op.reshape(x, [math.prod(x.shape[:-1]), x.shape[-1]])


def _einsum_samples() -> list[Sample]:
    return [sample(operands, subscripts=equation) for equation, operands in EINSUM]


@composite("relax.einsum", samples=_einsum_samples())
def einsum(operands: list[Tensor], attrs: Any) -> Tensor:
    """y = Σ Π operands, as diagonals, sums, and matrix products of two at a time"""
    return written_out(attrs.subscripts, operands)


@composite("relax.outer", samples=[sample((2,), (3,)), sample(("n",), (3,)), sample((1,), (1,))])
def outer(a: Tensor, b: Tensor) -> Tensor:
    """yᵢⱼ = aᵢ bⱼ"""
    return op.expand_dims(a, [1]) * b
