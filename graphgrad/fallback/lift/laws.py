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
    """Return whether f(f(a, b), c) = f(a, f(b, c)) for the tuples that were tried.

    Parameters
    ----------
    combination : Combination
    """
    numbers = random.Random(0)
    for _ in range(_TRIAL_COUNT):
        a, b, c = (_tuple(combination.sources, numbers) for _ in range(3))
        left = combination.combine(_fold_constants(combination.combine(a, b)), c)
        right = combination.combine(a, _fold_constants(combination.combine(b, c)))
        if not _same(left, right):
            return False
    return True


def is_identity(combination: Any, values: Sequence[Expr]) -> bool:
    """Return whether a tuple changes none of those that were tried."""
    numbers = random.Random(1)
    for _ in range(_TRIAL_COUNT):
        other = _tuple(combination.sources, numbers)
        for pair in ((list(values), other), (other, list(values))):
            if not _same(combination.combine(*pair), other):
                return False
    return True


def _tuple(sources: Sequence[Expr], numbers: random.Random) -> list[Expr]:
    return [_sample(str(source.ty), numbers) for source in sources]


def _sample(dtype: str, numbers: random.Random) -> Expr:
    if "float" in dtype:
        return tirx.const(numbers.randint(-24, 24) / 8, dtype)
    return tirx.const(numbers.randint(0, 1 if dtype == "bool" else 7), dtype)


def _fold_constants(values: Sequence[Expr]) -> list[Expr]:
    analyzer = tvm.sym.Analyzer()
    return [analyzer.simplify(value) for value in values]


def _same(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Return whether two tuples are equal, and come out as numbers."""
    for one, other in zip(_fold_constants(a), _fold_constants(b), strict=True):
        numbers = (prim.IntImm, prim.FloatImm)
        if not isinstance(one, numbers) or not isinstance(other, numbers):
            return False
        x, y = float(one.value), float(other.value)
        if not math.isclose(x, y, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            return False
    return True
