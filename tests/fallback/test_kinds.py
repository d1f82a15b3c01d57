"""What is written on derived stages, and that it is read again where they are lowered."""

import numpy as np
import pytest
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import SBlock

from graphgrad.fallback import create_prim_func
from graphgrad.fallback.indices.linear_system import element_axes
from graphgrad.fallback.kinds import (
    Kind,
    copied,
    iteration,
    kind_of,
    map_stage,
    marked,
    stage_over,
)
from tests.fallback.interpreter import evaluate

X = te.placeholder((2, 3), "float32", name="x")


def stage(attributes):
    return te.compute((2, 3), lambda i, j: X[i, j] * 2.0, name="y", attrs=attributes)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_kinds_are_read_as_they_are_written(kind):
    assert kind_of(stage(marked(kind)).op) is kind


def test_what_is_not_derived_has_no_kind():
    state = te.placeholder((3, 2), "float32")
    init = te.compute((1, 2), lambda _, i: tirx.const(1.0, "float32"))
    update = te.compute((3, 2), lambda t, i: state[t - 1, i] * 2.0)
    for tensor in (X, stage({}), stage({"other": 1}), te.scan(init, update, state)):
        assert kind_of(tensor.op) is None


@pytest.mark.parametrize("kind", [Kind.MAP, Kind.CONTRACTION], ids=lambda kind: kind.value)
def test_kinds_become_annotations_of_blocks(kind):
    found = []

    def visit(block):
        if block.name_hint == "y":
            found.append(str(block.annotations["graphgrad.kind"]))

    tvm_ffi.structural_walk(create_prim_func([X, stage(marked(kind))]), (SBlock, visit))
    assert found == [kind.value]


def test_a_map_has_no_other_attributes():
    assert dict(map_stage((2,), lambda i: X[i, 0], "first").op.attrs) == marked(Kind.MAP)


def test_a_copy_has_the_values_and_the_very_extents_that_are_given():
    shape = [tirx.const(2, "int32"), tirx.const(3, "int32")]
    copy = copied(X, "copy", shape)
    assert all(a.same_as(b) for a, b in zip(copy.shape, shape, strict=True))
    assert (copy.op.name, kind_of(copy.op)) == ("copy", Kind.MAP)
    array = np.arange(6, dtype="float32").reshape(2, 3)
    for tensor in (copy, copied(X, "other")):
        np.testing.assert_array_equal(evaluate([tensor], [(X, array)])[0], array)


def test_a_copy_of_a_single_number():
    single = te.placeholder((), "float32", name="single")
    (given,) = evaluate([copied(single, "copy")], [(single, np.float32(3.0))])
    assert given == 3.0


def test_a_stage_over_given_loops():
    rows, columns = element_axes(X.shape)
    loops = [iteration(columns, tirx.IterVar.CommReduce)]
    total = te.sum(X(rows.var, columns.var), axis=loops)
    summed = stage_over([rows], total, "summed", Kind.REDUCE)
    values = np.arange(6, dtype="float32").reshape(2, 3)
    assert kind_of(summed.op) is Kind.REDUCE
    np.testing.assert_array_equal(evaluate([summed], [(X, values)])[0], values.sum(1))
