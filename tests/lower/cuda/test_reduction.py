"""Reductions on a GPU: few results and many, short and long, empty ones, tuples, NaN."""

import numpy as np
import pytest
from tvm import te, tirx, topi

from graphgrad.ir.warps import SHUFFLE
from graphgrad.ops.elementwise import larger, smaller
from tests.labels import label
from tests.lower.cuda.running import run
from tests.lower.kernel_programs import tensor

SHAPE = (12, 16, 8, 24)


def reducer(choose, start):
    return te.comm_reducer(choose, lambda ty: tirx.const(start, ty), name="reducer")


NAN_MAX = reducer(larger, float("-inf"))
NAN_MIN = reducer(smaller, float("inf"))
ODD = reducer(lambda a, b: a * b + a + b, 0.0)


def is_cut(result):
    """Whether several threads reduce the terms of a result."""
    return "parts" in result.text or SHUFFLE in result.text


def along(reduce, x, axis=1):
    """Reduce a matrix along one axis."""
    k = te.reduce_axis((0, x.shape[axis]), "k")
    at = (lambda i: (i, k)) if axis else (lambda i: (k, i))
    return te.compute((x.shape[1 - axis],), lambda i: reduce(x(*at(i)), axis=k), name="y")


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        (SHAPE, (0, 2, 3)),
        (SHAPE, (0, 1, 2, 3)),
        (SHAPE, (0,)),
        (SHAPE, (1, 3)),
        (SHAPE, (3,)),
        ((7, 31, 127), (0, 2)),
        ((1, 20011), (1,)),
        ((20011, 1), (0,)),
        ((20011, 3), (0,)),
        ((300, 1), (0, 1)),
        ((5,), (0,)),
        ((1,), (0,)),
        ((200003,), (0,)),
    ],
    ids=label,
)
def test_extents_and_axes(shape, axes):
    x = tensor(*shape)
    run([x], [topi.sum(x, axes), topi.max(x, axes)]).agree()


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("reduce", [topi.max, topi.min], ids=["max", "min"])
def test_dtypes(dtype, reduce):
    x = tensor(40, 700, dtype=dtype)
    run([x], [reduce(x, 0), reduce(x, 1)]).agree()


@pytest.mark.parametrize("reduce", [NAN_MAX, NAN_MIN, ODD], ids=["max", "min", "odd"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reducers(reduce, axis):
    shape = (3, 2000) if axis else (2000, 3)
    x = tensor(*shape)
    source = topi.multiply(x, 0.001) if reduce is ODD else x
    result = run([x], [along(reduce, source, axis)])
    result.agree()
    assert is_cut(result) == (reduce is not ODD)


def test_the_last_of_some_kind_is_not_looked_for_in_parts():
    """Terms are dealt out to threads, so the order would be lost."""
    zero = tirx.const(0, "int32")
    last = te.comm_reducer(
        lambda a, b: tirx.Select(b > zero, b, a), lambda ty: tirx.const(0, ty), name="last"
    )
    x = tensor(3, 2000, dtype="int32")
    result = run([x], [along(last, x)])
    result.agree()
    assert not is_cut(result)


def test_nan_wins_in_parts_too():
    x = tensor(2, 3000)
    nan = te.compute(x.shape, lambda i, j: tirx.if_then_else(j == 1777, float("nan"), x[i, j]))
    result = run([x], [along(NAN_MAX, nan)])
    assert np.isnan(result.scheduled[0]).all()


@pytest.mark.parametrize(
    ("reduce", "identity"), [(topi.sum, 0), (topi.prod, 1), (topi.max, -np.inf)], ids=label
)
@pytest.mark.parametrize("shape", [(4, 0), (0,), (20000, 0), (0, 0)], ids=label)
def test_empty_reductions_write_the_identity(shape, reduce, identity):
    x = tensor(*shape)
    combine = {topi.sum: te.sum, topi.max: NAN_MAX, topi.prod: reducer(lambda a, b: a * b, 1)}
    k = te.reduce_axis((0, 0), "k")
    y = te.compute(shape[:-1], lambda *i: combine[reduce](x(*i, k), axis=k), name="y")
    assert (run([x], [y]).scheduled[0] == identity).all()


def test_no_results():
    x = tensor(0, 500)
    run([x], [topi.sum(x, 1), topi.exp(x)]).agree()


@pytest.mark.parametrize(
    "extents", [(4, 0), (0, 4), (3, 5), (40, 1024), (1, 20000), (2, 3001)], ids=label
)
@pytest.mark.parametrize("axis", [0, 1])
def test_symbolic_extents(extents, axis):
    n, m = te.var("n", "int64"), te.var("m", "int64")
    x = te.placeholder((n, m), "float32", "x")
    result = run([x], [along(te.sum, x, axis)], shapes=[extents, extents[1 - axis : 2 - axis]])
    if extents[axis] == 0:
        assert not result.scheduled[0].any()
    else:
        result.agree()


@pytest.mark.parametrize("shape", [(8, 16, 64), (8, 3, 1024), (5, 7, 601)], ids=label)
def test_statistics_as_a_tuple(shape):
    both = te.comm_reducer(
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        lambda s, t: (tirx.const(0, s), tirx.const(0, t)),
        name="both",
    )
    x = tensor(*shape)
    n, h = te.reduce_axis((0, shape[0]), "n"), te.reduce_axis((0, shape[2]), "h")
    sums = te.compute(
        (shape[1],), lambda c: both((x[n, c, h], x[n, c, h] * x[n, c, h]), axis=[n, h]), name="s"
    )
    result = run([x], list(sums))
    result.agree()
    assert is_cut(result)


@pytest.mark.parametrize("shape", [(3, 10), (64, 512), (1, 30000), (300, 101)], ids=label)
@pytest.mark.parametrize("first", [True, False])
def test_index_of_the_maximum(shape, first):
    x = tensor(*shape)
    few = te.compute(x.shape, lambda i, j: topi.floor(x)[i, j], name="few")  # many equal values
    result = run([x], [topi.argmax(few, 1, select_last_index=not first)])
    result.agree()
    assert is_cut(result) == (shape[1] > 128)


@pytest.mark.parametrize("terms", [100_000, 3_000_000])
def test_a_long_sum_is_accurate(terms):
    """A sum one term after the other would be off by a thousand times as much."""
    x = tensor(1, terms)
    result = run([x], [topi.sum(x, 1)])
    exact = np.random.default_rng(0).uniform(-0.5, 1, (1, terms)).astype("float32")
    exact = exact.astype("float64").sum(1)
    np.testing.assert_allclose(result.scheduled[0], exact, rtol=3e-7)


def test_the_order_is_the_same_every_time():
    x = tensor(3, 5000)
    first, second = (run([x], [topi.sum(x, 1)]) for _ in range(2))
    assert (first.scheduled[0] == second.scheduled[0]).all()


@pytest.mark.parametrize("shape", [(3, 10), (64, 1000), (300, 127)], ids=label)
def test_softmax(shape):
    x = tensor(*shape)
    run([x], [topi.nn.softmax(x)]).agree()


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling_windows(kind):
    x = tensor(4, 8, 33, 33)
    pool = topi.nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], kind)
    run([x], [pool]).agree()
