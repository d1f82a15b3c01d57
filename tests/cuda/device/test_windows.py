"""Depthwise convolutions, poolings and their gradients: a CUDA device gives what this host does."""

from functools import cache

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from tests.cuda.device.running import Program

op = relax.op


def convolution(dtype, image, taps, **attributes):
    """A depthwise convolution of channels-last images, or of those with channels first."""
    channels = image[attributes.get("data_layout", "NCHW").index("C")]
    shape = (
        (channels, 1, taps, taps) if "data_layout" not in attributes else (taps, taps, 1, channels)
    )
    return (
        lambda x, w: op.nn.conv2d(x, w, groups=channels, **attributes),
        (dtype, image),
        (dtype, shape),
    )


LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO"}

CONVOLUTIONS = {
    "3x3": convolution("float32", (2, 19, 22, 20), 3, padding=1, **LAST),
    "3x3-strided": convolution("bfloat16", (2, 37, 38, 24), 3, strides=2, padding=1, **LAST),
    "3x3-strided-wide": convolution("float32", (2, 32, 44, 16), 3, strides=2, padding=1, **LAST),
    "5x5-prime": convolution("bfloat16", (2, 19, 29, 24), 5, padding=2, **LAST),
    "7x7": convolution("float32", (2, 14, 14, 48), 7, padding=3, **LAST),
    "dilated": convolution("float32", (2, 21, 20, 24), 3, dilation=2, **LAST),
    "channels-first": convolution("float32", (2, 24, 19, 24), 3, padding=1),
    "channels-first-of-sevens": convolution("bfloat16", (2, 48, 14, 14), 3, padding=1),
    "rows-of-six": (
        lambda x, w: op.tanh(op.nn.conv2d(x, w, strides=(1, 2), padding=1, groups=16)),
        ("float16", (32, 16, 8, 12)),
        ("float16", (16, 1, 3, 3)),
    ),
    "mask-of-short-rows": (
        lambda x: op.where(op.greater(x, relax.const(0.2, "float32")), x, op.negative(x)),
        ("float32", (8, 24, 12, 12)),
    ),
    "channels-first-strided": convolution("float32", (2, 24, 38, 21), 3, strides=2, padding=1),
}


def pooling(function, dtype, image, size, strides, padding, layout="NHWC"):
    return (
        lambda x: function(x, (size, size), (strides,) * 2, (padding,) * 2, layout=layout),
        (dtype, image),
    )


MAX, AVERAGE = op.nn.max_pool2d, op.nn.avg_pool2d

POOLINGS = {
    "max": pooling(MAX, "float32", (2, 37, 30, 40), 3, 2, 1),
    "max-halves": pooling(MAX, "bfloat16", (2, 38, 39, 32), 3, 2, 1),
    "max-stride-1": pooling(MAX, "float32", (2, 17, 31, 24), 3, 1, 1),
    "max-channels-first": pooling(MAX, "float32", (2, 24, 37, 38), 3, 2, 1, "NCHW"),
    "max-of-sevens": pooling(MAX, "float32", (2, 48, 14, 14), 3, 1, 1, "NCHW"),
    "average": pooling(AVERAGE, "float32", (2, 19, 22, 24), 3, 1, 1),
    "average-halves": pooling(AVERAGE, "bfloat16", (2, 38, 40, 24), 3, 2, 1),
    "average-apart": pooling(AVERAGE, "float32", (2, 38, 40, 24), 2, 2, 0),
}


def behind_maps(dtype, image, size, strides, padding, **attributes):
    """A max pooling of what a norm and its ReLU make, which is in no memory."""

    def function(x, mean, scale):
        y = op.multiply(op.subtract(op.astype(x, "float32"), mean), scale)
        y = op.nn.relu(op.astype(y, dtype))
        windows = ((size, size), (strides,) * 2, (padding,) * 2)
        return MAX(y, *windows, layout="NHWC", **attributes)

    return function, (dtype, image), ("float32", image[3:]), ("float32", image[3:])


MAXIMA = {
    "max-of-a-norm": behind_maps("float32", (2, 37, 30, 40), 3, 2, 1),
    "max-of-a-norm-halves": behind_maps("bfloat16", (2, 38, 39, 32), 3, 2, 1),
    "max-of-a-norm-apart": behind_maps("bfloat16", (3, 38, 40, 24), 2, 2, 0),
    "max-of-a-norm-odd": behind_maps("float16", (3, 39, 41, 25), 3, 2, 1),
    "max-of-a-norm-behind-the-end": behind_maps(
        "bfloat16", (3, 38, 41, 16), 3, 3, 0, ceil_mode=True
    ),
    "max-of-a-norm-dilated": behind_maps(
        "float32", (3, 38, 41, 24), 3, 2, 1, dilation=(2, 1), ceil_mode=True
    ),
    "max-of-a-norm-in-padding": behind_maps("float32", (2, 60, 64, 16), 2, 2, 3),
}

CASES = CONVOLUTIONS | POOLINGS | MAXIMA


@cache
def program():
    mod = tvm.IRModule()
    for name, (function, *types) in CASES.items():
        params = [
            relax.Var(f"p{index}", relax.TensorType(list(shape), dtype))
            for index, (dtype, shape) in enumerate(types)
        ]
        builder = relax.BlockBuilder()
        with builder.function(name, params):
            with builder.dataflow():
                result = builder.emit_output(function(*params))
            builder.emit_func_output(result)
        both = gg.vjp(builder.get(), name)
        del both[name]  # its gradient gives its value, too
        mod.update(both)
    return mod, Program(mod)


@pytest.mark.parametrize("name", CASES)
def test_windows(name):
    generator = np.random.default_rng(0)
    mod, compiled = program()
    arrays = [
        generator.uniform(-1.5, 1.5, [int(n) for n in param.ty.shape]).astype(str(param.ty.dtype))
        for param in mod[f"{name}_vjp"].params
    ]
    compiled.check(f"{name}_vjp", *arrays)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("max")])
def test_windows_of_nan_and_infinities(name):
    """The first NaN of a window is its maximum, and so is the first of equal elements."""
    generator = np.random.default_rng(1)
    mod, compiled = program()
    x, *others = [
        generator.uniform(0.5, 1.5, [int(n) for n in param.ty.shape]).astype(str(param.ty.dtype))
        for param in mod[f"{name}_vjp"].params
    ]
    kinds = generator.choice(
        [np.nan, np.inf, -np.inf, 1.0, -0.0], x.shape, p=[0.1, 0.1, 0.5, 0.2, 0.1]
    )
    # Whole windows of minus infinity too.
    kinds[:, : x.shape[1] // 2] = np.where(
        generator.random(x.shape[0]) < 0.5, -np.inf, kinds[:, : x.shape[1] // 2].T
    ).T
    compiled.check(f"{name}_vjp", kinds.astype(x.dtype), *others)
