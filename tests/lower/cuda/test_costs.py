"""What a call of a kernel moves, as predictions count it."""

from tvm import te

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


def test_so_do_those_that_are_summed():
    table = te.placeholder((WORDS, WIDTH), name="table")
    words = te.placeholder((SUMMED,), "int64", name="words")
    k = te.reduce_axis((0, SUMMED), "k")
    total = te.compute((1,), lambda i: te.sum(table[words[k], 0], axis=k))
    assert moved([table, words], total) == 4 + 8 * SUMMED + SECTOR * SUMMED
