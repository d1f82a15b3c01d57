"""Hand-written gradient rules, one file per op family.

Start with `rule`, which says what a rule is and how one is found, and with any family, such as
`elementwise`; `sample` says how a rule's samples are written.
"""

from . import (
    activation,
    attention,
    control,
    conv,
    cumulative,
    elementwise,
    image,
    index,
    linalg,
    loss,
    norm,
    padding,
    pool,
    random,
    reduce,
    repetition,
    shape,
    slicing,
    softmax,
    trigonometric,
)
from .rule import Rule, all_rules, find, unregister
from .sample import Sample, sample, static, tensor

__all__ = [
    "Rule",
    "Sample",
    "activation",
    "all_rules",
    "attention",
    "control",
    "conv",
    "cumulative",
    "elementwise",
    "find",
    "image",
    "index",
    "linalg",
    "loss",
    "norm",
    "padding",
    "pool",
    "random",
    "reduce",
    "repetition",
    "sample",
    "shape",
    "slicing",
    "softmax",
    "static",
    "tensor",
    "trigonometric",
    "unregister",
]
