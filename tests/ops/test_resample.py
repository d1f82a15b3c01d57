"""Resampling along one axis: its tables and their transposes."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.tensor import Emitter
from graphgrad.ops.resample import Table, resample
from graphgrad.ops.resize import Interpolation, Resized, resize
from tests.frontend.graphs import op_names
from tests.running import F64, function, run

TABLE = Table([{0: 0.5, 2: 0.5}, {}, {1: -2.0}, {2: 1.0}], 3)


def resampled(table, shape, axis, dtype=F64):
    def build(builder, x):
        return resample(Emitter(builder).lift(x), table, axis).expr

    return function(build, (shape, dtype))


def dense(table):
    matrix = np.zeros((len(table.rows), table.extent))
    for output, row in enumerate(table.rows):
        for position, weight in row.items():
            matrix[output, position] = weight
    return matrix


def test_a_table_transposed_twice_is_itself():
    assert TABLE.transposed().transposed() == TABLE
    np.testing.assert_array_equal(dense(TABLE.transposed()), dense(TABLE).T)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_resample_is_a_product_with_a_matrix(axis, dtype):
    x = np.random.default_rng(0).uniform(-1, 1, (3, 3, 3)).astype(dtype)
    (y,) = run(resampled(TABLE, x.shape, axis, dtype), "main", x)
    expected = np.moveaxis(np.tensordot(dense(TABLE), x.astype(F64), (1, axis)), 0, axis)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y, expected.astype(dtype), rtol={"float16": 1e-3}.get(dtype, 1e-6))


def test_an_output_that_reads_nothing_is_zero_whatever_the_input_is():
    (y,) = run(resampled(TABLE, (3,), 0), "main", np.array([np.inf, 1.0, np.nan]))
    np.testing.assert_array_equal(y[1:3], [0.0, -2.0])


def test_the_gradient_is_the_transposed_resampling():
    ct = np.array([1.0, 2.0, 3.0, 4.0])
    mod = gg.vjp(resampled(TABLE, (3,), 0))
    np.testing.assert_allclose(run(mod, "main_vjp", np.ones(3), ct)[-1], dense(TABLE).T @ ct)


def test_an_identity_is_left_out():
    table = Table([{0: 1.0}, {1: 1.0}], 2)
    mod = resampled(table, (2,), 0)
    assert "graphgrad.resample" not in op_names(mod)


@pytest.mark.parametrize("method", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("exclude", [False, True])
def test_a_constant_stays_constant(method, antialias, exclude):
    how = Interpolation(method, "half_pixel", exclude_outside=exclude, antialias=antialias)

    def build(builder, x):
        axes = {0: Resized(5, 3, 0.6), 1: Resized(4, 7, 1.75)}
        return resize(Emitter(builder).lift(x), axes, how).expr

    (y,) = run(function(build, ((5, 4), F64)), "main", np.full((5, 4), 3.0))
    np.testing.assert_allclose(y, np.full((3, 7), 3.0))


def test_an_axis_without_elements_is_refused():
    def build(builder, x):
        how = Interpolation("linear", "half_pixel")
        return resize(Emitter(builder).lift(x), {0: Resized(0, 3, 1.0)}, how).expr

    with pytest.raises(gg.errors.ArgumentError, match=r"axis 0 .* no elements"):
        function(build, ((0, 4), F64))


def test_a_symbolic_extent_has_no_gradient_and_says_so():
    mod = function(
        lambda b, x: b.emit(relax.op.image.resize2d(x, (4, 4))),
        ((1, 1, tvm.tirx.Var("h", "int64"), 4), "float32"),
    )
    with pytest.raises(gg.errors.ArgumentError, match="resize axis H from h to 4"):
        gg.vjp(mod)
