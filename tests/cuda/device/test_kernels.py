"""Kernels of each kind give on a CUDA device what they give on the host."""

from functools import cache

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from graphgrad.ops.random import dropout_call, mask_call
from tests.cuda.device import norms
from tests.cuda.device.running import Program

op = relax.op

MAPS = {
    "map": (lambda x, y: op.add(op.exp(x), op.multiply(x, y)), (7, 13, 5), (13, 1)),
    "map-empty": (op.exp, (0, 3)),
    "map-rank-0": (op.tanh, ()),
    "map-wide": (lambda x, y: op.where(op.greater(x, y), x, y), (129, 256), (129, 256)),
    "map-wide-planes": (op.multiply, (128, 6, 7, 7), (6, 1, 1)),
    "map-wide-halves": (op.exp, ("float16", 128, 256)),
    "map-half-wide": (op.subtract, (127, 130), (127, 1)),
    "map-large": (op.negative, (3, 70001)),
    "select": (lambda x, y: op.where(op.greater(x, y), x, y), (31,), (31,)),
    "cast": (lambda x: op.astype(op.multiply(x, relax.const(100.0, "float32")), "int32"), (41,)),
    "map-masks": (
        lambda x, y: op.add(
            op.where(op.greater(x, y), x, y), op.max(op.astype(op.greater(x, y), "float32"))
        ),
        (128, 160),
        (128, 160),
    ),
    "transpose-wide": (lambda x: op.permute_dims(x, [0, 2, 3, 1]), (2, 40, 20, 24)),
    "transpose-odd": (lambda x: op.permute_dims(x, [1, 0]), (131, 257)),
    "transpose-halves": (
        lambda x, y: op.add(op.permute_dims(x, [1, 0]), y),
        ("bfloat16", 136, 200),
        ("bfloat16", 200, 136),
    ),
    "transpose": (lambda x: op.permute_dims(x, [2, 0, 1]), (5, 37, 11)),
    "concat": (lambda x, y: op.concat([x, y], 1), (3, 5), (3, 2)),
    "slice": (lambda x: op.strided_slice(x, [1], [1], [9], [3]), (3, 9)),
    "gather": (lambda x, i: op.take(x, i, 0), (5, 6), ("int64", 4, 2)),
}

REDUCED = ("sum", "mean", "max", "min", "prod", "variance", "std")
AXES = {"rows": (1, (17, 67)), "columns": (0, (67, 17)), "all": (None, (3, 7, 11))}


def reduced(name, axis):
    return lambda x: getattr(op, name)(x, axis)


def largest(x, y):
    """Whether some element equals the largest of its column, which another kernel has found."""
    values = op.multiply(op.add(x, y), y)
    return op.max(op.astype(op.equal(values, op.max(values, 0, keepdims=True)), "int8"), 0)


REDUCTIONS = {
    f"{name}-{kind}": (reduced(name, axis), shape)
    for kind, (axis, shape) in AXES.items()
    for name in (*REDUCED, *(("argmax", "argmin") if axis is not None else ()))
}
REDUCTIONS |= {
    "largest-halves": (largest, ("bfloat16", 19, 24), ("bfloat16", 24)),
    "sum-many": (op.sum, (100003,)),
    "sum-wide-columns": (lambda x: op.sum(x, 0), (1031, 64)),
    "sum-wide-rows": (lambda x: op.sum(x, 1), (3, 9004)),
    "sum-wide-halves": (
        lambda x: op.astype(op.sum(op.astype(x, "float32"), 1), "float16"),
        ("float16", 5, 2056),
    ),
    "max-wide": (lambda x: op.max(x, [0, 2, 3]), (4, 6, 36, 36)),
    "any-of-many": (
        lambda x: op.max(op.astype(op.greater(x, relax.const(1.4, "float32")), "int8"), 1),
        (5, 300),
    ),
    "moments-of-channels": (lambda x: op.variance(x, [0, 2, 3]), (8, 3, 36, 36)),
    "sum-of-channels": (lambda x: op.sum(x, [0, 2, 3]), (4, 3, 19, 17)),
    "sum-of-nothing": (lambda x: op.sum(x, 0), (0, 5)),
    "softmax": (lambda x: op.nn.softmax(x, -1), (5, 3, 71)),
    "log-softmax": (lambda x: op.nn.log_softmax(x, 1), (5, 71, 3)),
    "layer-norm": (lambda x, g, s: op.nn.layer_norm(x, g, s, [-1]), (9, 23), (23,), (23,)),
    "softmax-wide": (lambda x: op.nn.softmax(x, -1), (523, 136)),
    "softmax-halves": (lambda x: op.nn.softmax(x, -1), ("bfloat16", 3, 201, 264)),
    "softmax-blocks": (lambda x: op.nn.softmax(x, -1), (130, 3001)),
    "log-softmax-wide": (lambda x: op.exp(op.nn.log_softmax(x, 1)), (600, 103)),
    "layer-norm-wide": (
        lambda x, g, s: op.nn.layer_norm(x, g, s, [-1]),
        (2, 300, 136),
        (136,),
        (136,),
    ),
    "layer-norm-gradient": (norms.gradient_by_rows, (516, 136), (516, 136), (136,)),
    "layer-norm-gradient-halves": (
        norms.gradient_by_rows,
        ("bfloat16", 516, 264),
        ("bfloat16", 516, 264),
        (264,),
    ),
    "max-pool-wide": (
        lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"),
        (4, 17, 18, 40),
    ),
    "max-pool": (lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)), (2, 3, 9, 9)),
    "average-pool": (lambda x: op.nn.avg_pool2d(x, (2, 2), (2, 2)), (2, 3, 9, 9)),
}

REDUCTIONS |= {
    f"{function.__name__}-{dtype}": (function, *((dtype, *image) for _ in range(images)), *vectors)
    for dtype, image in (("float32", (8, 13, 17, 24)), ("bfloat16", (4, 16, 17, 264)))
    for function, images, vectors in (
        (norms.batch_norm, 1, [image[-1:]] * 4),
        (norms.gradient, 2, [image[-1:]]),
        (norms.gradients_of_sum, 3, [image[-1:]]),
    )
}

CONTRACTIONS = {
    "matmul": (op.matmul, (37, 19), (19, 53)),
    "matmul-batched": (op.matmul, (3, 7, 5), (3, 5, 11)),
    "matmul-vector": (op.matmul, (29,), (29, 31)),
    "matmul-deep": (op.matmul, (3, 1031), (1031, 2)),
    "matmul-chosen": (
        lambda x, w, flags, y: op.where(flags, op.matmul(x, w), y),
        (12, 6),
        (6, 20),
        ("bool", 12, 20),
        (12, 20),
    ),
    "matmul-signs": (
        lambda x, w: op.greater(op.matmul(x, w), relax.const(0.0, "float32")),
        (12, 6),
        (6, 20),
    ),
    "conv": (
        lambda x, w: op.nn.conv2d(x, w, strides=2, padding=1),
        (2, 3, 9, 7),
        (5, 3, 3, 3),
    ),
    "conv-grouped": (lambda x, w: op.nn.conv2d(x, w, groups=2), (2, 4, 8, 8), (6, 2, 3, 3)),
}

HANDMADE = {
    "cumsum": (lambda x: op.cumsum(x, 1), (7, 131)),
    "sort": (lambda x: op.sort(x, 1), (5, 47)),
    "argsort": (lambda x: op.argsort(x, 1), (5, 47)),
    "top-k": (lambda x: op.topk(x, 3, 1), (5, 47)),
    "scatter": (
        lambda x, i, u: op.scatter_elements(x, i, u, 0, "add"),
        (5, 2),
        ("int64", 4, 2),
        (4, 2),
    ),
    "dropout": (lambda x, seed: dropout_call(x, seed, 0.4, 3), (37, 41), ("int64",)),
    "dropout-mask": (lambda x, seed: mask_call(x, seed, 0.4, 3), (37, 41), ("int64",)),
    "scatter-nd": (lambda x, i, u: op.scatter_nd(x, i, u, "add"), (5, 4), ("int64", 6, 1), (6, 4)),
}
"""Functions by kind and name, and the shapes they take; float32 unless a shape says otherwise.

Most extents are odd or prime, so that no tile fits.
"""

KINDS = {"map": MAPS, "reduction": REDUCTIONS, "contraction": CONTRACTIONS, "handmade": HANDMADE}


def types(shapes):
    """Return the dtype and the extents of each parameter."""
    return [(s[0], s[1:]) if s and isinstance(s[0], str) else ("float32", s) for s in shapes]


@cache
def program(kind):
    """All functions of a kind in one module: compiled one by one, they would take minutes."""
    return Program(
        module_of(
            {
                name: (function, [relax.TensorType(list(e), dtype) for dtype, e in types(shapes)])
                for name, (function, *shapes) in KINDS[kind].items()
            }
        )
    )


def module_of(functions):
    """A module of functions by name, each given with the types of its parameters."""
    mod = tvm.IRModule()
    for name, (function, types_of_params) in functions.items():
        params = [relax.Var(f"p{index}", ty) for index, ty in enumerate(types_of_params)]
        builder = relax.BlockBuilder()
        with builder.function(name, params):
            with builder.dataflow():
                result = builder.emit_output(function(*params))
            builder.emit_func_output(result)
        mod.update(builder.get())
    return mod


def drawn(dtype, extents, generator):
    if dtype == "bool":
        return generator.random(extents) < 0.5
    if dtype == "int64":
        return generator.integers(0, 5, extents)
    return generator.uniform(-1.5, 1.5, extents).astype(dtype)


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, cases in KINDS.items() for n in cases])
def test_kernel(kind, name):
    generator = np.random.default_rng(0)
    arrays = [drawn(*ty, generator) for ty in types(KINDS[kind][name][1:])]
    program(kind).check(name, *arrays)


OF_A_BATCH = {
    "products": (op.matmul, ("n", 64, 20), ("n", 20, 33)),
    "shared": (op.matmul, ("n", 64, 20), (20, 33)),
    "conv": (lambda x, w: op.nn.conv2d(x, w, padding=1), ("n", 3, 8, 8), (4, 3, 3, 3)),
}
"""Contractions whose batch is open, and whose rows are whole tiles: nothing of them is padded."""


@cache
def products_of_a_batch():
    n = tirx.Var("n", "int64")
    return Program(
        module_of(
            {
                name: (
                    function,
                    [relax.TensorType(open_at(n, shape), "float32") for shape in shapes],
                )
                for name, (function, *shapes) in OF_A_BATCH.items()
            }
        )
    )


def open_at(extent, shape):
    """A shape of `OF_A_BATCH` with an extent for its open one."""
    return [extent if each == "n" else each for each in shape]


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("name", OF_A_BATCH)
def test_a_batch_without_examples(name, batch):
    generator = np.random.default_rng(0)
    _, *shapes = OF_A_BATCH[name]
    arrays = [generator.uniform(-1, 1, open_at(batch, s)).astype("float32") for s in shapes]
    products_of_a_batch().check(name, *arrays)
