"""What is refused says where it is, what it is, and what to do."""

import pytest
import tvm
from tvm import te, tirx, topi
from tvm.ir import prim

import graphgrad as gg
from tests.labels import label

X = te.placeholder((4,), "float32", name="x")
ROWS = te.placeholder((4,), "int32", name="rows")


def computed(body):
    return te.compute((4,), body, name="stage")


def unknown_function():
    return computed(lambda i: tirx.call_pure_extern("float32", "secret", X[i] * 2.0))


def unknown_node():
    lanes = prim.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), 4)
    return computed(lambda i: tirx.Cast("float32", prim.Shuffle([lanes], [0])) * X(i))


def unknown_extern():
    def body(inputs, outputs):
        return tirx.Evaluate(tirx.call_packed("my.library", *inputs, *outputs))

    return te.extern([(4,)], [X], body, dtype=["float32"], name="stage", tag="my_library")


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (
            unknown_function,
            ["stage", "secret", "(x[i] * 2.0)", "gg.register_intrinsic_gradient('secret'"],
        ),
        (unknown_node, ["stage", "Shuffle", "without it"]),
        (unknown_extern, ["stage", "'my_library'", "externs.register", "it calls my.library"]),
    ],
    ids=label,
)
def test_what_is_missing_is_named(build, parts):
    with pytest.raises(gg.MissingGradientError) as caught:
        gg.te_gradient(build(), X)
    for part in parts:
        assert part in str(caught.value), caught.value


@pytest.mark.parametrize(
    ("output", "inputs", "parts"),
    [
        (lambda: topi.argmax(X, 0), X, ["no output is of floats", "before it is made an int"]),
        (lambda: topi.cast(X, "int32"), X, ["no output is of floats"]),
        (lambda: topi.take(X, ROWS), [X, ROWS], ["rows is int32", "leave it out"]),
    ],
    ids=["choice", "cast", "integer input"],
)
def test_what_is_refused_for_good_is_named(output, inputs, parts):
    with pytest.raises(gg.NotDifferentiableError) as caught:
        gg.te_gradient(output(), inputs)
    for part in parts:
        assert part in str(caught.value), caught.value


@pytest.mark.parametrize(
    ("head", "parts"),
    [
        (te.placeholder((3,), "float32"), ["of shape [3]", "must be as the output", "[4]"]),
        (te.placeholder((4,), "float64"), ["float64", "must be as the output", "float32"]),
        ([te.placeholder((4,), "float32")] * 2, ["1 outputs, but 2 heads"]),
    ],
    ids=["shape", "dtype", "count"],
)
def test_heads_that_do_not_fit(head, parts):
    with pytest.raises(gg.ArgumentError) as caught:
        gg.te_gradient(topi.exp(X), X, head)
    for part in parts:
        assert part in str(caught.value), caught.value


def test_what_is_off_the_way_is_not_missed():
    beside = te.placeholder((4,), "float32", name="beside")
    secret = te.compute(
        (4,), lambda i: tirx.call_pure_extern("float32", "secret", beside[i]), name="secret"
    )
    gradients = gg.te_gradient(topi.multiply(X, secret), X)
    assert isinstance(gradients[0], tvm.te.Tensor)
