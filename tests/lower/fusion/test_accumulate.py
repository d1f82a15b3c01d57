"""Gradients added to accumulators: in their memory, right, with nothing of their size beside."""

import math

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.calls import calls_op
from graphgrad.lower.fusion.accumulate import accumulate_early
from graphgrad.lower.pipeline import generate, lower
from graphgrad.memory.allocation import PAGE, allocated_bytes, scratch_bytes
from graphgrad.memory.donation import DONATED, DONATED_DONE
from tests.lower.kernel_programs import HOST
from tests.lower.programs import machine, module, random_tensors, tensor_type
from tests.peers import peer
from tests.running import F64, function

op = relax.op


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


def scratch(mod, least, most=math.inf):
    """Return the bytes of the kernels' own buffers of so many bytes."""
    kernels = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return sum(
        size for kernel in kernels for size in scratch_bytes(kernel) if least <= size <= most
    )


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
    # Of a gradient, perhaps padded; copies of what a contraction reads are its schedule's choice.
    span = min(sizes), 2 * max(sizes)
    assert scratch(added, *span) <= scratch(written, *span)


def two_sums(x, y):
    """Return the sums of x and of x · y along the first axis, as one reduction of pairs."""
    k = te.reduce_axis((0, x.shape[0]), "k")
    pair = te.comm_reducer(
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        lambda t, u: (tirx.const(0, t), tirx.const(0, u)),
    )
    return te.compute((x.shape[1],), lambda i: pair((x[k, i], x[k, i] * y[k, i]), axis=k))


def both_added(b, x, y, first, second):
    sums = b.emit(b.call_te(two_sums, x, y))
    return relax.Tuple([b.emit(op.add(first, sums[0])), b.emit(op.add(second, sums[1]))])


@pytest.mark.parametrize(("rows", "columns"), [(40, 600), (4, 50), (600, 3), (40, 4000), (2, 4096)])
def test_two_results_of_one_kernel(rows, columns):
    types = [tensor_type(rows, columns)] * 2 + [tensor_type(columns)] * 2
    mod = module(both_added, *types, **{DONATED: [[2, 0], [3, 1]]})
    low = lower(mod, HOST)
    assert [list(pair) for pair in low["main"].attrs[DONATED_DONE]] == [[2, 0], [3, 1]]
    assert len(kernels_of(low)) == 1
    alone = module(lambda b, x, y: b.emit(b.call_te(two_sums, x, y)), *types[:2])
    least = max(4 * columns, 128)  # a result alone takes up to 64 bytes
    assert scratch(low, least) == scratch(lower(alone, HOST), least)
    x, y, first, second = random_tensors(*[[int(n) for n in ty.shape] for ty in types])
    expected = first.numpy() + x.numpy().sum(0), second.numpy() + (x.numpy() * y.numpy()).sum(0)
    totals = list(relax.VirtualMachine(generate(low, HOST), tvm.cpu())["main"](x, y, first, second))
    assert [t.data_ptr() for t in totals] == [first.data_ptr(), second.data_ptr()]
    for total, wanted in zip(totals, expected, strict=True):
        np.testing.assert_allclose(total.numpy(), wanted, rtol=1e-4, atol=1e-4)


def kernels_of(mod):
    """Return the names of the kernels that a lowered module calls in its main function."""
    names = [v.name_hint for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]
    return [name for name in names if not name.endswith("_check")]


def gradient_returned(b, x, old):
    gradient = b.emit(op.sum(x, 0))
    return relax.Tuple([b.emit(op.add(old, gradient)), gradient])


def broadcast(b, x, old):
    return b.emit(op.add(old, b.emit(op.sum(x, 0))))


@pytest.mark.parametrize(
    ("body", "old"), [(gradient_returned, (30,)), (broadcast, (40, 30))], ids=["used", "broadcast"]
)
def test_other_readers_keep_the_gradient(body, old):
    mod = module(body, tensor_type(40, 30), tensor_type(*old), **{DONATED: [[1, 0]]})
    assert len(kernels_of(lower(mod, HOST))) == 2
    x, before = random_tensors((40, 30), old)
    expected = before.numpy() + x.numpy().sum(0)
    result = machine(mod)["main"](x, before)
    total = result if body is broadcast else result[0]
    assert total.data_ptr() == before.data_ptr()
    np.testing.assert_allclose(total.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_sums_follow_their_gradients():
    """Cotangents and activations of later layers are not kept until the first layer's gradient."""
    build = lambda b, x, u, v: b.emit(op.matmul(b.emit(op.tanh(b.emit(op.matmul(x, u)))), v))  # noqa: E731
    mod = gg.vjp(
        function(build, ((8, 12), F64), ((12, 16), F64), ((16, 20), F64)),
        wrt=["x1", "x2"],
        grad_req="add",
    )
    early = accumulate_early(mod)["main_vjp"]
    names = [binding.var.name for block in early.body.blocks for binding in block.bindings]
    later = names.index("x2_accumulated")
    assert later < names.index("x1_accumulated") - 2
    assert names[later - 1] == "lv2_ct3"


def test_half_precision_is_scattered_in_single():
    """Many small updates of one row would be lost one by one in an accumulator of float16."""
    count, shape = 4096, (4, 8)
    types = [((count,), "int64"), (shape, "float16")]
    mod = gg.vjp(
        function(lambda b, i, w: b.emit(op.take(w, i, axis=0)), *types), wrt="x1", grad_req="add"
    )
    index, old = np.zeros(count, "int64"), np.full(shape, 100, "float16")
    cotangent = np.full((count, 8), 0.01, "float16")
    vm = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    _, (total,) = vm["main_vjp"](*map(to_tensor, (index, old, cotangent, old)))
    # Rounded to float16 twice at most: the sum of the updates, and the total.
    np.testing.assert_allclose(total.numpy()[0], 100 + count * float(cotangent[0, 0]), rtol=1e-3)


@pytest.mark.parametrize("is_read", [False, True])
def test_the_gradient_of_an_embedding_goes_into_that_of_the_head(is_read):
    """No zeros of the table's size are made for it."""
    torch = peer("torch")

    def layers(b, index, table):
        scores = tied(b, index, table)
        return b.emit(op.add(scores, b.emit(op.sum(table)))) if is_read else scores

    types = [((16,), "int64"), ((100, 64), F64)]
    mod = gg.vjp(function(layers, *types), wrt=["x1"])
    mod["main_vjp"] = mod["main_vjp"].with_attr({DONATED: []})
    early = accumulate_early(mod)
    names = kernels_of(early)
    assert "scatter_add" in names
    assert not any(
        calls_op(binding.value, "graphgrad.scatter_add")
        for block in early["main_vjp"].body.blocks
        for binding in block.bindings
    )
    arrays = values(mod["main_vjp"].params)
    (got,) = gradients(lower(mod, HOST), [to_tensor(a) for a in arrays])
    index, table, cotangent = map(torch.from_numpy, arrays)
    table.requires_grad_()
    scores = torch.tanh(table[index]) @ table.T + (table.sum() if is_read else 0)
    (expected,) = torch.autograd.grad(scores, table, cotangent)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-8)


def test_a_sum_that_is_a_gradient_itself():
    def body(b, x, first, second, third):
        gradient = b.emit(op.exp(x))
        total = b.emit(op.add(first, gradient))
        more = b.emit(op.add(second, total))
        return relax.Tuple([total, more, b.emit(op.add(third, more))])

    mod = module(body, *[tensor_type(8)] * 4, **{DONATED: [[1, 0], [2, 1], [3, 2]]})
    tensors = random_tensors(*[(8,)] * 4)
    x, *old = (tensor.numpy().copy() for tensor in tensors)
    totals = machine(mod)["main"](*tensors)
    expected = np.exp(x) + np.cumsum(old, axis=0)
    for total, wanted in zip(totals, expected, strict=True):
        np.testing.assert_allclose(total.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_extents_that_only_the_accumulator_tells():
    """From the flat gradient alone, of `4 * n` elements, a kernel learns no n."""
    n = tirx.Var("n", "int64")

    def build(b, x, w):
        flat = b.emit(op.reshape(x, (n * 4,)))
        return b.emit(op.multiply(b.emit(op.reshape(flat, (n, 4))), w))

    mod = gg.vjp(function(build, ((n, 4), F64), ((4,), F64)), wrt="x0", grad_req="add")
    vm = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    for rows in (3, 0, 5):
        shapes = [(rows, 4), (4,), (rows, 4), (rows, 4)]
        _, w, cotangent, old = arrays = [np.cos(np.arange(math.prod(s)).reshape(s)) for s in shapes]
        tensors = list(map(to_tensor, arrays))
        _, (total,) = vm["main_vjp"](*tensors)
        np.testing.assert_allclose(total.numpy(), old + cotangent * w)
        assert total.data_ptr() == tensors[3].data_ptr()
