"""Kernels of gradients in float16 and bfloat16, against the same gradients in float64."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import te, tirx, topi

from graphgrad.fallback import create_prim_func
from graphgrad.fallback.gradient import te_gradient
from tests.fallback.interpreter import evaluate, numpy_dtype
from tests.fallback.running import executable, unwritten
from tests.fallback.topi_cases import CASES

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""By how much a number may change where it is rounded, relative to its size."""


def tensor(name, shape, dtype):
    return te.placeholder(shape, dtype, name=name)


def array(seed, *shape, low=-2.0, high=2.0):
    """Return numbers that all the dtypes have."""
    values = np.random.default_rng(seed).uniform(low, high, shape)
    return values.astype(numpy_dtype("bfloat16")).astype("float64")


def of_one(body, low=-2.0, high=2.0):
    """Return a program of one stage over a matrix."""

    def program(dtype):
        x = tensor("x", (3, 5), dtype)
        return (
            te.compute((3, 5), lambda i, j: body(x(i, j))),
            [x],
            [array(0, 3, 5, low=low, high=high)],
        )

    return program


def of_reduction(combine, start=None, low=-2.0, high=2.0):
    """Return a program that reduces the rows of a matrix."""

    def program(dtype):
        x, k = tensor("x", (3, 5), dtype), te.reduce_axis((0, 5), "k")
        reduce = (
            combine if start is None else te.comm_reducer(combine, lambda t: tirx.const(start, t))
        )
        y = te.compute((3,), lambda i: reduce(x[i, k], axis=k), name="y")
        return y, [x], [array(1, 3, 5, low=low, high=high)]

    return program


def of_topi(function, *shapes, low=-2.0, high=2.0):
    def program(dtype):
        tensors = [tensor(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]
        arrays = [array(i, *shape, low=low, high=high) for i, shape in enumerate(shapes)]
        return function(*tensors), tensors, arrays

    return program


def with_position(dtype):
    """The largest of each row, beside where it is: all elements are negative."""
    x, k = tensor("x", (3, 4), dtype), te.reduce_axis((0, 4), "k")
    largest = te.comm_reducer(
        lambda a, b: tuple(tirx.Select(a[1] >= b[1], m, n) for m, n in zip(a, b, strict=True)),
        lambda t0, t1: (tirx.const(-1, t0), te.min_value(t1)),
    )
    _, value = te.compute((3,), lambda i: largest((k, x[i, k]), axis=k), name="pair")
    rows = np.array([[-1, -3, -3, -2], [-5, -6, -7, -5.5], [-9, -8, -8.5, -100]])
    return value, [x], [rows]


def mixed(dtype):
    """In float32 between: cast up, and down again."""
    x, w = tensor("x", (6,), dtype), tensor("w", (6,), "float32")
    up = te.compute((6,), lambda i: te.exp(x[i].astype("float32")) * w[i], name="up")
    y = te.compute((6,), lambda i: up[i].astype(dtype) * x[i], name="y")
    return y, [x, w], [array(2, 6), array(3, 6)]


def clipped(dtype):
    """By comparisons with negative numbers, and with one that bfloat16 has not."""
    x, y = tensor("x", (12,), dtype), tensor("y", (12,), dtype)
    low, tenth = tirx.const(-1.5, dtype), tirx.const(0.1, dtype)

    def body(i):
        inside = tirx.Select(
            x[i] < low, low * y[i], tirx.if_then_else(x[i] <= y[i], x[i], y[i] * 2)
        )
        return tirx.max(inside, x[i] * tenth) + tirx.min(x[i], -y[i])

    return te.compute((12,), body, name="clipped"), [x, y], [array(4, 12), array(5, 12)]


def gathered(dtype):
    """Rows at indices that come from floats, of which one is read three times."""
    x, at = tensor("x", (4, 3), dtype), tensor("at", (5,), "float32")
    y = te.compute((5, 3), lambda i, j: x[at[i].astype("int32"), j] * x[i % 4, j], name="rows")
    return y, [x, at], [array(6, 4, 3), np.array([2, 0, 2, 2, 3.0])]


def recurrent(dtype):
    x, state = tensor("x", (5, 3), dtype), tensor("state", (5, 3), dtype)
    first = te.compute((1, 3), lambda _, i: x[0, i], name="first")
    step = te.compute((5, 3), lambda t, i: te.tanh(state[t - 1, i]) * x[t, i], name="step")
    return te.scan(first, step, state, inputs=[x]), [x], [array(7, 5, 3)]


def power(value):
    """TVM takes no power of bfloat16."""
    exponent = tirx.const(2.5, "float32")
    return tirx.pow(value.astype("float32"), exponent).astype(str(value.ty))


PROGRAMS = {
    "arithmetic": of_one(lambda v: (v * v - v / 4) / (v * v + 1)),
    "remainder": of_one(lambda v: tirx.Mod(v * 3, tirx.const(1.25, str(v.ty))) * v),
    "sqrt": of_one(te.sqrt, 0.25, 4.0),
    "exp": of_one(te.exp),
    "log": of_one(te.log, 0.25, 4.0),
    "tanh": of_one(te.tanh),
    "sigmoid": of_one(te.sigmoid),
    "pow": of_one(power, 0.25, 4.0),
    "erf": of_one(te.erf),
    "abs": of_one(te.abs),
    "sum": of_reduction(te.sum),
    "sum of squares": of_topi(lambda x: topi.sum(topi.multiply(x, x), 1), (3, 5)),
    "maximum": of_reduction(te.max, low=-9.0, high=-1.0),
    "minimum": of_reduction(te.min, low=-9.0, high=-1.0),
    "product": of_reduction(lambda a, b: a * b, 1.0),
    "fold": of_reduction(lambda a, b: a + b + a * b, 0.0),
    "log of sums": of_reduction(lambda a, b: te.log(te.exp(a) + te.exp(b)), -30.0),
    "arg-maximum": with_position,
    "softmax": of_topi(topi.nn.softmax, (3, 5)),
    "log-softmax": of_topi(topi.nn.log_softmax, (3, 5)),
    "sum of exp": of_topi(lambda x: topi.sum(topi.exp(x), 1), (3, 5)),
    "matmul": of_topi(topi.matmul, (3, 4), (4, 5)),
    "convolution": of_topi(
        lambda x, w: topi.nn.conv2d_nchw(x, w, 2, 1, 1), (1, 2, 6, 6), (3, 2, 3, 3)
    ),
    "running sum": of_topi(lambda x: topi.cumsum(x, 1), (3, 5)),
    "sorted": of_topi(topi.sort, (3, 5)),
    "mixed": mixed,
    "clipped": clipped,
    "gathered": gathered,
    "recurrent": recurrent,
}


def of_case(case):
    """Return a program of a case of topi, with its floats of any dtype."""

    def in_dtype(dtype):
        arguments = [v if "int" in v.dtype else replace(v, dtype=dtype) for v in case.arguments]
        return replace(case, arguments=tuple(arguments))

    def program(dtype):
        outputs, tensors = in_dtype(dtype).build()
        output = next(each for each in outputs if "float" in str(each.dtype))
        values = [a.astype(numpy_dtype("bfloat16")) for a in in_dtype("float64").arrays()]
        return output, tensors, [a.astype("float64") for a in values]

    return program


def gradient_of(program, dtype):
    """Return the gradient of a program, what it reads, and arrays for that."""
    output, tensors, arrays = program(dtype)
    head = te.placeholder(output.shape, str(output.dtype), name="head")
    inputs = [t for t in tensors if "float" in str(t.dtype) and t.op.name != "at"]
    tensors = [*tensors, head]
    arrays = [*arrays, array(9, *(int(extent) for extent in output.shape))]
    given = [a.astype(numpy_dtype(t.dtype)) for t, a in zip(tensors, arrays, strict=True)]
    return te_gradient(output, inputs, head), tensors, given


def check(program, dtype, roundings):
    """Compare the kernel of a gradient with its meaning in float64."""
    gradients, tensors, arrays = gradient_of(program, dtype)
    call = executable(create_prim_func([*tensors, *gradients]))
    given = call(*arrays, *unwritten(*gradients))[len(arrays) :]
    wide, wide_tensors, exact = gradient_of(program, "float64")
    expected = evaluate(wide, list(zip(wide_tensors, exact, strict=True)))
    for ours, theirs in zip(given, expected, strict=True):
        allowed = roundings * ROUNDING[dtype] * np.abs(theirs).max(initial=2.0**-20)
        np.testing.assert_allclose(ours.astype("float64"), theirs, rtol=0, atol=allowed)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_in_bfloat16(name):
    check(PROGRAMS[name], "bfloat16", roundings=4)


REDUCED = ["sum", "maximum", "product", "fold", "softmax", "matmul", "arg-maximum", "recurrent"]
"""What is reduced, so that it is computed in float32; else float16 is the processor's own."""


@pytest.mark.parametrize("name", REDUCED)
def test_gradients_in_float16(name):
    check(PROGRAMS[name], "float16", roundings=4)


TOPI = [
    "add", "divide", "maximum", "nn.leaky_relu", "nn.prelu", "clip", "fast_exp", "nn.fast_softmax",
    "concatenate", "strided_slice", "take", "gather_nd", "scatter_nd", "scatter_elements",
    "nn.conv1d_ncw", "nn.depthwise_conv2d_nchw", "nn.batch_matmul", "nn.dense", "nn.pool1d",
    "nn.rms_norm", "prod", "topk", "tensordot", "einsum", "matrix_set_diag", "reverse_sequence",
]  # fmt: skip
"""Functions of topi, each in its first case: one of each kind of stage."""


@pytest.mark.parametrize("function", TOPI)
def test_functions_of_topi_in_bfloat16(function):
    case = next(case for case in CASES if case.function == function)
    check(of_case(case), "bfloat16", roundings=4)
