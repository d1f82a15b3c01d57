"""Deep stages cut into shallow ones: same values, few levels, what is guarded stays guarded."""

import numpy as np
import pytest
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.fallback.cut import MAX_LEVELS, cut
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations
from graphgrad.fallback.lowering.prim_func import create_prim_func
from graphgrad.fallback.walk import children, identity, postorder, tensor_key
from tests.fallback.interpreter import evaluate
from tests.fallback.running import executable, run

A = te.placeholder((5,), "float64", name="A")
B = te.placeholder((5, 4), "float64", name="B")
VALUES = np.array([0.5, -1.0, 1.2, -0.25, 0.75])
TABLE = np.linspace(-1.0, 1.0, 20).reshape(5, 4)
KNOWN = [(A, VALUES), (B, TABLE)]
DEPTH = 450


def chain(value, other, depth=DEPTH):
    for _ in range(depth):
        value = other * value * 0.5 + 0.25
    return value


def map_stage(i):
    return chain(A(i), A(i))


def under_a_guard(i):
    """Loads behind the first element, which a condition around all of it keeps out."""
    return tirx.if_then_else(i > 0, chain(A(i - 1), A(i - 1)), -1.0)


def under_two_guards(i):
    """What two branches share, each of which protects it, and none of which is always taken."""
    behind = chain(A(i - 1), A(i - 1))
    first = tirx.if_then_else(i > 1, behind * 2.0, 1.0)
    return first + tirx.if_then_else(i > 2, behind + A(i), 0.0)


def choices(i):
    """Conditions nested as deep as the values, each of which the next one needs."""
    value = A(i)
    for k in range(DEPTH, 0, -1):
        value = tirx.if_then_else(i * 2 < k % 7, A(i) + 0.001 * k, value * 0.999)
    return value


def bindings(i):
    value, bound = A(i), []
    for k in range(MAX_LEVELS + 50):
        var = tirx.Var(f"v{k}", "float64")
        bound.append((var, value))
        value = var * var * 0.5 + A(i) * 0.1
    for var, inner in reversed(bound):
        value = prim.Let(var, inner, value)
    return value


def integers(i):
    index = i
    for k in range(DEPTH):
        index = tirx.floormod(index + k, 5)
    return A(index)


MAPS = [map_stage, under_a_guard, under_two_guards, choices, bindings, integers]


def stage(body):
    return te.compute((5,), body, name="y")


def row_sums():
    k = te.reduce_axis((0, 4), name="k")
    deep = lambda i: chain(B(i, k.var), A(i))  # noqa: E731
    return te.compute((5,), lambda i: te.sum(deep(i), axis=k), name="y")


def sums_where():
    """The condition of a reduction protects what it reduces; its loop does not start at 0."""
    k = te.reduce_axis((1, 7), name="k")

    def body(i):
        return te.sum(chain(B(i, k.var - 2), A(i)), axis=k, where=tirx.all(k.var > 1, k.var < 6))

    return te.compute((5,), body, name="y")


def pairs():
    k = te.reduce_axis((0, 4), name="k")
    best = te.comm_reducer(
        lambda a, b: (tirx.max(a[0], b[0]), a[1] + b[1]),
        lambda t, u: (tirx.min_value(t), tirx.const(0, u)),
    )
    value = lambda i: chain(B(i, k.var), A(i))  # noqa: E731
    both = te.compute((5,), lambda i: best((value(i), value(i) * 2.0), axis=k), name="y")
    return both[1]


def scalar():
    return te.compute((), lambda: chain(A(2), A(3)), name="y")


STAGES = [*MAPS, row_sums, sums_where, pairs, scalar]


def deep_stage(make):
    return stage(make) if make in MAPS else make()


def levels(op):
    """Return how deep the expressions of a stage are nested."""
    body = op.body[0]
    roots = [body.condition, *body.source] if isinstance(body, tirx.Reduce) else list(op.body)
    depth = {}
    for node in postorder(*roots):
        below = (depth[identity(part)] for part in children(node))
        depth[identity(node)] = 1 + max(below, default=0)
    return max(depth.values())


def deepest(*tensors):
    return max(levels(op) for op in operations(*tensors) if isinstance(op, te.ComputeOp))


@pytest.mark.parametrize("make", STAGES, ids=lambda f: f.__name__)
def test_values_are_the_same_from_shallow_stages(make):
    deep = deep_stage(make)
    (shallow,) = cut([deep])
    assert deepest(deep) > MAX_LEVELS >= deepest(shallow)
    expected, given = evaluate([deep, shallow], KNOWN)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(given, expected)


COMPILED = [make for make in STAGES if make is not integers]
"""Without what TVM's simplifier does not come back from, however shallow the stages."""


@pytest.mark.parametrize("make", COMPILED, ids=lambda f: f.__name__)
def test_functions_of_deep_stages_compile_and_agree(make):
    deep = deep_stage(make)
    (expected,) = evaluate([deep], KNOWN)
    out = np.full(expected.shape, np.nan)
    *_, given = run(create_prim_func([A, B, deep]), VALUES, TABLE, out)
    np.testing.assert_allclose(given, expected, rtol=1e-12)


@pytest.mark.parametrize("make", COMPILED, ids=lambda f: f.__name__)
def test_gradients_of_deep_stages_are_shallow_and_right(make):
    deep = deep_stage(make)
    gradients = te_gradient(deep, [A, B])
    given = operations(deep)
    fresh = [op for op in operations(*gradients) if not any(op.same_as(other) for other in given)]
    assert max(levels(op) for op in fresh if isinstance(op, te.ComputeOp)) <= MAX_LEVELS
    generator = np.random.default_rng(0)
    for tensor, array, gradient in zip((A, B), (VALUES, TABLE), gradients, strict=True):
        direction = generator.standard_normal(array.shape)
        ends = []
        for sign in (1, -1):
            step = sign * 1e-6 * direction
            moved = [(t, a + step if t is tensor else a) for t, a in KNOWN]
            ends += [value.sum() for value in evaluate([deep], moved)]
        (slope,) = evaluate([gradient], KNOWN)
        expected = (ends[0] - ends[1]) / 2e-6
        assert abs((slope * direction).sum() - expected) < 1e-6 * max(1.0, abs(expected))


def test_a_part_is_saved_over_the_loops_that_it_depends_on():
    k = te.reduce_axis((0, 4), name="k")
    deep = te.compute((5, 3), lambda i, j: te.sum(chain(A(i), A(i)) * B(i, k) * j, axis=k))
    (shallow,) = cut([deep])
    saved = [op for op in operations(shallow) if "_part" in op.name]
    assert saved
    assert all([int(e) for e in op.output(0).shape] == [5] for op in saved)


def test_shallow_stages_and_known_ones_stay_as_they_are():
    shallow = te.compute((5,), lambda i: A(i) * 2.0)
    deep = stage(map_stage)
    assert tensor_key(cut([shallow])[0]) == tensor_key(shallow)
    assert tensor_key(cut([deep], {tensor_key(deep): deep})[0]) == tensor_key(deep)


def test_symbolic_extents():
    n = te.var("n", "int64")
    x = te.placeholder((n,), "float64", name="x")
    deep = te.compute((n,), lambda i: chain(x(i), x(i), 320), name="y")
    (gradient,) = te_gradient(deep, [x])
    assert deepest(*cut([deep, gradient])) <= MAX_LEVELS
    call = executable(create_prim_func([x, deep, gradient]))
    for size in (0, 1, 3):
        array = np.linspace(0.1, 0.9, size)
        _, value, slope = call(array, np.full(size, np.nan), np.full(size, np.nan))
        np.testing.assert_allclose(value, 0.25 / (1 - 0.5 * array))
        np.testing.assert_allclose(slope, 0.125 / (1 - 0.5 * array) ** 2)
