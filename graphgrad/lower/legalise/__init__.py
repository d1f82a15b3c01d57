"""Lowerings of ours in the place of stock ones: where those are wrong or refuse a dtype."""

from . import activation, attention, elementwise, index, norm, pool, reduce, shape
from .table import LEGALISATIONS

__all__ = [
    "LEGALISATIONS",
    "activation",
    "attention",
    "elementwise",
    "index",
    "norm",
    "pool",
    "reduce",
    "shape",
]
