"""Sums that a map takes turns with, in its launch: data gradients of strided convolutions."""

import random

import pytest
from tvm import te, tirx

from graphgrad.ops.conv.transposed import data_gradient
from graphgrad.ops.conv.window import Window
from tests.lower.cuda.running import run
from tests.lower.kernel_programs import tensor


def launches(result):
    return result.text.count('thread="blockIdx.x"')


def depthwise(images, extents, channels, taps, strides, dilation, padding, dtype):
    """The data gradient of a depthwise convolution of channels-last images, and its arguments."""
    window = Window(tuple(strides), (*padding, *padding), tuple(dilation), channels)
    out = [
        (n + 2 * p - (k - 1) * d - 1) // s + 1
        for n, k, s, d, p in zip(extents, taps, strides, dilation, padding, strict=True)
    ]
    ct = tensor(images, *out, channels, dtype=dtype, name="ct")
    w = tensor(*taps, 1, channels, dtype=dtype, name="w")
    layouts = ("NHWC", "HWIO", "NHWC")
    return [ct, w], data_gradient(ct, w, (images, *extents, channels), window, layouts, dtype)


@pytest.mark.parametrize("seed", range(6))
def test_random_data_gradients(seed):
    generator = random.Random(seed)
    extents = [generator.choice((21, 24, 29, 32)) for _ in range(2)]
    channels = generator.choice((8, 12, 24))
    arguments, gradient = depthwise(
        -(-(1 << 15) // (extents[0] * extents[1] * channels)),
        extents,
        channels,
        [generator.choice((2, 3, 5)) for _ in range(2)],
        [generator.choice((2, 2, 3)), 2],
        [generator.choice((1, 1, 2)), 1],
        [generator.choice((0, 1, 2)) for _ in range(2)],
        generator.choice(("float32", "float16")),
    )
    run(arguments, [gradient]).agree()


@pytest.mark.parametrize("extents", [(32, 32), (31, 33)], ids=["even", "odd"])
def test_no_sum_is_in_memory(extents):
    arguments, gradient = depthwise(2, extents, 24, (3, 3), (2, 2), (1, 1), (1, 1), "float32")
    result = run(arguments, [gradient])
    result.agree()
    assert launches(result) == 1


def test_a_sum_that_something_else_reads_is_in_memory():
    x = tensor(4000, 24)
    k = te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", 3)), "k")
    extents = tuple(tirx.IntImm("int64", n) for n in (3998, 24))
    total = te.compute(extents, lambda i, c: te.sum(x[i + k, c], axis=k), name="total")
    turns = te.compute(
        (tirx.IntImm("int64", 7996), tirx.IntImm("int64", 24)),
        lambda i, c: tirx.if_then_else(i % 2 == 0, total[i // 2, c], x[i // 2, c]),
        name="turns",
    )
    squares = te.compute(extents, lambda i, c: te.exp(total[i, c] * total[i, c]), name="squares")
    alone = run([x], [turns])
    alone.agree()
    assert launches(alone) == 1
    both = run([x], [turns, squares])
    both.agree()
    assert launches(both) > 1
