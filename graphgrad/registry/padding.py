"""Rules of padding."""

from __future__ import annotations

from typing import Any

from ..ir.tensor import Tensor
from ..ops import functional as op
from ..ops.padding import fold_border as fold
from .rule import linear
from .sample import sample


@linear(
    "relax.nn.pad",
    samples=[
        sample((2, 3), pad_width=[1, 0, 0, 2]),
        sample((2, 3), pad_width=[0, 1, 2, 1], pad_value=3.0),
        sample((4, 3), pad_width=[-1, 2, 0, -1]),
        sample((3,), pad_width=[-2, -1], pad_value=1.0),
        sample((0, 2), pad_width=[1, 1, 0, 1]),
        sample(("n", 2), pad_width=[1, 2, 0, 1]),
        *(
            sample(shape, pad_width=widths, pad_mode=mode)
            for mode in ("reflect", "replicate", "circular")
            for shape, widths in [
                ((2, 4), [0, 0, 2, 1]),
                ((2, 3, 3), [0, 0, 1, 2, 2, 0]),
                ((3,), [0, 0]),
                ((3,), [5, 8]),
                ((1, 2), [2, 1, 0, 0]),
                (("n", 2), [1, 2, 0, 1]),
            ]
        ),
    ],
    affine=True,
)
def pad(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ without the border; what a border copied is added to its origin"""
    widths, mode = attrs.pad_width, attrs.pad_mode
    if mode == "constant":
        return op.pad(ct, [-width for width in widths])
    ct = op.widen(ct)
    for axis in range(x.ndim):
        before, after = widths[2 * axis : 2 * axis + 2]
        if before or after:
            ct = fold(ct, axis, before, after, mode)
    return ct


@linear(
    "graphgrad.fold_border",
    samples=[
        sample(shape, axis=axis, before=before, after=after, mode=mode)
        for mode in ("reflect", "replicate", "circular")
        for shape, axis, before, after in [
            ((2, 6), 1, 2, 1),
            ((9, 2), 0, 0, 6),
            ((4,), 0, 1, 2),
            ((2, "n"), 1, 1, 1),
        ]
    ],
)
def fold_border(x: Tensor, ct: Tensor, attrs: Any) -> Tensor:
    """x̄ = ȳ, padded"""
    widths = [0] * (2 * x.ndim)
    widths[2 * attrs.axis : 2 * attrs.axis + 2] = [attrs.before, attrs.after]
    return op.pad(ct, widths, pad_mode=attrs.mode)
