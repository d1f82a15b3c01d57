"""Rows of programs, each computed for itself, and stacked again, against the programs."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.errors import ArgumentError
from graphgrad.fallback.graph import operations, rewritten
from graphgrad.fallback.indices.index_system import Axis
from graphgrad.fallback.scans.slices import Slicing
from graphgrad.fallback.scans.stacks import Stacking
from graphgrad.fallback.scatter import scatters_of, separated
from tests.fallback.choices import Choices
from tests.fallback.interpreter import evaluate
from tests.fallback.judge import with_heads
from tests.fallback.programs import random_program


def rows_of(tensor):
    """Return the loop over a tensor's rows, one row and the stages of that."""
    (tensor,) = rewritten([tensor], separated)
    dtype = str(tensor.shape[0].ty)
    loop = Axis(te.var("row", dtype), tirx.const(0, dtype), tensor.shape[0])
    stages = [
        op
        for op in operations(tensor)
        if isinstance(op, te.ComputeOp | te.ScanOp) or scatters_of(op)
    ]
    slicing = Slicing(stages, loop, {})
    (row,) = slicing.tensors([tensor], loop.var)
    return loop, row, slicing.made


def check(tensors, known):
    """Compare tensors with their rows stacked; return how many were compared."""
    tensors = [tensor for tensor in tensors if len(tensor.shape)]
    compared = 0
    for tensor in tensors:
        try:
            loop, row, stages = rows_of(tensor)
        except ArgumentError as error:
            assert "inside another" in str(error)  # a scan that is read along a slanted line
            continue
        assert len(row.shape) == len(tensor.shape) - 1
        restacked = Stacking(loop).tensors([row], stages)
        given, expected = evaluate([*restacked, tensor], known)
        np.testing.assert_allclose(given, expected, rtol=1e-9, atol=1e-12)
        compared += 1
    return compared


@pytest.mark.parametrize("block", range(4))
def test_random_programs_are_the_same_row_by_row(block):
    compared = 0
    for seed in range(15 * block, 15 * (block + 1)):
        program = random_program(Choices(seed))
        compared += check(program.outputs, program.known)
    assert compared > 10


@pytest.mark.parametrize("block", range(4))
def test_random_gradients_are_the_same_row_by_row(block):
    """Derived stages: pads, residue classes, contractions, scatters."""
    compared = 0
    for seed in range(6 * block, 6 * (block + 1)):
        generator = np.random.default_rng(seed)
        _, gradients = with_heads(random_program(Choices(seed)), generator)
        compared += check(gradients.outputs, gradients.known)
    assert compared > 5
