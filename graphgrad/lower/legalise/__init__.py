"""Lowerings of ours in the place of stock ones: where those are wrong or refuse a dtype."""

from . import (
    activation,
    attention,
    conv,
    cumulative,
    elementwise,
    image,
    index,
    linalg,
    norm,
    pool,
    reduce,
    shape,
    sorting,
)
from .table import LEGALISATIONS

__all__ = [
    "LEGALISATIONS",
    "activation",
    "attention",
    "conv",
    "cumulative",
    "elementwise",
    "image",
    "index",
    "linalg",
    "norm",
    "pool",
    "reduce",
    "shape",
    "sorting",
]
