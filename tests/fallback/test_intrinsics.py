"""Derivatives of scalar functions: each against differences, and that none is left out."""

import math

import numpy as np
import pytest
import tvm
from tvm import te, tirx

import graphgrad as gg
from graphgrad.errors import MissingGradientError, RuleError
from graphgrad.fallback import intrinsics
from graphgrad.fallback.gradient import te_gradient
from tests.fallback.interpreter import evaluate
from tests.fallback.running import run

STEP = 1e-6
ANY = (-2.3, -0.4, 0.3, 1.7)
INSIDE = (-0.8, -0.3, 0.25, 0.7)
POSITIVE = (0.2, 0.9, 1.6, 3.1)
ABOVE_ONE = (1.1, 1.7, 2.5, 4.0)

UNARY = {
    "acos": INSIDE, "acosh": ABOVE_ONE, "asin": INSIDE, "asinh": ANY, "atan": ANY,
    "atanh": INSIDE, "cos": ANY, "cosh": ANY, "erf": ANY, "exp": ANY, "exp10": INSIDE,
    "exp2": ANY, "fabs": ANY, "likely": ANY, "log": POSITIVE, "log10": POSITIVE,
    "log1p": INSIDE, "log2": POSITIVE, "rsqrt": POSITIVE, "sigmoid": ANY, "sin": ANY,
    "sinh": ANY, "sqrt": POSITIVE, "tan": INSIDE, "tanh": ANY,
    "ceil": ANY, "floor": ANY, "nearbyint": ANY, "round": ANY, "trunc": ANY,
}  # fmt: skip
FIRST = (-2.3, -0.7, 0.6, 1.9)
SECOND = (1.2, 2.5, -0.8, 0.45)
BINARY = {
    "atan2": (FIRST, SECOND), "copysign": (FIRST, SECOND), "fmod": (FIRST, SECOND),
    "hypot": (FIRST, SECOND), "nextafter": (FIRST, SECOND), "pow": (POSITIVE, SECOND),
}  # fmt: skip


def call(name, *arguments):
    """Call an intrinsic by its own name: TVM's functions make other nodes of some."""
    full = f"prim.{name}" if name in ("ceil", "likely", "log2") else f"tirx.{name}"
    return tvm.ir.Call(tvm.ir.Op.get(full), list(arguments), ret_ty=arguments[0].ty)


def check(function, *points):
    """Compare the gradient by each argument with differences."""
    shape = (len(points[0]),)
    inputs = [te.placeholder(shape, "float64", name=f"x{i}") for i in range(len(points))]
    output = te.compute(shape, lambda i: function(*(x(i) for x in inputs)), name="y")
    arrays = [np.array(p) for p in points]
    gradients = evaluate(te_gradient(output, inputs), list(zip(inputs, arrays, strict=True)))
    for number, gradient in enumerate(gradients):
        values = []
        for sign in (1, -1):
            moved = [a + sign * STEP * (i == number) for i, a in enumerate(arrays)]
            values += evaluate([output], list(zip(inputs, moved, strict=True)))
        expected = (values[0] - values[1]) / (2 * STEP)
        np.testing.assert_allclose(gradient, expected, rtol=2e-7, atol=2e-8)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_argument(name):
    check(lambda x: call(name, x), UNARY[name])


@pytest.mark.parametrize("name", [n for n in BINARY if n != "nextafter"])
def test_functions_of_two_arguments(name):
    check(lambda a, b: call(name, a, b), *BINARY[name])


def test_functions_of_other_arguments():
    check(lambda a, b, c: call("fma", a, b, c), FIRST, SECOND, POSITIVE)
    check(lambda x: call("ldexp", x, tirx.const(3, "int32")), ANY)
    check(tirx.truncmod, FIRST, SECOND)
    check(lambda x: tirx.pow(x, tirx.const(2.0, "float64")), ANY)
    check(lambda x: tirx.pow(x, tirx.const(3.0, "float64")), ANY)
    check(lambda x: tirx.pow(x, tirx.const(-1.5, "float64")), POSITIVE)


def gradient_at(function, *values):
    inputs = [te.placeholder((), "float64", name=f"x{i}") for i in range(len(values))]
    output = te.compute((), lambda: function(*(x() for x in inputs)), name="y")
    known = [(x, np.array(v)) for x, v in zip(inputs, values, strict=True)]
    return [float(g) for g in evaluate(te_gradient(output, inputs), known)]


def test_the_next_number_moves_with_the_number():
    assert gradient_at(lambda a, b: call("nextafter", a, b), 0.5, 2.0) == [1.0, 0.0]


CONVENTIONS = {
    "fabs at 0": (tirx.abs, (0.0,), [0.0]),
    "sqrt at 0": (tirx.sqrt, (0.0,), [math.inf]),
    "hypot at 0": (lambda a, b: call("hypot", a, b), (0.0, 0.0), [0.0, 0.0]),
    "atan2 at 0": (lambda a, b: call("atan2", a, b), (0.0, 0.0), [0.0, 0.0]),
    "0 to the 0": (tirx.pow, (0.0, 0.0), [0.0, 0.0]),
    "0 to the 1": (tirx.pow, (0.0, 1.0), [1.0, 0.0]),
    "0 to the 2": (tirx.pow, (0.0, 2.0), [0.0, 0.0]),
    "-2 to the 3": (lambda a: tirx.pow(a, tirx.const(3.0, "float64")), (-2.0,), [12.0]),
    "equal, max": (tirx.max, (2.0, 2.0), [0.5, 0.5]),
    "equal, min": (tirx.min, (2.0, 2.0), [0.5, 0.5]),
    "relu at 0": (lambda a: tirx.max(a, tirx.const(0.0, "float64")), (0.0,), [0.0]),
    "relu above 0": (lambda a: tirx.max(tirx.const(0.0, "float64"), a), (0.5,), [1.0]),
    "copysign of 0": (lambda a, b: call("copysign", a, b), (0.0, -1.0), [0.0, 0.0]),
    "NaN, max": (tirx.max, (math.nan, 2.0), [1.0, 1.0]),
    "NaN, abs": (tirx.abs, (math.nan,), [math.nan]),
    "NaN, sin": (tirx.sin, (math.nan,), [math.nan]),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_conventions(name):
    function, values, expected = CONVENTIONS[name]
    np.testing.assert_array_equal(gradient_at(function, *values), expected)


MASKED = {
    "log": (lambda x: tirx.if_then_else(x > 0, tirx.log(x), 0.0), 0.0),
    "quotient": (lambda x: tirx.if_then_else(x != 0, x / x, 1.0), 0.0),
    "sqrt by select": (lambda x: tirx.Select(x > 0, tirx.sqrt(x), 0.0 * x), 0.0),
    "sqrt of a square, times 0": (lambda x: tirx.sqrt(x * x) * 0.0, 0.0),
    "acos at 1, times 0": (lambda x: tirx.acos(x) * 0.0, 1.0),
}


@pytest.mark.parametrize("name", MASKED)
def test_what_is_masked_gives_zero(name):
    function, value = MASKED[name]
    assert gradient_at(function, value) == [0.0]


def test_every_intrinsic_of_tvm_is_decided_on():
    undecided = []
    for name in tvm.ir.Op.list_op_names():
        kind = tvm.ir.Op.get(name).get_attr("TCallEffectKind")
        if name.startswith("tirx.graphgrad_"):
            continue  # schedules put it in, when all is derived
        is_scalar = name.startswith(("tirx.", "prim.")) and name.count(".") == 1
        if not is_scalar or kind is None or int(kind) > 1 or name in NOT_FLOAT:
            continue
        if intrinsics.find(name) is None and intrinsics.refusal(name) is None:
            undecided.append(name)
    assert undecided == []


NOT_FLOAT = {
    *(f"prim.{n}" for n in ("clz", "if_then_else", "vscale")),
    *(f"tirx.{n}" for n in ("address_of", "buffer_data", "buffer_offset", "call_pure_extern")),
    *(f"tirx.{n}" for n in ("dp4a", "end_profile_intrinsic", "filter", "get_active_lane_mask")),
    *(f"tirx.{n}" for n in ("handle_add_byte_offset", "ignore_loop_partition", "isnan")),
    *(f"tirx.{n}" for n in ("isnullptr", "popcount", "ptr_byte_offset", "q_multiply_shift")),
    *(f"tirx.{n}" for n in ("q_multiply_shift_per_axis", "start_profile_intrinsic")),
    *(f"tirx.{n}" for n in ("tvm_thread_invariant", "type_annotation")),
}
"""Operators of integers, booleans, pointers and annotations, choices, and calls by name."""


@pytest.fixture
def hypotenuse():
    gg.register_intrinsic_gradient(
        "hypot", lambda a, *others: (a / others[-1], None), singular=True
    )
    yield "hypot"
    intrinsics._OF_USERS.pop("hypot")


def test_a_function_of_the_user(hypotenuse):
    a, b = (te.placeholder((4,), "float64", name=n) for n in "ab")
    y = te.compute((4,), lambda i: tirx.call_pure_extern("float64", hypotenuse, a(i), b(i)))
    func = gg.fallback.create_prim_func([a, b, y, *te_gradient(y, [a, b])])
    first, second = np.array(FIRST), np.array(SECOND)
    *_, value, by_a, by_b = run(func, first, second, *(np.full(4, np.nan) for _ in range(3)))
    np.testing.assert_allclose(value, np.hypot(first, second))
    np.testing.assert_allclose(by_a, first / np.hypot(first, second))
    np.testing.assert_array_equal(by_b, 0)


def test_a_wrong_registration_is_refused(hypotenuse):
    with pytest.raises(RuleError, match="a name and a function"):
        gg.register_intrinsic_gradient("", lambda x, y: 1.0)
    message = r"test_intrinsics\.py:\d+: .* hypot gives 2 derivatives, but it is called with 1"
    with pytest.raises(RuleError, match=message):
        gradient_at(lambda x: tirx.call_pure_extern("float64", hypotenuse, x), 1.0)


@pytest.mark.parametrize(
    "partial", ["1", [1.0], tirx.const(1, "int32"), te.placeholder((1,), name="t")], ids=str
)
def test_a_derivative_that_is_none(partial):
    gg.register_intrinsic_gradient("sinpi", lambda x, y: partial)
    try:
        with pytest.raises(RuleError, match=r"test_intrinsics\.py:\d+: .* sinpi gives "):
            gradient_at(lambda x: tirx.call_pure_extern("float64", "sinpi", x), 1.0)
    finally:
        intrinsics._OF_USERS.pop("sinpi")


@pytest.mark.parametrize(
    "function, text",
    [
        (lambda x: tirx.call_pure_extern("float64", "mystery", x), "in the stage y.*mystery"),
        (lambda x: call("reinterpret", x * 2.0 + 1.0), r"bits .*reinterpret\(.*x0\["),
    ],
    ids=["extern", "reinterpret"],
)
def test_an_unknown_function_is_missing_by_name(function, text):
    with pytest.raises(MissingGradientError, match=text):
        gradient_at(function, 1.0)
