"""Which maps are computed where the results of a reduction are complete."""

import pytest
from tvm import te, topi

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.kernels.epilogue import epilogues_of
from graphgrad.memory.allocation import scratch_bytes
from tests.lower.kernel_programs import run, tensor

X = tensor(600, 40, 30)
ROW, SUMS = tensor(30, name="row"), tensor(40, 30, name="sums")


def transposed(total):
    return te.compute((30, 40), lambda i, j: total[j, i])


def where_a_clipped_norm_moves(total):
    """The gradient of ReLU6 behind a batch norm, which is computed again."""
    norm = topi.add(topi.multiply(topi.subtract(SUMS, ROW), ROW), ROW)
    outside = topi.logical_or(topi.less_equal(norm, 0.0), topi.greater_equal(norm, 6.0))
    return topi.where(outside, topi.full_like(total, 0.0), total)


MAPS = {
    "mask of a clipped norm": (where_a_clipped_norm_moves, True),
    "added": (lambda t: topi.add(SUMS, t), True),
    "twice": (lambda t: topi.multiply(t, t), True),
    "transposed": (lambda t: topi.multiply(transposed(t), 2.0), True),
    "with a row": (lambda t: topi.add(t, ROW), True),
    "mirrored": (lambda t: topi.flip(t, 0), False),
    "two elements": (lambda t: topi.add(t, topi.flip(t, 0)), False),
    "repeated": (lambda t: topi.broadcast_to(t, (2, 40, 30)), False),
    "summed again": (lambda t: topi.sum(t, 0), False),
    "exponential": (topi.exp, False),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_behind_a_sum(name):
    build, is_epilogue = MAPS[name]
    result = run([X, SUMS, ROW], [build(topi.sum(X, 0))])
    result.agree()
    whole = [size for size in scratch_bytes(result.func) if size >= 4 * 40 * 30]
    assert bool(whole) != is_epilogue


def test_a_result_that_is_returned_has_no_epilogue():
    total = topi.sum(X, 0)
    func = te.create_prim_func([X, SUMS, total, topi.add(SUMS, total)])
    found = stages(func)
    assert epilogues_of(found[0], found, list(func.body.block.alloc_buffers)) == []


def test_a_result_that_two_maps_read_has_no_epilogue():
    """It is complete once, and the second map would find nothing in memory."""
    total = topi.sum(X, 0)
    maps = [topi.add(SUMS, total), topi.multiply(total, 2.0)]
    run([X, SUMS], maps).agree()
    func = te.create_prim_func([X, SUMS, *maps])
    reduction, *others = stages(func)
    assert epilogues_of(reduction, others, list(func.body.block.alloc_buffers)) == []


def test_a_map_waits_for_a_result_that_is_computed_between():
    """Where the sum is complete the other result, which the caller gets too, is not there yet."""
    total, between = topi.sum(X, 0), topi.exp(SUMS)
    result = run([X, SUMS], [topi.add(total, between), between])
    result.agree()
    func = te.create_prim_func([X, SUMS, topi.add(total, between), between])
    found = stages(func)
    assert [stage.reduced != [] for stage in found] == [True, False, False]
    assert epilogues_of(found[0], found, list(func.body.block.alloc_buffers)) == []


@pytest.mark.parametrize("shape", [(64, 64, 64), (31, 37, 41), (4, 5, 6), (40, 7, 300)])
@pytest.mark.parametrize("flip", [False, True])
def test_maps_behind_a_contraction(shape, flip):
    rows, columns, inner = shape
    a, b = tensor(rows, inner, name="a"), tensor(inner, columns, name="b")
    c = topi.matmul(a, b)
    c = topi.transpose(c) if flip else c
    old = tensor(*(int(extent) for extent in c.shape), name="old")
    result = run([a, b, old], [topi.add(old, c)])
    result.agree()
    if rows * columns > 28 * 32:  # else a tile is all of it
        assert not [size for size in scratch_bytes(result.func) if size == 4 * rows * columns]
