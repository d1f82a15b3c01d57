"""Padding with copies of a tensor's own elements, and with a constant."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.running import F64, function, run

DTYPES = ["float64", "float32", "float16", "int64"]


def call(op, shape, dtype, *arguments, **attributes):
    return function(lambda b, x: b.emit(op(x, *arguments, **attributes)), (shape, dtype))


def counted(*shape, dtype=F64):
    return np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


NUMPY_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("mode", NUMPY_MODES)
@pytest.mark.parametrize("widths", [(0, 0), (2, 1), (3, 3), (9, 15)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_pad_with_copies(mode, widths, dtype):
    x = counted(4, dtype=dtype)
    (y,) = run(call(relax.op.nn.pad, (4,), dtype, widths, mode), "main", x)
    np.testing.assert_array_equal(y, np.pad(x, widths, mode=NUMPY_MODES[mode]))


@pytest.mark.parametrize("mode", NUMPY_MODES)
def test_pad_of_one_element(mode):
    (y,) = run(call(relax.op.nn.pad, (1,), F64, (2, 3), mode), "main", counted(1))
    np.testing.assert_array_equal(y, np.ones(6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("widths", [(1, 0, 0, 2), (-1, 2, 0, -1), (-2, -1, -1, -1)], ids=str)
def test_pad_with_a_constant(dtype, widths):
    x = counted(4, 3, dtype=dtype)
    (y,) = run(call(relax.op.nn.pad, (4, 3), dtype, widths, pad_value=7.0), "main", x)
    pairs = [widths[:2], widths[2:]]
    kept = x[
        tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, pairs, strict=True))
    ]
    borders = [(max(a, 0), max(b, 0)) for a, b in pairs]
    np.testing.assert_array_equal(y, np.pad(kept, borders, constant_values=7))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_border_of_copies_around_nothing_is_refused(mode):
    mod = function(
        lambda builder, x: builder.emit(relax.op.nn.pad(x, (0, 0, 1, 2), pad_mode=mode)),
        ((2, 0), F64),
    )
    with pytest.raises(ModelError, match=r"axis 1 of the shape .* is empty"):
        gg.compile(mod)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_border_around_a_symbolic_axis_without_elements_is_missing(mode):
    n = tvm.tirx.Var("n", "int64")
    mod = function(
        lambda builder, x: builder.emit(relax.op.nn.pad(x, (0, 0, 1, 2), pad_mode=mode)),
        ((2, n), F64),
    )
    (empty,) = run(mod, "main", np.zeros((2, 0)))
    np.testing.assert_array_equal(empty, np.full((2, 3), np.nan))
    (single,) = run(mod, "main", np.ones((2, 1)))
    np.testing.assert_array_equal(single, np.ones((2, 4)))
