"""Scatters: indices that meet, conditions, bounds, and their own gradients, compiled."""

import numpy as np
import pytest
from tvm import te, tirx

import graphgrad as gg
from graphgrad.fallback import checkpointed, create_prim_func
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations
from graphgrad.fallback.guarded import Guarded
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.kinds import Kind, kind_of
from graphgrad.fallback.scatter import Scatter, scatter_add, scatters_of, separated
from tests.fallback.body_evaluations import body_evaluations
from tests.fallback.differences import check, compiled
from tests.fallback.interpreter import evaluate
from tests.fallback.running import executable, unwritten

STEPS = (1e-6, -1e-6)
X = te.placeholder((5, 2), "float64", name="x")
PLACES = te.placeholder((7,), "int32", name="places")
VALUES = np.random.default_rng(3).standard_normal((5, 2))


def loop(name, extent):
    return Axis(te.var(name), tirx.const(0, "int32"), tirx.const(extent, "int32"))


def test_reads_of_one_element_add_up_and_so_do_their_own_gradients():
    output = te.compute(
        (7, 2), lambda i, j: X(PLACES(i), j) * te.sin(X(PLACES((i + 1) % 7), 1 - j)), name="output"
    )
    places = np.array([0, 3, 3, 1, 0, 3, 4], "int32")
    check([output], [(X, VALUES)], [(PLACES, places)], order=2)


def test_loads_stay_inside_their_conditions():
    """Both the place that is read and where it is read from are outside of their tensors."""

    def body(i, j):
        inner = tirx.if_then_else(PLACES(i - 2) >= 0, X(PLACES(i - 2), j), 0.5)
        return tirx.if_then_else(i >= 2, inner * inner, 0.25)

    output = te.compute((9, 2), body, name="output")
    places = np.array([0, -100000, 3, 1, -100000, 3, 4], "int32")
    check([output], [(X, VALUES)], [(PLACES, places)], order=2)


@pytest.mark.parametrize("wanted", [False, True], ids=["fails", "holds"])
def test_conditions_on_nan(wanted):
    """A comparison with NaN fails, and so does its opposite."""
    values = te.placeholder((3,), "float64", name="values")
    axis = loop("i", 3)
    condition = values(axis.var) < 1.0
    term = Guarded(((condition, wanted),), tirx.const(2.0, "float64"))
    scatter = Scatter.of([axis], [axis.var], term)
    total = scatter_add([tirx.const(3, "int32")], "float64", [scatter], "total")
    (given,) = compiled([total], [values])([np.array([0.0, np.nan, 2.0])])
    assert given.tolist() == ([2.0, 0.0, 0.0] if wanted else [0.0, 2.0, 2.0])


def test_nothing_is_written_outside():
    """The forward pass reads outside its tensor: that is wrong, but destroys nothing."""
    output = te.compute((7, 2), lambda i, j: X(PLACES(i), j), name="output")
    gradient = te_gradient(output, [X])
    places = np.array([0, -1, 5, 1 << 30, -(1 << 30), 3, 4], "int32")
    (given,) = compiled(gradient, [X, PLACES])([VALUES, places])
    assert given[:, 0].tolist() == [1.0, 0.0, 0.0, 1.0, 1.0]


def test_terms_that_are_zero():
    axis = loop("i", 3)
    zero = Scatter([axis], [axis.var], tirx.const(0.0, "float64"), [])
    total = scatter_add([tirx.const(3, "int32")], "float64", [zero], "total")
    (scatter,) = scatters_of(total.op)
    assert float(scatter.value.value) == 0.0


def test_narrow_floats_are_summed_in_float32():
    x = te.placeholder((2,), "float16", name="x")
    places = te.placeholder((4096,), "int32", name="places")
    output = te.compute((4096,), lambda i: x(places(i)), name="output")
    gradient = te_gradient(output, [x])
    (given,) = compiled(gradient, [x, places])([np.zeros(2, "float16"), np.zeros(4096, "int32")])
    assert given.dtype == np.float16
    assert given.tolist() == [4096.0, 0.0]


def test_symbolic_sizes_that_may_be_empty():
    n, m = te.var("n", "int64"), te.var("m", "int64")
    x = te.placeholder((n,), "float64", name="x")
    places = te.placeholder((m,), "int64", name="places")
    output = te.compute((m,), lambda i: x(places(i)) * x(places(i)), name="output")
    (gradient,) = te_gradient(output, [x])
    call = executable(create_prim_func([x, places, gradient]))
    for count, reads in ((3, [2, 0, 2]), (2, []), (0, [])):
        values = np.arange(1.0, count + 1.0)
        *_, given = call(values, np.array(reads, "int64"), *unwritten(gradient, n=count))
        expected = [2 * value * reads.count(i) for i, value in enumerate(values)]
        assert given.tolist() == expected


def read_at_four_places(places=PLACES):
    """As images are sampled between their points."""
    at = [places(0), places(0) + 1, places(1) + 2, places(1)]

    def body(i, j):
        values = [X((place + i) % 5, j) for place in at]
        return values[0] * values[1] + values[2] * te.sin(values[3])

    return te.compute((3, 2), body, name="output")


FOUR = np.array([0, 3, 3, 1, 0, 3, 4], "int32")


def test_all_that_is_scattered_to_one_tensor_is_one_stage():
    """Which writes each element once, and adds what four loops over the points do."""
    (gradient,) = te_gradient(read_at_four_places(), [X])
    (scatter,) = [op for op in operations(gradient) if kind_of(op) is Kind.SCATTER]
    assert gradient.op.same_as(scatter)
    assert len(scatters_of(scatter)) == 4
    (work,) = (w for w in body_evaluations(gradient) if w.kind is Kind.SCATTER)
    assert work.points == 5 * 2 + 4 * 3 * 2


def test_several_scatters_have_gradients_of_every_order():
    check([read_at_four_places()], [(X, VALUES)], [(PLACES, FOUR)], order=2)


def test_several_scatters_have_tangents():
    output, tangent = read_at_four_places(), te.placeholder(X.shape, "float64", name="tangent")
    direction = np.random.default_rng(4).standard_normal(VALUES.shape)
    values = compiled(gg.te_jvp(output, X, tangent), [X, PLACES, tangent])
    (given,) = values([VALUES, FOUR, direction])
    ends = (evaluate([output], [(X, VALUES + s * direction), (PLACES, FOUR)]) for s in STEPS)
    ((ahead,), (behind,)) = ends
    np.testing.assert_allclose(given, (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-8)


def test_several_scatters_in_a_scan_have_gradients():
    """Those of a step become stages of their own, which can be computed for one time."""
    state, weights = te.placeholder((4, 5), "float64"), te.placeholder((5,), "float64")

    def body(t, i):
        return (state(t - 1, PLACES(i)) + state(t - 1, PLACES(i + 1))) * weights(i)

    init = te.placeholder((1, 5), "float64", name="init")
    states = te.scan(init, te.compute((4, 5), body, name="step"), state, inputs=[PLACES, weights])
    generator = np.random.default_rng(5)
    known = [(init, generator.standard_normal((1, 5))), (weights, generator.standard_normal(5))]
    check([states], known, [(PLACES, FOUR)], order=2)
    (last,) = checkpointed(states, 2)
    check([last], known, [(PLACES, FOUR)])


def test_several_scatters_are_separated_into_stages_of_one():
    (gradient,) = te_gradient(read_at_four_places(), [X])
    (total,) = separated(gradient.op)
    assert [len(scatters_of(part.op)) for part in total.op.input_tensors] == [1] * 4
    known = [(X, VALUES), (PLACES, FOUR)]
    given, expected = evaluate([total, gradient], known)
    np.testing.assert_allclose(given, expected, rtol=1e-12)
    assert separated(total.op.input_tensors[0].op) is None
    assert separated(total.op) is None
