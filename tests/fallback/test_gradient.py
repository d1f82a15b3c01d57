"""The entry point: what it takes, returns and refuses. What it derives is tested by random programs
(test_random_programs.py), kernels (test_kernels.py) and all functions of topi (test_topi.py)."""

import numpy as np
import pytest
from tvm import te, tirx

import graphgrad as gg
from graphgrad.errors import ArgumentError, MissingGradientError, NotDifferentiableError
from graphgrad.fallback.graph import stop_gradient
from graphgrad.fallback.walk import tensor_key
from tests.fallback.interpreter import evaluate

X = np.array([0.5, -1.0, 2.0])


def placeholder(name, *shape, dtype="float64"):
    return te.placeholder(shape, dtype, name=name)


def square(x, name="square"):
    return te.compute(x.shape, lambda *at: x(*at) * x(*at), name=name)


def test_heads_are_ones_if_left_out():
    x = placeholder("x", 3)
    (gradient,) = evaluate(gg.te_gradient(square(x), x), [(x, X)])
    np.testing.assert_array_equal(gradient, 2 * X)


def test_several_outputs_and_inputs_are_summed_over_all_paths():
    x, y = placeholder("x", 3), placeholder("y", 3)
    product = te.compute((3,), lambda i: x[i] * y[i])
    heads = [placeholder(f"head{n}", 3) for n in range(2)]
    gradients = gg.te_gradient([square(x), product], [x, y], heads)
    arrays = [X + 1, X - 2, X * 3]
    found = evaluate(gradients, [(x, X), *zip([y, *heads], arrays, strict=True)])
    np.testing.assert_allclose(found[0], 2 * X * arrays[1] + arrays[0] * arrays[2])
    np.testing.assert_allclose(found[1], X * arrays[2])


def test_an_output_without_a_head_counts_for_nothing():
    x, head = placeholder("x", 3), placeholder("head", 3)
    gradients = gg.te_gradient([square(x), square(square(x))], x, [head, None])
    (found,) = evaluate(gradients, [(x, X), (head, X)])
    np.testing.assert_allclose(found, 2 * X * X)


def test_integer_outputs_have_no_cotangent():
    x = placeholder("x", 3)
    rounded = te.compute((3,), lambda i: tirx.floor(x[i]).astype("int32"))
    (found,) = evaluate(gg.te_gradient([rounded, square(x)], x), [(x, X)])
    np.testing.assert_allclose(found, 2 * X)


def test_one_tensor_as_two_outputs_gets_both_cotangents():
    x, head = placeholder("x", 3), placeholder("head", 3)
    y = square(x)
    (found,) = evaluate(gg.te_gradient([y, y], x, [head, head]), [(x, X), (head, X)])
    np.testing.assert_allclose(found, 4 * X * X)


def test_a_loop_that_cancels_in_an_index_is_not_left_in_the_gradient():
    """As in the gradient of a strided, transposed convolution's gradient."""
    x, w, head = placeholder("x", 6), placeholder("w", 3), placeholder("head", 4)
    r = te.reduce_axis((0, tirx.const(3, "int64")), name="r")

    def window(i):
        cast = i.astype("int32").astype("int64")
        return te.sum(x[i + r + tirx.floordiv(cast * 2 - i * 2, 3)] * w[r], axis=r)

    y = te.compute((tirx.const(4, "int64"),), window, name="window")
    arrays = [np.arange(6.0) - 2, X, np.arange(4.0) + 1]
    known = list(zip([x, w, head], arrays, strict=True))
    by_x, by_w = evaluate(gg.te_gradient(y, [x, w], [head]), known)
    np.testing.assert_allclose(by_x, np.convolve(arrays[2], arrays[1]))
    np.testing.assert_allclose(by_w, np.correlate(arrays[0], arrays[2], "valid"))


def test_a_stage_that_stops_gradients_passes_nothing_on():
    x = placeholder("x", 3)
    first = te.compute((1,), lambda i: x[i], name="first")  # a view, which is not read through
    shift = stop_gradient(first)
    result = te.compute((3,), lambda i: x[i] * shift[0], name="result")
    gradient, of_shift = evaluate(gg.te_gradient(result, [x, shift]), [(x, X)])
    np.testing.assert_array_equal(gradient, np.full(3, X[0]))
    np.testing.assert_array_equal(of_shift, [X.sum()])


def test_an_input_that_is_the_output_gets_its_head():
    x, head = placeholder("x", 3), placeholder("head", 3)
    (gradient,) = gg.te_gradient(x, x, head)
    assert tensor_key(gradient) == tensor_key(head)


def test_an_intermediate_result_is_an_input_beside_what_it_depends_on():
    x = placeholder("x", 3)
    y = square(x)
    of_y, of_x = evaluate(gg.te_gradient(square(y), [y, x]), [(x, X)])
    np.testing.assert_allclose(of_y, 2 * X**2)
    np.testing.assert_allclose(of_x, 4 * X**3)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_what_no_output_depends_on_gets_zeros(dtype):
    x, other = placeholder("x", 3), placeholder("other", 2, 0, 4, dtype=dtype)
    unused = square(x, "unused")
    gradients = gg.te_gradient(square(x), [other, unused])
    found = evaluate(gradients, [(x, X)])
    assert [(a.shape, a.dtype) for a in found] == [((2, 0, 4), dtype), ((3,), "float64")]
    assert not found[1].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_gradients_have_the_dtype_of_their_inputs(dtype):
    x = placeholder("x", 3, dtype=dtype)
    wide = te.compute((3,), lambda i: x[i].astype("float64") * x[i].astype("float64"))
    (gradient,) = gg.te_gradient(wide, x)
    assert str(gradient.dtype) == dtype


@pytest.mark.parametrize(
    "head, message",
    [
        (
            placeholder("short", 2),
            r"shape \[2\]; it must be as the output square: float64 of shape",
        ),
        (placeholder("single", 3, dtype="float32"), "the head is float32"),
        (placeholder("matrix", 3, 1), r"shape \[3, 1\]"),
        ([None, None], "1 outputs, but 2 heads"),
    ],
    ids=["extent", "dtype", "rank", "count"],
)
def test_heads_that_do_not_fit_are_refused(head, message):
    x = placeholder("x", 3)
    with pytest.raises(ArgumentError, match=message):
        gg.te_gradient(square(x), x, head)


def test_integers_have_no_gradient():
    x, n = placeholder("x", 3), placeholder("n", 3, dtype="int32")
    read = te.compute((3,), lambda i: x[n[i]])
    with pytest.raises(NotDifferentiableError, match="the input n is int32"):
        gg.te_gradient(read, [x, n])
    with pytest.raises(NotDifferentiableError, match="floats"):
        gg.te_gradient(te.compute((3,), lambda i: n[i] + 1), x)


def test_an_unknown_function_is_refused_by_name():
    x = placeholder("x", 3)
    y = te.compute((3,), lambda i: tirx.call_pure_extern("float64", "mystery", x[i]), name="y")
    with pytest.raises(MissingGradientError, match="mystery"):
        gg.te_gradient(y, x)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (lambda x, y: (None, x), "NoneType was given as output"),
        (lambda x, y: (y, ["x"]), "str was given as input"),
        (lambda x, y: (y, x, np.ones(3)), "ndarray was given as head"),
        (lambda x, y: ([], x), "no output was given"),
        (lambda x, y: (y, x, [y, y]), "1 outputs, but 2 heads"),
    ],
    ids=["output", "input", "head", "none", "heads"],
)
def test_arguments_that_are_no_tensors_are_refused(arguments, reason):
    x = te.placeholder((3,), "float32", name="x")
    with pytest.raises(ArgumentError, match=reason):
        gg.te_gradient(*arguments(x, square(x)))
