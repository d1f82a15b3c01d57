"""Scatters: indices that meet, conditions, bounds, and their own gradients, compiled."""

import numpy as np
import pytest
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.guarded import Guarded
from graphgrad.fallback.indices.linear_system import Axis
from graphgrad.fallback.scatter import scatter_add, scatter_of
from tests.fallback.differences import check, compiled
from tests.fallback.running import executable, unwritten

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
    total = scatter_add([tirx.const(3, "int32")], "float64", [axis], [axis.var], term, "total")
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
    term = Guarded((), tirx.const(0.0, "float64"))
    total = scatter_add([tirx.const(3, "int32")], "float64", [axis], [axis.var], term, "total")
    scatter = scatter_of(total.op)
    assert scatter is not None
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
