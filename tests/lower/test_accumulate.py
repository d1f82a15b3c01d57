"""Gradients added to accumulators: in their memory, right, and with nothing of their size beside."""

import math

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.lower.allocate import PAGE, allocated_bytes, scratch_bytes
from graphgrad.lower.arrays import to_tensor
from graphgrad.lower.inplace import DONATED, DONATED_DONE
from graphgrad.lower.pipeline import generate, lower
from graphgrad.lower.target import target
from tests.lower.programs import machine, module, random_tensors, tensor_type
from tests.running import F64, function

op = relax.op
HOST = target("llvm")


def layer(compute):
    """Return the function of a builder that emits one op."""
    return lambda b, *params: b.emit(compute(*params))


def conv(**attributes):
    return layer(lambda x, w: op.nn.conv2d(x, w, **attributes))


def batch_norm(b, x, scale, shift, mean, variance):
    return b.emit(op.nn.batch_norm(x, scale, shift, mean, variance, axis=1)[0])


def layer_norm(b, x, scale, shift):
    return b.emit(op.nn.layer_norm(x, scale, shift, axes=[-1]))


def recurrent(b, x, w):
    for _ in range(24):
        x = b.emit(op.tanh(b.emit(op.matmul(x, w))))
    return x


def tied(b, index, table):
    embedded = b.emit(op.tanh(b.emit(op.take(table, index, axis=0))))
    return b.emit(op.matmul(embedded, b.emit(op.permute_dims(table))))


IMAGES = (2, 16, 14, 14)
CHANNELS = [(16,)] * 4
LAYERS = {
    "matmul": (layer(op.matmul), [(32, 64), (64, 48)], ["x0", "x1"]),
    "odd matmul": (layer(op.matmul), [(31, 67), (67, 43)], ["x0", "x1"]),
    "small matmul": (layer(op.matmul), [(4, 5), (5, 6)], ["x0", "x1"]),
    "batched matmul": (layer(op.matmul), [(6, 16, 24), (6, 24, 32)], ["x0", "x1"]),
    "broadcast matmul": (layer(op.matmul), [(6, 16, 24), (24, 32)], ["x1"]),
    "conv 3x3": (conv(padding=1), [IMAGES, (32, 16, 3, 3)], ["x1"]),
    "strided conv": (conv(padding=1, strides=2), [IMAGES, (24, 16, 3, 3)], ["x0", "x1"]),
    "grouped conv": (conv(padding=1, groups=4), [IMAGES, (32, 4, 3, 3)], ["x1"]),
    "depthwise conv": (conv(padding=1, groups=16), [IMAGES, (16, 1, 3, 3)], ["x1"]),
    "conv 1x1": (conv(), [IMAGES, (32, 16, 1, 1)], ["x1"]),
    "conv transpose": (layer(op.nn.conv2d_transpose), [IMAGES, (16, 32, 3, 3)], ["x1"]),
    "bias": (layer(op.add), [(32, 600), (600,)], ["x1"]),
    "channel bias": (layer(op.add), [(8, 64, 7, 7), (1, 64, 1, 1)], ["x1"]),
    "batch norm": (batch_norm, [IMAGES, *CHANNELS], ["x1", "x2"]),
    "layer norm": (layer_norm, [(32, 640), (640,), (640,)], ["x1", "x2"]),
    "embedding": (layer(lambda i, w: op.take(w, i, axis=0)), [(7,), (32, 64)], ["x1"]),
    "gather": (layer(lambda i, x: op.gather_elements(x, i, 1)), [(32, 5), (32, 64)], ["x1"]),
    "elementwise": (layer(op.tanh), [(32, 640)], ["x0"]),
    "softmax": (layer(op.nn.softmax), [(32, 64)], ["x0"]),
    "slice": (layer(lambda x: op.strided_slice(x, [0], [2], [30], [3])), [(32, 64)], ["x0"]),
    "concat": (layer(lambda x, y: op.concat([x, y], 0)), [(32, 64), (16, 64)], ["x0", "x1"]),
    "average pool": (layer(lambda x: op.nn.avg_pool2d(x, (2, 2), (2, 2))), [IMAGES], ["x0"]),
    "used 24 times": (recurrent, [(32, 64), (64, 64)], ["x1"]),
    "tied": (tied, [(16,), (100, 64)], ["x1"]),
}
INDICES = {"embedding": "x0", "gather": "x0", "tied": "x0"}


def lowered(name, grad_req):
    """Return the gradient of a layer, lowered, and its parameters."""
    build, shapes, wrt = LAYERS[name]
    types = [
        (shape, "int64" if INDICES.get(name) == f"x{i}" else F64) for i, shape in enumerate(shapes)
    ]
    mod = gg.vjp(function(build, *types), wrt=wrt, grad_req=grad_req)
    del mod["main"]
    return lower(mod, HOST), mod["main_vjp"].params


def values(params):
    generator = np.random.default_rng(0)
    return [
        generator.integers(0, 5, shape)
        if str(param.ty.dtype) == "int64"
        else generator.uniform(0.1, 0.3, shape)
        for param, shape in ((p, [int(n) for n in p.ty.shape]) for p in params)
    ]


def gradients(mod, tensors):
    vm = relax.VirtualMachine(generate(mod, HOST), tvm.cpu())
    return list(vm["main_vjp"](*tensors)[1])


def scratch(mod, least):
    """Return the bytes of the kernels' own buffers that are as large as a gradient."""
    kernels = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return sum(size for kernel in kernels for size in scratch_bytes(kernel) if size >= least)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    written, params = lowered(name, "write")
    added, more = lowered(name, "add")
    count = len(more) - len(params)
    arrays = values(more)
    tensors = [to_tensor(array) for array in arrays]
    sums = gradients(added, tensors)
    assert [s.data_ptr() for s in sums] == [t.data_ptr() for t in tensors[-count:]]
    expected = gradients(written, [to_tensor(array) for array in arrays[:-count]])
    for total, old, gradient in zip(sums, arrays[-count:], expected, strict=True):
        np.testing.assert_allclose(total.numpy(), old + gradient.numpy(), rtol=1e-12)
    sizes = [array.nbytes for array in arrays[-count:]]
    pages = sum(math.ceil(size / PAGE) * PAGE for size in sizes)
    assert allocated_bytes(added)["main_vjp"] <= allocated_bytes(written)["main_vjp"] - pages
    assert scratch(added, min(sizes)) <= scratch(written, min(sizes))
