"""Stages that go by the same rows, in one launch: what they compute, and which do not."""

import pytest
from tvm import te, tirx, topi

from tests.labels import label
from tests.lower.cuda.running import run
from tests.lower.kernel_programs import tensor


def launches(result):
    return result.text.count('thread="blockIdx.x"')


@pytest.mark.parametrize(
    "shape",
    [
        (1024, 768), (700, 64), (523, 100), (2000, 37),  # a warp each
        (3, 5, 64, 128),
        (129, 4000), (64, 12000), (33, 20001),  # blocks, which keep rows or read them again
    ],
    ids=label,
)  # fmt: skip
@pytest.mark.parametrize("function", [topi.nn.softmax, topi.nn.log_softmax])
def test_softmax(shape, function):
    x = tensor(*shape)
    result = run([x], [function(x, -1)])
    result.agree()
    assert launches(result) == 1


def row_sum(x, term):
    k = te.reduce_axis((0, x.shape[-1]), "k")
    return te.compute((*x.shape[:-1], 1), lambda *i: te.sum(term(*i[:-1], k), axis=k))


@pytest.mark.parametrize("shape", [(600, 768), (4, 300, 96), (64, 5000)], ids=label)
def test_norm(shape):
    x, scale, bias = tensor(*shape), tensor(shape[-1], name="scale"), tensor(shape[-1], name="bias")
    n = float(shape[-1])
    total = row_sum(x, lambda *i: x[i])
    mean = topi.divide(total, n)
    square = row_sum(x, lambda *i: (x[i] - mean[(*i[:-1], 0)]) * (x[i] - mean[(*i[:-1], 0)]))
    inverse = te.compute(square.shape, lambda *i: te.rsqrt(square(*i) / n + 1e-5))
    y = topi.add(topi.multiply(topi.multiply(topi.subtract(x, mean), inverse), scale), bias)
    result = run([x, scale, bias], [y, mean, inverse])
    result.agree()
    assert launches(result) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradient_of_a_norm(dtype):
    x, g = tensor(900, 256, dtype=dtype), tensor(900, 256, dtype=dtype, name="g")
    r = tensor(900, 1, name="r")
    wide_x, wide_g = topi.cast(x, "float32"), topi.cast(g, "float32")
    scaled = topi.multiply(wide_x, r)
    both = row_sum(x, lambda *i: wide_g(*i) * scaled(*i))
    alone = row_sum(x, wide_g)
    inner = topi.subtract(wide_g, topi.add(topi.multiply(scaled, both), alone))
    result = run([x, g, r], [topi.cast(topi.multiply(inner, r), dtype)])
    result.agree()
    assert launches(result) == 1


def test_a_row_that_two_results_are_made_of():
    x = tensor(512, 200)
    peak = topi.max(x, -1, keepdims=True)
    low = topi.min(x, -1, keepdims=True)
    spread = topi.subtract(peak, low)
    outputs = [topi.divide(topi.subtract(x, low), spread), topi.multiply(x, peak), spread]
    result = run([x], outputs)
    result.agree()
    assert launches(result) == 1


def test_elements_of_other_places_are_read_from_memory():
    x = tensor(512, 200)
    shifted = topi.exp(topi.tanh(topi.subtract(x, topi.max(x, -1, keepdims=True))))
    last = tirx.IntImm("int64", 199)
    turned = te.compute(x.shape, lambda i, j: shifted[i, last - j] * 2.0)
    result = run([x], [shifted, turned])
    result.agree()
    assert launches(result) > 1


@pytest.mark.parametrize("shape", [(4096, 8), (8, 4096)], ids=label)
def test_short_rows_and_few_rows_take_other_ways(shape):
    x = tensor(*shape)
    result = run([x], [topi.nn.softmax(x, -1)])
    result.agree()
    assert launches(result) > 1


def test_sums_over_rows_are_launches_of_their_own():
    x = tensor(4096, 96)
    y = topi.nn.softmax(x, -1)
    result = run([x], [y, topi.sum(y, 0)])
    result.agree()
    assert 1 < launches(result) <= 3


def test_rows_beside_columns():
    """The same extents both ways: a stage that reads columns is no part of a chain of rows."""
    x = tensor(256, 256)
    peak = topi.max(x, -1, keepdims=True)
    y = topi.subtract(x, peak)
    by_column = te.compute((256, 256), lambda i, j: x[i, j] * peak[j, 0])
    result = run([x], [topi.exp(y), topi.sum(topi.exp(y), -1), by_column])
    result.agree()
