"""Hand-written gradient rules, one file per op family.

`rule` says what a rule is and how one is found; `sample` how a rule's samples are written.
"""

from . import conv, elementwise, linalg, loss, norm, pool, reduce, shape, softmax
from .rule import Rule, all_rules, find, unregister
from .sample import Sample, sample, static, tensor

__all__ = [
    "Rule",
    "Sample",
    "all_rules",
    "conv",
    "elementwise",
    "find",
    "linalg",
    "loss",
    "norm",
    "pool",
    "reduce",
    "sample",
    "shape",
    "softmax",
    "static",
    "tensor",
    "unregister",
]
