"""Kernels of several stages: what is computed inside what, what is launched, what is given back."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi
from tvm.script import tirx as T

from graphgrad.lower.cuda.stages import one_thread_per_element, tile_contractions
from graphgrad.memory.overwrite import may_overwrite
from tests.labels import label
from tests.lower.cuda.running import GPU, run
from tests.lower.kernel_programs import tensor


def launches(result):
    return result.text.count('thread="blockIdx.x"')


@pytest.mark.parametrize(
    "shape", [(), (1,), (5,), (256,), (257,), (3, 1, 7), (2, 3, 4, 5, 6)], ids=label
)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_maps(shape, dtype):
    x = tensor(*shape, dtype=dtype)
    result = run([x], [topi.add(topi.multiply(x, x), x)])
    result.agree()
    assert launches(result) == 1


@pytest.mark.parametrize("extents", [(0, 3), (1, 1), (70, 9)], ids=label)
def test_maps_of_symbolic_extents(extents):
    n, m = te.var("n", "int64"), te.var("m", "int64")
    x = te.placeholder((n, m), "float32", "x")
    run([x], [topi.transpose(topi.exp(x))], shapes=[extents, extents[::-1]]).agree()


def test_moves():
    x = tensor(6, 35)
    rows = topi.reshape(x, (tirx.IntImm("int64", 14), tirx.IntImm("int64", 15)))
    run([x], [topi.concatenate([topi.flip(rows, 1), rows], 0)]).agree()


def test_scalars_are_computed_inside_what_reads_them():
    """As in the update of a parameter, whose step size is a tensor without axes."""
    rate, x, gradient = tensor(dtype="float64"), tensor(70), tensor(70, name="gradient")
    step = topi.multiply(topi.cast(rate, "float32"), gradient)
    result = run([rate, x, gradient], [topi.subtract(x, step)])
    result.agree()
    assert launches(result) == 1


def test_cheap_maps_are_copied_into_several_readers():
    x = tensor(8, 300)
    mean = topi.divide(topi.sum(x, 1, keepdims=True), 300.0)
    result = run([x], [topi.subtract(x, mean), topi.multiply(x, mean)])
    result.agree()
    assert launches(result) == 3  # sums, and each result


def test_dear_maps_are_stored():
    v, x = tensor(64, name="v"), tensor(64, 64)
    dear = v
    for _ in range(10):
        dear = topi.exp(topi.negative(dear))
    result = run([v, x], [topi.add(x, dear)])
    result.agree()
    assert launches(result) == 2


def test_a_normalization():
    x, scale = tensor(4, 6, 5, 5), tensor(6, 1, 1, name="scale")
    mean = topi.divide(topi.sum(x, (0, 2, 3), keepdims=True), 100.0)
    deviation = topi.subtract(x, mean)
    variance = topi.divide(topi.sum(topi.multiply(deviation, deviation), (0, 2, 3), True), 100.0)
    y = topi.multiply(topi.multiply(deviation, topi.rsqrt(topi.add(variance, 1e-5))), scale)
    run([x, scale], [y, topi.squeeze(variance)]).agree()


@T.prim_func(private=True, s_tir=True)
def running_sum(x: T.Buffer((64,), "float32"), out: T.Buffer((64,), "float32")):
    with T.sblock("all"):
        out[0] = x[0]
        for i in range(63):
            out[i + 1] = out[i] + x[i + 1]


def test_other_structures_are_refused():
    assert one_thread_per_element(running_sum, GPU) is None
    assert tile_contractions(running_sum, GPU) is None


@pytest.mark.parametrize("shape", [(), (1,), (7, 31, 127), (512,), (1000,), (257, 3)], ids=label)
def test_results_may_take_the_place_of_operands(shape):
    """The threads beyond the last element must not count as a second visit."""
    x, gradient = tensor(*shape), tensor(*shape, name="gradient")
    y = topi.subtract(x, topi.multiply(gradient, 0.1))
    func = one_thread_per_element(te.create_prim_func([x, gradient, y]), GPU)
    assert may_overwrite(func, func.params[0], func.params[2])


def test_results_that_read_elsewhere_may_not():
    x = tensor(40, 40)
    func = one_thread_per_element(te.create_prim_func([x, topi.transpose(x)]), GPU)
    assert not may_overwrite(func, func.params[0], func.params[1])


def test_elements_that_two_threads_write_may_not():
    @T.prim_func(private=True, s_tir=True)
    def twice(x: T.Buffer((100,), "float32"), out: T.Buffer((100,), "float32")):
        for block in T.thread_binding(2, thread="blockIdx.x"):
            for thread in T.thread_binding(100, thread="threadIdx.x"):
                if block * 100 + thread < 150:
                    with T.sblock("twice"):
                        v = T.axis.spatial(100, (block * 100 + thread) % 100)
                        out[v] = x[v] + T.float32(1)

    assert not may_overwrite(twice, twice.params[0], twice.params[1])


def test_indices_beyond_32_bits():
    """Three thousand million elements: a 32-bit index would wrap around."""
    x = tensor(3 << 10, 1 << 20, dtype="int8")
    func = one_thread_per_element(te.create_prim_func([x, topi.add(x, x)]), GPU)
    built = tvm.tirx.build(func.with_attr("global_symbol", "main"), GPU, pipeline="s_tir")
    assert "((int64_t)blockIdx.x) * (int64_t)4096" in built.imports[0].inspect_source("cuda")


def test_unused_intermediates_take_no_memory():
    a, b = tensor(5, 40), tensor(40, 6, name="b")
    k = te.reduce_axis((0, 40), "k")
    y = te.compute((5, 6), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="y")
    func = tile_contractions(te.create_prim_func([a, b, topi.nn.relu(y)]), GPU)
    scopes = [buffer.scope() for buffer in func.body.block.alloc_buffers]
    assert "global" not in scopes
    assert np.count_nonzero([scope == "shared" for scope in scopes]) == 2


@pytest.mark.parametrize("shape", [(33, 5), (5000, 3), (3, 200000), (7, 40, 9)], ids=label)
def test_sums_are_added_where_they_are_complete(shape):
    """No launch of its own adds them; what the others leave are parts of the sums."""
    x, old = tensor(*shape), tensor(shape[-1], name="old")
    total = topi.add(old, topi.sum(x, tuple(range(len(shape) - 1))))
    result = run([x, old], [total])
    result.agree()
    func = result.func
    assert len(func.body.block.alloc_buffers) == launches(result) - 1
    assert all(b.name.endswith("parts") for b in func.body.block.alloc_buffers)
    assert may_overwrite(func, func.params[1], func.params[2])


@pytest.mark.parametrize("shape", [(64, 64, 32), (31, 43, 67), (9, 130, 700)], ids=label)
def test_tiles_are_added_where_they_are_complete(shape):
    rows, columns, inner = shape
    a, b = tensor(rows, inner, name="a"), tensor(inner, columns, name="b")
    total = topi.add(tensor(rows, columns, name="old"), topi.matmul(a, b))
    old = total.op.input_tensors[0]
    func = tile_contractions(te.create_prim_func([a, b, old, total]), GPU)
    assert func is not None
    assert may_overwrite(func, func.params[2], func.params[3])
    kept = [b for b in func.body.block.alloc_buffers if b.scope() == "global"]
    assert not any([int(extent) for extent in b.shape] == [rows, columns] for b in kept)
