"""Chains of rows compute what their stages do, over odd extents, dtypes and kinds of stages."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi
from tvm.s_tir import SBlock

from graphgrad.ir.tensor import accumulator_dtype
from graphgrad.ir.visits import replace_nodes
from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.lower.cpu.tuning import Processor
from graphgrad.lower.cpu.vector_math import vectorize_math
from tests.labels import label
from tests.lower import kernel_programs as kernels
from tests.lower.kernel_programs import run, tensor

EXTENTS = [
    *((16, 64), (17, 1000), (61, 1009), (31, 769), (300, 101), (33, 530), (1009, 33), (64, 4096)),
    *((1, 4096), (4096, 1), (0, 64), (64, 0), (16, 2053)),
]
FLOATS = ["float16", "float32", "float64"]


def total(x, term, name):
    """Return the sums of terms over rows; of half precision in float32, as programs have them."""
    k = te.reduce_axis((0, x.shape[-1]), f"k_{name}")
    wide = accumulator_dtype(str(x.dtype))

    def sums(*i):
        return te.sum(term(*i, k).astype(wide), axis=k)

    return te.compute(x.shape[:-1], sums, name=name)


def standardized(x):
    """Return rows less their mean, divided by their deviation: two reductions and a map."""
    dtype = str(x.dtype)
    wide = accumulator_dtype(dtype)
    count = tirx.const(max(int(x.shape[-1]), 1), wide)

    def centered(*i):
        return x(*i).astype(wide) - mean(*i[:-1])

    mean = total(x, lambda *i: x(*i).astype(wide) / count, "mean")
    variance = total(x, lambda *i: centered(*i) * centered(*i) / count, "variance")

    def element(*i):
        deviation = te.sqrt(variance(*i[:-1]) + tirx.const(1, wide))
        return (centered(*i) / deviation).astype(dtype)

    return te.compute(x.shape, element, name="standardized")


def is_chain(result):
    return 'T.sblock("task")' in result.text


@pytest.mark.parametrize("shape", EXTENTS, ids=label)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_norm(shape, dtype):
    x = tensor(*shape, dtype=dtype)
    run([x], [standardized(x)]).agree()


@pytest.mark.parametrize("shape", EXTENTS, ids=label)
def test_softmax_with_functions_in_vectors(shape):
    x = tensor(*shape)
    run([x], [topi.nn.softmax(x)], then=vectorize_math).agree()


@pytest.mark.parametrize("shape", [(64, 1000), (17, 1009), (4, 6, 8, 33)], ids=label)
def test_a_chain_is_one_loop_over_rows(shape):
    x = tensor(*shape)
    result = run([x], [standardized(x)])
    result.agree()
    assert is_chain(result)
    assert result.text.count("T.parallel") == 1


@pytest.mark.parametrize("shape", [(64, 1000), (17, 1009), (256, 40), (100, 768)], ids=label)
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_down_the_rows_beside_a_norms_gradient(shape, dtype):
    x, ct = tensor(*shape, dtype=dtype), tensor(*shape, dtype=dtype, name="ct")
    sums = total(x, lambda *i: x(*i) * ct(*i), "sums")
    wide = accumulator_dtype(dtype)
    count = tirx.const(int(shape[-1]), wide)

    def x_bar(i, j):
        return (ct(i, j).astype(wide) - x(i, j).astype(wide) * sums(i) / count).astype(dtype)

    k = te.reduce_axis((0, x.shape[0]), "k")
    x_bar = te.compute(x.shape, x_bar, name="x_bar")
    down = te.compute((x.shape[1],), lambda j: te.sum(ct(k, j).astype(wide), axis=k), name="down")
    result = run([x, ct], [x_bar, down])
    result.agree()
    assert is_chain(result)


@pytest.mark.parametrize("reduce", [topi.max, topi.min, topi.sum, topi.prod])
def test_every_combiner(reduce):
    x = tensor(300, 77)
    least = reduce(topi.add(x, 1.0) if reduce is topi.prod else x, axis=1, keepdims=True)
    result = run([x], [topi.subtract(topi.multiply(x, 0.01), least)])
    result.agree()
    assert is_chain(result)


def test_a_maximum_that_begins_with_another_value_in_each_row():
    """Vectors of a row would all begin with that of the first row."""
    x = tensor(64, 1024)
    largest = topi.max(x, axis=1, keepdims=True)
    func = te.create_prim_func([x, topi.subtract(topi.multiply(x, 0.01), largest)])

    def begun_by_row(block):
        if block.init is None:
            return block
        first = block.iter_vars[0].var.astype("float32") * 0.1
        init = tirx.BufferStore(block.init.buffer, first, block.init.indices)
        return SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, block.body, init)

    func = func.with_body(replace_nodes(func.body, SBlock, begun_by_row))
    scheduled = schedule_loops(func, kernels.UNIT)
    values = np.random.default_rng(0).standard_normal((64, 1024)).astype("float32")
    first = 0.1 * np.arange(64, dtype="float32")
    largest = np.maximum(values.max(1), first)[:, None]
    result = tvm.runtime.empty((64, 1024), "float32")
    tvm.compile(scheduled, target=kernels.HOST)(tvm.runtime.tensor(values), result)
    np.testing.assert_allclose(result.numpy(), values * np.float32(0.01) - largest, rtol=1e-5)


def test_maxima_and_sums_of_integers():
    x = tensor(300, 77, dtype="int32")
    result = run([x], [topi.subtract(x, topi.max(x, axis=1, keepdims=True))])
    result.agree()
    assert is_chain(result)


def test_several_axes_in_a_row_with_a_factor_along_the_first():
    """A group norm: rows are images and groups; a factor goes along the channels of a group."""
    x = tensor(4, 8, 4, 15, 17)
    gamma = tensor(8, 4, name="gamma")
    axes = [te.reduce_axis((0, n), f"k{n}") for n in (4, 15, 17)]
    sums = te.compute((4, 8), lambda n, g: te.sum(x(n, g, *axes), axis=axes), name="sums")
    y = te.compute(
        x.shape, lambda n, g, c, h, w: (x(n, g, c, h, w) - sums(n, g)) * gamma(g, c), name="y"
    )
    result = run([x, gamma], [y])
    result.agree()
    assert is_chain(result)


def test_results_that_the_caller_reads_too():
    """Statistics, and the tensor of which they are, are stored besides."""
    x, z = tensor(40, 200), tensor(40, 200, name="z")
    both = topi.add(x, z)
    mean = total(both, both, "mean")
    y = te.compute(x.shape, lambda i, j: both(i, j) - mean(i), name="y")
    result = run([x, z], [both, mean, y])
    result.agree()
    assert is_chain(result)


def test_a_number_picked_from_a_row():
    """The loss of a row reads one element of what the chain has made."""
    x = tensor(64, 100)
    t = te.placeholder((tirx.IntImm("int64", 64),), "int64", "t")
    logs = topi.nn.log_softmax(x)
    picked = te.compute((64,), lambda i: -logs(i, t(i)), name="picked")
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((64, 100)).astype("f4"), rng.integers(0, 100, 64)]
    run([x, t], [logs, picked], values=values).agree()


def test_rows_of_another_order_are_left_alone():
    """A stage that reads other rows than its own must wait for all of them."""
    x = tensor(256, 256)
    sums = total(x, x, "sums")
    turned = te.compute(x.shape, lambda i, j: x(i, j) - sums(j), name="turned")
    reversed_ = te.compute(x.shape, lambda i, j: x(i, j) - sums(255 - i), name="reversed")
    result = run([x], [turned, reversed_])
    result.agree()
    assert not is_chain(result)


def test_a_sum_of_all_rows_is_read_when_it_is_complete():
    x = tensor(256, 256)
    sums = total(x, x, "sums")
    k = te.reduce_axis((0, 256), "k")
    down = te.compute((256,), lambda j: te.sum(x(k, j) * sums(k), axis=k), name="down")
    y = te.compute(x.shape, lambda i, j: x(i, j) - sums(i) - down(j), name="y")
    run([x], [y]).agree()


def test_stages_beside_a_chain_keep_their_place():
    """A parameter in another shape comes before the chain, what takes its sums comes behind."""
    x, gamma = tensor(256, 96), tensor(96, name="gamma")
    sums = total(x, x, "sums")
    row = te.compute((1, 96), lambda _, j: te.exp(gamma(j)), name="row")
    y = te.compute(x.shape, lambda i, j: (x(i, j) - sums(i)) * row(0, j), name="y")
    k = te.reduce_axis((0, 256), "k")
    down = te.compute((96,), lambda j: te.sum(x(k, j) * sums(k), axis=k), name="down")
    half = te.compute((96,), lambda j: down(j) * gamma(j), name="half")
    result = run([x, gamma], [y, half])
    result.agree()
    assert is_chain(result)


@pytest.mark.parametrize("is_read", [False, True])
def test_what_takes_a_sum_of_all_rows_may_stand_between_stages(is_read):
    """A stage behind it that reads it has to wait for all rows: it is in no chain."""
    x, gamma = tensor(256, 96), tensor(96, name="gamma")
    k = te.reduce_axis((0, 256), "k")
    down = te.compute((96,), lambda j: te.sum(x(k, j), axis=k), name="down")
    half = te.compute((96,), lambda j: down(j) * gamma(j), name="half")
    sums = total(x, x, "sums")
    read = half if is_read else gamma
    y = te.compute(x.shape, lambda i, j: (x(i, j) - sums(i)) * read(j), name="y")
    result = run([x, gamma], [half, y])
    result.agree()
    assert is_chain(result)
    assert ('T.sblock("y")' in result.text) == is_read


@pytest.mark.parametrize("shape", [(64, 1000), (300, 77), (17, 90001)], ids=label)
def test_a_map_of_ragged_rows_is_in_vectors(shape, monkeypatch):
    """However long they are: what a map reads of a row it reads once."""
    monkeypatch.setattr(kernels, "UNIT", Processor(64, 32))
    x, row, column = tensor(*shape), tensor(shape[1], name="row"), tensor(shape[0], name="column")
    y = te.compute(x.shape, lambda i, j: (x(i, j) - column(i)) * row(j), name="y")
    result = run([x, row, column], [y])
    result.agree()
    assert is_chain(result)
    assert "T.vectorized(T.int64(32))" in result.text


@pytest.mark.parametrize("unit", [Processor(16, 16), Processor(32, 16)])
def test_narrower_vectors(unit, monkeypatch):
    monkeypatch.setattr(kernels, "UNIT", unit)
    x = tensor(61, 1009)
    result = run([x], [standardized(x)])
    result.agree()
    assert is_chain(result)


def test_runs_give_the_same_bits():
    x = tensor(100, 1000)
    results = [run([x], [standardized(x)]).scheduled[0] for _ in range(2)]
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("shape", [(4, 8, 4, 15, 17), (8, 8, 8, 7, 7), (3, 6, 5, 9, 11)], ids=label)
def test_groups_of_channels_in_the_result(shape):
    """The result has groups and their channels as one axis, of which quotients are read."""
    n, groups, members, *image = shape
    x = tensor(*shape)
    axes = [te.reduce_axis((0, extent)) for extent in shape[2:]]
    sums = te.compute((n, groups), lambda i, g: te.sum(x(i, g, *axes), axis=axes), name="sums")

    def element(i, c, h, w):
        return x(i, c // members, c % members, h, w) - sums(i, c // members)

    y = te.compute((n, groups * members, *image), element, name="y")
    result = run([x], [y])
    result.agree()
    assert is_chain(result) == (n * groups >= 16)
    # What reads the result again reads what is stored through another buffer's axes.
    run([x], [y, topi.multiply(y, 2.0)]).agree()
    largest = topi.max(y, axis=[1, 2, 3], keepdims=True)
    run([x], [topi.subtract(y, largest)]).agree()
