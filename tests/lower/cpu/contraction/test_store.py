"""Sinks: where results go, and how far apart neighbors are there."""

import pytest
from tvm import te, topi

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.contraction import EpilogueStore, blocks_of
from graphgrad.lower.kernels.epilogue import epilogues_of
from tests.lower.cpu.contraction.stages import Kernel, product
from tests.lower.kernel_programs import tensor


@pytest.mark.parametrize("flip", [False, True])
def test_steps_of_a_plain_store(flip):
    kernel = Kernel(product(20, 30, 7, flip=flip))
    steps = [kernel.result_store.step(kernel.axis(name)) for name in "ij"]
    assert steps == ([1, 20] if flip else [30, 1])
    assert not kernel.result_store.once


def result_store_of(build):
    """Return the store of a map behind a matrix product of 20 rows and 30 columns, and its axes."""
    (a, b), c = product(20, 30, 7)
    old, row = tensor(20, 30, name="old"), tensor(30, name="row")
    func = te.create_prim_func([a, b, old, row, build(c, old, row)])
    stage, *rest = stages(func)
    (epilogue,) = epilogues_of(stage, rest, list(func.body.block.alloc_buffers))
    return EpilogueStore(epilogue, blocks_of(func.body)[epilogue.stage.name]), stage.spatial


def test_steps_of_a_map():
    result_store, axes = result_store_of(lambda c, old, row: topi.add(old, c))
    assert [result_store.step(axis) for axis in axes] == [
        None,
        1,
    ]  # what is added jumps along rows, too
    assert result_store.once


def test_steps_of_a_map_that_stores_in_another_order():
    result_store, axes = result_store_of(lambda c, old, row: topi.multiply(topi.transpose(c), 2.0))
    assert [result_store.step(axis) for axis in axes] == [1, 20]


def test_a_broadcast_row_may_be_read_in_vectors():
    result_store, axes = result_store_of(lambda c, old, row: topi.add(c, row))
    assert result_store.step(axes[1]) == 1
    assert not result_store.once  # the result cannot lie where the row is


def test_a_read_across_lines_is_no_vector():
    def build(c, old, row):
        return te.compute((30, 20), lambda j, i: c[i, j] + old[i, j])

    result_store, axes = result_store_of(build)
    assert result_store.step(axes[0]) is None  # the store is contiguous, the other read is not
