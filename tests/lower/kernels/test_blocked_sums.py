"""Sums of any length are as accurate as short ones, in whatever loops they are computed."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from tests.lower.programs import machine
from tests.running import function, run

op = relax.op
FEW, MANY, HUGE = 4, 300_000, 10_000_000

REDUCTIONS = {
    "sum": (op.sum, np.sum),
    "mean": (op.mean, np.mean),
    "variance": (op.variance, np.var),
    "std": (op.std, np.std),
}

SHAPES = {
    "all": ((HUGE,), None),
    "all, a prime number": ((9_999_991,), None),
    "all, little": ((16_000,), None),
    "few rows": ((FEW, MANY), [1]),
    "some rows": ((64, 30_000), [1]),
    "short rows, little": ((5, 3000), [1]),
    "few columns": ((MANY, FEW), [0]),
    "few odd columns": ((MANY, 7), [0]),
    "few columns, little": ((3000, 5), [0]),
    "columns": ((100_000, 64), [0]),
    "long columns": ((10_000, 1000), [0]),
    "channels first": ((20, 64, 5000), [0, 2]),
    "channels last": ((20, 5000, 64), [0, 1]),
    "middle": ((20, 50_000, 3), [1]),
}


def values(shape, kind):
    """Positive numbers: equal ones, whose roundings all go in one direction, or random ones."""
    if kind == "equal":
        return np.full(shape, 0.1, "float32")
    return np.random.default_rng(0).random(shape, "float32")


def program(emit, *shapes):
    return function(lambda builder, *x: builder.emit(emit(*x)), *((s, "float32") for s in shapes))


def assert_accurate(actual, expected, tolerance=1e-6, what=""):
    """Each element's error relative to the largest one."""
    atol = tolerance * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol, err_msg=what)


@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("shape, axis", SHAPES.values(), ids=SHAPES)
def test_sums_and_means(shape, axis, name):
    emit, reference = REDUCTIONS[name]
    compiled = machine(program(lambda v: emit(v, axis), shape))["main"]
    for kind in ("equal", "random"):
        x = values(shape, kind)
        expected = reference(x.astype("float64"), axis=None if axis is None else tuple(axis))
        assert_accurate(compiled(to_tensor(x)).numpy(), expected, what=f"{kind} numbers")


@pytest.mark.parametrize("shape, axis", [((HUGE,), None), ((FEW, MANY), [1]), ((MANY, FEW), [0])])
@pytest.mark.parametrize("name", ["variance", "std"])
def test_statistics(name, shape, axis):
    emit, reference = REDUCTIONS[name]
    x = values(shape, "random")
    (result,) = run(program(lambda v: emit(v, axis), shape), "main", x)
    assert_accurate(result, reference(x.astype("float64"), axis=axis and tuple(axis)))


@pytest.mark.parametrize("kind", ["equal", "random"])
def test_of_unknown_length(kind):
    n = tvm.tirx.Var("n", "int64")

    def build(builder, x, y):
        calls = [op.mean(x), op.sum(x, [0]), op.sum(y, [1])]
        return builder.emit(relax.Tuple([builder.emit(call) for call in calls]))

    mod = function(build, ((n, 3), "float32"), ((2, n), "float32"))
    x, y = values((MANY, 3), kind), values((2, MANY), kind)
    mean, columns, rows = run(mod, "main", x, y)
    assert_accurate(mean, x.astype("float64").mean())
    assert_accurate(columns, x.astype("float64").sum(0))
    assert_accurate(rows, y.astype("float64").sum(1))


def test_of_float64():
    x = np.full((HUGE // 4,), 0.1)
    mod = function(lambda builder, v: builder.emit(op.mean(v)), (x.shape, "float64"))
    (result,) = run(mod, "main", x)
    np.testing.assert_allclose(result, 0.1, rtol=1e-14)


@pytest.mark.parametrize("kind", ["equal", "random"])
def test_several_sums_in_one_kernel(kind):
    """Reductions over the same loops are one kernel with several results."""
    shape = (MANY, 16)

    def build(builder, x):
        squares = builder.emit(op.multiply(x, x))
        calls = [op.sum(x, [0]), op.sum(squares, [0]), op.max(x, [0])]
        return builder.emit(relax.Tuple([builder.emit(call) for call in calls]))

    x = values(shape, kind)
    total, squares, largest = run(function(build, (shape, "float32")), "main", x)
    x = x.astype("float64")
    assert_accurate(total, x.sum(0))
    assert_accurate(squares, (x * x).sum(0))
    np.testing.assert_array_equal(largest, x.max(0).astype("float32"))


GRADIENTS = {
    "bias of rows": (op.add, (MANY, 16), (16,), [0]),
    "bias of channels first": (op.add, (8, 16, 30_000), (16, 1), [0, 2]),
    "broadcast": (lambda x, b: op.add(x, op.broadcast_to(b, (MANY, 16))), (MANY, 16), (16,), [0]),
    "scalar": (op.add, (HUGE,), (), [0]),
}


@pytest.mark.parametrize("emit, shape, bias, axes", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_of_broadcasts(emit, shape, bias, axes):
    mod = gg.vjp(program(emit, shape, bias))
    ct = values(shape, "equal")
    *_, gradient = run(mod, "main_vjp", values(shape, "random"), np.zeros(bias, "float32"), ct)
    assert_accurate(gradient, ct.astype("float64").sum(tuple(axes)).reshape(bias))


NORMS = {
    "layer norm, many rows": (
        (lambda x, g, b: op.nn.layer_norm(x, g, b, [-1])), (50_000, 32), (32,), (1,), (0,)
    ),
    "layer norm, long rows": (
        (lambda x, g, b: op.nn.layer_norm(x, g, b, [-1])), (4, 100_000), (100_000,), (1,), (0,)
    ),
    "instance norm": (
        (lambda x, g, b: op.nn.instance_norm(x, g, b, 1, [2])), (2, 16, 50_000), (16,), (2,), (0, 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("emit, shape, weight, over, rest", NORMS.values(), ids=NORMS)
def test_norms(emit, shape, weight, over, rest):
    """The gradients of scale and shift, which are sums over all that they are used for."""
    mod = gg.vjp(program(emit, shape, weight, weight))
    x, ct = values(shape, "random"), values(shape, "equal") + values(shape, "random")
    ones = np.ones(weight, "float32")
    y, _, scale, shift = run(mod, "main_vjp", x, ones, ones, ct)
    x, ct = x.astype("float64"), ct.astype("float64")
    centered = x - x.mean(over, keepdims=True)
    normal = centered / np.sqrt((centered**2).mean(over, keepdims=True) + 1e-5)
    assert_accurate(y, normal + 1)
    assert_accurate(shift, ct.sum(rest))
    # Terms of both signs: the error is that of the sum of their sizes.
    error = np.abs(scale - (ct * normal).sum(rest))
    assert (error <= 1e-6 * np.abs(ct * normal).sum(rest)).all()


def test_softmax():
    x = values((4, MANY), "equal")
    (result,) = run(program(lambda v: op.nn.softmax(v, -1), x.shape), "main", x)
    np.testing.assert_allclose(result, 1 / MANY, rtol=1e-6)
