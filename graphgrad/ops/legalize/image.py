"""Lowerings of resampling to other ops of graphgrad's, which are lowered in turn.

The stock ones compute float64 in float32, divide by zero for one output with aligned corners, and
place the points of a grid with aligned corners 5e-8 short of the corner. Symbolic spatial extents
are left to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from ...errors import ArgumentError
from ...ir.tensor import Emitter, Tensor
from ..grid_sample import affine_image_grid, sample_image
from ..resample import adaptive_pool_image
from ..resize import resize_image
from .table import legalization


def _register_lowering(op: str, function: Callable[..., Tensor]) -> None:
    """Register a function of an op's inputs and attributes as its lowering."""
    stock = tvm.ir.Op.get(op).get_attr("FLegalize")

    @legalization(op)
    def lower(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        emitter = Emitter(builder)
        try:
            return function(*map(emitter.lift, call.args), call.attrs).expr
        except ArgumentError:  # a symbolic extent, or a blocked layout
            return stock(builder, call)


for _rank in (1, 2, 3):
    _register_lowering(f"relax.nn.adaptive_avg_pool{_rank}d", adaptive_pool_image)
for _rank in (2, 3):
    _register_lowering(f"relax.image.resize{_rank}d", resize_image)
_register_lowering("relax.image.grid_sample", sample_image)
_register_lowering("relax.image.affine_grid", affine_image_grid)
