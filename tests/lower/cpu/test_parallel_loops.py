"""What is no stage runs in parallel where its loops are independent, and computes the same."""

import numpy as np
import pytest
from tvm import te, tirx
from tvm.script import tirx as T

import graphgrad as gg
from graphgrad.lower.cpu.scatter_rows import rows_at_a_time
from graphgrad.lower.cpu.schedule import schedule_loops
from tests.lower.kernel_programs import UNIT, run, sums_of_bound_values, tensor


def test_a_reduction_that_keeps_values_in_local_memory():
    x, y = sums_of_bound_values()
    runs = run([x], [y], make=gg.fallback.create_prim_func)
    runs.agree()
    assert "T.float32" in runs.text and "T.parallel" in runs.text


def gathered(place):
    """The gradient of a gather along the middle of three axes, and what it takes."""
    x, index = tensor(16, 32, 32), tensor(64, dtype="int32", name="index")
    y = te.compute((16, 64, 32), lambda c, i, j: x[place(c, index[i], j)], name="y")
    head = tensor(16, 64, 32, name="head")
    (dx,) = gg.te_gradient(y, [x], head)
    return index, head, dx


def test_a_scatter_goes_by_what_its_index_does_not_choose():
    index, head, dx = gathered(lambda c, place, j: (c, place, j))
    values = [np.random.default_rng(0).integers(0, 32, 64).astype("int32")]
    values.append(np.random.default_rng(1).standard_normal((16, 64, 32)).astype("float32"))
    runs = run([index, head], [dx], values=values, make=gg.fallback.create_prim_func)
    np.testing.assert_array_equal(*[each[0] for each in (runs.stock, runs.scheduled)])
    assert runs.text.count("T.parallel") == 2  # the zeros, and what is added to them


def test_a_scatter_to_places_that_data_choose_stays_serial():
    index, head, dx = gathered(lambda c, place, j: (place % 16, c * 2 + j % 2, j))
    values = [np.random.default_rng(0).integers(0, 32, 64).astype("int32")]
    values.append(np.random.default_rng(1).standard_normal((16, 64, 32)).astype("float32"))
    runs = run([index, head], [dx], values=values, make=gg.fallback.create_prim_func)
    np.testing.assert_array_equal(*[each[0] for each in (runs.stock, runs.scheduled)])
    assert runs.text.count("T.parallel") == 1


@T.prim_func(s_tir=True)
def carried(x: T.Buffer((256, 256), "float32"), y: T.Buffer((256, 256), "float32")):
    for i, j in T.grid(256, 256):
        with T.sblock("y"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            T.reads(x[v_i, v_j], y[v_i - 1, v_j])
            T.writes(y[v_i, v_j])
            before = T.alloc_local((1,), "float32")
            before[0] = T.if_then_else(v_i > 0, y[v_i - 1, v_j], T.float32(0))
            y[v_i, v_j] = before[0] * before[0] + x[v_i, v_j]


def test_an_axis_that_only_says_it_is_spatial_stays_serial():
    """TVM compiles it, in the order of the loops."""
    outer = schedule_loops(carried, UNIT, binds=False).script()
    assert "for i in T.parallel" not in outer and "fused in T.parallel" not in outer


@T.prim_func(s_tir=True)
def running_rows(x: T.Buffer((1024, 32), "float32"), y: T.Buffer((1024, 32), "float32")):
    with T.sblock("running"):
        T.reads(x[0:1024, 0:32])
        T.writes(y[0:1024, 0:32])
        row = T.alloc_local((32,), "float32")
        for i, j in T.grid(1024, 32):
            row[j] = T.if_then_else(i == 0, x[i, j], row[j] * T.float32(0.5) + x[i, j])
            y[i, j] = row[j]


@T.prim_func(s_tir=True)
def last_positive(x: T.Buffer((1024, 32), "float32"), y: T.Buffer((1024, 32), "float32")):
    with T.sblock("last"):
        T.reads(x[0:1024, 0:32])
        T.writes(y[0:1024, 0:32])
        last = T.alloc_local((1,), "float32")
        last[0] = T.float32(0)
        for i, j in T.grid(1024, 32):
            if x[i, j] > T.float32(0):
                last[0] = x[i, j]
            y[i, j] = last[0]


@T.prim_func(s_tir=True)
def saturating(x: T.Buffer((1024, 32), "float32"), y: T.Buffer((1024, 32), "float32")):
    with T.sblock("saturating"):
        T.reads(x[0:1024, 0:32])
        T.writes(y[0:1024, 0:32])
        for i, j in T.grid(1024, 32):
            y[i, j] = T.float32(0)
        for i, j, k in T.grid(1024, 32, 16):
            if y[i, 0] < T.float32(2):
                y[i, 0] = y[i, 0] + T.exp(x[i, j]) * T.Cast("float32", k) * x[i, k] * x[i, k]


@T.prim_func(s_tir=True)
def chasing(x: T.Buffer((1024, 32), "float32"), y: T.Buffer((1024, 32), "float32")):
    with T.sblock("chasing"):
        T.reads(x[0:1024, 0:32])
        T.writes(y[0:1024, 0:32])
        for i, j in T.grid(1024, 32):
            y[i, j] = T.float32(0)
        for i, k, j in T.grid(1024, 32, 16):
            if k == T.Cast("int32", y[i, 0]):
                y[i, 0] = y[i, 0] + T.ceil(x[i, j])


@pytest.mark.parametrize("kernel", [running_rows, last_positive, saturating, chasing])
def test_what_a_trip_leaves_for_the_next_one(kernel):
    """A local value, or the sum so far: trips stay in order."""
    x, y = tensor(1024, 32), tensor(1024, 32)
    runs = run([x], [y], make=lambda _: kernel)
    np.testing.assert_array_equal(*[each[0] for each in (runs.stock, runs.scheduled)])


def resampled(rows):
    """The gradient of a resampling of rows by a table of two places and weights a result."""
    x, weights = tensor(rows, 40), tensor(96, 2, name="weights")
    places = tensor(96, 2, dtype="int32", name="places")
    tap = te.reduce_axis((0, 2), "tap")

    def value(i, j):
        place = places[j, tap]
        term = te.if_then_else(place >= 0, x[i, place] * weights[j, tap], 0.0)
        return te.sum(term, axis=tap)

    head = tensor(rows, 96, name="head")
    (dx,) = gg.te_gradient(te.compute((rows, 96), value, name="y"), [x], head)
    return [places, weights, head], dx


@pytest.mark.parametrize("rows, width", [(128, 8), (133, 7), (131, 1)])
def test_additions_to_several_rows_at_a_time_keep_their_order(rows, width):
    arguments, dx = resampled(rows)
    generator = np.random.default_rng(0)
    values = [generator.integers(-1, 40, (96, 2)).astype("int32")]
    values += [generator.standard_normal(s).astype("float32") for s in ((96, 2), (rows, 96))]
    runs = run(arguments, [dx], values=values, make=gg.fallback.create_prim_func)
    np.testing.assert_array_equal(*[each[0] for each in (runs.stock, runs.scheduled)])
    assert (f"T.unroll({width})" in runs.text) == (width > 1)


@T.prim_func(s_tir=True)
def following(table: T.Buffer((64,), "int32"), total: T.Buffer((64, 512), "float32")):
    with T.sblock("total"):
        T.reads(table[0:64], total[0:64, 0:512])
        T.writes(total[0:64, 0:512])
        for i, j in T.grid(64, 511):
            if total[table[j % 64] % 2, 0] < T.float32(8):
                total[i, j] = total[i, j] + T.float32(1)


def test_places_that_depend_on_sums_keep_their_turns():
    body = following.body
    loops = []
    while not isinstance(body, tirx.For):
        body = body.block.body
    while isinstance(body, tirx.For):
        loops.append(body)
        body = body.body
    assert rows_at_a_time(loops, body) is None
