"""Elementwise ops on special values and in every float dtype, against numpy."""

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from tests.running import F64, function, run

op = relax.op

DTYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
DIGITS = {"float64": 1e-13, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}

SPECIAL = [-np.inf, -3.5, -2.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.5, np.inf, np.nan]
PAIRS = [np.ravel(grid) for grid in np.meshgrid(SPECIAL, SPECIAL)]

UNARY = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cosh": np.cosh,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
}
BINARY = {
    "atan2": np.arctan2,
    "log_add_exp": np.logaddexp,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mod": np.fmod,
    "not_equal": np.not_equal,
    "power": np.power,
}


def program(build, *types):
    return function(lambda builder, *x: builder.emit(build(*x)), *types)


def assert_close(ours, expected, dtype):
    ours, expected = ours.astype(F64), expected.astype(F64)
    np.testing.assert_allclose(ours, expected, rtol=DIGITS[dtype], atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unary_ops_on_special_values(dtype):
    x = np.array([*SPECIAL, 1e-3, -1e-3, 0.2, 0.3], DTYPES[dtype])
    calls = [getattr(op, name) for name in UNARY]
    values = run(
        function(lambda b, x: b.emit(relax.Tuple([b.emit(f(x)) for f in calls])), (x.shape, dtype)),
        "main",
        x,
    )
    with np.errstate(all="ignore"):
        for value, reference in zip(values, UNARY.values(), strict=True):
            assert_close(value, reference(x.astype(F64)).astype(value.dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_ops_on_special_values(dtype):
    a, b = (x.astype(DTYPES[dtype]) for x in PAIRS)
    calls = [getattr(op, name) for name in BINARY]

    def build(builder, a, b):
        return builder.emit(relax.Tuple([builder.emit(f(a, b)) for f in calls]))

    values = run(function(build, (a.shape, dtype), (b.shape, dtype)), "main", a, b)
    with np.errstate(all="ignore"):
        for value, reference in zip(values, BINARY.values(), strict=True):
            expected = reference(a.astype(F64), b.astype(F64)).astype(value.dtype)
            assert_close(value, expected, dtype)


def test_floor_mod_on_special_values():
    a, b = PAIRS
    (y,) = run(program(op.floor_mod, (a.shape, F64), (b.shape, F64)), "main", a, b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, np.mod(a, b))


def test_floor_mod_of_a_large_quotient_is_exact():
    a, b = np.array([1e16, -1e16]), np.array([0.3, 0.3])
    mod = program(op.floor_mod, ((2,), F64), ((2,), F64))
    np.testing.assert_array_equal(run(mod, "main", a, b)[0], np.mod(a, b))


@pytest.mark.parametrize("name", ["tanh", "atanh"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_arguments_keep_their_digits(name, dtype):
    x = np.geomspace(1e-12, 0.4, 200).astype(dtype)
    mod = program(getattr(op, name), (x.shape, dtype))
    expected = UNARY[name](x.astype("longdouble"))

    def error(y):
        return float(np.max(np.abs(y - expected) / expected))

    assert error(run(mod, "main", x)[0]) < 20 * np.finfo(dtype).eps


@pytest.mark.parametrize(
    ("build", "arrays"),
    [
        (op.maximum, [np.array([np.nan]), np.array([1.0])]),
        (op.minimum, [np.array([np.nan]), np.array([1.0])]),
        (lambda x: op.clip(x, -1.0, 1.0), [np.array([np.nan])]),
        (op.nn.relu6, [np.array([np.nan])]),
    ],
    ids=["maximum", "minimum", "clip", "relu6"],
)
def test_nan_stays_nan(build, arrays):
    mod = program(build, *((a.shape, F64) for a in arrays))
    assert np.isnan(run(mod, "main", *arrays)[0]).all()


def test_nan_differs_from_itself():
    x = np.array([np.nan, 1.0])
    mod = program(lambda x: op.not_equal(x, x), ((2,), F64))
    assert run(mod, "main", x)[0].tolist() == [True, False]


@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal", "equal"])
def test_negated_comparison_with_nan_holds(name):
    x = np.array([np.nan, 1.0])

    def build(builder, x, y):
        return builder.emit(op.logical_not(builder.emit(getattr(op, name)(x, y))))

    mod = function(build, ((2,), F64), ((2,), F64))
    assert run(mod, "main", x, np.ones(2))[0][0]


def test_crossed_bounds_of_clip():
    mod = program(lambda x: op.clip(x, 2.0, 1.0), ((3,), F64))
    assert run(mod, "main", np.array([0.0, 1.5, 3.0]))[0].tolist() == [1.0, 1.0, 1.0]


def test_clip_of_integers():
    mod = program(lambda x: op.clip(x, 2, 3), ((4,), "int32"))
    assert run(mod, "main", np.arange(1, 5, dtype="int32"))[0].tolist() == [2, 2, 3, 3]


def test_power_of_integers():
    a, b = np.array([3, -2, 0], "int64"), np.array([30, 3, 0], "int64")
    mod = program(op.power, ((3,), "int64"), ((3,), "int64"))
    np.testing.assert_array_equal(run(mod, "main", a, b)[0], a**b)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0, 7.0])
def test_power_with_a_constant_exponent(exponent):
    mod = program(lambda x: op.power(x, relax.const(exponent, F64)), ((3,), F64))
    x = np.array([0.5, 1.0, 2.5])
    np.testing.assert_allclose(run(mod, "main", x)[0], x**exponent, rtol=1e-15)


def test_fused_multiply_add():
    mod = program(op.ewise_fma, *[((3,), F64)] * 3)
    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(run(mod, "main", x, x, x)[0], x * x + x)


@pytest.mark.parametrize("shapes", [((2, 1, 3), (4, 1)), ((), (2, 3)), ((3,), (1,))], ids=str)
def test_operands_broadcast(shapes):
    a, b = (np.random.default_rng(0).uniform(-1, 1, shape) for shape in shapes)
    mod = program(op.maximum, *((shape, F64) for shape in shapes))
    np.testing.assert_array_equal(run(mod, "main", a, b)[0], np.maximum(a, b))


@pytest.mark.parametrize("dtype", ["uint8", "uint64", "int8", "float32", "bfloat16"])
def test_sign(dtype):
    """Stock code makes a −1 for unsigned integers too, and does not compile."""
    x = np.array([0, 1, 3] if dtype.startswith("u") else [-2, 0, 3]).astype(
        DTYPES.get(dtype, dtype)
    )
    (y,) = run(function(lambda _, x: op.sign(x), ((3,), dtype)), "main", x)
    np.testing.assert_array_equal(y, np.sign(x.astype("float64")).astype(x.dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_tensor_is_filled_with_what_is_not_finite(dtype, value):
    """Stock code raises TypeError."""
    fill = relax.const(value, dtype)
    x = np.zeros(2, DTYPES.get(dtype, dtype))
    expected = np.full(2, value)
    for fills in (lambda _, x: op.full((2,), fill, dtype), lambda _, x: op.full_like(x, fill)):
        (y,) = run(function(fills, ((2,), dtype)), "main", x)
        np.testing.assert_array_equal(y.astype(F64), expected)


@pytest.mark.parametrize("name", ["equal", "not_equal"])
def test_booleans_are_compared(name):
    x, y = np.array([True, True, False, False]), np.array([True, False, True, False])
    call = function(lambda _, a, b: getattr(op, name)(a, b), ((4,), "bool"), ((4,), "bool"))
    (z,) = run(call, "main", x, y)
    np.testing.assert_array_equal(z, getattr(np, name)(x, y))
