"""Extrema that hand NaN on, and columns of many long rows, in one loop over rows."""

import numpy as np
import pytest
import tvm
from tvm import te, topi

from graphgrad.lower.cpu.rowwise.accumulation import maximum, minimum
from graphgrad.ops.elementwise import larger, smaller
from tests.labels import label
from tests.lower.extrema import extremum, with_nan_in_some
from tests.lower.kernel_programs import run, tensor

ROWS = [
    *((shape, (1,)) for shape in [(16, 1024), (17, 1009), (300, 101), (1009, 33), (257, 257)]),
    *(((16, 64, 28, 28), (2, 3)), ((64, 31, 7, 9), (1, 2, 3)), ((31, 40, 50), (0, 2))),
]
COLUMNS = [(2048, 128), (2053, 131), (4099, 257), (2048, 1000)]
REFERENCE = {larger: np.max, smaller: np.min}


@pytest.mark.parametrize("choose", [larger, smaller])
@pytest.mark.parametrize(("shape", "axes"), ROWS, ids=label)
def test_extrema_of_rows(shape, axes, choose):
    x = tensor(*shape)
    values = with_nan_in_some(shape, axes)
    result = run([x], [extremum(choose, x, axes)], values=[values])
    np.testing.assert_array_equal(result.scheduled[0], REFERENCE[choose](values, axis=axes))
    assert "T.vectorized" in result.text


@pytest.mark.parametrize("shape", [(64, 1024), (61, 1009)], ids=label)
def test_a_softmax_that_is_written_out(shape):
    """Its maxima are part of the chain; rows with NaN are NaN, and others are not."""
    x = tensor(*shape)
    k = te.reduce_axis((0, shape[1]), "k")
    most = extremum(larger, x, (1,))
    power = te.compute(shape, lambda i, j: te.exp(x(i, j) - most(i)), name="power")
    total = te.compute(shape[:1], lambda i: te.sum(power(i, k), axis=k), name="total")
    result = te.compute(shape, lambda i, j: power(i, j) / total(i), name="softmax")
    values = np.random.default_rng(0).standard_normal(shape).astype("float32")
    values[5, 3], values[8, 7], values[9, shape[1] - 1] = np.nan, -np.inf, np.nan
    runs = run([x], [result], values=[values])
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(runs.scheduled[0], expected, rtol=1e-5)
    assert runs.text.count("T.parallel") == 1


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtypes(dtype):
    x = tensor(33, 530, dtype=dtype)
    values = with_nan_in_some((33, 530), (1,), dtype)
    result = run([x], [extremum(larger, x, (1,))], values=[values])
    np.testing.assert_array_equal(result.scheduled[0], values.max(axis=1))
    assert "T.vectorized" in result.text


@pytest.mark.parametrize("choose", [larger, smaller])
@pytest.mark.parametrize("shape", COLUMNS, ids=label)
def test_extrema_of_columns(shape, choose):
    x = tensor(*shape)
    values = with_nan_in_some(shape, (0,))
    result = run([x], [extremum(choose, x, (0,))], values=[values])
    np.testing.assert_array_equal(result.scheduled[0], REFERENCE[choose](values, axis=0))
    assert "partial_sums" in result.text


@pytest.mark.parametrize("shape", COLUMNS, ids=label)
def test_sums_of_columns(shape):
    x = tensor(*shape)
    result = run([x], [topi.multiply(topi.sum(x, 0), 0.5)])
    result.agree()
    assert "partial_sums" in result.text


@pytest.mark.parametrize(("computed", "lowered"), [(maximum, larger), (minimum, smaller)])
def test_what_is_computed_is_what_was_lowered(computed, lowered):
    """Each pair of kinds of floats, in vectors; TVM takes nothing for granted."""
    kinds = [0.0, 1.0, np.inf, np.nan, np.finfo("float32").tiny]
    one = np.array([sign * kind for kind in kinds for sign in (1, -1)], "float32")
    a, b = (np.tile(side, 512) for side in (np.repeat(one, len(one)), np.tile(one, len(one))))
    x, y = tensor(len(a)), tensor(len(a), name="y")
    for choose in (computed, lowered):
        z = te.compute(x.shape, lambda i: choose(x(i), y(i)), name="z")  # noqa: B023
        (found,) = run([x, y], [z], values=[a, b]).scheduled
        reference = np.maximum if lowered is larger else np.minimum
        np.testing.assert_array_equal(found, reference(a, b))


def test_tvm_takes_a_disjunction_for_granted():
    """Why `maximum` chooses where a disjunction would do: NaN would be none."""
    zero = tvm.tirx.const(0, "int64")
    a, b = (
        tvm.tirx.BufferLoad(tvm.tirx.decl_buffer([1], "float32", name), [zero]) for name in "ab"
    )
    simplified = tvm.sym.Analyzer().simplify(tvm.tirx.Or(a > b, b >= a))
    assert isinstance(simplified, tvm.tirx.IntImm)
    kept = tvm.sym.Analyzer().simplify(maximum(a, b))
    assert isinstance(kept.condition, tvm.tirx.Select)
