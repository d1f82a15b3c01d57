"""Sinks: where results go, and how far apart neighbors are there."""

import pytest
from tvm import te, topi

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.contraction import EpilogueSink, blocks_of
from graphgrad.lower.kernels.epilogue import epilogues_of
from tests.lower.cpu.contraction.stages import Kernel, product
from tests.lower.kernel_programs import tensor


@pytest.mark.parametrize("flip", [False, True])
def test_steps_of_a_plain_store(flip):
    kernel = Kernel(product(20, 30, 7, flip=flip))
    steps = [kernel.sink.step(kernel.axis(name)) for name in "ij"]
    assert steps == ([1, 20] if flip else [30, 1])
    assert not kernel.sink.once


def sink_of(build):
    """Return the sink of a map behind a matrix product of 20 rows and 30 columns, and its axes."""
    (a, b), c = product(20, 30, 7)
    old, row = tensor(20, 30, name="old"), tensor(30, name="row")
    func = te.create_prim_func([a, b, old, row, build(c, old, row)])
    stage, *rest = stages(func)
    (epilogue,) = epilogues_of(stage, rest, list(func.body.block.alloc_buffers))
    return EpilogueSink(epilogue, blocks_of(func.body)[epilogue.stage.name]), stage.spatial


def test_steps_of_a_map():
    sink, axes = sink_of(lambda c, old, row: topi.add(old, c))
    assert [sink.step(axis) for axis in axes] == [None, 1]  # what is added jumps along rows, too
    assert sink.once


def test_steps_of_a_map_that_stores_in_another_order():
    sink, axes = sink_of(lambda c, old, row: topi.multiply(topi.transpose(c), 2.0))
    assert [sink.step(axis) for axis in axes] == [1, 20]


def test_a_broadcast_row_may_be_read_in_vectors():
    sink, axes = sink_of(lambda c, old, row: topi.add(c, row))
    assert sink.step(axes[1]) == 1
    assert not sink.once  # the result cannot lie where the row is


def test_a_read_across_lines_is_no_vector():
    def build(c, old, row):
        return te.compute((30, 20), lambda j, i: c[i, j] + old[i, j])

    sink, axes = sink_of(build)
    assert sink.step(axes[0]) is None  # the store is contiguous, the other read is not
