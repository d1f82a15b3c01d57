"""Reductions that share a pass over what they read."""

import numpy as np
import pytest
from tvm import relax, te

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.schedule import may_repeat
from graphgrad.lower.cuda.stages import BLOCK_LIMITS
from graphgrad.lower.fusion import fuse_siblings
from graphgrad.lower.kernels.joint_reductions import PROCESSOR_LIMITS, join_reductions
from tests.lower.fusion.programs import called, fused, kernels, noted
from tests.lower.kernel_programs import run as run_kernel
from tests.lower.kernel_programs import tensor
from tests.running import function, run

op = relax.op
LARGE = ((64, 1024), "float32")
ROW = ((1024,), "float32")


def joined(build, *types, block_limits=PROCESSOR_LIMITS):
    return fuse_siblings(fused(noted(kernels(build, *types))), may_repeat, block_limits)


def both(first, second):
    """Return a function of two reductions."""
    return lambda b, *x: relax.Tuple([b.emit(first(b, *x)), b.emit(second(b, *x))])


def total(b, x, *_):
    return op.sum(x, axis=[0])


def weighted(b, x, row, *_):
    return op.sum(b.emit(op.multiply(b.emit(op.subtract(x, row)), x)), axis=[0])


def largest(b, x, *_):
    return op.max(x, axis=[0])


def along_rows(b, x, *_):
    return op.sum(x, axis=[1])


def of_the_other(b, _, row, x):
    return op.sum(x, axis=[0])


@pytest.mark.parametrize(
    "first, second, calls",
    [
        (total, weighted, 1),
        (weighted, total, 1),
        (total, largest, 1),
        (total, along_rows, 2),
        (total, of_the_other, 2),
    ],
)
def test_reductions_over_the_same_loops_share_a_kernel(first, second, calls):
    assert len(called(joined(both(first, second), LARGE, ROW, LARGE))) == calls


def test_values_are_those_of_each():
    rng = np.random.default_rng(0)
    x, row = rng.standard_normal((64, 1024), "f4"), rng.standard_normal(1024, "f4")
    mod = function(both(total, weighted), LARGE, ROW)
    sums, products = run(mod, "main", x, row)
    wide = x.astype("f8")
    np.testing.assert_allclose(sums, wide.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(products, ((wide - row) * wide).sum(0), rtol=1e-5, atol=1e-4)


def test_a_reduction_that_needs_the_other_stays_behind_it():
    def build(b, x):
        mean = b.emit(op.sum(x, axis=[0]))
        return op.sum(b.emit(op.multiply(b.emit(op.subtract(x, mean)), x)), axis=[0])

    assert len(called(joined(build, LARGE))) == 2


def test_a_reduction_that_was_moved_is_where_it_is_now():
    """The second pair may not move in front of the first, although its parts once stood there."""

    def build(b, x, row, y):
        first, early = b.emit(total(b, x)), b.emit(total(b, y))
        late = b.emit(weighted(b, x, row))
        used = b.emit(op.exp(early))
        last = b.emit(weighted(b, y, first))
        return relax.Tuple([late, used, last])

    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((64, 1024)).astype("f4") for _ in range(2))
    row = rng.standard_normal(1024).astype("f4")
    late, used, last = run(function(build, LARGE, ROW, LARGE), "main", x, row, y)
    x, y = x.astype("f8"), y.astype("f8")
    np.testing.assert_allclose(used, np.exp(y.sum(0)), rtol=1e-4)  # of sums near 30, in float32
    # Each sum has 64 terms of up to 100; they and their sums are rounded at 2⁻²⁴.
    np.testing.assert_allclose(last, ((y - x.sum(0)) * y).sum(0), rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(late, ((x - row) * x).sum(0), rtol=1e-5, atol=1e-4)


def test_a_reduction_that_has_a_sibling_is_not_joined_with_another():
    def build(b, x, y):
        products = b.emit(op.sum(b.emit(op.multiply(x, y)), axis=[0]))
        return relax.Tuple([products, b.emit(total(b, x)), b.emit(total(b, y))])

    assert called(joined(build, LARGE, LARGE)) == ["fused_multiply_sum_sum", "sum"]


@pytest.mark.parametrize("count, calls", [(3, 1), (4, 1), (5, 2), (8, 2)])
def test_a_gpu_has_four_in_a_kernel(count, calls):
    """As two batch norms have, whose results are added: their gradients read one cotangent."""

    def build(b, x, *rows):
        return relax.Tuple([b.emit(weighted(b, x, row)) for row in rows])

    assert len(called(joined(build, LARGE, *[ROW] * count, block_limits=BLOCK_LIMITS))) == calls


def test_a_third_that_needs_one_of_two_stays_behind_them():
    def build(b, x, row):
        first, second = b.emit(total(b, x)), b.emit(weighted(b, x, row))
        return relax.Tuple([second, b.emit(weighted(b, x, first))])

    assert len(called(joined(build, LARGE, ROW, block_limits=BLOCK_LIMITS))) == 2


def test_small_tensors_are_left_alone():
    assert len(called(joined(both(total, weighted), ((8, 16), "float32"), ((16,), "float32")))) == 2


def test_equal_pairs_share_a_kernel():
    def build(b, x, row, y):
        pairs = [both(total, weighted)(b, t, row) for t in (x, y)]
        return relax.Tuple([field for pair in pairs for field in pair.fields])

    names = called(joined(build, LARGE, ROW, LARGE))
    assert len(names) == 2
    assert len(set(names)) == 1


def pair_of_sums(*shape):
    """Return a tensor, and its sums and sums of squares over all axes but the last."""
    x = tensor(*shape)
    axes = [te.reduce_axis((0, n)) for n in x.shape[:-1]]
    again = [te.reduce_axis((0, n)) for n in x.shape[:-1]]
    sums = te.compute(x.shape[-1:], lambda c: te.sum(x[(*axes, c)], axis=axes))
    squares = te.compute(
        x.shape[-1:], lambda c: te.sum(x[(*again, c)] * x[(*again, c)], axis=again)
    )
    return x, sums, squares


SHAPES = [(1, 1), (3, 7), (33, 13), (40, 16), (64, 48), (31, 96), (5, 12, 24), (128, 80)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_joint_reduction_is_scheduled_in_every_shape(shape):
    x, sums, squares = pair_of_sums(*shape)
    run_kernel([x], [sums, squares]).agree()


def test_sums_of_nothing_are_written():
    x, sums, squares = pair_of_sums(0, 16)
    for result in run_kernel([x], [sums, squares]).scheduled:
        np.testing.assert_array_equal(result, 0)


def test_a_pair_in_one_kernel_becomes_one_block():
    x, sums, squares = pair_of_sums(64, 48)
    (stage,) = stages(join_reductions(te.create_prim_func([x, sums, squares])))
    assert len(stage.stores) == 2


@pytest.mark.parametrize("dtype, count", [("float16", 1), ("bfloat16", 2)])
def test_half_precision(dtype, count):
    """TVM takes what is bound of bfloat16 for integers."""
    x = tensor(6, 5, dtype=dtype)
    k, other_k = te.reduce_axis((0, 5)), te.reduce_axis((0, 5))
    one = te.compute((6,), lambda i: te.sum(x[i, k].astype("float32"), axis=k))
    other = te.compute(
        (6,), lambda i: te.max(x[i, other_k].astype("float32") * x[i, other_k], axis=other_k)
    )
    func = te.create_prim_func([x, one, other])
    assert len(stages(join_reductions(func))) == count
    values = np.random.default_rng(0).standard_normal((6, 5)).astype(dtype)
    sums, largest = run_kernel([x], [one, other], values=[values]).scheduled
    wide = values.astype("float32")
    np.testing.assert_allclose(sums, wide.sum(1), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(largest, (wide * wide).max(1), rtol=2e-2)


def test_contractions_are_left_to_their_schedules():
    x = tensor(64, 32)
    w, v = tensor(32, 48, name="w"), tensor(32, 48, name="v")
    k, other_k = te.reduce_axis((0, 32)), te.reduce_axis((0, 32))
    one = te.compute((64, 48), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k))
    other = te.compute((64, 48), lambda i, j: te.sum(x[i, other_k] * v[other_k, j], axis=other_k))
    func = te.create_prim_func([x, w, v, one, other])
    assert join_reductions(func).same_as(func)


def test_of_a_matrix_rows_and_columns_are_not_summed_together():
    weight, row, column = tensor(256, 256), tensor(256, name="row"), tensor(256, name="column")
    k, j = te.reduce_axis((0, 256), "k"), te.reduce_axis((0, 256), "j")
    by_row = te.compute((256,), lambda i: te.sum(te.exp(weight[i, k]) - row[k], axis=k))
    by_column = te.compute((256,), lambda i: te.sum(te.exp(weight[j, i]) - column[j], axis=j))
    kernel = te.create_prim_func([weight, row, column, by_row, by_column])
    assert len(stages(join_reductions(kernel))) == 2
    run_kernel([weight, row, column], [by_row, by_column]).agree()


def shifted_sum(x, by):
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute((x.shape[0],), lambda i: te.sum(te.abs(x[i, k] - by), axis=k), name="sums")


def test_more_sums_than_share_a_block():
    """TVM makes partial results of two sums at most, and a kernel of four was not scheduled."""
    x = tensor(16, 4096)
    result = run_kernel([x], [shifted_sum(x, float(number)) for number in range(4)])
    result.agree()
    assert "T.parallel" in result.text
