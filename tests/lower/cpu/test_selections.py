"""Maps that choose along a row run in vectors where both values can be read, and only there."""

import pytest
from tvm import te, tirx

from tests.lower.kernel_programs import run, tensor

SHAPE = (128, 512)


def below(i, j):
    return j <= i


def sparse(i, j):
    return tirx.any(j < 3, tirx.Not(j - i < 8))


@pytest.mark.parametrize("condition", [below, sparse])
def test_a_choice_of_what_is_inside_is_a_selection(condition):
    x, w = tensor(*SHAPE, name="x"), tensor(*SHAPE, name="w")
    y = te.compute(
        SHAPE, lambda i, j: tirx.if_then_else(condition(i, j), te.exp(x[i, j]), w[i, j] * 2.0)
    )
    runs = run([x, w], [y])
    runs.agree()
    assert "T.if_then_else" not in runs.text and 16 in runs.vectors


@pytest.mark.parametrize(
    "value",
    [
        lambda x, k, i, j: x[i, j - i],  # outside where the condition does not hold
        lambda x, k, i, j: x[i, tirx.max(j - i, 0)],  # inside by a clamping, which TVM would drop
        lambda x, k, i, j: (j // k[i, j]).astype("float32"),  # fails where the divisor is 0
    ],
    ids=["outside", "clamped", "divided"],
)
def test_what_must_not_be_evaluated_is_not(value):
    x, k = tensor(*SHAPE, name="x"), tensor(*SHAPE, dtype="int32", name="k")
    y = te.compute(
        SHAPE,
        lambda i, j: tirx.if_then_else(
            tirx.all(j >= i, k[i, j] > 0), value(x, k, i, j), tirx.const(0.0, "float32")
        ),
    )
    runs = run([x, k], [y])
    runs.agree()
    assert "T.Select" not in runs.text


def test_an_equality_stays_a_choice():
    shape = (8, 512)  # too small to be written out in vectors
    x = tensor(*shape, name="x")
    y = te.compute(shape, lambda i, j: tirx.if_then_else(tirx.EQ(i, j), x[i, j], 0.0))
    runs = run([x], [y])
    runs.agree()
    assert "T.if_then_else" in runs.text
