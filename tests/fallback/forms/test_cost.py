"""Body evaluations are counted as they are stated."""

import pytest
from tvm import te, tirx

from graphgrad.errors import ArgumentError
from graphgrad.fallback.forms.cost import loop_points
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.indices.index_system import Axis
from graphgrad.fallback.kinds import Kind
from tests.fallback.body_evaluations import Work, body_evaluations, contraction_points


def test_every_stage_is_counted_once():
    A = te.placeholder((3, 4), name="A")
    doubled = te.compute((3, 4), lambda i, j: 2 * A[i, j], name="doubled")
    j = te.reduce_axis((0, 4), "j")
    summed = te.compute((3,), lambda i: te.sum(doubled[i, j] * doubled[i, j], axis=j), name="sums")
    both = te.compute((3, 4), lambda i, j: doubled[i, j] * summed[i], name="both")
    assert body_evaluations(both, summed) == [
        Work("doubled", None, 12, False),
        Work("sums", None, 12, True),
        Work("both", None, 12, False),
    ]
    assert contraction_points(both) == 12


def test_the_stages_of_a_gradient_carry_their_kinds():
    A = te.placeholder((3, 4), name="A")
    B = te.placeholder((4, 5), name="B")
    j = te.reduce_axis((0, 4), "j")
    C = te.compute((3, 5), lambda i, k: te.sum(A[i, j] * B[j, k], axis=j), name="C")
    head = te.placeholder((3, 5), name="head")
    (gradient,) = te_gradient(C, [A], head)
    assert body_evaluations(gradient) == [Work("C_A_g", Kind.CONTRACTION, 60, True)]


def test_a_scatter_is_counted_by_its_stores():
    A = te.placeholder((7,), name="A")
    at = te.placeholder((5,), "int32", name="at")
    B = te.compute((5,), lambda i: A[at[i]], name="B")
    (gradient,) = te_gradient(B, [A])
    (work,) = (w for w in body_evaluations(gradient) if w.kind is Kind.SCATTER)
    assert work.points == 7 + 5


def test_a_recurrence_is_counted_by_the_stages_of_its_steps():
    X = te.placeholder((6, 3), name="X")
    state = te.placeholder((6, 3), name="state")
    start = te.compute((1, 3), lambda _, i: X[0, i], name="start")
    scaled = te.compute((6, 3), lambda t, i: 2.0 * state[t - 1, i], name="scaled")
    update = te.compute((6, 3), lambda t, i: scaled[t, i] + X[t, i], name="update")
    result = te.scan(start, update, state, inputs=[X], name="steps")
    assert Work("steps", None, 36, False) in body_evaluations(result)


def test_symbolic_sizes_are_refused_or_estimated():
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] + 1.0, name="B")
    with pytest.raises(ArgumentError, match=r"the stage B has a loop of extent n"):
        body_evaluations(B)
    zero, three = tirx.const(0, "int32"), tirx.const(3, "int32")
    axes = [Axis(te.var("i"), zero, n), Axis(te.var("j"), zero, three)]
    assert loop_points(axes) == 64 * 3
    assert loop_points([Axis(te.var("i"), zero, (n + 1) // 2)]) == 32
