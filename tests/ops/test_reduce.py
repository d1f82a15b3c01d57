"""Reductions of nothing, of NaN and of half precision, against numpy."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ops import reduce
from tests.peers import peer
from tests.running import F64, function, run

op = relax.op

OF_NOTHING = {
    "max": -np.inf,
    "mean": np.nan,
    "min": np.inf,
    "prod": 1.0,
    "std": np.nan,
    "sum": 0.0,
    "variance": np.nan,
}
HALF = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def program(name, shape, dtype=F64, **attributes):
    call = getattr(op, name)
    return function(lambda builder, x: builder.emit(call(x, **attributes)), (shape, dtype))


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", OF_NOTHING)
def test_of_nothing(name, symbolic):
    extent = tvm.tirx.Var("n", "int64") if symbolic else 0

    def build(builder, x):
        calls = [getattr(op, name)(x, axis=[0]), getattr(op, name)(x)]
        return builder.emit(relax.Tuple([builder.emit(call) for call in calls]))

    columns, everything = run(function(build, ((extent, 2), F64)), "main", np.zeros((0, 2)))
    np.testing.assert_array_equal(columns, [OF_NOTHING[name]] * 2)
    np.testing.assert_array_equal(everything, OF_NOTHING[name])


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("position", range(3))
def test_nan_wins(name, position):
    x = np.array([[3.0, 1.0, 2.0]])
    x[0, position] = np.nan
    assert np.isnan(run(program(name, (1, 3), axis=[1]), "main", x)[0]).all()


@pytest.mark.parametrize("dtype", ["float32", F64, "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("axis", [[0], [1], [0, 1]], ids=str)
def test_nan_wins_in_every_dtype(name, dtype, axis):
    """Rows and columns of odd extents, of which some have NaN, infinities and zeros."""
    x = np.random.default_rng(0).standard_normal((203, 331)).astype(HALF.get(dtype, dtype))
    x[5, 7], x[100, 330], x[202, 0] = np.inf, -np.inf, -0.0
    if len(axis) == 1:
        x[3, 11], x[77, 11], x[202, 330] = np.nan, -np.nan, np.nan
    (y,) = run(program(name, x.shape, dtype, axis=axis), "main", x)
    expected = getattr(x.astype(F64), name)(axis=tuple(axis))
    np.testing.assert_array_equal(y.astype(F64), expected)


@pytest.mark.parametrize("dtype", [F64, "float16"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_of_several_has_the_position(name, dtype):
    """The first NaN if there is one, as in numpy; an infinity is found like any other element."""
    inf, nan = np.inf, np.nan
    x = np.array([[0, nan, 3, nan], [3, 3, 0, 0], [-inf] * 4, [inf] * 4, [-inf, inf, 0, nan]])
    x = x.astype(dtype)
    for attributes in ({"axis": 1}, {"axis": -2, "keepdims": True}, {}):
        found = run(program(name, x.shape, dtype, **attributes), "main", x)[0]
        np.testing.assert_array_equal(found, getattr(np, name)(x, **attributes))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_of_integers_and_booleans(name):
    x = np.array([[1, 0, 3], [4, 5, -6]])
    for values in (x, x > 0):
        found = run(program(name, x.shape, str(values.dtype), axis=1), "main", values)[0]
        assert found.tolist() == getattr(values, name)(axis=1).tolist()


@pytest.mark.parametrize("name", ["max", "min"])
def test_integers_and_booleans(name):
    x = np.array([[1, 0, 3], [4, 5, -6]])
    expected = getattr(x, name)(axis=1)
    assert run(program(name, x.shape, "int64", axis=[1]), "main", x)[0].tolist() == list(expected)
    flags = x > 0
    mod = program(name, x.shape, "bool", axis=[1], keepdims=True)
    np.testing.assert_array_equal(
        run(mod, "main", flags)[0], getattr(flags, name)(axis=1, keepdims=True)
    )


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ["sum", "mean", "variance", "std", "prod"])
def test_half_precision_is_reduced_in_float32(name, dtype):
    x = np.ones((4, 3000), HALF[dtype])
    if name in ("variance", "std"):
        x[:, ::2] = 3
    (y,) = run(program(name, x.shape, dtype, axis=[1]), "main", x)
    assert y.dtype == HALF[dtype]
    reference = {"variance": "var"}.get(name, name)
    expected = getattr(x.astype(F64), reference)(axis=1).astype(HALF[dtype])
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_half_precision_adds_up_in_float32(name):
    mod = function(lambda b, x: b.emit(getattr(op.nn, name)(x)), ((1, 4096), "float16"))
    x = np.zeros((1, 4096), "float16")
    y = run(mod, "main", x)[0].astype(F64)
    np.testing.assert_allclose(np.exp(y) if "log" in name else y, 1 / 4096, rtol=4e-3)


@pytest.mark.parametrize("dtype", [F64, "float32"])
def test_cross_entropy_of_a_vocabulary(dtype):
    """By the statistics of rows; of equal scores, large ones, and −∞ too."""
    torch = peer("torch")
    classes = reduce._MANY_CLASSES + 3
    x = np.random.default_rng(0).standard_normal((6, classes)).astype(dtype)
    x[1], x[2] = 7, 50 * x[2]
    x[3, 5:] = -np.inf
    labels = np.array([3, 0, classes - 1, 2, -100, 7])

    def loss(b, x, labels):
        logs = b.emit(op.nn.log_softmax(x, axis=1))
        return b.emit(op.nn.nll_loss(logs, labels, reduction="mean", ignore_index=-100))

    mod = gg.vjp(function(loss, (x.shape, dtype), (labels.shape, "int64")), wrt=["x0"])
    value, slopes = run(mod, "main_vjp", x, labels, np.array(1, dtype))
    scores = torch.from_numpy(x.astype(F64)).requires_grad_()
    expected = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels))
    expected.backward()
    tolerance = {"rtol": 1e-8, "atol": 1e-12} if dtype == F64 else {"rtol": 2e-5, "atol": 1e-7}
    np.testing.assert_allclose(value, expected.item(), **tolerance)
    np.testing.assert_allclose(slopes, scores.grad.numpy(), **tolerance)


@pytest.mark.parametrize("axis", [[0, 1], [0, 2], [-1, 0], [1]], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_median_over_several_axes(axis, keepdims):
    x = np.random.default_rng(0).permutation(45).reshape(3, 3, 5).astype(F64)
    y = run(program("median", x.shape, axis=axis, keepdims=keepdims), "main", x)[0]
    np.testing.assert_array_equal(y, np.median(x, axis=tuple(axis), keepdims=keepdims))
