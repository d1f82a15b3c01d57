"""Wide accesses: which loads and stores of a thread's elements become one, and which may not."""

import pytest
from tvm import te, tirx, topi
from tvm.script import tirx as T

from graphgrad.ir.loops import block, bound, index, load, store, variable
from graphgrad.ir.visits import nodes_in
from graphgrad.lower.cuda.lanes import over_lanes, unroll_flags, widen_accesses
from tests.lower.cuda.sources import cuda_source, program

ROWS, COLUMNS = 64, 512


def source(expression, *shapes, dtype="float32"):
    return cuda_source(program(expression, shapes, [dtype] * len(shapes)))


def wide(text, kind="float4"):
    """How many wide loads from memory and stores to it are in CUDA source."""
    lines = text.splitlines()
    loads = sum(f"= *({kind}*)(x" in line for line in lines)
    return loads, sum(line.strip().startswith(f"*({kind}*)") for line in lines) - loads


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("float32", "float4"), ("float64", "double2"), ("int32", "int4"), ("float16", "uint4")],
)
def test_a_thread_moves_16_bytes_at_a_time(dtype, kind):
    text = source(topi.add, (ROWS, COLUMNS), (ROWS, COLUMNS), dtype=dtype)
    assert wide(text, kind) == (2, 1)


def test_bfloat16_moves_8_elements():
    text = source(topi.add, (ROWS, COLUMNS), (ROWS, COLUMNS), dtype="bfloat16")
    assert wide(text, "uint4") == (2, 1)


@pytest.mark.parametrize(
    ("shape", "kind"), [((64, 6, 7, 7), "float4"), ((18, 9, 11, 13), "float2")], ids=str
)
def test_elements_of_several_rows(shape, kind):
    """What four neighbors are divided by does not matter, as long as they are neighbors."""

    def scaled(x, s):
        return te.compute(x.shape, lambda n, c, h, w: x(n, c, h, w) * s(c))

    assert wide(source(scaled, shape, shape[1:2]), kind) == (1, 1)


def test_flags_of_channels_do_not_widen_maps():
    """Sixteen lanes of float32 would fill registers, for a tensor that all threads share."""

    def chosen(x, flags):
        def element(i, c):
            flag = flags(c) if len(flags.shape) == 1 else flags(i, c)
            return tirx.Select(flag, x(i, c), tirx.const(0.0))

        return te.compute(x.shape, element)

    def loads_and_stores(shape):
        return wide(cuda_source(program(chosen, [(4096, 64), shape], ["float32", "bool"])))

    assert loads_and_stores((64,)) == (1, 1)
    assert loads_and_stores((4096, 64)) == (4, 4)


@T.prim_func(private=True, s_tir=True)
def chosen_in_vectors(x: T.Buffer((64,)), flags: T.Buffer((64,), "bool"), y: T.Buffer((64,))):
    T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
    for thread in T.thread_binding(32, thread="threadIdx.x"):
        for i in T.vectorized(2):
            with T.sblock("chosen"):
                v = T.axis.spatial(64, thread * 2 + i)
                y[v] = T.Select(flags[v], x[v], T.float32(0))


def test_no_vectors_have_booleans():
    def kinds(func):
        return [loop.kind for loop in nodes_in(func.body, tirx.For)][:-1]

    assert kinds(chosen_in_vectors) == [tirx.ForKind.VECTORIZED]
    assert kinds(unroll_flags(chosen_in_vectors)) == [tirx.ForKind.UNROLLED]


def test_odd_numbers_of_elements_stay_apart():
    assert "float2" not in source(topi.exp, (333, 51))
    assert "float2" not in source(topi.exp, (4, 4))  # too few for a GPU


def test_what_a_choice_leaves_out_is_loaded_only_where_it_is_there():
    def chosen(x, y):
        return te.compute(
            x.shape, lambda i, j: tirx.if_then_else(x(i, j) <= 0, y(i, j), tirx.const(0.0))
        )

    def padded(x):
        return te.compute(
            (ROWS, COLUMNS + 4), lambda i, j: tirx.if_then_else(j < COLUMNS - 1, x(i, j), 0.0)
        )

    assert wide(source(chosen, (ROWS, COLUMNS), (ROWS, COLUMNS))) == (2, 1)
    assert wide(source(padded, (ROWS, COLUMNS))) == (0, 1)


def test_shifted_and_strided_elements_are_loaded_one_by_one():
    def shifted(x):
        return te.compute((ROWS, COLUMNS), lambda i, j: x(i, j + 1))

    assert wide(source(shifted, (ROWS, COLUMNS + 4))) == (0, 1)

    def strided(x):
        return te.compute((ROWS, COLUMNS), lambda i, j: x(j, i // 2))

    assert wide(source(strided, (COLUMNS, ROWS))) == (0, 1)


def test_booleans_move_as_bytes():
    """TVM takes a vector of four of them for 8 bytes."""

    def positive(x):
        return te.compute(x.shape, lambda i, j: x(i, j) > 0)

    text = source(positive, (ROWS, COLUMNS))
    assert wide(text) == (4, 0)
    assert "*(uint4*)(((uchar*)compute_ptr)" in text

    def chosen(x, y):
        return te.compute(x.shape, lambda i, j: tirx.Select(y(i, j), x(i, j), tirx.const(0.0)))

    text = cuda_source(program(chosen, [(ROWS, COLUMNS)] * 2, ["float32", "bool"]))
    assert wide(text) == (4, 4)
    assert "= *(uint4*)(((uchar*)x1_ptr)" in text


def test_a_border_that_all_lanes_have_in_common():
    """What it decides on is loaded at once, where it is there at all."""
    inner = (ROWS - 2, COLUMNS)

    def padded(x):
        def element(i, j):
            inside = tirx.all(i >= 1, i < ROWS - 1)
            return tirx.if_then_else(inside, x(i - 1, j), tirx.const(0.0))

        return te.compute((ROWS, COLUMNS), element)

    text = source(padded, inner)
    assert wide(text) == (1, 1)
    load = text.index("= *(float4*)(x0_ptr")
    assert "if (" in text[:load]

    def padded_in_row(x):
        def element(i, j):
            inside = tirx.all(j >= 8, j < COLUMNS - 8)
            return tirx.if_then_else(inside, x(i, j - 8), tirx.const(0.0))

        return te.compute((ROWS, COLUMNS), element)

    assert wide(source(padded_in_row, (ROWS, COLUMNS - 16))) == (0, 1)


@pytest.mark.parametrize("place", [0, 1], ids=["its own", "another"])
def test_in_place_a_lane_reads_no_element_that_another_one_writes(place):
    x = tirx.decl_buffer((4096,), "float32", "x")
    group, lane = variable("group"), variable("lane")
    at = group * 4 + lane
    read = at if place == 0 else group * 4 + (3 - lane)
    body = over_lanes(lane, 4, store(x, [at], load(x, [read]) + 1))
    func = tirx.PrimFunc([x], block("root", bound(group, index(1024), "threadIdx.x", body)))
    text = widen_accesses(func).script()
    assert text.count("T.vectorized") == (2 if place == 0 else 1)


def test_columns_are_summed_side_by_side():
    """Terms, and parts of them in the last block."""
    assert wide(source(lambda x: topi.sum(x, 0), (2048, 256)))[0] == 2


def test_rows_are_summed_by_warps():
    text = source(lambda x: topi.sum(x, 1), (64, 1024))
    assert wide(text)[0] == 1
    assert "__shfl_xor_sync" in text
    assert "double" not in text
