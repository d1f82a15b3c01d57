"""Recurrences by key: their derivatives of every order, and what they are over sorted points."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.fallback.externs.writes import by_sorting
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations
from graphgrad.fallback.indices.linear_system import element_axes
from graphgrad.fallback.keyed import TAG, Keyed, keyed, keyed_of
from tests.fallback.differences import check, compiled
from tests.fallback.interpreter import evaluate
from tests.peers import peer
from tests.running import function, run

POINTS, ROWS, COLUMNS = 6, 4, 3
DATA = te.placeholder((ROWS, COLUMNS), "float64", name="data")
FACTORS = te.placeholder((POINTS, COLUMNS), "float64", name="factors")
TERMS = te.placeholder((POINTS, COLUMNS), "float64", name="terms")
PLACES = te.placeholder((POINTS,), "int32", name="places")
PLACE_VALUES = np.array([2, 0, 2, 9, 2, -1], "int32")
"""One key of three points, and two points that have none."""

KINDS = {"recurrence": (FACTORS, TERMS), "product": (FACTORS, None), "swap": (None, TERMS)}


def recurrence(kind, reverse=False):
    """Each row of points is at a place that another tensor tells."""
    axes = element_axes([tirx.const(POINTS, "int32"), tirx.const(COLUMNS, "int32")], "t")
    row, column = (axis.var for axis in axes)
    guards = [PLACES(row) >= 0, PLACES(row) < ROWS]
    found = Keyed(axes, [PLACES(row), column], guards, DATA, *KINDS[kind])
    return found.reversed() if reverse else found


def operands(kind):
    generator = np.random.default_rng(2)
    tensors = [tensor for tensor in (DATA, *KINDS[kind]) if tensor is not None]
    return [(t, generator.standard_normal([int(e) for e in t.shape])) for t in tensors]


def by_numpy(kind, reverse, data, steps):
    held, found = data.copy(), np.zeros((POINTS, COLUMNS))
    factors = steps[0] if kind != "swap" else np.zeros_like(steps[0])
    terms = steps[-1] if kind != "product" else np.zeros_like(steps[0])
    for t in reversed(range(POINTS)) if reverse else range(POINTS):
        place = PLACE_VALUES[t]
        if 0 <= place < ROWS:
            found[t] = held[place]
            held[place] = factors[t] * held[place] + terms[t]
    return found, held


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_what_they_are_over_sorted_points(kind, reverse):
    outputs = keyed(recurrence(kind, reverse))
    (_, data), *steps = operands(kind)
    expected = by_numpy(kind, reverse, data, [array for _, array in steps])
    known = [*operands(kind), (PLACES, PLACE_VALUES)]
    tensors, arrays = zip(*known, strict=True)
    for results in (compiled(outputs, tensors)(arrays), evaluate(by_sorting(outputs[0].op), known)):
        for given, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(given, wanted, rtol=1e-14)


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_their_own(kind, reverse):
    outputs = keyed(recurrence(kind, reverse))
    check(outputs, operands(kind), [(PLACES, PLACE_VALUES)], order=2)


def test_a_cotangent_of_one_result_alone():
    found, left = keyed(recurrence("recurrence"))
    for output in (found, left):
        check([output], operands("recurrence"), [(PLACES, PLACE_VALUES)])


def test_data_that_is_its_own_factors():
    """One tensor in two places of the recurrence."""
    axes = element_axes([tirx.const(ROWS, "int32"), tirx.const(COLUMNS, "int32")], "t")
    row, column = (axis.var for axis in axes)
    key = [tirx.floormod(row * 2, ROWS), column]
    outputs = keyed(Keyed(axes, key, [], DATA, DATA, DATA))
    check(outputs, operands("swap")[:1], order=2)


def test_a_gradient_visits_each_point_once():
    """As its derivative does: nothing is sorted."""
    gradients = te_gradient(list(keyed(recurrence("recurrence"))), [DATA, FACTORS, TERMS])
    externs = [op for op in operations(*gradients) if isinstance(op, te.ExternOp)]
    assert len(externs) == 2  # forwards and backwards
    assert all(keyed_of(op) for op in externs)


def test_twice_reversed_is_the_same():
    """Also the expressions, which would grow with every order."""
    once = recurrence("swap", reverse=True)
    again = once.reversed().reversed()
    assert again.descending == once.descending == (True, False)
    same = replace(again, data=once.data)
    assert [str(i) for i in same.indices] == [str(i) for i in once.indices]


def test_a_stage_of_the_tag_that_is_none():
    other = te.extern((3,), [], lambda _, outs: tirx.Evaluate(0), dtype="float32", tag=TAG)
    assert keyed_of(other.op) is None


@pytest.mark.parametrize("rules", ["auto", "derived"])
@pytest.mark.parametrize("reduction", ["update", "mul"])
def test_double_backward_is_that_of_torch(reduction, rules):
    torch = peer("torch")
    generator = np.random.default_rng(6)
    x, u = generator.standard_normal((4, 2)), generator.standard_normal((6, 2))
    index = np.array([[0, 1], [2, 1], [0, 1], [0, 3], [2, 1], [1, 1]])
    if reduction == "mul":
        u[2, 0] = u[4, 1] = 0.0  # a factor of several, which no quotient would do for
    ct, *heads = (generator.standard_normal(s) for s in (x.shape, x.shape, u.shape))

    def build(builder, x, index, u):
        square = builder.emit(relax.op.multiply(u, u))
        scattered = relax.op.scatter_elements(x, index, square, axis=0, reduction=reduction)
        return builder.emit(scattered)

    types = [(a.shape, str(a.dtype)) for a in (x, index, u)]
    mod = gg.vjp(gg.vjp(function(build, *types), rules=rules), func="main_vjp", rules=rules)
    results = run(mod, "main_vjp_vjp", x, index, u, ct, np.zeros_like(ct), *heads)
    leaves = [torch.tensor(array, requires_grad=True) for array in (x, u, ct)]
    rows = torch.tensor(index)
    total = leaves[0]
    for t in range(len(index)):  # torch leaves the order of repeated indices open
        at = torch.nn.functional.one_hot(rows[t], 4).T.bool()
        new = (leaves[1][t] ** 2).expand(4, 2)
        total = torch.where(at, total * new if reduction == "mul" else new, total)
    firsts = torch.autograd.grad(total, leaves[:2], leaves[2], create_graph=True)
    outer = [torch.tensor(head) for head in heads]
    seconds = torch.autograd.grad(firsts, leaves, outer, allow_unused=True)
    for given, wanted in zip(results[-3:], seconds, strict=True):
        expected = np.zeros_like(given) if wanted is None else wanted.numpy()
        np.testing.assert_allclose(given, expected, rtol=1e-12, atol=1e-12)
