"""Additions at places that data choose: the same in vectors, in any order of neighbors."""

import numpy as np
from tvm import te, tirx

import graphgrad as gg
from tests.lower.kernel_programs import run, tensor


def gradient_of_reads(make, *, inputs, shape, values):
    """The gradient by the first input of what `make` computes; both ways, which must agree."""
    y = te.compute(shape, make)
    head = tensor(*shape, name="head")
    (dx,) = gg.te_gradient(y, inputs[:1], head)
    values = [*values, np.random.default_rng(9).standard_normal(shape).astype("float32")]
    runs = run([*inputs[1:], head], [dx], values=values, make=gg.fallback.create_prim_func)
    runs.agree()
    return runs


def test_terms_and_places_in_vectors():
    """Many neighbors add to the same of 19 elements, with weights of their own."""
    table, x = tensor(64, 19), tensor(64, 1000)

    def spline(c, i):
        cell = te.max(te.min(te.floor(x[c, i] * 16.0).astype("int32"), 15), 0)
        u = x[c, i] * 16.0 - cell.astype("float32")
        return table[c, cell] * u * u * u + table[c, cell + 3] * (1.0 - u)

    values = [np.random.default_rng(0).uniform(0, 1, (64, 1000)).astype("float32")]
    runs = gradient_of_reads(spline, inputs=[table, x], shape=(64, 1000), values=values)
    assert "additions" in runs.text and "T.parallel" in runs.text
    # 1000 = 62 · 16 + 8: what is left is a short vector.
    assert {8, 16} <= runs.vectors


def test_places_outside_are_left_out():
    table, place = tensor(64, 32), tensor(64, 1024, dtype="int32")

    def read(i, j):
        p = place[i, j] * 3 - 5
        weight = (p * p).astype("float32") * 0.01 + p.astype("float32") * 0.5 + 1.0
        return te.if_then_else(tirx.all(p >= 0, p < 32), table[i, p] * weight, 0.0)

    places = np.random.default_rng(0).integers(-9, 30, (64, 1024)).astype("int32")
    runs = gradient_of_reads(read, inputs=[table, place], shape=(64, 1024), values=[places])
    assert "additions" in runs.text


def test_rows_are_added_at_once():
    """Neighbors of a row are different elements: no loop over lanes."""
    table, row, weight = tensor(128, 8), tensor(4096, dtype="int32"), tensor(4096, 8)

    def read(i, j):
        return table[row[i], j] / (weight[i, j] * weight[i, j] + 1.0) * 2.0 + weight[i, j]

    rows = np.random.default_rng(0).integers(0, 128, 4096).astype("int32")
    weights = np.random.default_rng(1).standard_normal((4096, 8)).astype("float32")
    runs = gradient_of_reads(
        read, inputs=[table, row, weight], shape=(4096, 8), values=[rows, weights]
    )
    assert 8 in runs.vectors and "for lane in range" not in runs.text


def test_rows_whose_places_are_kept_are_added_at_once():
    """A place is kept for the condition and for the addition; some are outside."""
    table, length = tensor(64, 64, 24), tensor(64, dtype="int32")

    def reversed_rows(i, j, k):
        end = te.min(length[i].astype("int64"), tirx.const(80, "int64"))
        place = tirx.Select(j < end, end - 1 - j, j.astype("int64"))
        return tirx.Select(tirx.all(place >= 0, place < 64), table[i, place, k], 0.0)

    lengths = np.random.default_rng(0).integers(0, 90, 64).astype("int32")
    runs = gradient_of_reads(
        reversed_rows, inputs=[table, length], shape=(64, 64, 24), values=[lengths]
    )
    assert {8, 16} <= runs.vectors and "for lane in range" not in runs.text


def test_a_maximum_adds_to_one_place():
    """The loop over candidates is gone: the place of the maximum is known."""
    x, start = tensor(4096, 8), tensor(257, dtype="int32")
    k = te.reduce_axis((0, tirx.IntImm("int64", 32)), "k")
    least = te.min_value("float32")
    top = te.compute(
        (256, 8),
        lambda s, h: te.max(
            te.if_then_else(start[s] + k < start[s + 1], x[start[s] + k, h], least), axis=k
        ),
    )
    head = tensor(256, 8, name="head")
    (dx,) = gg.te_gradient(top, [x], head)
    starts = (np.arange(257) * 16).astype("int32")
    drawn = np.random.default_rng(0).standard_normal((4096, 8)).astype("float32")
    heads = np.random.default_rng(1).standard_normal((256, 8)).astype("float32")
    func = [x, start, head]
    values = [drawn, starts, heads]
    runs = run(func, [dx], values=values, make=gg.fallback.create_prim_func)
    runs.agree()
    rows = drawn.reshape(256, 16, 8)
    expected = np.where(rows == rows.max(1, keepdims=True), heads[:, None], 0)
    np.testing.assert_array_equal(runs.scheduled[0], expected.reshape(4096, 8))


def test_places_that_are_remainders_of_data_need_no_guards():
    """An element goes to one of the four of its window: in the tensor, whatever data say."""
    image, place = tensor(64, 32, 32), tensor(64, 16, 16, dtype="int8")

    def read(c, i, j):
        p = place[c, i, j].astype("int64")
        position = (2 * i + p // 2 % 2, 2 * j + p % 2)
        inside = [tirx.all(k >= 0, k < 32) for k in position]
        return tirx.if_then_else(tirx.all(*inside), image[(c, *position)], 0.0)

    places = np.random.default_rng(0).integers(-128, 128, (64, 16, 16)).astype("int8")
    runs = gradient_of_reads(read, inputs=[image, place], shape=(64, 16, 16), values=[places])
    assert "additions" in runs.text and "T.Select" not in runs.text
