"""Every op with a rule, behind a convolution: the same values, and the op runs channels last."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.tensor import Emitter
from graphgrad.layout import orders
from graphgrad.layout.rule import LAYOUT_RULES
from graphgrad.ops.conv import Window, conv_data_gradient
from graphgrad.ops.moments import precise_sum
from graphgrad.ops.random import dropout_call, mask_call
from graphgrad.ops.resample import Table, resample
from tests.layout.rewriting import rewritten_module
from tests.running import function

o, nn = relax.op, relax.op.nn
F64 = "float64"
IMAGE, VECTOR, PLANE = (2, 4, 6, 5), (4,), (6, 5)
"""What the op under test is given: an image, one number per channel, one per position."""


def const(*shape):
    return relax.const(np.random.default_rng(len(shape)).random(shape) + 0.5, F64)


def behind_convolution(build, image=IMAGE):
    """Return a function of an image, weights, a second image, a vector and a plane."""
    rank = len(image) - 2
    convolution = getattr(nn, f"conv{rank}d")

    def whole(b, x, w, image, vector, plane):
        y = b.emit(convolution(x, w, padding=1))
        result = build(b, y, image, vector, plane)
        return b.emit(result) if not isinstance(result, relax.Tuple) else result

    weights = (4, image[1], *[3] * rank)
    return function(whole, *((s, F64) for s in (image, weights, image, VECTOR, PLANE)))


def count(mod, name):
    """Return how many calls of an op the function has that move elements."""
    found = []
    tvm_ffi.structural_walk(
        mod["main"], (relax.Call, lambda c: found.append(c) if c.op.name == name else None)
    )
    return len([call for call in found if len(call.ty.shape) > 2])


def arrays(mod):
    rng = np.random.default_rng(0)
    return [rng.random([int(d) for d in p.ty.shape]) + 0.5 for p in mod["main"].params]


def filters_of(mod):
    return orders.filters_last(len(mod["main"].params[1].ty.shape))


@pytest.fixture(scope="module")
def compiled(request):
    """The cases that were chosen with their rewritten forms, by name, all in one machine.

    They have convolutions in common, which take longer to compile than all else.
    """
    chosen = {item.name for item in request.session.items if item.path == request.path}
    functions, modules = {}, {}
    for name, (mod, _) in CASES.items():
        if f"test_the_values_stay_and_permutations_are_few[{name}]" not in chosen:
            continue
        rewritten = rewritten_module(mod, storage={"x1": filters_of(mod)})
        modules[name] = mod, rewritten
        functions |= {f"{name}, old": mod["main"], f"{name}, new": rewritten["main"]}
    return modules, relax.VirtualMachine(gg.compile(tvm.IRModule(functions)), tvm.cpu())


def check(compiled, name):
    """Compare a function with its rewritten form, which has some permutations of images."""
    modules, machine = compiled
    mod, rewritten = modules[name]
    assert count(rewritten, "relax.permute_dims") == CASES[name][1]
    given = arrays(mod)
    stored = [given[0], given[1].transpose(filters_of(mod)), *given[2:]]
    new, old = (
        flat(machine[f"{name}, {form}"](*map(to_tensor, values)))
        for form, values in (("new", stored), ("old", given))
    )
    for result, expected in zip(new, old, strict=True):
        assert result.shape == expected.shape and result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


def named(name):
    """Return a builder that calls a unary op with no attributes."""
    function = o
    for part in name.split("."):
        function = getattr(function, part)
    return lambda b, y, *_: function(y)


UNARY = [
    "abs",
    "exp",
    "nn.relu",
    "sigmoid",
    "nn.silu",
    "floor",
    "square",
    "zeros_like",
    "nn.gelu",
    "rsqrt",
]

KEPT = {
    **{name: named(name) for name in UNARY},
    "clip": lambda b, y, *_: o.clip(y, 0.2, 0.7),
    "astype": lambda b, y, *_: o.astype(y, "float32"),
    "leakyrelu": lambda b, y, *_: nn.leakyrelu(y, 0.3),
    "full_like": lambda b, y, *_: o.full_like(y, relax.const(2.0, F64)),
    "scalar": lambda b, y, *_: o.multiply(y, relax.const(2.0, F64)),
    "two of a kind": lambda b, y, *_: o.subtract(b.emit(nn.relu(y)), y),
    "vector along width": lambda b, y, *_: o.add(y, const(5)),
    "plane": lambda b, y, i, v, plane: o.multiply(y, plane),
    "constant plane": lambda b, y, *_: o.multiply(const(6, 5), y),
    "constant image": lambda b, y, *_: o.add(const(1, 4, 6, 5), y),
    "where": lambda b, y, *_: o.where(b.emit(o.less(y, const(4, 1, 1))), y, relax.const(0.0, F64)),
    "prelu": lambda b, y, i, v, p: nn.prelu(y, v, axis=1),
    "prelu from the end": lambda b, y, i, v, p: nn.prelu(y, v, axis=-3),
    "broadcast_to": lambda b, y, *_: o.broadcast_to(b.emit(o.mean(y, [2, 3], True)), IMAGE),
    "precise_sum": lambda b, y, *_: precise_sum(Emitter(b).lift(y), [0, 2]).expr,
    "concat": lambda b, y, *_: o.concat([y, b.emit(nn.relu(y))], axis=1),
    "concat of height": lambda b, y, *_: o.concat([y, y], axis=-2),
    "softmax": lambda b, y, *_: nn.softmax(y, axis=1),
    "log_softmax": lambda b, y, *_: nn.log_softmax(y, axis=-1),
    "flip": lambda b, y, *_: o.flip(y, 2),
    "cumsum": lambda b, y, *_: o.cumsum(y, 1),
    "repeat": lambda b, y, *_: o.repeat(y, 2, axis=3),
    "tile": lambda b, y, *_: o.tile(y, [2, 1, 3]),
    "sort": lambda b, y, *_: o.sort(y, axis=1),
    "take": lambda b, y, *_: o.take(y, relax.const([2, 0]), axis=1, mode="clip"),
    "strided_slice": lambda b, y, *_: o.strided_slice(y, [1, 3], [1, 0], [3, 5], [1, 2]),
    "slice from the end": lambda b, y, *_: o.strided_slice(y, [-2], [1], [3]),
    "pad": lambda b, y, *_: nn.pad(y, [0, 0, 1, 0, 2, 3, 0, 1], pad_value=3.0),
    "pad by reflection": lambda b, y, *_: nn.pad(y, [0, 0, 0, 0, 2, 1, 1, 2], "reflect"),
    "batch_norm": lambda b, y, i, v, p: relax.TupleGetItem(
        b.emit(nn.batch_norm(y, v, v, v, v, axis=1, training=True)), 0
    ),
    "group_norm": lambda b, y, i, v, p: nn.group_norm(y, v, v, 2, channel_axis=1, axes=[2, 3]),
    "instance_norm": lambda b, y, i, v, p: nn.instance_norm(y, v, v, 1, [2, -1]),
    "layer_norm": lambda b, y, i, v, p: nn.layer_norm(y, v, v, axes=[1]),
    "layer_norm of two": lambda b, y, *_: nn.layer_norm(y, const(4, 5), const(4, 5), axes=[1, -1]),
    "rms_norm": lambda b, y, i, v, plane: nn.rms_norm(y, plane, axes=[2, 3]),
    "max_pool": lambda b, y, *_: nn.max_pool2d(y, 2, 2, 1, ceil_mode=True),
    "avg_pool": lambda b, y, *_: nn.avg_pool2d(y, (3, 2), (2, 1), (1, 0, 0, 1)),
    "adaptive_avg_pool": lambda b, y, *_: nn.adaptive_avg_pool2d(y, (3, 2)),
    "resize": lambda b, y, *_: o.image.resize2d(y, (9, 7)),
    "resample": lambda b, y, *_: resample(
        Emitter(b).lift(y), Table([{0: 1.0}, {1: 0.5, 5: 0.5}], 6), axis=2
    ).expr,
    "dropout": lambda b, y, *_: dropout_call(y, relax.const(3, "int64"), 0.5, 1),
    "dropout mask": lambda b, y, *_: mask_call(y, relax.const(3, "int64"), 0.5, 1),
    "conv": lambda b, y, *_: nn.conv2d(y, const(3, 4, 3, 2), strides=2, padding=1),
    "depthwise": lambda b, y, *_: nn.conv2d(y, const(8, 1, 3, 3), groups=4),
    "data gradient": lambda b, y, *_: conv_data_gradient(
        Emitter(b).lift(y), Emitter(b).lift(const(4, 3, 3, 2)), [2, 6, 14, 12],
        Window((2, 2), (0, 0, 1, 1), (1, 1), 2),
    ).expr,
    "conv_transpose": lambda b, y, *_: nn.conv2d_transpose(
        y, const(4, 3, 3, 2), strides=2, output_padding=1, groups=2
    ),
}  # fmt: skip
"""Ops whose image stays channels last: the data are permuted once, and the result."""


FREE = {
    "mean over space": lambda b, y, *_: o.mean(y, [2, 3]),
    "mean over space, kept": lambda b, y, *_: o.mean(y, [2, 3], keepdims=True),
    "mean of channels": lambda b, y, *_: o.mean(y, [1], keepdims=True),
    "sum of all": lambda b, y, *_: o.sum(y),
    "variance of all but channels": lambda b, y, *_: o.variance(y, [0, -2, -1]),
    "flat": lambda b, y, *_: o.reshape(b.emit(nn.adaptive_avg_pool2d(y, 1)), (2, 4)),
    "batch_flatten": lambda b, y, *_: nn.batch_flatten(b.emit(o.max(y, [2, 3], True))),
    "squeeze": lambda b, y, *_: o.squeeze(b.emit(o.min(y, [2, 3], True)), [2, 3]),
    "channels last by the model": lambda b, y, *_: o.permute_dims(y, [0, 2, 3, 1]),
    "tokens": lambda b, y, *_: o.permute_dims(b.emit(o.reshape(y, (2, 4, 30))), [0, 2, 1]),
    "statistics": lambda b, y, i, v, p: relax.TupleGetItem(
        b.emit(nn.batch_norm(y, v, v, v, v, axis=1, training=True)), 1
    ),
    "loss of positions": lambda b, y, *_: nn.nll_loss(
        b.emit(nn.log_softmax(y, axis=1)),
        relax.const(np.arange(60).reshape(2, 6, 5) % 4), const(4), ignore_index=2,
    ),
    "argmax of channels": lambda b, y, *_: o.argmax(y, axis=1),
    "dimensions added": lambda b, y, *_: o.sum(b.emit(o.expand_dims(y, [1])), [2, 3, 4]),
}  # fmt: skip
"""Ops behind which nothing has to be permuted."""


BACK = {
    "flat": (lambda b, y, *_: o.reshape(y, (2, 120)), 2),
    "position of all": (lambda b, y, *_: o.argmax(y), 2),
    "cumsum of all": (lambda b, y, *_: o.cumsum(y), 2),
    "more axes": (lambda b, y, *_: o.tile(y, [2, 1, 1, 1, 1]), 2),
    "matmul": (lambda b, y, *_: o.matmul(y, const(5, 3)), 2),
    "another image": (lambda b, y, image, *_: o.add(y, image), 3),
    "another image, joined": (lambda b, y, image, *_: o.concat([image, y], axis=1), 3),
    "two images of another order": (
        lambda b, y, image, *_: o.ewise_fma(image, b.emit(o.exp(image)), y), 2,
    ),
    "stack": (lambda b, y, *_: o.stack([y, y], axis=1), 2),
    "losses of positions": (
        lambda b, y, *_: nn.nll_loss(
            y, relax.const(np.arange(60).reshape(2, 6, 5) % 4), reduction="none"
        ), 2,
    ),
    "joined again": (lambda b, y, *_: o.concat(b.emit(o.split(y, 2, axis=1)), axis=1), 3),
    "split": (lambda b, y, *_: b.emit(o.split(y, 2, axis=1)), 3),
    "one of a split": (lambda b, y, *_: relax.TupleGetItem(b.emit(o.split(y, [1], 1)), 1), 2),
    "topk": (lambda b, y, *_: relax.TupleGetItem(b.emit(o.topk(y, 2, axis=1)), 0), 2),
    "shuffled channels": (
        lambda b, y, *_: o.reshape(
            b.emit(o.permute_dims(b.emit(o.reshape(y, (2, 2, 2, 6, 5))), [0, 2, 1, 3, 4])), IMAGE
        ), 3,
    ),
    "half of the shuffled channels": (
        lambda b, y, *_: o.sum(b.emit(o.strided_slice(b.emit(o.reshape(
            b.emit(o.permute_dims(b.emit(o.reshape(y, (2, 2, 2, 6, 5))), [0, 2, 1, 3, 4])), IMAGE
        )), [1], [0], [2])), [2, 3]), 2,
    ),
}  # fmt: skip
"""Ops that need the model's own order, or whose result does; how many permutations there are."""


def pool_of_rank(name, rank):
    return lambda b, y, *_: getattr(nn, f"{name}{rank}d")(y, 2)


def transposed_of_rank(rank):
    weight = const(4, 2, *[3, 2, 2][:rank])
    return lambda b, y, *_: getattr(nn, f"conv{rank}d_transpose")(y, weight, strides=2)


OTHER_RANKS = {
    **{f"{name}, {rank} axes": (pool_of_rank(name, rank), (2, 3, *[4, 3, 5][:rank]))
       for name in ("max_pool", "avg_pool", "adaptive_avg_pool") for rank in (1, 3)},
    **{f"conv_transpose, {rank} axes": (transposed_of_rank(rank), (1, 3, *[4, 3, 5][:rank]))
       for rank in (1, 3)},
}  # fmt: skip
"""Ops on images of one and three spatial axes, with the shape of the image; they stay, too."""

CASES = {
    **{f"kept: {name}": (behind_convolution(build), 2) for name, build in KEPT.items()},
    **{f"free: {name}": (behind_convolution(build), 1) for name, build in FREE.items()},
    **{f"back: {name}": (behind_convolution(build), number)
       for name, (build, number) in BACK.items()},
    **{f"kept: {name}": (behind_convolution(build, image=image), 2)
       for name, (build, image) in OTHER_RANKS.items()},
}  # fmt: skip
"""A function, and how many permutations of images its rewritten form has."""


@pytest.mark.parametrize("name", CASES)
def test_the_values_stay_and_permutations_are_few(compiled, name):
    check(compiled, name)


def test_every_passage_is_of_an_op():
    for name in LAYOUT_RULES:
        assert tvm_ffi.get_global_func("ir.GetOp")(name).name == name
