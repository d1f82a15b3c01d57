"""Maps that round to float32: what of them is computed in it, and how exact that is."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.graph import operations
from graphgrad.fallback.kernels.narrow_maps import narrow_maps
from tests.fallback.differences import compiled

X = te.placeholder((3, 8), "float32", name="x")
ROWS = te.placeholder((3,), "float32", name="rows")
WIDE = te.placeholder((3, 8), "float64", name="wide")


def wide_map(body, name="wide_map"):
    return te.compute((3, 8), body, name=name)


def row(i):
    return ROWS(i).astype("float64")


def element(i, j):
    return X(i, j).astype("float64")


def twice(value):
    return value + value


FACTOR = te.compute((3,), lambda i: row(i) * 0.1 - 1.0, name="factor")
DIFFERENCE = wide_map(lambda i, j: element(i, j) - element(i, 0), "difference")
PRODUCT = wide_map(lambda i, j: DIFFERENCE(i, j) * FACTOR(i), "product")
EXPRESSIONS = {
    "difference of elements": (lambda i, j: DIFFERENCE[i, j].asobject(), True),
    "times a factor of a row": (lambda i, j: DIFFERENCE(i, j) * FACTOR(i), True),
    "twice": (lambda i, j: twice(PRODUCT(i, j)), True),
    "by a choice": (lambda i, j: tirx.if_then_else(j < 4, PRODUCT(i, j), 0.0), True),
    "by a constant": (lambda i, j: PRODUCT(i, j) / 512.0, True),
    "by a constant beyond float32": (lambda i, j: PRODUCT(i, j) * 1e-40, False),
    "difference of what is rounded": (lambda i, j: element(i, j) - FACTOR(i), False),
    "sum of products": (lambda i, j: FACTOR(i) + PRODUCT(i, j), False),
    "product of three": (lambda i, j: FACTOR(i) * FACTOR(i) * FACTOR(i) * element(i, j), False),
    "of float64 alone": (lambda i, j: WIDE(i, j) * FACTOR(i), False),
    "function": (lambda i, j: te.exp(element(i, j)), False),
}


def stages_of(tensor):
    return [op for op in operations(tensor) if isinstance(op, te.ComputeOp)]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_what_is_narrow(name):
    """Without the stages of float64, or as it was; within a few roundings in any case."""
    body, is_narrow = EXPRESSIONS[name]
    rounded = wide_map(lambda i, j: body(i, j).astype("float32"), "rounded")
    (result,) = narrow_maps([rounded])
    assert result.op.same_as(rounded.op) != is_narrow
    if is_narrow:
        wide = [op.name for op in stages_of(result) if str(op.output(0).dtype) == "float64"]
        assert set(wide) <= {"factor"}
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal([int(e) for e in t.shape]) for t in (X, ROWS, WIDE)]
    arrays = [a.astype(str(t.dtype)) for a, t in zip(arrays, (X, ROWS, WIDE), strict=True)]
    given, wanted = compiled([result, rounded], [X, ROWS, WIDE])(arrays)
    np.testing.assert_allclose(given, wanted, rtol=2.5e-7)


def test_factors_of_rows_stay_wide():
    rounded = wide_map(lambda i, j: PRODUCT(i, j).astype("float32"), "rounded")
    (result,) = narrow_maps([rounded])
    dtypes = {str(op.name): str(op.output(0).dtype) for op in stages_of(result)}
    wide, narrow = ["factor"], ["difference", "product", "rounded"]
    assert dtypes == dict.fromkeys(wide, "float64") | dict.fromkeys(narrow, "float32")


def test_a_product_stays_in_range_on_the_way():
    """1e-30 · 1e-30 · 1e30 is no zero."""
    value = wide_map(lambda i, j: DIFFERENCE(i, j) * row(i) * row(i) * (1 / row(i)))
    (result,) = narrow_maps([wide_map(lambda i, j: value(i, j).astype("float32"))])
    x = np.tile(np.arange(8, dtype="float32"), (3, 1))
    (given,) = compiled([result], [X, ROWS])([x, np.full(3, 1e-30, "float32")])
    np.testing.assert_allclose(given, x * 1e-30, rtol=1e-6)
