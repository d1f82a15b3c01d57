"""Constants among expressions: which are, and what they are."""

import pytest
from tvm import te, tirx

from graphgrad.fallback.constants import integer_value, is_false, is_true

N = te.var("n")


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (3, 3), (tirx.const(-7, "int64"), -7), (tirx.const(0, "int32"), 0), (N, None),
        (N + 1, None), (tirx.const(2.0, "float32"), None),
    ],
    ids=str,
)  # fmt: skip
def test_integers(expr, value):
    assert integer_value(expr) == value


@pytest.mark.parametrize(
    ("condition", "truth"),
    [(tirx.const(True), True), (tirx.const(False), False), (N > 0, None)],
    ids=["true", "false", "unknown"],
)
def test_truth_values(condition, truth):
    assert is_true(condition) == (truth is True)
    assert is_false(condition) == (truth is False)
