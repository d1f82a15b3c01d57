"""What a kernel moves, as the budget counts it, and what falls short."""

import budget
from budget import Budget, Call, costliest, shortfalls
from tvm import te

from graphgrad.lower.cuda.stages import one_thread_per_element
from graphgrad.lower.target import target

GPU = target({"kind": "cuda", "arch": "sm_90"})
ROWS, SUMMED, WORDS, WIDTH = 64, 4096, 50_000, 256


def moved(inputs, output):
    """The bytes that a kernel with a thread for each element moves."""
    func = te.create_prim_func([*inputs, output])
    with GPU:
        scheduled = one_thread_per_element(func, GPU)
    return budget._kernel_call("kernel", scheduled, 90).bytes


def test_each_tensor_counts_once():
    x = te.placeholder((ROWS, WIDTH), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + x[ROWS - 1 - i, j])
    assert moved([x], y) == 2 * 4 * ROWS * WIDTH


def test_of_a_table_the_elements_that_are_read_count():
    table = te.placeholder((WORDS, WIDTH), name="table")
    words = te.placeholder((ROWS,), "int64", name="words")
    chosen = te.compute((ROWS,), lambda i: table[words[i], 0])
    assert moved([table, words], chosen) == 4 * ROWS + 8 * ROWS + budget.SECTOR * ROWS


def test_so_do_those_that_are_summed():
    table = te.placeholder((WORDS, WIDTH), name="table")
    words = te.placeholder((SUMMED,), "int64", name="words")
    k = te.reduce_axis((0, SUMMED), "k")
    total = te.compute((1,), lambda i: te.sum(table[words[k], 0], axis=k))
    assert moved([table, words], total) == 4 + 8 * SUMMED + budget.SECTOR * SUMMED


def test_the_costliest_call_comes_first():
    calls = [Call("short", 1, 10, 1e-6), Call("long", 1, 20_000_000, 5e-6)] + [
        Call("often", 1, 30, 2e-6)
    ] * 4
    lines = costliest(calls, 2).splitlines()
    assert [line.split()[-1] for line in lines] == ["often", "long"]
    assert "4 x" in lines[0]
    assert "20.0 MB" in lines[1]


def test_what_is_worse_than_the_ratchet_is_named():
    known = {"net bfloat16 sm_90": {"kernels": 10, "gigabytes": 1.0, "milliseconds": 1.0}}
    better = Budget("net", "bfloat16", "sm_90", 9, 3, 10, 0.5, 0.9)
    worse = Budget("net", "bfloat16", "sm_90", 9, 3, 10, 1.5, 0.9)
    new = Budget("other", "bfloat16", "sm_90", 9, 3, 10, 1.5, 0.9)
    assert not shortfalls([better], known)
    assert [line.split()[-4] for line in shortfalls([worse], known)] == ["1.5"]
    assert "--ratchet" in shortfalls([new], known)[0]
