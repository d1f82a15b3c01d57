"""What a step reads from before it may be no row at the first times, which are not computed."""

import numpy as np
import pytest
import tvm
from tvm import te

from graphgrad.fallback import create_prim_func
from tests.running import compile_library


def shifted(x):
    """Two states: one is what was computed a step ago, the other adds that up."""
    states = [te.placeholder((6, 4), "float64", name=name) for name in ("S", "Q")]
    computed = te.compute((6, 4), lambda t, i: te.exp(x(t, i)), name="computed")
    before = te.compute((6, 4), lambda t, i: computed(t - 1, i), name="before")
    added = te.compute(
        (6, 4), lambda t, i: 0.5 * states[1](t - 1, i) + before(t, i) * before(t, i), name="added"
    )
    first = te.compute((1, 4), lambda _, i: x(0, i), name="first")
    return te.scan([first, first], [before, added], states)


def summed(x):
    """A reduction over the rows up to three steps ago."""
    state = te.placeholder((6, 4), "float64", name="S")
    computed = te.compute((6, 4), lambda t, i: te.exp(x(t, i)), name="computed")
    k = te.reduce_axis((0, 3), name="k")
    window = te.compute((6, 4), lambda t, i: te.sum(computed(t - k, i), axis=k), name="window")
    update = te.compute((6, 4), lambda t, i: 0.5 * state(t - 1, i) + window(t, i), name="update")
    first = te.compute((3, 4), x, name="first")
    return [te.scan(first, update, state)]


def expected_shifted(x):
    before = np.concatenate([x[:1], np.exp(x[:5])])
    added = [x[0]]
    for row in before[1:]:
        added.append(0.5 * added[-1] + row * row)
    return [before, np.stack(added)]


def expected_summed(x):
    rows = [*x[:3]]
    for t in range(3, 6):
        rows.append(0.5 * rows[-1] + np.exp(x[t - 2 : t + 1]).sum(0))
    return [np.stack(rows)]


def test_a_sum_that_others_read_too_is_computed_once():
    """As a cotangent that comes to a scan: its last row is the first of the scan in reverse."""
    x = te.placeholder((6, 4, 3), "float64", name="x")
    k = te.reduce_axis((0, 3), name="k")
    sums = te.compute((6, 4), lambda t, i: te.sum(x(t, i, k), axis=k), name="sums")
    first = te.compute((1, 4), lambda _, i: sums(5, i), name="first")
    state = te.placeholder((6, 4), "float64", name="S")
    update = te.compute((6, 4), lambda t, i: state(t - 1, i) + sums(5 - t, i), name="update")
    states = te.scan(first, update, state)
    func = create_prim_func([x, states])
    assert func.script().count('T.sblock("sums') == 1
    values = np.random.default_rng(0).uniform(-1, 1, (6, 4, 3))
    result = tvm.runtime.tensor(np.full((6, 4), np.nan))
    compile_library(func)(tvm.runtime.tensor(values), result)
    np.testing.assert_allclose(result.numpy(), np.cumsum(values.sum(2)[::-1], 0), rtol=1e-12)


@pytest.mark.parametrize(
    ("build", "expected"),
    [(shifted, expected_shifted), (summed, expected_summed)],
    ids=["shifted", "summed"],
)
def test_stages_that_depend_on_no_state_read_nothing_outside(build, expected):
    x = te.placeholder((6, 4), "float64", name="x")
    outputs = build(x)
    func = create_prim_func([x, *outputs])
    values = np.random.default_rng(0).uniform(-1, 1, (6, 4))
    results = [tvm.runtime.tensor(np.full((6, 4), np.nan)) for _ in outputs]
    compile_library(func)(tvm.runtime.tensor(values), *results)
    for ours, theirs in zip(results, expected(values), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-12)
