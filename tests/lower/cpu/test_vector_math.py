"""Functions as arithmetic: how exact they are, and what becomes of what is not finite."""

import math

import numpy as np
import pytest
from tvm import te, tirx
from tvm.ir import prim
from tvm.s_tir import SBlock

from graphgrad.ir.kernel_rewrite import replace_block
from graphgrad.ir.visits import replace_nodes
from graphgrad.lower.cpu.vector_math import vectorize_math
from tests.lower.kernel_programs import run as run_kernel
from tests.lower.kernel_programs import tensor

EXACT = {
    "erf": np.vectorize(math.erf),
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
RANGES = {
    "exp": (-87.3, 88.7),
    "log": (1e-44, 3e38),
    "log1p": (1e-44, 3e38),
    "rsqrt": (1e-30, 1e30),
    "sigmoid": (-87, 40),
}
SPECIAL = {
    "erf": {-np.inf: -1, np.inf: 1, -0.0: -0.0, 1e-40: 1e-40 * 2 / math.sqrt(math.pi), 5: 1},
    "exp": {-np.inf: 0, np.inf: np.inf, 0: 1, 88.8: np.inf, -104: 0, -200: 0, -90: math.exp(-90)},
    "log": {-np.inf: np.nan, np.inf: np.inf, -0.0: -np.inf, 1: 0, -1: np.nan},
    "log1p": {-np.inf: np.nan, np.inf: np.inf, -0.0: -0.0, -1: -np.inf, -2: np.nan, -1e-9: -1e-9},
    "rsqrt": {np.inf: 0, 0: np.inf, 4: 0.5},
    "sigmoid": {-np.inf: 0, np.inf: 1, 0: 0.5, 200: 1, -200: 0},
    "tanh": {-np.inf: -1, np.inf: 1, -0.0: -0.0, 1e-40: 1e-40, 50: 1, -50: -1},
}


def run(inputs, outputs, **given):
    """Run a kernel as built, and scheduled and written out."""
    return run_kernel(inputs, outputs, then=vectorize_math, **given)


def computed(name, values):
    """Return what the scheduled kernel of a function makes of some values."""
    x = tensor(len(values))
    function = getattr(tirx, name)
    y = te.compute(x.shape, lambda i: function(x[i]))
    runs = run([x], [y], values=[values])
    assert f"T.{name}(" not in runs.text
    return runs.scheduled[0]


def units(found, exact):
    """Return the largest error in units in the last place."""
    return (np.abs(found.astype("f8") - exact) / np.spacing(np.abs(exact).astype("f4"))).max()


@pytest.mark.parametrize("name", EXACT)
def test_errors_are_a_few_units_in_the_last_place(name):
    low, high = RANGES.get(name, (-9, 9))
    spread = np.geomspace if name in ("log", "log1p", "rsqrt") else np.linspace
    values = spread(low, high, 1 << 16).astype("f4")
    assert units(computed(name, values), EXACT[name](values.astype("f8"))) < 3


@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_small_arguments_keep_their_digits(name):
    values = np.geomspace(1e-30, 1, 1 << 16).astype("f4")
    assert units(computed(name, values), EXACT[name](values.astype("f8"))) < 3


def test_logarithms_of_numbers_next_to_one_keep_their_digits():
    values = np.concatenate([np.linspace(0.5, 2, 1 << 15), 1 + np.linspace(-1e-3, 1e-3, 1 << 15)])
    values = values[values.astype("f4") != 1].astype("f4")
    assert units(computed("log", values), np.log(values.astype("f8"))) < 3


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("count", [16, 1 << 15, 7], ids=["scalars", "vectors", "odd"])
def test_special_values(name, count):
    given = [*SPECIAL[name], np.nan]
    values = np.resize(np.array(given, "f4"), count)
    found = computed(name, values)
    expected = np.resize(np.array([*SPECIAL[name].values(), np.nan], "f4"), count)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-44)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(expected[number]))


def test_functions_of_functions_and_of_tensors():
    x, y = tensor(64, 32), tensor(64, 32, name="y")
    out = te.compute(
        x.shape, lambda i, j: te.exp(-te.tanh(x[i, j] * y[i, j])) * te.sigmoid(te.exp(y[i, j]))
    )
    runs = run([x, y], [out])
    runs.agree()
    assert "T.exp" not in runs.text


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (128, 48), (33, 1000), (2, 1 << 14)])
def test_sums_of_functions(shape, axis):
    x = tensor(*shape)
    k = te.reduce_axis((0, shape[axis]))

    def element(i):
        return te.sum(te.exp(x[(i, k) if axis else (k, i)]), axis=k)

    run([x], [te.compute((shape[1 - axis],), element)]).agree()


def test_what_stands_under_a_condition_stays():
    x = tensor(4096)
    out = te.compute(
        (4097,), lambda i: tirx.if_then_else(i < 4096, te.exp(x[i]), tirx.const(0, "float32"))
    )
    runs = run([x], [out])
    runs.agree()
    assert "T.exp" in runs.text


@pytest.mark.parametrize("reads", [False, True], ids=["by index", "by data"])
def test_where_all_lanes_choose_alike_there_are_two_loops(reads):
    """The rows behind the last are no rows of the tensor."""
    x, flag = tensor(128, 256), tensor(160, dtype="int32", name="flag")

    def element(i, j):
        inside = tirx.all(i < 128, flag[i] > 0) if reads else i < 128
        return tirx.if_then_else(inside, te.exp(x[i, j]), tirx.const(-1, "float32")) * 2

    y = te.compute([tirx.IntImm("int64", n) for n in (160, 256)], element)
    runs = run([x, flag], [y])
    runs.agree()
    assert "T.exp" not in runs.text


def test_of_sums_too():
    x = tensor(128, 3, 256)
    k = te.reduce_axis((0, tirx.IntImm("int64", 3)))
    y = te.compute(
        [tirx.IntImm("int64", n) for n in (129, 256)],
        lambda i, j: te.sum(tirx.if_then_else(i < 128, te.exp(x[i, k, j]), 0.0), axis=k),
    )
    runs = run([x], [y])
    runs.agree()
    assert "T.exp" not in runs.text


@pytest.mark.parametrize("chooses", ["nested", "twice", "by lane"])
def test_other_choices_stay(chooses):
    x = tensor(128, 256)

    def element(i, j):
        value = te.exp(x[i, j])
        if chooses == "nested":
            value = tirx.if_then_else(i % 2 == 0, value, te.exp(-x[i, j]))
        if chooses == "twice":
            value = value + tirx.if_then_else(i > 3, te.exp(x[i - 4, j]), 0.0)
        condition = tirx.all(i < 128, j < 200) if chooses == "by lane" else i < 128
        return tirx.if_then_else(condition, value, 0.0)

    run([x], [te.compute([tirx.IntImm("int64", n) for n in (140, 256)], element)]).agree()


def test_values_that_statements_name():
    """As kernels have them in which several results are made of one function."""
    x = tensor(4096)
    y = te.compute(x.shape, lambda i: te.tanh(x[i]), name="y")
    z = te.compute(x.shape, lambda i: x[i] * 2, name="z")

    def named(func):
        def both(block):
            if not block.iter_vars:
                return block
            name = tirx.Var("name", "float32")
            store = block.body
            twice = tirx.BufferStore(store.buffer, name + name * name, store.indices)
            body = tirx.SeqStmt([tirx.Bind(name, store.value), twice])
            return replace_block(block, body=body)

        func = func.with_body(replace_nodes(func.body, SBlock, both))
        return vectorize_math(func)

    runs = run_kernel([x], [y, z], then=named)
    values = runs.stock[0]
    np.testing.assert_allclose(runs.scheduled[0], values + values**2, rtol=1e-5, atol=1e-6)
    assert "T.tanh" not in runs.text


def test_bound_variables_are_kept_in_front_in_order():
    x = tensor(4096)

    def element(i):
        t, u, v = (tirx.Var(name, "float32") for name in "tuv")
        inner = prim.Let(u, te.exp(t) + t, tirx.Select(u > 1.5, u * t, te.tanh(u)))
        return prim.Let(t, x[i] * x[i], inner + prim.Let(v, te.exp(-t), v * v))

    runs = run([x], [te.compute(x.shape, element)])
    runs.agree()
    assert "T.exp" not in runs.text and "T.tanh" not in runs.text


def test_what_is_bound_under_a_condition_stays():
    x, count = tensor(4096), tensor(4096, dtype="int64", name="count")

    def element(i):
        t = tirx.Var("t", "float32")
        bound = prim.Let(t, x[tirx.floormod(count[i], 4096)], te.exp(t) + t)
        return tirx.if_then_else(count[i] >= 0, bound, 0.0)

    runs = run([x, count], [te.compute(x.shape, element)])
    runs.agree()
    assert "T.exp" in runs.text


def _any_bits(random, count):
    return random.integers(0, 2**32, count, dtype="u8").astype("u4").view("f4")


def _next_to_multiples(random, count):
    divisor = random.standard_normal(count).astype("f4")
    multiple = (divisor.astype("f8") * random.integers(-(2**28), 2**28, count)).astype("f4")
    return np.nextafter(multiple, random.choice([-1, 0, 1], count).astype("f4") * 3e38), divisor


REMAINDERS = {
    "any bits": lambda random, count: (_any_bits(random, count), _any_bits(random, count)),
    "short": lambda random, count: random.standard_normal((2, count)).astype("f4") * [[99], [1]],
    "next to multiples": _next_to_multiples,
    "special": lambda random, count: random.choice(
        [0, -0.0, 1, -1, 3, -6, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3e38], (2, count)
    ),
}


@pytest.mark.parametrize("kind", REMAINDERS)
@pytest.mark.parametrize("count", [1 << 15, 7], ids=["vectors", "scalars"])
def test_remainders_are_exact(kind, count):
    values = [np.array(a, "f4") for a in REMAINDERS[kind](np.random.default_rng(0), count)]
    x, y = tensor(count), tensor(count, name="y")
    out = te.compute(x.shape, lambda i: tirx.truncmod(x[i], y[i]))
    runs = run([x, y], [out], values=values)
    with np.errstate(invalid="ignore"):
        expected = np.fmod(*values)
    np.testing.assert_array_equal(runs.scheduled[0], expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(
        np.signbit(runs.scheduled[0][number]), np.signbit(expected[number])
    )
    assert "T.trunc(" in runs.text


def test_float64_is_left_to_the_library():
    x = tensor(4096, dtype="float64")
    runs = run([x], [te.compute(x.shape, lambda i: te.exp(x[i]))])
    runs.agree()
    assert "T.exp" in runs.text
