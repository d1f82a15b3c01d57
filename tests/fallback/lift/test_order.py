"""Which loops of a kernel are taken for reductions, and which go on from iteration to iteration."""

import pytest
from tvm import te

from graphgrad.fallback.graph import operations
from graphgrad.fallback.lift.prim_func import lifted
from tests.fallback.lift.plain_kernels import (
    begun_after_another_element,
    begun_anew_in_each_iteration,
    begun_with_what_changes,
    largest_pair,
)
from tests.fallback.lift.test_prim_func import split_loops
from tests.labels import label


def _scans(func, inputs):
    outputs = lifted(func, range(inputs, len(func.params))).outputs
    return sum(isinstance(op, te.ScanOp) for op in operations(*outputs))


@pytest.mark.parametrize("func", [split_loops, largest_pair], ids=label)
def test_what_begins_each_element_once_is_a_reduction(func):
    assert _scans(func, 1) == 0


@pytest.mark.parametrize(
    ("func", "inputs"),
    [
        (begun_anew_in_each_iteration, 1),
        (begun_with_what_changes, 2),
        (begun_after_another_element, 1),
    ],
    ids=["begun anew", "begun with what changes", "begun after another element"],
)
def test_what_begins_anew_goes_from_iteration_to_iteration(func, inputs):
    assert _scans(func, inputs) == 1
