"""Stages that only move data: what is read through, what is kept, and that values stay the same."""

from functools import reduce as fold

import numpy as np
import pytest
from tvm import te, tirx, topi

import graphgrad as gg
from graphgrad.fallback.graph import operations, sources
from graphgrad.fallback.views import read_through
from graphgrad.fallback.walk import tensor_key
from tests.fallback.interpreter import evaluate
from tests.labels import label


def conv2d(stride, dilation=1):
    return lambda x, w: topi.nn.conv2d(x, w, stride, 1, dilation, data_layout="NCHW")


def conv2d_transpose(x, w):
    return topi.nn.conv2d_transpose_nchw(x, w, (2, 2), (1, 1), "float64", (0, 0))


def of_transposed(x, w):
    return topi.matmul(topi.transpose(x), topi.transpose(w))


def flipped_pad(x):
    padded = topi.nn.pad(x, (1, 1), (1, 0))
    return topi.flip(padded, 0) * padded


def slice_of_concatenation(x, y):
    return topi.strided_slice(topi.concatenate([x, y], 0), [1], [4], [1]) * 2.0


def reshaped_and_back(x):
    return topi.reshape(topi.reshape(x, (12,)), (3, 4)) * 3.0


def averages(x):
    return topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "avg")


def largest(x):
    return topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max")


def shifted_by_long_integers(x):
    view = te.compute((5,), lambda i: x[i.astype("int64") + 1], name="view")
    return te.compute((4,), lambda i: view[i + 1] * x[i.astype("int64")], name="y")


def bound_by_let(x):
    def body(i):
        v = tirx.Var("v", "int32")
        return tirx.Let(v, i + 1, tirx.if_then_else(v < 5, x[v], 0.0))

    view = te.compute((6,), body, name="view")
    return te.compute((6,), lambda i: view[i] * view[5 - i], name="y")


def bits(x):
    view = te.compute((6,), lambda i: x[i ^ 1], name="view")
    return te.compute((6,), lambda i: view[i] * x[i], name="y")


def triangle(x):
    view = te.compute((8,), lambda i: tirx.if_then_else(i >= 2, x[i - 2], 0.0), name="view")

    def body(i):
        k = te.reduce_axis((0, i + 1), name="k")
        return te.sum(view[k] * view[i], axis=k)

    return te.compute((8,), body, name="y")


def product_of_pad(x):
    view = te.compute((5,), lambda i: tirx.if_then_else(i < 4, x[i], 3.0), name="view")
    k = te.reduce_axis((0, 5), name="k")
    return te.compute((), lambda: _product(view[k], k), name="y")


def _product(source, axis):
    combine = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="prod")
    return combine(source, axis=axis)


THROUGH = [
    (conv2d(1), [(1, 2, 5, 5), (3, 2, 3, 3)]),
    (conv2d(2), [(1, 2, 6, 5), (3, 2, 3, 3)]),
    (conv2d(1, 2), [(1, 1, 6, 6), (2, 1, 3, 3)]),
    (conv2d_transpose, [(1, 2, 3, 3), (2, 2, 3, 3)]),
    (of_transposed, [(4, 3), (5, 4)]),
    (flipped_pad, [(4, 3)]),
    (slice_of_concatenation, [(4, 3), (2, 3)]),
    (reshaped_and_back, [(3, 4)]),
    (averages, [(1, 2, 6, 6)]),
    (largest, [(1, 2, 7, 7)]),
    (shifted_by_long_integers, [(6,)]),
    (bound_by_let, [(6,)]),
    (triangle, [(6,)]),
    (product_of_pad, [(4,)]),
]

KEPT = [
    (lambda x, y, w: topi.matmul(topi.concatenate([x, y], 1), w), [(2, 3), (2, 4), (7, 5)]),
    (lambda x, w: topi.matmul(topi.nn.flatten(x), w), [(2, 3, 2, 2), (12, 5)]),
    (lambda x: topi.nn.mirror_pad(x, (1, 1), (1, 1)) * 2.0, [(3, 3)]),
    (bits, [(6,)]),
]


def graph(build, shapes):
    inputs = [te.placeholder(s, "float64", name=f"A{i}") for i, s in enumerate(shapes)]
    return inputs, build(*inputs)


def through(output, inputs):
    """The last stage that reads something, all views left out."""
    kept = {tensor_key(t) for t in [output, *inputs]}
    order = operations(output)
    stage = order[-1]
    if "sum" in str(order[-2].name):
        stage = order[-2]
    return read_through(stage, lambda tensor: tensor_key(tensor) not in kept)


@pytest.mark.parametrize(("build", "shapes"), THROUGH, ids=label)
def test_views_are_read_through_and_values_stay(build, shapes):
    inputs, output = graph(build, shapes)
    op = through(output, inputs)
    names = {tensor.op.name for tensor in sources(op)}
    assert names <= {f"A{i}" for i in range(len(inputs))} | {"pool_sum"}
    generator = np.random.default_rng(0)
    known = [(t, generator.standard_normal([int(e) for e in t.shape])) for t in inputs]
    original = next(o for o in operations(output) if o.name == op.name).output(0)
    before, after = evaluate([original, op.output(0)], known)
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(("build", "shapes"), KEPT, ids=label)
def test_views_whose_own_gradient_is_simpler_are_kept(build, shapes):
    inputs, output = graph(build, shapes)
    op = operations(output)[-1]
    assert through(output, inputs).same_as(op)


@pytest.mark.parametrize(("build", "shapes"), THROUGH + KEPT, ids=label)
def test_gradients_agree_with_differences(build, shapes):
    inputs, output = graph(build, shapes)
    generator = np.random.default_rng(1)
    arrays = [generator.uniform(0.5, 1.5, shape) for shape in shapes]
    weights = generator.standard_normal([int(e) for e in output.shape])
    head = te.placeholder(output.shape, "float64", name="head")
    gradients = gg.te_gradient(output, inputs, head)
    given = evaluate(gradients, [*zip(inputs, arrays, strict=True), (head, weights)])
    for number, gradient in enumerate(given):
        direction = generator.standard_normal(shapes[number])
        values = []
        for step in (1e-6, -1e-6):
            moved = list(arrays)
            moved[number] = arrays[number] + step * direction
            (value,) = evaluate([output], list(zip(inputs, moved, strict=True)))
            values.append((value * weights).sum())
        expected = (values[0] - values[1]) / 2e-6
        assert abs((gradient * direction).sum() - expected) < 1e-6 * max(1, abs(expected))


def test_what_is_asked_for_is_not_read_through():
    x = te.placeholder((4,), "float64", name="x")
    view = te.compute((6,), lambda i: tirx.if_then_else(i < 4, x[i], 0.0), name="view")
    y = te.compute((6,), lambda i: view[i] * view[i], name="y")
    of_view, of_x = gg.te_gradient(y, [view, x])
    values = np.arange(1.0, 5.0)
    ones = [(x, values)]
    np.testing.assert_allclose(evaluate([of_view, of_x], ones)[0], [2, 4, 6, 8, 0, 0])
    np.testing.assert_allclose(evaluate([of_view, of_x], ones)[1], [2, 4, 6, 8])


def test_an_output_that_is_a_view_and_is_read_elsewhere():
    x = te.placeholder((4,), "float64", name="x")
    view = te.compute((4,), lambda i: x[3 - i], name="view")
    y = te.compute((4,), lambda i: view[i] * 3.0, name="y")
    (gradient,) = gg.te_gradient([view, y], [x])
    np.testing.assert_allclose(evaluate([gradient], [(x, np.ones(4))])[0], [4.0] * 4)


def test_reads_at_data_and_views_of_data_are_left():
    x = te.placeholder((4,), "float64", name="x")
    at = te.placeholder((4,), "int32", name="at")
    view = te.compute((4,), lambda i: x[3 - i], name="view")
    gathered = te.compute((4,), lambda i: view[at[i]] * 2.0, name="gathered")
    taken = te.compute((4,), lambda i: x[at[i]], name="taken")
    y = te.compute((4,), lambda i: taken[i] * 2.0, name="y")
    for output in (gathered, y):
        assert read_through(output.op, lambda tensor: True).same_as(output.op)


def test_a_chain_of_views_costs_as_much_as_it_is_long():
    x = te.placeholder((8,), "float64", name="x")

    def pad(tensor, number):
        extent = int(tensor.shape[0])
        return te.compute(
            (extent,), lambda i: tirx.if_then_else(i > 0, tensor[i - 1], 0.0), name=f"pad{number}"
        )

    def rotated(tensor, number):
        return te.compute((8,), lambda i: tensor[7 - i], name=f"flip{number}")

    y = fold(rotated, range(200), x)
    (gradient,) = gg.te_gradient(te.compute((8,), lambda i: y[i] * 2.0, name="y"), [x])
    assert len(operations(gradient)) < 30
    np.testing.assert_allclose(evaluate([gradient], [(x, np.ones(8))])[0], [2.0] * 8)
    z = fold(pad, range(3), x)
    (gradient,) = gg.te_gradient(z, [x])
    np.testing.assert_allclose(evaluate([gradient], [(x, np.ones(8))])[0], [1.0] * 5 + [0.0] * 3)
