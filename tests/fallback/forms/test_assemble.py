"""Which form each part of a cotangent takes, and that the parts add up."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations
from graphgrad.fallback.kinds import Kind, kind_of
from tests.fallback.body_evaluations import body_evaluations
from tests.fallback.interpreter import evaluate

X = te.placeholder((12,), "float64", name="X")
AT = te.placeholder((5,), "int32", name="at")
POSITIONS = np.array([3, 0, 3, 11, 7], np.int32)


def strided(i):
    return X[3 * i]


def at_read_positions(i):
    return X[AT[i]]


def of_squares(i):
    return X[i * i % 12]


def twice(i):
    return X[2 * i + 1] * X[4 - i]


def clamped(i):
    return X[tirx.min(tirx.max(3 * i - 2, 0), 11)]


def repeated(i):
    return X[i // 3]


def read_and_affine(i):
    return X[AT[i]] * X[i + 2]


@pytest.mark.parametrize(
    ("body", "extent", "kinds"),
    [
        (strided, 4, {Kind.MAP}),
        (at_read_positions, 5, {Kind.SCATTER}),
        (of_squares, 6, {Kind.SCATTER}),
        (twice, 5, {Kind.MAP}),
        (clamped, 6, {Kind.MAP}),
        (clamped, 9, {Kind.MAP, Kind.SCATTER}),
        (repeated, 36, {Kind.REDUCE}),
        (read_and_affine, 5, {Kind.SCATTER, Kind.MAP}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_forms_and_values(body, extent, kinds):
    output = te.compute((extent,), body, name="Y")
    head = te.placeholder((extent,), "float64", name="head")
    (gradient,) = te_gradient(output, [X], head)
    found = {kind_of(op) for op in operations(gradient) if not isinstance(op, te.PlaceholderOp)}
    assert found == kinds
    generator = np.random.default_rng(0)
    x, h, direction = (generator.standard_normal(n) for n in (12, extent, 12))
    known = [(X, x), (AT, POSITIONS), (head, h)]
    (array,) = evaluate([gradient], known)
    ends = [evaluate([output], [(X, x + s * direction), *known[1:]])[0] for s in (1.0, -1.0)]
    expected = ((ends[0] - ends[1]) / 2 * h).sum()
    assert abs((array * direction).sum() - expected) < 1e-12 * max(1, abs(expected))


def test_scatter_replaces_a_gather_that_visits_many_points():
    # One element of 40 is read, by each of 40 · 40 points: inverted, all would look for it.
    wide = te.placeholder((400,), "float64", name="wide")
    sparse = te.compute((3,), lambda i: wide[131 * i], name="sparse")
    (gradient,) = te_gradient(sparse, [wide])
    works = [work for work in body_evaluations(gradient) if work.kind is not None]
    assert sum(work.points for work in works) <= 2 * (400 + 3)


def test_the_parts_of_one_tensor_are_summed_in_its_dtype():
    half = te.placeholder((4,), "float16", name="half")
    first = te.compute((4,), lambda i: half[i] * half[3 - i], name="first")
    second = te.compute((2,), lambda i: half[2 * i], name="second")
    heads = [te.placeholder((n,), "float16", name=f"head{n}") for n in (4, 2)]
    (gradient,) = te_gradient([first, second], [half], heads)
    assert str(gradient.dtype) == "float16"
    assert gradient.op.name == "half_ct"
    assert kind_of(gradient.op) is Kind.MAP
    assert {str(t.dtype) for t in gradient.op.input_tensors} == {"float32"}
    values = np.array([1, 2, 3, 4], np.float16)
    arrays = [np.array([1, 10, 100, 1000], np.float16), np.array([0.5, 0.25], np.float16)]
    known = [(half, values), *zip(heads, arrays, strict=True)]
    (array,) = evaluate([gradient], known)
    ahead = arrays[0].astype(float)
    expected = values[::-1] * (ahead + ahead[::-1])
    expected[::2] += arrays[1]
    np.testing.assert_array_equal(array, expected.astype(np.float16))


def test_a_single_part_is_the_cotangent_itself():
    Y = te.compute((12,), lambda i: 2.0 * X[i], name="Y")
    head = te.placeholder((12,), "float64", name="head")
    (gradient,) = te_gradient(Y, [X], head)
    assert gradient.op.name == "Y_X_g"


def test_conditions_of_a_scatter_keep_points_out():
    Y = te.compute(
        (5,),
        lambda i: tirx.if_then_else(i % 2 == 0, X[AT[i]], tirx.const(1.0, "float64")),
        name="Y",
    )
    (gradient,) = te_gradient(Y, [X])
    positions = np.array([3, 99, 3, -5, 7], np.int32)
    (array,) = evaluate([gradient], [(X, np.zeros(12)), (AT, positions)])
    expected = np.zeros(12)
    expected[3], expected[7] = 2, 1
    np.testing.assert_array_equal(array, expected)
