"""Which kernels may write an output over an input, judged one by one."""

import pytest
import tvm
import tvm_ffi
from tvm import te, tirx, topi
from tvm.s_tir import SBlock, SBlockRealize
from tvm.script import tirx as T

from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.memory.overwrite import may_overwrite, overwriting
from tests.lower.kernel_programs import UNIT, tensor


def kernel(*outputs, inputs):
    return te.create_prim_func([*inputs, *outputs])


X, Y = tensor(64, 512), tensor(64, 512, name="y")
COARSE = te.compute(X.shape, lambda i, j: X[i, j // 2])


@pytest.mark.parametrize(
    ("output", "safe"),
    [
        (topi.add(X, Y), True),
        (topi.nn.relu(topi.multiply(X, X)), True),
        (topi.add(topi.exp(X), topi.sum(Y, 1, keepdims=True)), True),
        (COARSE, False),
        (topi.add(X, topi.flip(X, 1)), False),
    ],
    ids=["add", "square", "other sum", "half index", "mirror"],
)
def test_scheduled_kernels(output, safe):
    func = schedule_loops(kernel(output, inputs=[X, Y]), UNIT)
    x, _, out = func.params
    assert may_overwrite(func, x, out) == safe


@pytest.mark.parametrize("make", [lambda x: topi.add(x, topi.sum(x, 1, True)), topi.nn.softmax])
@pytest.mark.parametrize(("rows", "safe"), [(8, True), (64, False)])
def test_what_reads_whole_rows_first(make, rows, safe):
    """Stage by stage all is read before anything is written. In one loop over rows it is too, of
    each row; but that is not proved."""
    x = tensor(rows, 2048)
    func = schedule_loops(kernel(make(x), inputs=[x]), UNIT)
    assert may_overwrite(func, *func.params) == safe


@pytest.mark.parametrize("mirrored", [False, True])
def test_prefetches_read_nothing(mirrored):
    """A short sum prefetches the lines of its results, and of what is added to them."""
    total, a, b = tensor(1024, 512), tensor(1024, 32, name="a"), tensor(32, 512, name="b")
    added = te.compute(total.shape, lambda i, j: total[i, 511 - j if mirrored else j])
    func = schedule_loops(
        kernel(topi.add(topi.matmul(a, b), added), inputs=[total, a, b]),
        UNIT,
    )
    assert "prefetch" in func.script()
    assert may_overwrite(func, func.params[0], func.params[3]) == (not mirrored)


def test_a_whole_stage_may_read_anywhere_before_the_output_is_written():
    func = kernel(topi.add(X, topi.flip(X, 1)), inputs=[X, Y])
    assert may_overwrite(func, func.params[0], func.params[2])


def test_a_reduction_into_its_own_input_is_refused():
    x, y = tensor(16), tensor(16, 16, name="y")
    k = te.reduce_axis((0, 16), "k")
    func = kernel(te.compute((16,), lambda i: te.sum(x[i] * y[i, k], axis=k)), inputs=[x, y])
    assert not may_overwrite(func, func.params[0], func.params[2])


@T.prim_func(private=True, s_tir=True)
def repeated(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")):
    for _ in range(3):
        for i in range(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                out[v] = x[v] * T.float32(2)


def test_a_block_that_runs_several_times_is_refused():
    assert not may_overwrite(repeated, *repeated.params)


def test_the_rewritten_kernel_has_one_parameter_less():
    func = kernel(topi.add(X, Y), inputs=[X, Y])
    x, y, out = func.params
    rewritten = overwriting(func, {out: x})
    assert list(rewritten.params) == [x, y]
    assert not any(var.same_as(out) for var in _variables(rewritten))


def _variables(func):
    found = []
    tvm_ffi.structural_walk(func.body, (tvm.ir.Var, found.append))
    return found


@T.prim_func(private=True, s_tir=True)
def tiled(x: T.Buffer((10,), "float32"), out: T.Buffer((10,), "float32")):
    for i in range(3):
        for j in range(4):
            with T.sblock("b"):
                v = T.axis.spatial(10, i * 4 + j)
                T.where(i * 4 + j < 10)
                out[v] = x[v] * T.float32(2)


@T.prim_func(private=True, s_tir=True)
def tiles_overlap(x: T.Buffer((10,), "float32"), out: T.Buffer((10,), "float32")):
    for i in range(3):
        for j in range(4):
            with T.sblock("b"):
                v = T.axis.spatial(10, i * 3 + j)
                out[v] = x[v] * T.float32(2)


@T.prim_func(private=True, s_tir=True)
def sums_in_tiles(
    y: T.Buffer((8, 5), "float32"), x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")
):
    held = T.sblock_alloc_buffer((8,), "float32")
    for i in range(8):
        with T.sblock("start"):
            v = T.axis.spatial(8, i)
            held[v] = T.float32(0)
        for k in range(5):
            with T.sblock("sum"):
                v, vk = T.axis.remap("SR", [i, k])
                held[v] = held[v] + y[v, vk]
        with T.sblock("add"):
            v = T.axis.spatial(8, i)
            out[v] = x[v] + held[v]


@T.prim_func(private=True, s_tir=True)
def stored_before_the_sum_ends(
    y: T.Buffer((8, 5), "float32"), x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")
):
    for i in range(8):
        for k in range(5):
            with T.sblock("add"):
                v, vk = T.axis.remap("SS", [i, k])
                out[v] = x[v] + y[v, vk]


@T.prim_func(private=True, s_tir=True)
def read_again_in_the_tile(
    y: T.Buffer((8, 5), "float32"), x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")
):
    held = T.sblock_alloc_buffer((8,), "float32")
    for i in range(8):
        with T.sblock("add"):
            v = T.axis.spatial(8, i)
            out[v] = x[v] + y[v, 0]
        with T.sblock("again"):
            v = T.axis.spatial(8, i)
            held[v] = x[v]


@T.prim_func(private=True, s_tir=True)
def scattered(
    y: T.Buffer((5,), "float32"), x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")
):
    with T.sblock("all"):
        for i in range(8):
            out[i] = x[i]
        for k in range(5):
            out[k * k % 8] = out[k * k % 8] + y[k]


@T.prim_func(private=True, s_tir=True)
def scattered_and_read(
    y: T.Buffer((5,), "float32"), x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")
):
    with T.sblock("all"):
        for i in range(8):
            out[i] = x[i]
        for k in range(5):
            out[k * k % 8] = out[k * k % 8] + x[k]


def by_rows(reads_first, columns=11):
    """Return a kernel that stores vectors of a row, and the rest; perhaps by the row's first."""

    @T.prim_func(private=True, s_tir=True)
    def main(x: T.Buffer((6, 11), "float32"), out: T.Buffer((6, 11), "float32")):
        for task in T.parallel(3):
            for row in range(2):
                held = T.sblock_alloc_buffer((1,), "float32")
                held[0] = x[task * 2 + row, 0] if reads_first else T.float32(3)
                for vector in range(2):
                    for lane in T.vectorized(4):
                        out[task * 2 + row, vector * 4 + lane] = (
                            x[task * 2 + row, vector * 4 + lane] * held[0]
                        )
                for lane in T.vectorized(columns - 8):
                    out[task * 2 + row, 8 + lane] = x[task * 2 + row, 8 + lane] * held[0]

    return main


@T.prim_func(private=True, s_tir=True)
def by_half_of_the_threads(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")):
    held = T.sblock_alloc_buffer((8, 4), "float32")
    for i in T.thread_binding(8, thread="blockIdx.x"):
        for j in T.thread_binding(4, thread="threadIdx.x"):
            with T.sblock("other"):
                v, w = T.axis.remap("SS", [i, j])
                held[v, w] = T.float32(0)
        with T.sblock("b"):
            v = T.axis.spatial(8, i)
            out[v] = x[v] * T.float32(2)


def in_two_parts(first, second, read):
    """Return a kernel that stores at first(i), then at second(i), of what is read there."""
    x, out = tirx.decl_buffer((16,), "float32", "x"), tirx.decl_buffer((16,), "float32", "out")
    nests = []
    for place in (first, second):
        i = tvm.ir.Var("i", "int64")
        value = tirx.BufferLoad(x, [read(place(i))]) * tirx.const(2, "float32")
        store = tirx.BufferStore(out, value, [place(i)])
        zero, eight = tirx.const(0, "int64"), tirx.const(8, "int64")
        nests.append(tirx.For(i, zero, eight, tirx.ForKind.SERIAL, store))
    root = SBlock([], [], [], "root", tirx.SeqStmt(nests))
    return tirx.PrimFunc([x, out], SBlockRealize([], tirx.const(True, "bool"), root))


def even(i):
    return i * 2


def odd(i):
    return i * 2 + 1


PARTS = {
    "remainders": (even, odd, lambda i: i, True),
    "the same remainder": (even, even, lambda i: i, False),
    "halves": (lambda i: i, lambda i: i + 8, lambda i: i, True),
    "halves that overlap": (lambda i: i, lambda i: i + 7, lambda i: i, False),
    "what the other part stores": (even, odd, lambda i: (i + 1) % 16, False),
    "one twice": (even, lambda i: i // 2 * 2 + 1, lambda i: i, False),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_an_output(name):
    first, second, read, safe = PARTS[name]
    func = in_two_parts(first, second, read)
    assert may_overwrite(func, *func.params) == safe


def row_by_row(read):
    """Return a kernel that stores two rows, the second made of row `read`."""

    @T.prim_func(private=True, s_tir=True)
    def main(x: T.Buffer((2, 8), "float32"), out: T.Buffer((2, 8), "float32")):
        for i in range(8):
            with T.sblock("first"):
                v = T.axis.spatial(8, i)
                out[0, v] = x[0, v] * T.float32(2)
        for i in range(8):
            with T.sblock("second"):
                v = T.axis.spatial(8, i)
                out[1, v] = x[read, v] * T.float32(3)

    return main


BY_HAND = {
    "row by row": (row_by_row(1), True),
    "row by other row": (row_by_row(0), False),
    "tiled": (tiled, True),
    "tiles overlap": (tiles_overlap, False),
    "sums in tiles": (sums_in_tiles, True),
    "stored before the sum ends": (stored_before_the_sum_ends, False),
    "read again in the tile": (read_again_in_the_tile, False),
    "scattered": (scattered, True),
    "scattered and read": (scattered_and_read, False),
    "vectors of rows": (by_rows(False), True),
    "vectors of rows by the first": (by_rows(True), False),
    "by half of the threads": (by_half_of_the_threads, False),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_loops_written_by_hand(name):
    func, safe = BY_HAND[name]
    x, out = func.params[-2:]
    assert may_overwrite(func, x, out) == safe


def test_copies_are_gone():
    x, out = scattered.params[-2:]
    rewritten = overwriting(scattered, {out: x})
    stores = []
    tvm_ffi.structural_walk(rewritten.body, (tirx.BufferStore, stores.append))
    assert len(stores) == 1
    identity = kernel(te.compute(X.shape, X), inputs=[X])
    assert overwriting(identity, {identity.params[1]: identity.params[0]}).body is not None
