"""Quotients and remainders that say nothing, and those that do."""

import pytest
from tvm import te, tirx, topi

from graphgrad.ir.kernel_structure import stages, stride
from graphgrad.lower.cpu.plain_indices import simplify_indices
from tests.lower.kernel_programs import run, tensor


def steps(out, *inputs):
    """Return how far each load of the last stage moves along the last axis."""
    stage = stages(simplify_indices(te.create_prim_func([*inputs, out])))[-1]
    return [stride(load, stage.axes[-1].var) for load in stage.loads]


def test_a_row_is_walked_through():
    x, row = tensor(8, 64), tensor(64, name="row")
    out = te.compute((8, 64), lambda i, j: x[i, j] + row[j % 64] + row[j % 64 % 64])
    assert steps(out, x, row) == [1, 1, 1]
    run([x, row], [out]).agree()


@pytest.mark.parametrize("index", [lambda j: j % 16, lambda j: j // 2])
def test_what_has_a_meaning_stays(index):
    x = tensor(64)
    out = te.compute((64,), lambda j: x[index(j)])
    assert steps(out, x) == [None]
    run([x], [out]).agree()


def test_a_reshape_inside_a_kernel():
    x, row = tensor(8, 4, 64), tensor(64, name="row")
    spread = topi.reshape(row, (1, 1, 64))
    out = te.compute((8, 4, 64), lambda i, j, k: x[i, j, k] * spread[0, 0, k])
    runs = run([x, row], [out])
    runs.agree()


def test_a_cast_to_32_bits_and_back_is_dropped_where_it_fits():
    x = tensor(8, 64)

    def read(shift):
        return te.compute(
            x.shape, lambda i, j: x[i, ((j + shift).astype("int32").astype("int64") - shift) % 64]
        )

    assert steps(read(0), x) == [1]
    assert steps(read(1 << 31), x) == [None]
    for shift in (0, 1 << 31):
        run([x], [read(shift)]).agree()


def test_comparisons_are_simple_too():
    x, chosen = tensor(8, 32), tensor(8, 16, dtype="int8")
    k = te.reduce_axis((0, 2), "k")

    def element(i, j):
        place = (j * 2 + k).astype("int32").astype("int64")
        number = (place - place // 2 * 2).astype("int8")
        return tirx.Select(tirx.EQ(chosen[i, j], number), x[i, j * 2 + k], 0.0)

    out = te.compute((8, 16), lambda i, j: te.sum(element(i, j), axis=k))
    func = simplify_indices(te.create_prim_func([x, chosen, out]))
    assert "//" not in str(func) and "Cast" in str(func)
    run([x, chosen], [out]).agree()


def test_a_kernel_without_divisions_is_the_same():
    x = tensor(8, 64)
    func = te.create_prim_func([x, te.compute((8, 64), lambda i, j: x[i, j] + 1)])
    assert simplify_indices(func).same_as(func)
