"""Functions without large bindings compute the same, and compile where those with them do not."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir import prim

import graphgrad as gg
from graphgrad.fallback.lowering.explicit_bindings import bind_shared_values
from graphgrad.fallback.lowering.prim_func import create_prim_func
from tests.fallback import running
from tests.running import compile_library

VALUES = np.array([0.3, -0.7, 0.05, 0.9])

STEPS = {
    "product": (lambda v: v * v * 0.5 + 0.2, lambda v: v * v * 0.5 + 0.2),
    "select": (
        lambda v: tirx.Select(v > 0.1, v * 0.5, v + 1.0),
        lambda v: np.where(v > 0.1, v * 0.5, v + 1.0),
    ),
    "choice": (
        lambda v: tirx.if_then_else(v > 0.1, v * 0.5, v + 1.0),
        lambda v: np.where(v > 0.1, v * 0.5, v + 1.0),
    ),
    "quotient": (lambda v: v / (v * v + 1.0), lambda v: v / (v * v + 1.0)),
}


def bound(start, step, depth, rest=lambda v: v):
    """Bind each step to a variable of its own."""
    variables = [tirx.Var(f"v{k}", "float64") for k in range(depth + 1)]
    values = [start, *(step(v) for v in variables[:-1])]
    result = rest(variables[-1])
    for variable, value in reversed(list(zip(variables, values, strict=True))):
        result = prim.Let(variable, value, result)
    return result


def run(body):
    x = te.placeholder((4,), "float64", name="x")
    y = te.compute((4,), lambda i: body(x, i), name="y")
    func = bind_shared_values(te.create_prim_func([x, y]))
    result = tvm.runtime.tensor(np.full(4, np.nan))
    compile_library(func)(tvm.runtime.tensor(VALUES), result)
    return result.numpy()


@pytest.mark.parametrize("depth", [1, 60])
@pytest.mark.parametrize("name", STEPS)
def test_long_chains_compile(name, depth):
    symbolic, numeric = STEPS[name]
    expected = VALUES
    for _ in range(depth):
        expected = numeric(expected)
    given = run(lambda x, i: bound(x(i), symbolic, depth))
    np.testing.assert_allclose(given, expected, rtol=1e-12)


def test_what_a_condition_protects_stays_protected():
    symbolic, numeric = STEPS["product"]

    def body(x, i):
        inside = bound(x(i + 1), symbolic, 3)  # outside of the tensor at the last element
        return tirx.if_then_else(i < 3, inside, bound(x(i), symbolic, 1))

    ahead = VALUES[1:]
    for _ in range(3):
        ahead = numeric(ahead)
    np.testing.assert_allclose(run(body), [*ahead, numeric(VALUES[3])], rtol=1e-12)


def test_indices_read_bound_values():
    def body(x, i):
        return bound(x(i), STEPS["product"][0], 2, lambda v: x(tirx.Cast("int32", v > 0.1)))

    expected = VALUES
    for _ in range(2):
        expected = STEPS["product"][1](expected)
    np.testing.assert_array_equal(run(body), VALUES[(expected > 0.1).astype(int)])


def test_integers_read_inside_branches_compile():
    def lookup(i):
        row = te.floor(at[i]).astype("int32")
        weight = at[i] - te.floor(at[i])
        inside = tirx.all(row >= 0, row < 5)
        return weight * tirx.if_then_else(inside, table[row], tirx.const(0.0, "float64"))

    table = te.placeholder((5,), "float64", name="table")
    at = te.placeholder((4,), "float64", name="at")
    (gradient,) = gg.te_gradient(te.compute((4,), lookup, name="y"), table)
    places = np.array([-0.5, 1.25, 4.5, 5.75])
    (result,) = running.run(create_prim_func([at, gradient]), places, np.full(5, np.nan))[1:]
    np.testing.assert_array_equal(result, [0.0, 0.25, 0.0, 0.0, 0.5])


def test_short_indices_are_put_in_for_their_variables():
    def body(x, i):
        var = tirx.Var("at", "int32")
        value = tirx.if_then_else(var >= 1, x(var) * x(var - 1), tirx.const(0.0, "float64"))
        return prim.Let(var, 3 - i, value)

    expected = [*(VALUES[1:] * VALUES[:-1])[::-1], 0.0]
    np.testing.assert_array_equal(run(body), expected)


def test_stages_that_bind_the_same_variable():
    """The first keeps it in local memory, the second binds it."""
    v = tirx.Var("v", "float64")
    x = te.placeholder((4,), "float64", name="x")
    first = te.compute(
        (4,), lambda i: tirx.if_then_else(i % 3 < 2, prim.Let(v, x(i) * 2.0, v * v), 0.0), name="a"
    )
    second = te.compute((4,), lambda i: prim.Let(v, x(i) + 1.0, v * v), name="b")
    func = bind_shared_values(te.create_prim_func([x, first, second]))
    assert number_of_bindings(func) == 1
    results = [tvm.runtime.tensor(np.full(4, np.nan)) for _ in range(2)]
    compile_library(func)(tvm.runtime.tensor(VALUES), *results)
    np.testing.assert_allclose(
        results[0].numpy(), [*(2 * VALUES[:2]) ** 2, 0, (2 * VALUES[3]) ** 2]
    )
    np.testing.assert_allclose(results[1].numpy(), (VALUES + 1) ** 2)


def number_of_bindings(func):
    found = []
    tvm_ffi.structural_walk(func.body, (prim.Let, found.append))
    return len(found)


@pytest.mark.parametrize(("depth", "left"), [(2, 3), (20, 0)])
def test_small_bindings_stay_for_schedules(depth, left):
    x = te.placeholder((4,), "float64", name="x")
    y = te.compute((4,), lambda i: bound(x(i), STEPS["product"][0], depth), name="y")
    stock = te.create_prim_func([x, y])
    assert number_of_bindings(bind_shared_values(stock)) == left
    assert number_of_bindings(bind_shared_values(stock, small_stay=False)) == 0


@pytest.mark.parametrize("length", [4, te.var("n")], ids=["static", "symbolic"])
def test_bindings_of_recurrences(length):
    state = te.placeholder((length,), "float64", name="state")
    start = te.compute((1,), lambda _: tirx.const(0.3, "float64"))
    step = te.compute((length,), lambda t: bound(state(t - 1), STEPS["select"][0], 24))
    y = te.scan(start, step, state)
    args = [y] if length == 4 else [te.placeholder((length,), "float64", name="x"), y]
    result = tvm.runtime.tensor(np.full(4, np.nan))
    call = compile_library(create_prim_func(args))
    call(*[result] if length == 4 else [tvm.runtime.tensor(VALUES), result])
    expected = [0.3]
    for _ in range(3):
        value = expected[-1]
        for _ in range(24):
            value = STEPS["select"][1](value)
        expected.append(value)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12)


def test_functions_without_bindings_stay_as_they_are():
    x = te.placeholder((4,), "float64", name="x")
    func = te.create_prim_func([x, te.compute((4,), lambda i: x[i] * 2.0)])
    assert tvm_ffi.structural_equal(bind_shared_values(func), func)


def test_conditions_that_a_binding_kept_apart_do_not_meet():
    x = te.placeholder((4,), "float64", name="x")
    place = tirx.Var("place", "int32")

    def body(i):
        # Only where i is 0, the load is inside; TVM would evaluate both sides of an `and`.
        inner = tirx.if_then_else(x[i * (1 << 26)] < x[place], x[place], 0.0)
        bound = tirx.Let(place, (i * 5 + 2) % 4, inner)
        return tirx.if_then_else(i < 1, bound, 0.0)

    y = te.compute((4,), body, name="y")
    func = create_prim_func([x, y])
    joined = tvm.tirx.transform.StmtSimplify()(tvm.IRModule({"main": func}))["main"]
    conditions = []
    tvm_ffi.structural_walk(joined.body, (prim.And, conditions.append))
    assert not any("x[" in str(condition) for condition in conditions)
    values = np.linspace(1.0, 2.0, 4)
    _, found = running.run(func, values, *running.unwritten(y))
    np.testing.assert_array_equal(found, [values[2], 0.0, 0.0, 0.0])
