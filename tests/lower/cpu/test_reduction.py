"""Reductions: along and across vectors, few outputs and many, empty ones, tuples."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi
from tvm.script.parser import tirx as T

from graphgrad.lower.cpu.schedule import schedule_loops
from tests.labels import label
from tests.lower.kernel_programs import HOST, UNIT, run, tensor

SHAPE = (12, 16, 8, 24)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        (SHAPE, (0, 2, 3)),
        (SHAPE, (0, 1, 2, 3)),
        (SHAPE, (0,)),
        (SHAPE, (1,)),
        (SHAPE, (3,)),
        (SHAPE, (2, 3)),
        (SHAPE, (0, 1, 2)),
        ((7, 31, 127), (1,)),
        ((7, 31, 127), (2,)),
        ((7, 31, 127), (0, 2)),
        ((1, 20011), (1,)),
        ((20011, 1), (0,)),
        ((16384, 3), (0,)),
        ((128, 160), (0,)),
        ((2, 8192), (1,)),
        ((64, 4999), (0,)),
    ],
    ids=label,
)
@pytest.mark.parametrize("reduce", [topi.sum, topi.max], ids=["sum", "max"])
def test_extents_and_axes(shape, axes, reduce):
    x = tensor(*shape)
    run([x], [reduce(x, axes)]).agree()


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int64"])
@pytest.mark.parametrize("axes", [(0, 2, 3), (0,), (3,)], ids=label)
def test_dtypes(dtype, axes):
    x = tensor(*SHAPE, dtype=dtype)
    result = run([x], [topi.sum(topi.divide(x, 64) if dtype == "float16" else x, axes)])
    if dtype == "float16":  # the stock order of additions loses more than ours
        np.testing.assert_allclose(result.scheduled[0], result.stock[0], atol=0.2)
    else:
        result.agree()


@pytest.mark.parametrize("axes", [(0, 2, 3), (0, 1, 2, 3), (3,), (0,)], ids=label)
def test_large_reductions_use_every_core_and_vectors(axes):
    x = tensor(32, 16, 8, 256)
    result = run([x], [topi.sum(x, axes)])
    result.agree()
    assert "T.parallel" in result.text
    assert "T.vectorized" in result.text


def test_small_reductions_stay_serial():
    x = tensor(10, 10)
    assert "T.parallel" not in run([x], [topi.sum(x, 1)]).text


@pytest.mark.parametrize(
    ("shape", "reduce", "identity"),
    [
        ((4, 0), topi.sum, 0),
        ((0,), topi.sum, 0),
        ((4, 0), topi.prod, 1),
        ((4, 0), topi.max, np.finfo("float32").min),
        ((20000, 0), topi.sum, 0),
    ],
    ids=label,
)
def test_empty_reductions_write_the_identity(shape, reduce, identity):
    x = tensor(*shape)
    y = te.compute(
        shape[:-1],
        lambda *i: _reduce(reduce, x, i),
        name="y",
    )
    result = run([x], [y])
    assert (result.scheduled[0] == np.float32(identity)).all()
    assert (result.stock[0] == 77).all()  # the stock function leaves its output unwritten


def _reduce(reduce, x, i):
    k = te.reduce_axis((0, x.shape[-1]), "k")
    combine = {topi.sum: te.sum, topi.max: te.max, topi.prod: PRODUCT}[reduce]
    return combine(x(*i, k), axis=k)


PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="product")


@pytest.mark.parametrize("extents", [(4, 0), (0, 4), (3, 5), (40, 1024), (1, 20000)], ids=label)
def test_symbolic_extents(extents):
    n, m = te.var("n", "int64"), te.var("m", "int64")
    x = te.placeholder((n, m), "float32", "x")
    k = te.reduce_axis((0, m), "k")
    y = te.compute((n,), lambda i: te.sum(x[i, k], axis=k), name="y")
    result = run([x], [y], shapes=[extents, extents[:1]])
    if extents[1] == 0:
        assert not result.scheduled[0].any()
    else:
        result.agree()


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("size", [2, 3])
def test_pooling_windows(kind, size):
    x = tensor(4, 8, 33, 33)
    pool = topi.nn.pool2d(x, [size] * 2, [2, 2], [1, 1], [1, 1, 1, 1], kind)
    run([x], [pool]).agree()


@pytest.mark.parametrize("channels", [1, 7, 16, 24, 48, 64])
@pytest.mark.parametrize("images", [(2, 9), (4, 33)], ids=label)
def test_few_terms_read_on_a_condition(images, channels):
    """Windows of neighbors beyond a border, with channels in vectors where they fill them."""
    count, size = images
    x = tensor(count, size, size, channels)
    taps = [te.reduce_axis((0, 3), name) for name in "pq"]

    def window(n, h, w, c):
        row, column = h + taps[0] - 1, w + taps[1] - 1
        reads = tirx.all(row >= 0, row < size, column >= 0, column < size)
        value = tirx.if_then_else(reads, x[n, row, column, c], tirx.const(0, "float32"))
        return te.sum(tirx.Select(value > 0.5, value, 0.0), axis=taps)

    result = run([x], [te.compute(x.shape, window, name="windows")])
    result.agree()
    if size == 33:
        assert ("T.vectorized" in result.text) == (channels >= UNIT.lanes("float32"))


@pytest.mark.parametrize("axes", [(2, 3, 4), (1, 2, 3, 4)], ids=label)
def test_neighbors_of_three_axes_are_read_as_vectors(axes):
    """As the statistics of groups of channels are."""
    x = tensor(4, 2, 8, 16, 28)
    result = run([x], [topi.sum(x, axes)])
    result.agree()
    module = tvm.IRModule({"main": result.func.with_attr("global_symbol", "main")})
    code = tvm.tirx.build(module, HOST, "s_tir").inspect_source("ll").splitlines()
    assert any("load <" in line and "x float>" in line for line in code)
    # A scalar that is put into all lanes is inserted at the first; what is gathered, at each.
    assert not any(
        "insertelement <" in line and "x float>" in line and ", i64 1," in line for line in code
    )


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
    run([x], list(sums)).agree()


@pytest.mark.parametrize("shape", [(64, 512), (1, 30000), (300, 101)], ids=label)
def test_index_of_the_maximum(shape):
    x = tensor(*shape)
    run([x], [topi.argmax(x, 1)]).agree()


@pytest.mark.parametrize("shape", [(64, 1000), (300, 127), (3, 10)], ids=label)
def test_softmax(shape):
    x = tensor(*shape)
    run([x], [topi.nn.softmax(x)]).agree()


def test_a_map_is_computed_inside_its_sum():
    x = tensor(64, 1024)
    result = run([x], [topi.sum(topi.multiply(topi.exp(x), x), 1)])
    result.agree()
    assert result.text.count("T.exp") == 1


@pytest.mark.parametrize(
    ("channels", "side_by_side"),
    [(128, 128), (144, 16), (24, 8), (200, 8), (1024, 1024), (1040, 16), (203, 0)],
)
@pytest.mark.parametrize("batch", [1, 8])
def test_rows_that_fit_no_cache_are_read_whole(channels, side_by_side, batch):
    """Vectors are taken apart where they are no 2, 4, 8, ...; 1,040 channels are too many of them.

    Two sums, as batch norm has them: one alone goes row by row.
    """
    x = tensor(batch, 64, 64, channels)

    def total(power):
        k = [te.reduce_axis((0, n)) for n in (batch, 64, 64)]
        return te.compute((channels,), lambda c: te.sum(x(*k, c) * power, axis=k))

    result = run([x], [total(1), total(2)])
    result.agree()
    if UNIT.lanes("float32") == 16 and batch == 8 and side_by_side:
        assert f"T.vectorized({side_by_side})" in result.text


def test_siblings_of_a_common_operand_are_scheduled():
    """TVM's primitives fail on a block that names what it reads twice."""
    x, y = tensor(32, 64, 64), tensor(32, 64, 64, name="y")
    d, e = (te.reduce_axis((0, 32), name) for name in "de")
    total = te.compute((64, 64), lambda i, j: te.sum(x[d, i, j], axis=d), name="total")
    moment = te.compute(
        (64, 64), lambda i, j: te.sum(te.exp(x[e, i, j]) * y[e, i, j], axis=e), name="moment"
    )
    runs = run([x, y], [total, moment])
    runs.agree()
    assert "T.parallel" in runs.text


@T.prim_func(s_tir=True)
def read_at_a_constant(x: T.Buffer((1, 4, 8), "float32"), y: T.Buffer((1, 4), "float32")):
    """A sum, and a map that says of an axis of one element that it reads element 0."""
    with T.sblock("root"):
        sums = T.sblock_alloc_buffer((1, 4), "float32")
        for i, j, k in T.grid(1, 4, 8):
            with T.sblock("sums"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    sums[vi, vj] = T.float32(0)
                sums[vi, vj] = sums[vi, vj] + x[vi, vj, vk]
        for i, j in T.grid(1, 4):
            with T.sblock("added"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.reads(sums[0, 0:4])
                T.writes(y[vi, vj])
                y[vi, vj] = sums[vi, vj] + T.float32(1)


def test_what_tvm_cannot_compute_in_a_loop_runs_as_it_was_built():
    x = np.random.default_rng(0).standard_normal((1, 4, 8)).astype("float32")
    y = tvm.runtime.tensor(np.zeros((1, 4), "float32"))
    tvm.compile(schedule_loops(read_at_a_constant, UNIT), "llvm")(tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), x.sum(axis=2) + 1, rtol=1e-6)


def test_terms_under_a_condition_that_a_row_has_as_a_whole_are_vectors():
    x, y = tensor(64, 512, name="x"), tensor(64, 512, name="y")
    k = te.reduce_axis((0, 512), "k")

    def chosen(i):
        value = tirx.if_then_else(i % 2 == 0, x[i, k] * y[i, k] * x[i, k], 0.0)
        return te.sum(value, axis=k)

    result = run([x, y], [te.compute((64,), chosen, name="chosen")])
    result.agree()
    assert "T.vectorized" in result.text


def weighted_differences(of_columns):
    """The gradient by one of two clouds of points of a sum over their squared distances."""
    weight, x, y = tensor(96, 128, name="weight"), tensor(96, 3, name="x"), tensor(128, 3, name="y")
    extent = 96 if of_columns else 128
    k = te.reduce_axis((0, extent), "k")

    def by_row(i, d):
        return te.sum(weight[i, k] * (x[i, d] - y[k, d]), axis=k)

    def by_column(j, d):
        return te.sum(weight[k, j] * (x[k, d] - y[j, d]), axis=k)

    shape = (128, 3) if of_columns else (96, 3)
    return [weight, x, y], te.compute(shape, by_column if of_columns else by_row, name="sums")


@pytest.mark.parametrize("of_columns", [False, True])
def test_neighbors_along_any_axis_are_vectors(of_columns):
    inputs, sums = weighted_differences(of_columns)
    result = run(inputs, [sums])
    result.agree()
    assert "T.vectorized" in result.text
