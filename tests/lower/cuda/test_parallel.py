"""Kernels written by hand: which of their loops become threads, and where their memory is."""

import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.script import tirx as T

from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.loops import parallel, sequence
from graphgrad.lower.cuda.lowering import check
from graphgrad.lower.cuda.parallel import bind_parallel_loops, independent_loops, launch_statements
from graphgrad.ops.cumulative import cumulative
from graphgrad.ops.opaque_kernel import Nest, extern, fill
from graphgrad.ops.sorting import order
from tests.lower.cuda.running import on_host
from tests.lower.cuda.sources import TARGET, cuda_source, program
from tests.lower.kernel_programs import HOST


def prim_func(expression, *shapes, dtype="float64"):
    tensors = [te.placeholder(shape, dtype, name=f"x{i}") for i, shape in enumerate(shapes)]
    with TARGET:
        result = expression(*tensors)
    results = list(result) if isinstance(result, list) else [result]
    return te.create_prim_func([*tensors, *results])


def launches(func):
    """The extents of blocks and threads of each kernel of a scheduled function, in order."""
    found = []

    def visit(loop):
        if loop.thread_binding is not None:
            found.append((str(loop.thread_binding.thread_tag), loop.extent))

    tvm_ffi.structural_walk(func.body, (tirx.For, visit), order="pre")
    blocks = [extent for tag, extent in found if tag == "blockIdx.x"]
    threads = [extent for tag, extent in found if tag == "threadIdx.x"]
    counts = [int(b) if isinstance(b, tirx.IntImm) else str(b) for b in blocks]
    return list(zip(counts, map(int, threads), strict=True))


@pytest.mark.parametrize(
    ("expression", "shape", "expected"),
    [
        (lambda x: cumulative(x, 1, "add", False), (4, 5, 6), [(1, 24)]),
        (lambda x: cumulative(x, 0, "mul", True), (5, 600), [(3, 256)]),
        (lambda x: order(x, 0, False), (7, 3), [(1, 21), (1, 3)]),
    ],
    ids=["running sums", "running products", "sort"],
)
def test_each_independent_point_has_a_thread(expression, shape, expected):
    func = bind_parallel_loops(prim_func(expression, shape), TARGET)
    assert launches(func) == expected
    check(func, TARGET)


def test_a_nest_shares_its_points_among_as_many_threads_as_a_gpu_has():
    """A processor gets chunks of some cache lines, or one thread where there is little to do."""
    nest = Nest((3, 5, 300), range(1, 2))
    with TARGET:
        loops, _ = independent_loops(nest.build(lambda _: tirx.Evaluate(0)))
    assert [int(a.extent) for a in loops] == [900]
    assert independent_loops(nest.build(lambda _: tirx.Evaluate(0)))[0] == []


def test_a_statement_without_parallel_loops_is_left_to_the_last_resort():
    func = prim_func(lambda x: cumulative(x, 0, "add", False), (9,))
    assert bind_parallel_loops(func, TARGET) is None
    assert launches(launch_statements(func, TARGET)) == [(1, 1)]


def test_stages_beside_a_kernel_by_hand_have_threads_too():
    def expression(x):
        doubled = te.compute(x.shape, lambda *i: x(*i) * 2, name="doubled")
        return cumulative(doubled, 1, "add", False)

    func = bind_parallel_loops(prim_func(expression, (4, 700)), TARGET)
    assert launches(func) == [(11, 256), (1, 128)]  # a warp for each row


def test_a_symbolic_extent_of_zero_starts_a_block_that_does_nothing():
    n = te.var("n", "int64")
    func = bind_parallel_loops(prim_func(lambda x: cumulative(x, 1, "add", False), (n, 3)), TARGET)
    ((blocks, threads),) = launches(func)
    assert threads == 256
    assert blocks.startswith("T.max(") and blocks.endswith("T.int64(1))")


def test_no_elements_leave_nothing_to_launch_on_the_host():
    func = bind_parallel_loops(prim_func(lambda x: cumulative(x, 0, "add", False), (0, 3)), TARGET)
    check(func, TARGET)


def test_memory_between_two_launches_is_outside_both():
    def expression(x):
        found = order(x, 0, False)
        return te.compute((6,), lambda i: found(i) + 1, name="ranks")

    source = cuda_source(program(expression, [(6,)], ["int32"]))
    bodies = source.split("__global__ void")
    assert len(bodies) > 3
    assert not re.search(r"order_ptr\w*\[6\];", source)
    assert sum("order_ptr" in body for body in bodies) > 1


def test_memory_of_a_thread_is_its_own():
    func = prim_func(lambda x: order(x, 1, False), (3, 8))
    source = cuda_source(program(lambda x: order(x, 1, False), [(3, 8)], ["float32"]))
    assert re.search(r"int64_t taken\w*\[1\];", source)
    assert bind_parallel_loops(func, TARGET) is not None


@pytest.mark.parametrize(("scope", "threads"), [("local", 5), ("global", 0)])
def test_points_that_take_turns_with_memory_stay_in_one_thread(scope, threads):
    scratch = tirx.decl_buffer((1,), "float64", "scratch", scope=scope)
    write = tirx.BufferStore(scratch, tirx.const(1.0, "float64"), [tirx.const(0, "int64")])
    statement = parallel(5, lambda _: sequence(tirx.AllocBuffer(scratch), write))
    loops, _ = independent_loops(statement)
    assert sum(int(found.extent) for found in loops) == threads


def test_loops_within_loops_that_depend_on_them_stay_serial():
    def build(ins, outs):
        (out,) = outs
        return parallel(
            4,
            lambda i: parallel(
                i + 1, lambda j: tirx.BufferStore(out, tirx.const(1.0, "float64"), [i, j])
            ),
        )

    func = prim_func(lambda x: extern("triangle", [(4, 4)], ["float64"], [x], build), (4, 4))
    launched = bind_parallel_loops(func, TARGET)
    assert launches(launched) == [(1, 4)]
    check(launched, TARGET)


def test_statements_of_a_kernel_are_launched_one_after_the_other():
    def build(ins, outs):
        (out,) = outs
        zero, one = (tirx.const(value, "float64") for value in (0, 1))
        again = parallel(2, lambda i: tirx.BufferStore(out, out[i, 0] + one, [i, 0]))
        return sequence(fill(out, lambda _: zero), again)

    func = prim_func(lambda x: extern("twice", [(2, 300)], ["float64"], [x], build), (2, 300))
    assert launches(bind_parallel_loops(func, TARGET)) == [(3, 256), (1, 2)]


@T.prim_func(private=True)
def without_blocks(x: T.Buffer((300,), "float32"), y: T.Buffer((300,), "float32")):
    for i in T.parallel(300):
        y[i] = x[i] * T.float32(2)
    for i in range(1, 300):
        y[i] = y[i] + y[i - 1]


def test_a_function_without_a_root_block():
    assert bind_parallel_loops(without_blocks, TARGET) is None
    func = launch_statements(without_blocks, TARGET)
    assert launches(func) == [(2, 256), (1, 1)]
    check(func, TARGET)
    run = tvm.compile(on_host(func).with_attr("global_symbol", "f"), target=HOST)["f"]
    x, y = np.arange(300, dtype="float32"), to_tensor(np.zeros(300, "float32"))
    run(to_tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), np.cumsum(2 * x))


def test_a_product_without_terms_is_zero():
    """The result is set before the loop over the terms, which has no trips."""
    rows, terms = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    left = te.placeholder((2, rows, terms), "float64")
    right = te.placeholder((terms,), "float64")
    k = te.reduce_axis((0, terms))
    product = te.compute((2, rows), lambda i, j: te.sum(left[i, j, k] * right[k], k))
    func = bind_parallel_loops(te.create_prim_func([left, right, product]), TARGET)
    check(func, TARGET)
    run = tvm.compile(on_host(func), HOST)
    for count in (0, 3):
        x, y = np.ones((2, 4, count)), np.ones(count)
        result = to_tensor(np.full((2, 4), np.nan), tvm.cpu())
        run(to_tensor(x, tvm.cpu()), to_tensor(y, tvm.cpu()), result)
        assert np.array_equal(result.numpy(), np.full((2, 4), count))
