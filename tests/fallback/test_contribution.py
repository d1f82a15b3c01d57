"""What a stage adds to what it reads: one contribution for each element, equal indices joined."""

import pytest
from tvm import te, tirx

from graphgrad.errors import MissingGradientError
from graphgrad.fallback.contribution import contributions
from graphgrad.fallback.guarded import Guarded
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.reductions.reduce import Point

X = te.placeholder((9,), "float64", name="x")
Z = te.placeholder((9,), "float64", name="z")
PLACES = te.placeholder((9,), "int32", name="places")
K = te.var("k")
AXIS = Axis(K, tirx.const(0, "int32"), tirx.const(4, "int32"))


def found(root, active=(X, Z)):
    point = Point([AXIS], root, Guarded((), tirx.const(1.0, "float64")))
    return contributions(point, lambda tensor: any(tensor.same_as(a) for a in active), "stage")


@pytest.mark.parametrize(
    ("root", "elements"),
    [
        (X(K) * X(K), 1),
        (X(2 * K + 1) * te.sin(X(2 * K + 1)), 1),
        (X(PLACES(K)) + te.exp(X(PLACES(K))), 1),
        (X(K) * X(K + 1), 2),
        (X(PLACES(K)) * X(PLACES(K + 1)), 2),
        (X(K) * Z(K), 2),
        (tirx.if_then_else(K > 1, X(K), 2.0 * X(K)), 1),
    ],
    ids=["square", "affine", "read", "neighbor", "other place", "other tensor", "both arms"],
)
def test_reads_of_one_element_are_one_contribution(root, elements):
    assert len(found(root)) == elements


def test_what_is_not_asked_for_gets_nothing():
    (part,) = found(X(K) * Z(K), [X])
    assert part.tensor.same_as(X)
    assert part.stage == "stage"


def test_what_is_missing_is_told_with_its_stage():
    with pytest.raises(MissingGradientError, match="in the stage stage: the derivative of secret"):
        found(tirx.call_pure_extern("float64", "secret", X(K)))
