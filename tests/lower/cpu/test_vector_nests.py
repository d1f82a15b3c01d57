"""Blocks that TVM's primitives do not vectorize compute the same in vectors, and read no more."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.ir import prim
from tvm.script import tirx as T

import graphgrad as gg
from graphgrad.lower.cpu.schedule import schedule_loops
from tests.lower.kernel_programs import UNIT, run, tensor

PLACES = np.random.default_rng(0).integers(-3, 67, (64, 512)).astype("int32")
X = np.random.default_rng(1).standard_normal((64, 512)).astype("float32")
TABLE = np.random.default_rng(2).standard_normal((64, 64)).astype("float32")


def weighted(x):
    """Some arithmetic: reads that are collected do not pay without any."""
    return (x * x * 0.5 + x * 0.25 + 1.0) * x * x - x * 3.0 + 2.0


def reads_of_a_table(make):
    """What `make` computes of each element, its row of the table, and its place in it."""
    x, place, table = tensor(64, 512), tensor(64, 512, dtype="int32"), tensor(64, 64)
    y = te.compute((64, 512), lambda i, j: make(x[i, j], lambda k: table[i, k], place[i, j]))
    runs = run([x, place, table], [y], values=[X, PLACES, TABLE])
    runs.agree()
    assert 16 in runs.vectors
    return runs.scheduled[0]


def test_reads_at_places_that_data_choose():
    """The table lies in front of an unmapped page: a read behind its end would fault."""

    def clamped(x, read, place):
        return weighted(x) * read(te.max(te.min(place, 63), 0))

    rows = np.arange(64)[:, None]
    expected = weighted(X) * TABLE[rows, PLACES.clip(0, 63)]
    np.testing.assert_allclose(reads_of_a_table(clamped), expected, rtol=1e-5, atol=1e-5)


def test_rows_that_data_choose_are_read_in_vectors():
    """The number of a row is one for all lanes."""
    row, table = tensor(64, dtype="int64"), tensor(64, 512)
    number = tirx.Var("number", "int64")

    def read(i, j):
        inside = tirx.all(number >= 0, number < 64)
        return prim.Let(number, row[i] * 3, tirx.Select(inside, table(number, j), 0.0))

    y = te.compute((64, 512), read)
    rows = np.random.default_rng(0).integers(-9, 30, 64)
    runs = run([row, table], [y], values=[rows, X], make=gg.fallback.create_prim_func)
    expected = np.where((rows >= 0) & (rows < 22), 1, 0)[:, None] * X[(rows * 3).clip(0, 63)]
    np.testing.assert_array_equal(runs.scheduled[0], expected)
    assert "[value[0], " in runs.text


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_what_data_select_of_windows(dtype):
    """As poolings do: where the largest of a window is, sums of selected terms, and back."""
    x, index = tensor(64, 500), tensor(64, 250, dtype=dtype)
    taps = [te.reduce_axis((0, 2), "k") for _ in range(2)]
    largest = te.compute((64, 250), lambda i, j: te.max(x[i, 2 * j + taps[0]], axis=taps[0]))
    place = te.compute(
        (64, 250),
        lambda i, j: te.min(
            tirx.Select(
                tirx.EQ(x[i, 2 * j + taps[1]], largest[i, j]),
                taps[1].astype(dtype),
                tirx.const(2, dtype),
            ),
            axis=taps[1],
        ),
    )
    spread = te.compute(
        (64, 500),
        lambda i, j: tirx.Select(
            tirx.EQ(index[i, j // 2], (j % 2).astype(dtype)), largest[i, j // 2], 0.0
        ),
    )
    runs = run(
        [x, index],
        [largest, place, spread],
        values=[X[:, :500], (PLACES % 3)[:, :250].astype(dtype)],
    )
    runs.agree()
    assert runs.text.count("T.vectorized") > 8
    np.testing.assert_array_equal(runs.scheduled[1], X[:, :500].reshape(64, 250, 2).argmax(2))


@pytest.mark.parametrize("choose", [te.if_then_else, tirx.Select], ids=["branch", "select"])
def test_reads_that_a_condition_keeps_inside(choose):
    def inside(x, read, place):
        return choose(tirx.all(place >= 0, place < 64), weighted(x) * read(place), 7.0)

    rows, is_inside = np.arange(64)[:, None], (PLACES >= 0) & (PLACES < 64)
    expected = np.where(is_inside, weighted(X) * TABLE[rows, PLACES.clip(0, 63)], 7)
    np.testing.assert_allclose(reads_of_a_table(inside), expected, rtol=1e-5, atol=1e-5)


def test_reads_under_conditions_that_read():
    """The second condition reads where the first one lets it, and the value where both do.

    TVM evaluates both in any case. In the function as built, LLVM's optimization, and no more than
    that, keeps the second from reading outside of the table.
    """
    x, place, table = tensor(64, 512), tensor(64, 512, dtype="int32"), tensor(64, 64)
    y = te.compute(
        (64, 512),
        lambda i, j: te.if_then_else(
            tirx.all(place[i, j] >= 0, place[i, j] < 64, table[i, place[i, j]] > 0.0),
            te.exp(table[i, place[i, j]]) * x[i, j],
            x[i, j],
        ),
    )
    run([x, place, table], [y], values=[X, PLACES, TABLE], build=tvm.compile).agree()


def test_a_branch_around_a_sum():
    @T.prim_func(s_tir=True)
    def sums(
        x: T.Buffer((64, 512), "float32"),
        place: T.Buffer((64, 512), "int32"),
        table: T.Buffer((64, 64), "float32"),
        y: T.Buffer((64, 512), "float32"),
    ):
        for i, j, k in T.grid(64, 512, 3):
            with T.sblock("sums"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[vi, vj] = T.float32(0)
                cell: T.let = place[vi, vj] + vk
                if cell >= 0 and cell < 64:
                    y[vi, vj] = y[vi, vj] + table[vi, cell] * x[vi, vj]

    x, place = tensor(64, 512), tensor(64, 512, dtype="int32")
    table, y = tensor(64, 64), tensor(64, 512)
    runs = run([x, place, table], [y], values=[X, PLACES, TABLE], make=lambda _: sums)
    runs.agree()
    rows, expected = np.arange(64)[:, None], 0
    for k in range(3):
        cell = PLACES + k
        expected = expected + np.where(
            (cell >= 0) & (cell < 64), TABLE[rows, cell.clip(0, 63)] * X, 0
        )
    np.testing.assert_allclose(runs.scheduled[0], expected, rtol=1e-4, atol=1e-5)
    assert 16 in runs.vectors


@pytest.mark.parametrize("length", [8, 24, 512])
def test_rows_of_any_length(length):
    """Narrow rows are vectors of their own length; what is left of a row is a short one."""
    x, row = tensor(4096, length), tensor(2048, dtype="int32")
    y = te.compute((2048, length), lambda i, j: x[row[i], j] * 2.0 + 1.0)
    rows = np.random.default_rng(0).integers(0, 4096, 2048).astype("int32")
    values = np.random.default_rng(1).standard_normal((4096, length)).astype("float32")
    runs = run([x, row], [y], values=[values, rows])
    runs.agree()
    np.testing.assert_allclose(runs.scheduled[0], values[rows] * 2 + 1, rtol=2e-6)
    assert min(length, 16) in runs.vectors


def test_borders_are_apart():
    """In the middle of a row no condition is left."""
    ct, tap = tensor(16, 1000), tensor(9)
    k = te.reduce_axis((0, tirx.IntImm("int64", 9)), "k")
    y = te.compute(
        tuple(tirx.IntImm("int64", n) for n in (16, 1008)),
        lambda i, j: te.sum(
            te.if_then_else(
                tirx.all(j + k >= 8, j + k < 1008), ct[i, j + k - 8] * tap[te.abs(k - 4)], 0.0
            ),
            axis=k,
        ),
    )
    runs = run([ct, tap], [y])
    runs.agree()
    inside, _ = runs.text.split("for vector in range")[2].split("compute[", 1)
    assert "value_1" not in inside and 64 in runs.vectors  # no condition is kept


def has_plain_vectors(text, *words):
    """Whether there are vectors for which nothing is chosen or clamped, and none of some words."""
    parts = text.split('T.sblock("y")')[1:]
    chosen = ("T.max", "T.min", "T.Select", "T.if_then_else", "value_1", *words)
    return any(not any(word in part for word in chosen) for part in parts)


def neighbors(index, extent=512):
    """Rows of which each element is added to one at another index along the row."""
    x = tensor(64, extent)
    y = te.compute(x.shape, lambda i, j: x[i, j] * 0.5 + x[i, index(j)], name="y")
    return run([x], [y])


@pytest.mark.parametrize(
    "index",
    [
        lambda j: te.max(te.min(j + 1, 511), 0),
        lambda j: te.min(te.max(j - 3, 0), 511),
        lambda j: te.max(5, j - 2),
    ],
    ids=["behind", "before", "at 5"],
)
@pytest.mark.parametrize("extent", [512, 500])
def test_neighbors_with_clamped_indices(index, extent):
    if extent == 500:
        runs = neighbors(lambda j: te.max(te.min(index(j), 499), 0), extent)
    else:
        runs = neighbors(index)
    runs.agree()
    assert 16 in runs.vectors
    assert has_plain_vectors(runs.text)


@pytest.mark.parametrize(
    "index",
    [
        lambda j: te.max(te.min(511 - j, 300), 7),  # backwards
        lambda j: te.min(te.min(2 * j, 511), 400),  # every second
        lambda j: te.min(te.max(j, 511 - j), 500),  # clamped by what moves
        lambda j: te.max(te.min(j + 1, 60), 50),  # mostly at a bound
    ],
)
def test_other_minima_and_maxima_of_indices(index):
    neighbors(index).agree()


def test_clamped_terms_of_a_sum():
    x, tap = tensor(32, 256), tensor(5)
    k = te.reduce_axis((0, tirx.IntImm("int64", 5)), "k")
    y = te.compute(
        x.shape,
        lambda i, j: te.sum(x[i, te.max(te.min(j + k - 2, 255), 0)] * tap[k], axis=k),
        name="y",
    )
    runs = run([x, tap], [y])
    runs.agree()
    assert 64 in runs.vectors and has_plain_vectors(runs.text)


def test_maps_that_choose_at_borders():
    """Some conditions hold in the middle of a row, others do not."""
    x = tensor(64, 512)

    def value(i, j):
        before = te.if_then_else(j >= 1, x[i, j - 1], 0.0)
        return te.if_then_else(j == 0, x[i, 0] * 3.0, 0.0) + before + x[i, j]

    runs = run([x], [te.compute(x.shape, value, name="y")])
    runs.agree()
    assert 16 in runs.vectors and has_plain_vectors(runs.text, "T.float32(3.0)")


def test_terms_that_choose_places_are_outside():
    """The place is found once for all channels."""
    image, down = tensor(8, 32, 64), tensor(32, 64)
    c = te.reduce_axis((0, tirx.IntImm("int64", 8)), "c")
    k = te.reduce_axis((0, tirx.IntImm("int64", 2)), "k")
    y = te.compute(
        (32, 64),
        lambda i, j: te.sum(
            image[c, te.max(te.min(te.floor(down[i, j]).astype("int32") + k, 31), 0), j],
            axis=[c, k],
        ),
    )
    runs = run([image, down], [y])
    runs.agree()
    assert "for k, c in T.grid" in runs.text


def test_bits_of_integers_kept_in_local_memory():
    """A hash of each position: integers that are bound, and run in vectors."""
    x = tensor(64, 512)

    def masked(i, j):
        var = tirx.Var("bits", "uint32")
        bits = (i * 512 + j).astype("uint32") * tirx.const(2654435761, "uint32")
        bits = bits ^ (bits >> tirx.const(15, "uint32"))
        keep = (var ^ (var >> tirx.const(13, "uint32"))) < tirx.const(1 << 31, "uint32")
        return tirx.Let(var, bits, tirx.Select(keep, x[i, j] * 2.0, 0.0))

    runs = run([x], [te.compute((64, 512), masked)], make=gg.fallback.create_prim_func)
    runs.agree()
    assert "T.vectorized" in runs.text and 0.4 < (runs.scheduled[0] != 0).mean() < 0.6


def test_what_is_kept_between_two_stores():
    """The second sum takes what the first one has become."""

    @T.prim_func(s_tir=True)
    def sums(
        x: T.Buffer((64, 512), "float32"),
        place: T.Buffer((64, 512), "int32"),
        table: T.Buffer((64, 64), "float32"),
        y: T.Buffer((64, 512), "float32"),
        z: T.Buffer((64, 512), "float32"),
    ):
        for i, j, k in T.grid(64, 512, 3):
            with T.sblock("sums"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[vi, vj] = T.float32(0)
                    z[vi, vj] = T.float32(0)
                y[vi, vj] = (
                    y[vi, vj] + x[vi, vj] * table[vi, T.max(T.min(place[vi, vj] + vk, 63), 0)]
                )
                so_far: T.let = y[vi, vj] * y[vi, vj] + T.float32(1)
                z[vi, vj] = z[vi, vj] + so_far * so_far

    x, place = tensor(64, 512), tensor(64, 512, dtype="int32")
    table, y, z = tensor(64, 64), tensor(64, 512), tensor(64, 512)
    runs = run([x, place, table], [y, z], values=[X, PLACES, TABLE], make=lambda _: sums)
    runs.agree()


def test_long_sums_under_a_branch_stay_accurate():
    """Of 4,096 terms that are alike a running sum in float32 is off by a hundred roundings."""
    x, start = tensor(4096, 32), tensor(64, dtype="int32")
    k = te.reduce_axis((0, tirx.IntImm("int64", 4096)), "k")
    y = te.compute(
        tuple(tirx.IntImm("int64", n) for n in (64, 20)),
        lambda i, j: te.sum(
            te.if_then_else(start[i] + k < 4096, x[start[i] + k, j] * 0.1, 0.0), axis=k
        ),
    )
    starts = np.arange(64, dtype="int32")
    values = np.random.default_rng(0).uniform(0.99, 1.01, (4096, 32)).astype("float32")
    runs = run([x, start], [y], values=[values, starts])
    expected = np.stack([(values[s:].astype("float64") * np.float32(0.1)).sum(0) for s in starts])
    assert np.abs(runs.scheduled[0] / expected[:, :20] - 1).max() < 1e-6


def test_what_cannot_be_in_vectors_stays():
    """A divisor that is zero where the condition does not hold."""
    x, n = tensor(64, 512), tensor(64, 512, dtype="int32")
    y = te.compute(
        (64, 512), lambda i, j: te.if_then_else(n[i, j] > 0, x[i, tirx.floormod(j, n[i, j])], 0.0)
    )
    n_values = np.random.default_rng(0).integers(-1, 9, (64, 512)).astype("int32")
    runs = run([x, n], [y], values=[X, n_values])
    runs.agree()
    assert "T.vectorized" not in schedule_loops(runs.func, UNIT).script()
