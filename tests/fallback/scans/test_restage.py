"""Stages taken apart and put together: the same values, at a place, stacked, under conditions."""

import numpy as np
import pytest
from tvm import te, tirx, topi

from graphgrad.errors import ArgumentError
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import stop_gradient, stops_gradient
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.kinds import Kind, kind_of
from graphgrad.fallback.scans.restage import like, stage_of
from tests.fallback.choices import Choices
from tests.fallback.interpreter import evaluate
from tests.fallback.programs import random_program
from tests.labels import label

X = te.placeholder((4, 5), "float64", name="x")
PLACES = te.placeholder((5,), "int32", name="places")
KNOWN = [
    (X, np.random.default_rng(0).standard_normal((4, 5))),
    (PLACES, np.array([3, 0, 3, 1, 2], "int32")),
]


def squares():
    return te.compute((4, 5), lambda i, j: X[i, j] * X[i, j] + i.astype("float64"), name="squares")


def sums():
    tap = te.reduce_axis((1, 4), "tap")
    return te.compute((4, 5), lambda i, j: te.sum(X[tap, j] * X[i, tap], tap), name="sums")


def several():
    return te.compute((4, 5), lambda i, j: (te.sin(X[i, j]), X[3 - i, j]), name="several")


def scatter():
    read = te.compute((5, 5), lambda i, j: X[PLACES[i], j] * 2.0, name="read")
    return te_gradient(read, X)[0]


STAGES = [squares, sums, several, scatter]


def outputs(build):
    made = build()
    return [made] if isinstance(made, te.Tensor) else list(made)


def assert_equal(given, expected):
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("build", STAGES, ids=label)
def test_put_together_unchanged_it_computes_the_same(build):
    before = outputs(build)
    assert_equal(evaluate(stage_of(before[0].op).built(), KNOWN), evaluate(before, KNOWN))


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("build", STAGES, ids=label)
def test_at_a_place_it_computes_that_row(build, place):
    before = outputs(build)
    part = stage_of(before[0].op).at({0: tirx.const(place, "int32")}, [])
    assert_equal(evaluate(part.built(), KNOWN), [a[place] for a in evaluate(before, KNOWN)])


@pytest.mark.parametrize("build", STAGES, ids=label)
def test_at_a_place_that_moves_it_computes_the_rows_there(build):
    before = outputs(build)
    time = Axis(te.var("t"), tirx.const(0, "int32"), tirx.const(3, "int32"))
    part = stage_of(before[0].op).at({0: 3 - time.var}, [time])
    assert_equal(evaluate(part.built(), KNOWN), [a[:0:-1] for a in evaluate(before, KNOWN)])


@pytest.mark.parametrize("build", STAGES, ids=label)
def test_stacked_it_has_one_more_dimension(build):
    before = outputs(build)
    rows = Axis(te.var("t"), tirx.const(0, "int32"), tirx.const(2, "int32"))
    stacked = evaluate(stage_of(before[0].op).stacked(rows).built(), KNOWN)
    assert_equal(stacked, [np.stack([a, a]) for a in evaluate(before, KNOWN)])


@pytest.mark.parametrize("build", STAGES, ids=label)
def test_it_is_zero_where_a_condition_fails(build):
    """What the conditions hold for is what it was; they are in its own loops."""
    before = outputs(build)
    stage = stage_of(before[0].op)
    kept = stage.where([stage.axes[1].var < 3]).built()
    if build is scatter:
        expected = evaluate(before, KNOWN)
        expected[0][:, 3:] = 0
    else:
        expected = [np.where(np.arange(5) < 3, a, 0) for a in evaluate(before, KNOWN)]
    assert_equal(evaluate(kept, KNOWN), expected)


def test_conditions_take_a_contraction_its_kind():
    contraction = te_gradient(topi.matmul(X, te.placeholder((5, 2), "float64", name="w")), X)[0]
    stage = stage_of(contraction.op)
    assert kind_of(contraction.op) is Kind.CONTRACTION
    assert kind_of(stage.built()[0].op) is Kind.CONTRACTION
    assert kind_of(stage.where([stage.axes[0].var < 3]).built()[0].op) is Kind.REDUCE


def test_a_stage_that_stops_gradients_does_so_in_part_and_is_no_view():
    time = Axis(te.var("t"), tirx.const(0, "int32"), tirx.const(3, "int32"))
    for tensor in (squares(), topi.transpose(X), te_gradient(squares(), X)[0]):
        stage = stage_of(stop_gradient(tensor).op)
        parts = [stage, stage.at({0: tirx.const(1, "int32")}, []), stage.stacked(time)]
        parts.append(stage.where([stage.axes[0].var < 3]))
        assert all(stops_gradient(part.built()[0].op) for part in parts)
        assert not stage.is_view and not stops_gradient(stage_of(tensor.op).built()[0].op)


def test_only_a_stage_of_one_load_is_a_view():
    assert stage_of(topi.transpose(X).op).is_view
    assert not any(stage_of(outputs(build)[0].op).is_view for build in STAGES)


@pytest.mark.parametrize("seed", range(40_000, 40_010))
def test_random_stages_are_the_same_when_put_together(seed):
    program = random_program(Choices(seed))
    tensors = [t for t in program.outputs if isinstance(t.op, te.ComputeOp)]
    made = [stage_of(tensor.op).built()[tensor.value_index] for tensor in tensors]
    assert_equal(evaluate(made, program.known), evaluate(tensors, program.known))


def test_what_cannot_be_taken_apart_is_named():
    with pytest.raises(ArgumentError, match="sort_cpu inside a scan is a ExternOp"):
        stage_of(topi.sort(X).op)


def test_an_index_takes_the_dtype_of_what_it_replaces():
    assert str(like(te.var("i", "int64"), te.var("j", "int32")).ty) == "int64"
    same = te.var("k", "int32")
    assert like(te.var("i", "int32"), same).same_as(same)
