"""Stages in order, and rewritten to read other tensors."""

import numpy as np
import pytest
from tvm import te

from graphgrad.errors import ArgumentError
from graphgrad.fallback.graph import all_operations, operations, replace_inputs, rewritten
from graphgrad.fallback.walk import identity, tensor_key
from tests.fallback.interpreter import evaluate

X, Z = (te.placeholder((3,), "float64", name=name) for name in "xz")
DOUBLED = te.compute((3,), lambda i: 2.0 * X[i], name="doubled")
SUMMED = te.compute((3,), lambda i: DOUBLED[i] + X[i], name="summed")


class UnknownOp:
    """Stands for a kind of stage that is not known: TVM lets nobody define one."""

    name = "mystery"
    input_tensors = (X,)


def test_operations_come_behind_what_they_read():
    assert [op.name for op in operations(SUMMED)] == ["x", "doubled", "summed"]


def test_all_operations_are_those_inside_scans_too_but_not_above_known_ones():
    state = te.placeholder((4, 3), "float64", name="state")
    first = te.compute((1, 3), lambda _, i: DOUBLED[i], name="first")
    update = te.compute((4, 3), lambda t, i: state[t - 1, i] + X[i], name="update")
    scanned = te.scan(first, update, state)
    names = [op.name for op in all_operations([scanned], {tensor_key(DOUBLED)})]
    assert sorted(names) == ["first", "scan", "state", "update", "x"]
    assert "update" not in [op.name for op in operations(scanned)]
    assert all_operations([scanned], {tensor_key(scanned)}) == []


def test_rewritten_stages_read_what_stands_for_others():
    (result,) = rewritten([SUMMED], lambda op: None, {tensor_key(X): Z})
    assert [op.name for op in operations(result)] == ["z", "doubled", "summed"]
    values = np.arange(3.0)
    np.testing.assert_array_equal(evaluate([result], [(Z, values)])[0], 3 * values)


def test_a_stage_that_reads_the_same_is_itself():
    assert identity(replace_inputs(SUMMED.op, {tensor_key(Z): X})) == identity(SUMMED.op)


def test_an_unknown_stage_is_refused():
    with pytest.raises(ArgumentError, match=r"mystery is a UnknownOp.*write it as te\.compute"):
        replace_inputs(UnknownOp(), {tensor_key(X): Z})
