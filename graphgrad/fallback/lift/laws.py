"""Whether a combination of tuples is associative, tried at some numbers.

A block with a reduce axis says that its iterations may happen in any order; TVM does not check it.
The derivative of a combination that is none would be wrong, so it is tried here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from ..walk import Expr

_TRIAL_COUNT = 12
_TOLERANCE = 1e-4


def is_associative(combination: Any) -> bool:
    """Whether f(f(a, b), c) = f(a, f(b, c)) for the tuples that were tried.

    Parameters
    ----------
    combination : Combination
    """
    # A fixed seed, so that a kernel is not refused one time and taken another time.
    numbers = random.Random(0)
    for _ in range(_TRIAL_COUNT):
        a, b, c = (_tuple(combination.sources, numbers) for _ in range(3))
        left = combination.combine(_fold_constants(combination.combine(a, b)), c)
        right = combination.combine(a, _fold_constants(combination.combine(b, c)))
        if not _same(left, right):
            return False
    return True


def is_identity(combination: Any, values: Sequence[Expr]) -> bool:
    """Whether a tuple changes none of those that were tried."""
    numbers = random.Random(1)
    for _ in range(_TRIAL_COUNT):
        sample = _tuple(combination.sources, numbers)
        for pair in ((list(values), sample), (sample, list(values))):
            if not _same(combination.combine(*pair), sample):
                return False
    return True


def _tuple(sources: Sequence[Expr], numbers: random.Random) -> list[Expr]:
    return [_sample(str(source.ty), numbers) for source in sources]


def _sample(dtype: str, numbers: random.Random) -> Expr:
    if "float" in dtype:
        # Numbers of few bits: their sums and products are rounded little, and equal ones occur.
        return tirx.const(numbers.randint(-24, 24) / 8, dtype)
    return tirx.const(numbers.randint(0, 1 if dtype == "bool" else 7), dtype)


def _fold_constants(values: Sequence[Expr]) -> list[Expr]:
    analyzer = tvm.sym.Analyzer()
    return [analyzer.simplify(value) for value in values]


def _same(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Whether two tuples are equal, and come out as numbers."""
    for left, right in zip(_fold_constants(a), _fold_constants(b), strict=True):
        constants = (prim.IntImm, prim.FloatImm)
        if not isinstance(left, constants) or not isinstance(right, constants):
            return False
        x, y = float(left.value), float(right.value)
        if not math.isclose(x, y, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            return False
    return True
