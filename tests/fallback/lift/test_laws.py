"""Combinations that are associative are told from those that are not."""

import pytest
from tvm import tirx

from graphgrad.fallback.lift.combination import Combination
from graphgrad.fallback.lift.laws import is_associative, is_identity

ZERO, ONE = (tirx.const(value, "float32") for value in (0.0, 1.0))


def _combination(combine, *dtypes):
    return Combination("test", [tirx.Var("x", dtype) for dtype in dtypes], combine, None)


def _later(a, b):
    """The pair with the larger second value."""
    return [tirx.Select(a[1] >= b[1], x, y) for x, y in zip(a, b, strict=True)]


CASES = {
    "sum": (lambda a, b: [a[0] + b[0]], ["float32"], [ZERO], True, True),
    "product": (lambda a, b: [a[0] * b[0]], ["float32"], [ONE], True, True),
    "a sum from one": (lambda a, b: [a[0] + b[0]], ["float32"], [ONE], True, False),
    "decay": (lambda a, b: [a[0] * 0.5 + b[0]], ["float32"], [ZERO], False, False),
    "difference": (lambda a, b: [a[0] - b[0]], ["float32"], [ZERO], False, False),
    "largest": (
        _later, ["int32", "float32"], [tirx.const(-1), tirx.min_value("float32")], True, True,
    ),
    "not evaluated": (lambda a, b: [tirx.exp(a[0] + b[0])], ["float32"], [ZERO], False, False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_laws(name):
    combine, dtypes, start, associative, identity = CASES[name]
    combination = _combination(combine, *dtypes)
    assert is_associative(combination) == associative
    assert is_identity(combination, start) == identity
