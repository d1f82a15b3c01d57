"""Checks of tensor expressions: what agrees, what does not, and what makes no sense."""

import numpy as np
import pytest
from tvm import te, tirx, topi

import graphgrad as gg
from graphgrad.check.tensor_machine import Program, TensorMachine
from tests.labels import label

X = te.placeholder((2, 3), "float64", name="x")
W = te.placeholder((3, 4), "float64", name="w")


def wrong(inputs, outputs, cotangents):
    return topi.multiply(cotangents[0], topi.sin(inputs[0]))


def right(inputs, outputs, cotangents):
    return topi.multiply(cotangents[0], topi.cos(inputs[0]))


@pytest.mark.parametrize("order", [1, 2])
def test_output_and_inputs(order):
    result = gg.check_grads((topi.matmul(topi.tanh(X), W), [X, W]), order=order)
    assert result.precision == "float64"
    assert [check.name for check in result.parts[0].inputs[:2]] == ["input 'x'", "input 'w'"]
    assert len(result.parts[0].inputs) == (2 if order == 1 else 5)
    assert result.error < 1e-8


def test_inputs_beside_the_output():
    gg.check_grads(topi.sin(X), X)
    gg.check_grads([topi.sin(X), topi.exp(X)], inputs=[X], jacobian=True)


@pytest.mark.parametrize(
    "arrays",
    [np.full((2, 3), 0.5), [np.full((2, 3), 0.5)], {"x": np.full((2, 3), 0.5)}],
    ids=["array", "list", "dict"],
)
def test_values_are_given(arrays):
    # log of what is drawn, between -1 and 1, is no number.
    gg.check_grads((topi.log(X), X), arrays)


def test_values_of_other_placeholders_are_given_by_name():
    rows = te.placeholder((4,), "int32", name="rows")
    gg.check_grads((topi.take(X, rows, 1), X), {"rows": np.array([2, 2, 0, 1], "int32")})


def test_integer_inputs_are_held():
    rows = te.placeholder((4,), "int32", name="rows")
    result = gg.check_grads((topi.take(X, rows, 1), [X, rows]), order=2)
    assert "input 'rows'" not in [check.name for check in result.parts[0].inputs]


def test_intermediate_results_are_inputs():
    hidden = topi.tanh(X)
    result = gg.check_grads((topi.exp(topi.add(hidden, X)), hidden))
    assert [check.name for check in result.parts[0].inputs] == ["input 'compute_0'"]


@pytest.mark.parametrize("arrays", [None, np.ones((5, 3), "float32")], ids=["drawn", "given"])
def test_symbolic_shapes(arrays):
    x = te.placeholder((te.var("n", "int64"), 3), "float32", name="x")
    gg.check_grads((topi.nn.softmax(x), x), arrays)


def recurrence(x):
    first = te.compute((1, 3), lambda _, i: x[0, i], name="first")
    state = te.placeholder(x.shape, x.dtype, name="state")
    step = te.compute(x.shape, lambda t, i: te.tanh(state[t - 1, i]) * x[t, i], name="step")
    return te.scan(first, step, state, inputs=[x])


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (topi.nn.softmax, "bfloat16"), (topi.sort, "float32"), (topi.cumsum, "float16"),
        (recurrence, "float32"),
    ],
    ids=label,
)  # fmt: skip
def test_low_floats_are_promoted(function, dtype):
    x = te.placeholder((2, 3), dtype, name="x")
    result = gg.check_grads((function(x), x), order=2)
    assert result.precision == "float64"
    assert result.error < 1e-8


def test_a_small_fault_of_a_narrow_gradient_is_seen():
    x = te.placeholder((2, 3), "float32", name="x")

    def almost(inputs, outputs, cotangents):
        return topi.multiply(right(inputs, outputs, cotangents), tirx.const(1.0001, "float32"))

    with pytest.raises(gg.GradientMismatch, match="finite differences"):
        gg.check_grads((topi.sin(x), x), backward=almost)
    gg.check_grads((topi.sin(x), x), backward=right)


def test_what_has_its_dtype_built_in_is_checked_in_it():
    x = te.placeholder((4,), "float32", name="x")
    y = te.compute((4,), lambda i: tirx.call_pure_extern("float32", "fabsf", x[i]) + x[i] * x[i])
    backward = lambda xs, ys, cts: te.compute(  # noqa: E731
        (4,), lambda i: cts[0][i] * (2.0 * x[i] + tirx.if_then_else(x[i] > 0, 1.0, -1.0))
    )
    result = gg.check_grads((y, x), np.array([0.5, -1, 2, -0.25], "float32"), backward=backward)
    assert result.precision == "float32"
    assert "call of fabsf has its dtypes built in" in str(result)


@pytest.mark.parametrize("order", [1, 2])
def test_given_backward_pass(order):
    gg.check_grads((topi.sin(X), X), backward=right, order=order)


def test_wrong_backward_pass():
    with pytest.raises(gg.GradientMismatch, match=r"order 1.*element") as caught:
        gg.check_grads((topi.sin(X), X), backward=wrong)
    error = caught.value
    assert (error.op, error.input) == ("compute", "input 'x'")
    assert len(error.index) == 2
    assert abs(error.expected - error.given) > 1e-3


def test_wrong_derivative_of_an_intrinsic(monkeypatch):
    from graphgrad.fallback import intrinsics

    monkeypatch.setitem(intrinsics._TABLE, "tirx.atan", intrinsics.Intrinsic(lambda x, y: 1.0))
    with pytest.raises(gg.GradientMismatch, match="differences"):
        gg.check_grads((topi.atan(X), X))


def test_kinks():
    x = np.array([[0.0, 1.0, 2.0], [-1.0, 3.0, -4.0]])
    relu = te.compute(X.shape, lambda *at: te.if_then_else(X(*at) > 0, X(*at), 0.0), name="relu")
    result = gg.check_grads((relu, X), x)
    assert {check.kink for _, check in result.kinks} == {"exact"}


def test_unwritten_elements_are_seen(monkeypatch):
    y = te.compute((3,), lambda i: tirx.const(1.0, "float64"), name="ones")
    machine = TensorMachine({"main": Program([X], [y])})
    assert machine.run("main", [np.ones((2, 3))])[0].tolist() == [1.0, 1.0, 1.0]

    def partly(*tensors):
        tensors[-1].copyfrom(np.array([1.0, 2.0, tensors[-1].numpy()[2]]))

    monkeypatch.setattr(machine, "_module", {"main": partly})
    with pytest.raises(gg.LoweringError, match="ones leaves elements"):
        machine.run("main", [np.ones((2, 3))])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (np.ones((3, 2)), "x is float64 of shape"),
        (np.ones((2, 3), "float32"), "given float32"),
        ([np.ones((2, 3))] * 2, "one array for each"),
        ({"y": np.ones((2, 3))}, "'y' names no placeholder"),
    ],
    ids=label,
)
def test_values_that_do_not_fit(arrays, message):
    with pytest.raises(gg.InputError, match=message):
        gg.check_grads((topi.sin(X), X), arrays)


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (lambda xs, ys, cts: [cts[0], cts[0]], "2 gradients for 1 inputs"),
        (lambda xs, ys, cts: [None], "returned None for the input x"),
    ],
    ids=["too many", "none"],
)
def test_backward_pass_that_gives_no_gradients(backward, message):
    with pytest.raises(gg.InputError, match=message):
        gg.check_grads((topi.sin(X), X), backward=backward)


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ((topi.argmax(X, 1), X), "no output is of floats: .*; give one"),
        ((topi.sin(X), te.placeholder((2,), "int32", name="i")), "no input is .*: i; give one"),
    ],
    ids=["output", "input"],
)
def test_what_has_no_floats(subject, message):
    with pytest.raises(gg.NotDifferentiableError, match=message):
        gg.check_grads(subject)


def test_shape_that_cannot_be_drawn():
    n = te.var("n", "int64")
    x = te.placeholder((n + 1,), "float64", name="x")
    with pytest.raises(gg.ArgumentError, match="give arrays"):
        gg.check_grads((topi.sin(x), x))


def test_what_cannot_be_compiled():
    y = te.compute((2,), lambda i: tirx.fmod(X(i, 0), X(i, 1) + 2.0), name="fmod")
    with pytest.raises(gg.ModelError, match="cannot be compiled"):
        gg.check_grads((y, X))


@pytest.mark.parametrize("array", [np.ones(4), np.ones(3, "float32")], ids=["shape", "dtype"])
def test_a_compiled_program_refuses_arrays_that_do_not_fit(array):
    """Its kernels do not look at their arguments."""
    x = te.placeholder((3,), "float32", name="x")
    machine = TensorMachine({"main": Program([x], [te.compute((3,), lambda i: 2.0 * x[i])])})
    np.testing.assert_array_equal(machine.run("main", [np.ones(3)])[0], [2, 2, 2])
    with pytest.raises(gg.InputError, match=r"x is float64\(3,\), given"):
        machine.run("main", [array])
