"""What a call of a kernel moves, as predictions count it."""

from tvm import te
from tvm.script import tirx as T

from graphgrad.lower.cuda.costs import SECTOR, kernel_cost
from graphgrad.lower.cuda.library.cost import RATES
from graphgrad.lower.cuda.stages import one_thread_per_element
from graphgrad.lower.target import target

GPU = target({"kind": "cuda", "arch": "sm_90"})
ROWS, SUMMED, WORDS, WIDTH = 64, 4096, 50_000, 256


def moved(inputs, output):
    """The bytes that a kernel with a thread for each element moves."""
    func = te.create_prim_func([*inputs, output])
    with GPU:
        scheduled = one_thread_per_element(func, GPU)
    return kernel_cost("kernel", scheduled, RATES[90]).bytes


def test_each_tensor_counts_once():
    x = te.placeholder((ROWS, WIDTH), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + x[ROWS - 1 - i, j])
    assert moved([x], y) == 2 * 4 * ROWS * WIDTH


def test_of_a_table_the_elements_that_are_read_count():
    table = te.placeholder((WORDS, WIDTH), name="table")
    words = te.placeholder((ROWS,), "int64", name="words")
    chosen = te.compute((ROWS,), lambda i: table[words[i], 0])
    assert moved([table, words], chosen) == 4 * ROWS + 8 * ROWS + SECTOR * ROWS


def test_of_rows_what_is_read_counts():
    table = te.placeholder((WORDS, WIDTH), name="table")
    words = te.placeholder((ROWS,), "int64", name="words")
    rows = te.compute((ROWS, WIDTH), lambda i, j: table[words[i], j])
    assert moved([table, words], rows) == 2 * 4 * ROWS * WIDTH + 8 * ROWS


def test_of_every_other_element_all_sectors_count():
    table = te.placeholder((WORDS, 2 * WIDTH), name="table")
    words = te.placeholder((ROWS,), "int64", name="words")
    halves = te.compute((ROWS, WIDTH), lambda i, j: table[words[i], 2 * j])
    assert moved([table, words], halves) == (4 + SECTOR) * ROWS * WIDTH + 8 * ROWS


def test_so_do_those_that_are_summed():
    table = te.placeholder((WORDS, WIDTH), name="table")
    words = te.placeholder((SUMMED,), "int64", name="words")
    k = te.reduce_axis((0, SUMMED), "k")
    total = te.compute((1,), lambda i: te.sum(table[words[k], 0], axis=k))
    assert moved([table, words], total) == 4 + 8 * SUMMED + SECTOR * SUMMED


SIZE = 256
BYTES = 4 * SIZE


def moved_by(func):
    return kernel_cost("kernel", func, RATES[90]).bytes


def test_what_is_overwritten_is_read_and_written():
    @T.prim_func(private=True, s_tir=True)
    def in_place(x: T.Buffer((SIZE,)), y: T.Buffer((SIZE,))):
        for block in T.thread_binding(8, "blockIdx.x"):
            for thread in T.thread_binding(32, "threadIdx.x"):
                x[block * 32 + thread] = x[block * 32 + thread] + y[block * 32 + thread]

    assert moved_by(in_place) == 3 * BYTES


def test_what_a_launch_wrote_it_does_not_read_from_memory():
    @T.prim_func(private=True, s_tir=True)
    def one(x: T.Buffer((SIZE,)), y: T.Buffer((SIZE,))):
        for block in T.thread_binding(8, "blockIdx.x"):
            for thread in T.thread_binding(32, "threadIdx.x"):
                x[block * 32 + thread] = T.float32(1)
                y[block * 32 + thread] = x[block * 32 + thread]

    @T.prim_func(private=True, s_tir=True)
    def two(x: T.Buffer((SIZE,)), y: T.Buffer((SIZE,))):
        for block in T.thread_binding(8, "blockIdx.x"):
            for thread in T.thread_binding(32, "threadIdx.x"):
                x[block * 32 + thread] = T.float32(1)
        for block in T.thread_binding(8, "blockIdx.x"):
            for thread in T.thread_binding(32, "threadIdx.x"):
                y[block * 32 + thread] = x[block * 32 + thread]

    assert moved_by(one) == 2 * BYTES
    assert moved_by(two) == 3 * BYTES


def test_what_is_written_on_a_condition_may_be_read_from_memory():
    @T.prim_func(private=True, s_tir=True)
    def chosen(x: T.Buffer((SIZE,)), y: T.Buffer((SIZE,))):
        for block in T.thread_binding(8, "blockIdx.x"):
            for thread in T.thread_binding(32, "threadIdx.x"):
                if thread < 16:
                    x[block * 32 + thread] = T.float32(1)
                y[block * 32 + thread] = x[block * 32 + thread]

    assert moved_by(chosen) == 3 * BYTES


def test_few_elements_are_read_of_what_is_written_whole():
    @T.prim_func(private=True, s_tir=True)
    def first(x: T.Buffer((SIZE,))):
        for thread in T.thread_binding(2, "threadIdx.x"):
            x[thread] = x[SIZE - 1 - thread]

    assert moved_by(first) == BYTES + 2 * SECTOR
