"""What a derivation makes and visits grows as its program does: counted, not timed."""

import sys
from types import SimpleNamespace

import pytest
from tvm import te, tirx

from graphgrad.fallback import gradient, walk
from graphgrad.fallback.bindings import shared
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations

SIZE = 64
X = te.placeholder((SIZE,), "float32", name="x")


def stage(body):
    """Return a stage; TVM walks its body as a tree, so what is shared must be bound."""
    return te.compute((SIZE,), lambda i: shared(body(i)), name="y")


def deep_body(n):
    def body(i):
        value = X[i]
        for _ in range(n):
            value = X[i] * value
        return value

    return stage(body)


def quotients(n):
    """Every derivative of which is guarded against 0 · ∞."""

    def body(i):
        value = X[i]
        for _ in range(n):
            value = 1.0 / (value + X[i])
        return value

    return stage(body)


def long_chain(n):
    tensor = X
    for _ in range(n):
        tensor = te.compute((SIZE,), lambda i: tirx.exp(tensor[i]) * 0.5, name="y")  # noqa: B023
    return tensor


def diamonds_in_a_body(n):
    def body(i):
        value = X[i]
        for _ in range(n):
            value = value * value + 0.5
        return value

    return stage(body)


def diamonds_of_stages(n):
    tensor = X
    for _ in range(n):
        tensor = te.compute(
            (SIZE,),
            lambda i: tensor[i] * tensor[SIZE - 1 - i] + 0.5,  # noqa: B023
            name="y",
        )
    return tensor


def choices_in_a_body(n):
    """Both arms of each choice share what is below."""

    def body(i):
        value = X[i]
        for k in range(n):
            value = tirx.if_then_else(value > 0.1 * k, value * 0.5, value + 1.0)
        return value

    return stage(body)


def neighbors(n):
    """Loads that a condition keeps inside the tensor, at every level."""

    def body(i):
        value = X[i]
        for _ in range(n):
            value = value * tirx.if_then_else(i > 0, X[i - 1] * value, 0.0)
        return value

    return stage(body)


def wrapped(n):
    """As many reads as terms, each an index map of its own."""

    def body(i):
        value = X[i]
        for k in range(1, n):
            value = value + X[(i + k) % SIZE] * float(k)
        return value

    return stage(body)


def mirrored(n):
    """Loads that TVM cannot prove inside, under a condition of data at every level."""

    def body(i):
        value = X[i]
        place = tirx.Select(i % 4 < 3, i % 4, 4 - i % 4)
        for k in range(n):
            value = value * tirx.if_then_else(X[i] > 0.1 * k, X[place] * value, 0.5)
        return value

    return stage(body)


FIRST = [
    (deep_body, 25),
    (quotients, 25),
    (long_chain, 25),
    (diamonds_in_a_body, 40),
    (diamonds_of_stages, 40),
    (choices_in_a_body, 20),
    (neighbors, 15),
    (wrapped, SIZE // 4),
    (mirrored, 12),
]
SECOND = [(long_chain, 10), (diamonds_in_a_body, 20), (quotients, 8), (deep_body, 75)]


@pytest.fixture
def visits(monkeypatch):
    """Count the nodes that are walked."""
    counted = SimpleNamespace(nodes=0)
    walked = walk.graph_of

    def counting(*arguments):
        order = walked(*arguments)
        counted.nodes += len(order)
        return order

    for module in list(sys.modules.values()):
        if getattr(module, "graph_of", None) is walked:
            monkeypatch.setattr(module, "graph_of", counting)
    return counted


def expressions(op):
    first = op.body[0]
    return list(first.source) if isinstance(first, tirx.Reduce) else list(op.body)


def size(tensors):
    """Return the number of nodes of all stages."""
    stages = [op for op in operations(*tensors) if isinstance(op, te.ComputeOp)]
    return sum(len(walk.postorder(*expressions(op))) for op in stages)


def second_order(tensor):
    (first,) = te_gradient(tensor, [X])
    return te_gradient(first, [X])


def growth(derive, make, n, visits):
    """Return how sizes and visits grow from n to 2n and from 2n to 4n."""
    sizes, walked = [], []
    for count in (n, 2 * n, 4 * n):
        tensor = make(count)
        visits.nodes = 0
        result = derive(tensor)
        walked.append(visits.nodes)
        sizes.append(size(result))
    return [(counts[1] - counts[0], counts[2] - counts[1]) for counts in (sizes, walked)]


@pytest.fixture
def uncut(monkeypatch):
    """Leave deep stages as they are: cutting adds to those beyond a threshold only."""
    monkeypatch.setattr(gradient, "cut", lambda tensors, known: list(tensors))


@pytest.mark.parametrize(("make", "n"), FIRST, ids=lambda p: getattr(p, "__name__", p))
def test_first_order_is_linear(make, n, visits, uncut):
    for near, far in growth(lambda y: te_gradient(y, [X]), make, n, visits):
        assert far < 2.5 * near


@pytest.mark.parametrize(("make", "n"), SECOND, ids=lambda p: getattr(p, "__name__", p))
def test_second_order_is_linear(make, n, visits, uncut):
    for near, far in growth(second_order, make, n, visits):
        assert far < 2.6 * near


def test_cutting_is_linear(visits):
    for near, far in growth(lambda y: te_gradient(y, [X]), deep_body, 200, visits):
        assert far < 2.5 * near
