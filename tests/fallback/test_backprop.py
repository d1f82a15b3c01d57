"""Reverse mode on one expression: in every dtype, with conditions that keep NaN out."""

import numpy as np
import pytest
from tvm import te, tirx
from tvm.ir import prim

from graphgrad.errors import MissingGradientError, NotDifferentiableError
from graphgrad.fallback import create_prim_func
from graphgrad.fallback.backprop import backpropagate, wide
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.guarded import Guarded
from graphgrad.fallback.walk import tensor_key
from tests.fallback.interpreter import evaluate, numpy_dtype
from tests.fallback.running import executable, unwritten
from tests.labels import label

DTYPES = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 1e-5, "float64": 1e-12}
"""Those of floats that have gradients, each with the relative error of a few roundings."""

XS = np.array([-1.75, -0.5, 0.25, 0.75, 1.5, -0.125])
YS = np.array([0.5, 1.25, 0.25, -2.0, 1.75, 0.375])


def constant(value, like):
    return tirx.const(value, str(like.ty))


BODIES = {
    "sum and difference": lambda x, y: x + y - (y - x) * x,
    "quotient": lambda x, y: x / (y * y + 1),
    "remainder": lambda x, y: tirx.Mod(x * x + 1, constant(0.75, x)) * y,
    "exp": lambda x, y: te.exp(x * y),
    "log": lambda x, y: te.log(x * x + 1) * y,
    "sqrt": lambda x, y: te.sqrt(x * x + y * y),
    "tanh": lambda x, y: te.tanh(x) + te.sigmoid(y),
    "larger": lambda x, y: tirx.max(x, y) * x,
    "smaller": lambda x, y: tirx.min(x * y, constant(0.5, x)),
    "select": lambda x, y: tirx.Select(x < y, x * x, y * x),
    "choice": lambda x, y: tirx.if_then_else(x < constant(-0.25, x), x * y, y),
    "cast": lambda x, y: (x.astype("float32") * y.astype("float32")).astype(str(x.ty)) * y,
    "let": lambda x, y: prim.Let(v := tirx.Var("v", str(x.ty)), x * y, v * v + v),
    "whole part": lambda x, y: (
        te.floor(x) * y + tirx.trunc(x * 4 + constant(0.375, x)).astype("int32").astype(y.ty)
    ),
}


def stage(body, dtype, xs=XS):
    x, y = (te.placeholder(xs.shape, dtype, name=name) for name in "xy")
    return te.compute(xs.shape, lambda i: body(x(i), y(i)), name="stage"), [x, y]


def gradients(bodies, dtype, xs=XS, ys=YS, *, compiled=True):
    """Return the gradient of each of some stages by both that it reads, compiled as one kernel."""
    arrays = [a.astype(numpy_dtype(dtype)) for a in (xs, ys)]
    found, known = [], []
    for body in bodies:
        output, inputs = stage(body, dtype, xs)
        found += te_gradient(output, inputs)
        known += zip(inputs, arrays, strict=True)
    assert {str(each.dtype) for each in found} == {dtype}
    if compiled:
        func = create_prim_func([*(tensor for tensor, _ in known), *found])
        results = executable(func)(*(a for _, a in known), *unwritten(*found))[len(known) :]
    else:
        results = evaluate(found, known)
    return np.array(results, "float64").reshape(len(bodies), 2, len(xs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype):
    expected = gradients(BODIES.values(), "float64", compiled=False)
    found = gradients(BODIES.values(), dtype)
    for name, given, exact in zip(BODIES, found, expected, strict=True):
        allowed = DTYPES[dtype] * max(np.abs(exact).max(), 1.0)
        np.testing.assert_allclose(given, exact, rtol=0, atol=allowed, err_msg=name)


@pytest.mark.parametrize("name", [name for name in BODIES if name != "cast"])
def test_the_derivative(name):
    """By differences, for which float32 in between is too coarse."""
    body, step = BODIES[name], 1e-6
    ((found_x, found_y),) = gradients([body], "float64", compiled=False)
    output, inputs = stage(body, "float64")

    def value(*arrays):
        return evaluate([output], list(zip(inputs, arrays, strict=True)))[0]

    by_x = (value(XS + step, YS) - value(XS - step, YS)) / (2 * step)
    by_y = (value(XS, YS + step) - value(XS, YS - step)) / (2 * step)
    smooth = (XS != YS) | (name not in ("larger", "select"))
    np.testing.assert_allclose(found_x[smooth], by_x[smooth], atol=1e-7)
    np.testing.assert_allclose(found_y[smooth], by_y[smooth], atol=1e-7)


def zero(like):
    return constant(0.0, like)


CORRECTIONS = {
    "of an exponential": lambda x: x - te.log(te.exp(x)),
    "of a logarithm": lambda x: te.exp(te.log(te.exp(x))) - te.exp(x),
    "scaled": lambda x: te.exp(x) * (x - te.log(te.exp(x))) * 3.0,
    "chosen": lambda x: tirx.Select(x < zero(x), zero(x), x * (x - te.log(te.exp(x)))),
}


@pytest.mark.parametrize("name", CORRECTIONS)
def test_corrections_of_rounding_have_no_derivative(name):
    """Not even where what is corrected is infinite."""
    xs = np.array([-3.0, 0.0, 0.7, 800.0])
    ((by_x, _),) = gradients(
        [lambda x, y: CORRECTIONS[name](x) + 2.0 * x + y], "float64", xs, xs, compiled=False
    )
    np.testing.assert_array_equal(by_x, np.full(4, 2.0))


def test_differences_that_are_no_corrections_have_derivatives():
    bodies = [lambda x, y: x - te.log(te.exp(y)), lambda x, y: x - te.log(te.log(te.exp(x) + 3.0))]
    (first, second) = gradients(bodies, "float64", compiled=False)
    np.testing.assert_allclose(first[1], -1, rtol=1e-12)
    assert (np.abs(second[0] - 1) > 1e-3).all()


MASKED = {
    "select": lambda x, y: tirx.Select(x > zero(x), te.sqrt(x) * y, zero(x)),
    "choice": lambda x, y: tirx.if_then_else(x > zero(x), te.log(x) * y, zero(x)),
    "other branch": lambda x, y: tirx.Select(
        tirx.any(x <= zero(x), tirx.isnan(x.astype("float32"))), zero(x), te.sqrt(x) / x * y
    ),
    "largest inside": lambda x, y: tirx.Select(
        x > zero(x), tirx.max(te.sqrt(x), constant(0.25, x)) * y, zero(x)
    ),
    "smallest inside": lambda x, y: tirx.if_then_else(
        x > zero(x), tirx.min(te.log(x), y) * y, zero(x)
    ),
    "guard by the smaller": lambda x, y: tirx.Select(
        tirx.min(constant(1.0, x), x) > zero(x), te.rsqrt(x) * y, zero(x)
    ),
    "nested": lambda x, y: tirx.if_then_else(
        x < constant(9.0, x), tirx.Select(x > zero(x), te.log(x) / te.sqrt(x) * y, zero(x)), y
    ),
    "the larger is taken": lambda x, y: tirx.max(tirx.Select(x > zero(x), te.sqrt(x), zero(x)), y),
}
OUTSIDE = np.array([-1.0, 0.0, -0.0, -np.inf, np.nan, -2.5])
"""Where each of them takes the branch that is finite."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_what_is_not_taken_has_no_part(compiled, dtype):
    """Not a NaN, not a product with zero: exactly zero."""
    found = gradients(MASKED.values(), dtype, OUTSIDE, YS + 8, compiled=compiled)
    for name, (by_x, _) in zip(MASKED, found, strict=True):
        np.testing.assert_array_equal(by_x, np.zeros(len(OUTSIDE)), err_msg=name)


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_protected_is_not_read(dtype, compiled):
    def body(x, i):
        before = tirx.if_then_else(i > 0, x(i - 1) * x(i), zero(x(0)))
        return before + tirx.if_then_else(i < len(XS) - 1, x(i + 1), zero(x(0)))

    x = te.placeholder(XS.shape, dtype, name="x")
    output = te.compute(XS.shape, lambda i: body(x, i), name="stage")
    found = te_gradient(output, x)
    array = XS.astype(numpy_dtype(dtype))
    if compiled:
        (given,) = executable(create_prim_func([x, *found]))(array, *unwritten(*found))[1:]
    else:
        (given,) = evaluate(found, [(x, array)])
    around = np.concatenate([[0], XS[:-1]]) + np.concatenate([XS[1:], [0]])
    expected = around + (np.arange(len(XS)) > 0)
    np.testing.assert_allclose(given.astype("float64"), expected, rtol=DTYPES[dtype])


def test_equal_operands_get_half_each_and_relu_has_no_slope_at_zero():
    ones = np.ones(3)
    ((by_x, by_y),) = gradients([tirx.max], "float64", ones, ones)
    np.testing.assert_array_equal([by_x, by_y], np.full((2, 3), 0.5))
    relu, xs = (lambda x, y: tirx.max(x, zero(x))), np.array([-1, 0, 2.0])
    ((by_x, _),) = gradients([relu], "float64", xs, ones)
    np.testing.assert_array_equal(by_x, [0, 0, 1])


def test_a_larger_operand_beside_a_nan_passes_on_to_both():
    """What depends on a NaN is not silently zero."""
    nan = np.full(2, np.nan)
    ((by_x, by_y),) = gradients([tirx.max], "float64", nan, np.ones(2), compiled=False)
    assert by_x.all() and by_y.all()


X = te.placeholder((8,), "float16", name="x")
AT = te.placeholder((8,), "int32", name="at")
I = te.var("i", "int32")  # noqa: E741
HEAD = Guarded((), tirx.const(1.0, "float32"))


def test_cotangents_are_wide_and_of_what_is_asked_for():
    y = te.placeholder((8,), "float16", name="y")
    reads = backpropagate(X(AT(I)) * y(I) + X(I), HEAD, lambda tensor: tensor.op.name == "x")
    assert [tensor_key(read.tensor) for read in reads] == [tensor_key(X), tensor_key(X)]
    assert [str(term.value.ty) for read in reads for term in read.terms] == ["float32"] * 2


def test_an_index_has_no_cotangent():
    """Nor has what a float is compared with, or what it is made an integer for."""
    root = X((X(I) * 3).astype("int32")) * tirx.Select(X(I + 1) > 0, X(0), X(1))
    places = [str(read.indices[0]) for read in backpropagate(root, HEAD)]
    assert len(places) == 3 and "1" in places and not any("i + 1" in place for place in places)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (lambda i: tirx.Broadcast(X(i), 4), "Broadcast"),
        (lambda i: X(tirx.Ramp(i, 1, 4)), "Ramp"),
        (lambda i: tirx.Shuffle([tirx.Broadcast(X(i), 4)], [0]), "Shuffle"),
    ],
    ids=["broadcast", "ramp", "shuffle"],
)
def test_vectors_are_refused(body, kind):
    output = te.compute((4,), body, name="vectors")
    with pytest.raises(MissingGradientError, match=rf"stage vectors: .* node {kind} is not known"):
        te_gradient(output, X)


SINGLE = te.placeholder((8,), "float32", name="single")
EIGHT = te.placeholder((8,), "float8_e4m3fn", name="eight")
STORED = te.compute((8,), lambda i: SINGLE[i].astype("float8_e5m2"), name="stored")
PASSED = te.compute((8,), lambda i: SINGLE[i].astype("float8_e5m2").astype("float32"), "passed")


@pytest.mark.parametrize(
    ("output", "tensor", "message"),
    [
        (STORED, SINGLE, "the stage stored: float8_e5m2 holds quantized numbers"),
        (PASSED, SINGLE, "the stage passed: float8_e5m2 holds quantized numbers"),
        (te.compute((8,), lambda i: EIGHT[i]), EIGHT, "the input eight: float8_e4m3fn holds"),
    ],
    ids=["output", "on the way", "input"],
)
def test_floats_of_eight_bits_are_refused(output, tensor, message):
    with pytest.raises(NotDifferentiableError, match=message):
        te_gradient(output, tensor)


def test_what_does_not_depend_on_the_input_may_be_quantized():
    weighted = te.compute((8,), lambda i: SINGLE[i] * EIGHT[i].astype("float32"), name="weighted")
    (gradient,) = te_gradient(weighted, SINGLE)
    assert str(gradient.dtype) == "float32"


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        *[(narrow, "float32") for narrow in ("float16", "bfloat16")],
        *[(same, same) for same in ("float32", "float64", "int8", "int64", "bool")],
    ],
    ids=label,
)
def test_what_sums_are_computed_in(dtype, expected):
    assert wide(dtype) == expected
