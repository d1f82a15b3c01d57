"""Translations of ONNX operators by graphgrad, in the place of those of TVM's importer.

One file per operator family; `node` says what a converter is handed. An operator that has no
converter here is translated by TVM's importer.
"""

from . import (
    activation,
    attention,
    col2im,
    conv,
    creation,
    cumulative,
    elementwise,
    image,
    index,
    linalg,
    loops,
    loss,
    norm,
    optimizers,
    padding,
    pool,
    random,
    recurrent,
    reduce,
    sequences,
    shape,
    signal,
    slicing,
)
from .node import Converter, Node, converter, find

__all__ = [
    "Converter",
    "Node",
    "activation",
    "attention",
    "col2im",
    "conv",
    "converter",
    "creation",
    "cumulative",
    "elementwise",
    "find",
    "image",
    "index",
    "linalg",
    "loops",
    "loss",
    "norm",
    "optimizers",
    "padding",
    "pool",
    "random",
    "recurrent",
    "reduce",
    "sequences",
    "shape",
    "signal",
    "slicing",
]
