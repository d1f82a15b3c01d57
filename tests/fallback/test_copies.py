"""Copies that are read through in kernels of gradients."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback.copies import original, read_through_copies, reading_zeros
from graphgrad.fallback.graph import operations
from graphgrad.fallback.kinds import Kind, copied, map_stage, marked
from tests.fallback.interpreter import evaluate


@pytest.fixture
def x():
    return te.placeholder((4, 6), "float64", name="x")


def names(tensor):
    return [op.name for op in operations(tensor) if isinstance(op, te.ComputeOp)]


def doubled(tensor, *shape, at):
    return map_stage(shape, lambda *i: tensor(*at(*i)) * tirx.const(2.0, "float64"), "doubled")


def test_copies_are_read_through(x):
    transposed = map_stage((6, 4), lambda j, i: x(i, j), "transposed")
    (result,) = read_through_copies([doubled(transposed, 3, 4, at=lambda j, i: (2 * j, i))])
    assert names(result) == ["doubled"]


def test_border_is_kept_where_it_is_read(x):
    def padded(i, j):
        return tirx.if_then_else(j >= 1, x(i, j - 1), tirx.const(0.0, "float64"))

    pad = map_stage((4, 7), padded, "pad")
    inside, all_of_it = read_through_copies(
        [doubled(pad, 4, 6, at=lambda i, j: (i, j + 1)), doubled(pad, 4, 7, at=lambda i, j: (i, j))]
    )
    assert names(inside) == ["doubled"]
    assert names(all_of_it) == ["pad", "doubled"]
    values = np.arange(24.0).reshape(4, 6)
    given, whole = evaluate([inside, all_of_it], [(x, values)])
    np.testing.assert_array_equal(given, 2 * values)
    np.testing.assert_array_equal(whole, 2 * np.pad(values, [(0, 0), (1, 0)]))


def test_operands_of_a_contraction_are_kept(x):
    k = te.reduce_axis((0, 6), name="k")
    copy = copied(x, "copy")
    total = te.compute(
        (4,),
        lambda i: te.sum(copy(i, k) * copy(i, k), axis=k),
        name="total",
        attrs=marked(Kind.CONTRACTION),
    )
    assert names(read_through_copies([total])[0]) == ["copy", "total"]


def test_a_tensor_that_is_another_one(x):
    assert original(copied(copied(x, "a"), "b")).same_as(x)
    for other in (
        map_stage((6, 4), lambda j, i: x(i, j), "transposed"),
        map_stage((4, 6), lambda i, j: x(i, 5 - j), "reversed"),
        map_stage((4, 5), x, "sliced"),
        map_stage((4, 6), lambda i, j: x(i, j).astype("float32"), "rounded"),
    ):
        assert original(other).same_as(other)


def test_maps_read_zero_and_contractions_their_operands(x):
    y = te.placeholder((4, 6), "float64", name="y")
    k = te.reduce_axis((0, 6), name="k")
    inner = map_stage((4, 6), lambda i, j: x(i, j) * y(i, j) + y(i, j), "inner")
    total = te.compute(
        (4,),
        lambda i: te.sum(inner(i, k) * x(i, k), axis=k),
        name="total",
        attrs=marked(Kind.CONTRACTION),
    )
    results = reading_zeros([inner, total], [x])
    values = np.arange(24.0).reshape(4, 6)
    given, sums = evaluate(results, [(x, values), (y, values)])
    np.testing.assert_array_equal(given, values)
    np.testing.assert_array_equal(sums, (values * values).sum(1))
    assert [tensor.op.name for tensor in results[0].op.input_tensors] == ["y"]
