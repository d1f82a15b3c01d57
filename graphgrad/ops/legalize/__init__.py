"""Lowerings of Relax ops in the place of TVM's: where those are wrong or refuse a dtype.

TVM's own lowering of an op is called the *stock* one here.

One file per op family. Start with `table`, by which they are found.
"""

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
from .table import LEGALIZATIONS, lowering_of

__all__ = [
    "LEGALIZATIONS",
    "activation",
    "attention",
    "conv",
    "cumulative",
    "elementwise",
    "image",
    "index",
    "linalg",
    "lowering_of",
    "norm",
    "pool",
    "reduce",
    "shape",
    "sorting",
]
