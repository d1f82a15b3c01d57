"""Flat maps together: few kernels, the same bits, and none joined where that would be wrong."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call, GlobalVar

import graphgrad as gg
from graphgrad.lower import pipeline
from graphgrad.lower.target import target
from graphgrad.memory.donation import DONATED, DONATED_DONE
from graphgrad.models import mlp
from tests.differential import _rounding_each
from tests.labels import label
from tests.lower.kernel_programs import HOST
from tests.lower.programs import module, random_tensors, tensor_type

op = relax.op

EACH = _rounding_each(HOST)
"""A processor that rounds each product and each sum: what LLVM fuses depends on the loop."""

JOINED = "_horizontal"


def scaled(x, factor):
    return op.multiply(x, relax.const(factor, "float32"))


def kernels(mod):
    """Return the names of the kernels that a lowered module calls, without checks."""
    lowered = pipeline.lower(mod, target("llvm"))
    found = []

    def visit(call):
        if isinstance(call.op, GlobalVar) and "check" not in call.op.name_hint:
            found.append(call.op.name_hint)

    tvm_ffi.structural_walk(lowered["main"].body, (Call, visit))
    return found


def machine(mod):
    """Return a module, compiled, as a virtual machine."""
    return relax.VirtualMachine(gg.compile(mod, EACH), tvm.cpu())


def separately(mod, *tensors):
    """Return what a module computes without anything joined."""
    with tvm.transform.PassContext(disabled_pass=["graphgrad.fuse_horizontally"]):
        return machine(mod)["main"](*tensors)


def values(result):
    """Return the arrays of a result in order."""
    if hasattr(result, "numpy"):
        return [result.numpy()]
    return [array for part in result for array in values(part)]


def assert_same(mod, *tensors):
    """Assert that joining changes no bit, neither of results nor of arguments."""
    copies = [gg.copy(tensor) for tensor in tensors]
    expected = values([separately(mod, *copies), copies])
    originals = list(tensors)
    found = values([machine(mod)["main"](*originals), originals])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def momentum_updates(builder, *tensors):
    """Move parameters along momenta, both in place: (p, m, g) after each other."""
    results = []
    for p, m, g in zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True):
        velocity = builder.emit(op.add(scaled(m, 0.5), g))
        results += [builder.emit(op.subtract(p, scaled(velocity, 0.25))), velocity]
    return relax.Tuple(results)


def update_of(*shapes):
    donated = [
        pair for i in range(len(shapes)) for pair in ([3 * i, 2 * i], [3 * i + 1, 2 * i + 1])
    ]
    types = [tensor_type(*shape) for shape in shapes for _ in range(3)]
    return module(momentum_updates, *types, **{DONATED: donated})


SHAPES = [
    [(7,)],
    [(3, 5), (1,), (64, 32, 3, 3)],
    [(20011,), (2, 2), (16,)],
    [(5,)] * 30,
]


@pytest.mark.parametrize("shapes", SHAPES, ids=label)
def test_updates_share_kernels_and_stay_in_place(shapes):
    mod = update_of(*shapes)
    found = kernels(mod)
    assert len(found) == -(-3 * len(shapes) // 63) and all(JOINED in name for name in found)
    done = pipeline.lower(mod, target("llvm"))["main"].attrs[DONATED_DONE]
    assert len(done) == 2 * len(shapes)
    tensors = random_tensors(*[shape for shape in shapes for _ in range(3)])
    result = machine(mod)["main"](*tensors)
    for i in range(len(shapes)):
        assert gg.shares_memory(result[2 * i], tensors[3 * i])
        assert gg.shares_memory(result[2 * i + 1], tensors[3 * i + 1])


@pytest.mark.parametrize("shapes", SHAPES, ids=label)
def test_no_bit_is_another(shapes):
    mod = update_of(*shapes)
    assert_same(mod, *random_tensors(*[shape for shape in shapes for _ in range(3)]))


def test_what_nothing_else_reads_takes_no_memory():
    """The velocity is no result here, and both that read it are."""

    def body(builder, p, m, g):
        velocity = builder.emit(op.add(op.multiply(m, g), op.abs(g)))
        return relax.Tuple([builder.emit(op.add(p, velocity)), builder.emit(op.negative(velocity))])

    mod = module(body, *[tensor_type(300)] * 3)
    (name,) = kernels(mod)
    assert JOINED in name
    assert len(pipeline.lower(mod, target("llvm"))[name].params) == 3 + 2
    assert_same(mod, *random_tensors((300,), (300,), (300,)))


def test_maps_that_differ_stay_apart():
    def body(builder, x, y):
        return relax.Tuple([builder.emit(op.abs(x)), builder.emit(op.negative(y))])

    assert not any(JOINED in name for name in kernels(module(body, *[tensor_type(9)] * 2)))


def test_maps_by_different_scalars_stay_apart():
    def body(builder, x, y, a, b):
        return relax.Tuple([builder.emit(op.multiply(x, a)), builder.emit(op.multiply(y, b))])

    mod = module(body, *[tensor_type(9)] * 2, *[tensor_type()] * 2)
    assert len(kernels(mod)) == 2
    x, y, a, b = random_tensors((9,), (9,), (), ())
    assert_same(mod, x, y, a, b)


def test_one_scalar_serves_all():
    def body(builder, x, y, a):
        return relax.Tuple([builder.emit(op.multiply(t, a)) for t in (x, y)])

    mod = module(body, tensor_type(9), tensor_type(3, 4), tensor_type())
    assert len(kernels(mod)) == 1
    assert_same(mod, *random_tensors((9,), (3, 4), ()))


def test_a_kernel_of_some_size_ends_a_run():
    """Otherwise the first result would be kept until behind it."""

    def body(builder, x, w):
        first = builder.emit(op.abs(x))
        product = builder.emit(op.matmul(w, w))
        return relax.Tuple([first, product, builder.emit(op.abs(w))])

    mod = module(body, tensor_type(30), tensor_type(128, 128))
    assert not any(JOINED in name for name in kernels(mod))


def test_small_kernels_do_not():
    def body(builder, x, y, a):
        first = builder.emit(op.multiply(x, a))
        total = builder.emit(op.sum(a))
        return relax.Tuple([first, total, builder.emit(op.multiply(y, a))])

    mod = module(body, tensor_type(30), tensor_type(128), tensor_type())
    assert len(kernels(mod)) < 3
    assert_same(mod, *random_tensors((30,), (128,), ()))


def test_a_reader_of_another_length_comes_behind():
    """The second map broadcasts what the first one makes."""

    def body(builder, x, y):
        row = builder.emit(op.abs(x))
        return relax.Tuple([builder.emit(op.abs(y)), builder.emit(op.multiply(y, row)), row])

    mod = module(body, tensor_type(5), tensor_type(4, 5))
    assert_same(mod, *random_tensors((5,), (4, 5)))


def test_a_map_of_what_another_one_overwrites():
    """In the graph the second one reads what the first result is stored over."""

    def body(builder, p, q):
        old = builder.emit(op.abs(p))
        new = builder.emit(op.add(p, q))
        return relax.Tuple([builder.emit(op.multiply(new, old)), new])

    mod = module(body, *[tensor_type(1000)] * 2, **{DONATED: [[0, 1]]})
    assert len(kernels(mod)) == 1
    assert_same(mod, *random_tensors((1000,), (1000,)))


def test_two_names_of_one_tensor():
    def body(builder, p, q):
        flat = builder.emit(op.reshape(p, [12]))
        return relax.Tuple([builder.emit(op.abs(flat)), builder.emit(op.add(p, q))])

    mod = module(body, *[tensor_type(3, 4)] * 2, **{DONATED: [[0, 1]]})
    assert_same(mod, *random_tensors((3, 4), (3, 4)))


@pytest.mark.parametrize("count", [21, 22, 100])
def test_a_kernel_has_a_bounded_number_of_tensors(count):
    found = kernels(update_of(*[(4,)] * count))
    lowered = pipeline.lower(update_of(*[(4,)] * count), target("llvm"))
    assert len(found) == -(-count // 21)
    assert all(len(lowered[name].params) <= 64 for name in set(found))


def test_a_larger_number_times_larger_elements():
    def body(builder, x, y, a, b):
        number = builder.emit(op.maximum(a, b))
        larger = builder.emit(op.maximum(x, y))
        return relax.Tuple([builder.emit(op.multiply(larger, number)), builder.emit(op.add(x, y))])

    mod = module(body, *[tensor_type(64)] * 2, *[tensor_type()] * 2)
    assert any(JOINED in name for name in kernels(mod))
    x, y, a, b = random_tensors((64,), (64,), (), ())
    scaled, total = (result.numpy() for result in machine(mod)["main"](x, y, a, b))
    x, y, a, b = (tensor.numpy() for tensor in (x, y, a, b))
    np.testing.assert_array_equal(scaled, np.maximum(x, y) * np.maximum(a, b))
    np.testing.assert_array_equal(total, x + y)


def test_results_that_nothing_reads():
    """Nothing removes them where an argument's shape is found out."""

    def body(builder, x, u):
        known = builder.match_cast(u, tensor_type(8))
        builder.emit(op.multiply(builder.emit(op.add(x, x)), x))
        return builder.emit(op.exp(known))

    mod = module(body, tensor_type(8), relax.TensorType(dtype="float32", ndim=1))
    x, u = random_tensors((8,), (8,))
    np.testing.assert_allclose(machine(mod)["main"](x, u).numpy(), np.exp(u.numpy()), rtol=1e-6)


def test_on_a_gpu_a_block_belongs_to_one_tensor():
    mod = update_of((4096,), (9,), (64, 3, 7, 7))
    lowered = pipeline.lower(mod, target({"kind": "cuda", "arch": "sm_90"}))
    (kernel,) = (f for name, f in lowered.functions.items() if JOINED in name.name_hint)
    text = kernel.script()
    assert text.count("blockIdx.x") == text.count("threadIdx.x") == 1
    assert "block < T.int64(4)" in text  # of 1024 elements each


def test_the_same_elements_in_another_shape_are_flat_too():
    """A running statistic takes in what a reduction has left with axes of one element."""

    def body(builder, x, y):
        flat = builder.emit(op.reshape(x, (64,)))
        return builder.emit(op.add(builder.emit(op.multiply(y, y)), flat))

    mod = module(body, tensor_type(1, 64, 1, 1), tensor_type(64))
    x, y = random_tensors((1, 64, 1, 1), (64,))
    np.testing.assert_array_equal(
        machine(mod)["main"](x, y).numpy(), y.numpy() ** 2 + x.numpy().ravel()
    )


OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adagrad": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
}


# Clipping is the same for all: two show it, and the others are slow tests.
@pytest.mark.parametrize(
    ("name", "clip"),
    [
        *((name, None) for name in OPTIMIZERS),
        *(("SGD", 0.01), ("Adam", 0.01)),
        *(
            pytest.param(name, 0.01, marks=pytest.mark.slow)
            for name in OPTIMIZERS
            if name not in ("SGD", "Adam")
        ),
    ],
)
def test_a_training_step_has_the_same_bits(name, clip):
    model = gg.from_onnx(mlp((6, 20, 5, 3), batch=4))
    generator = np.random.default_rng(0)
    x, y = generator.random((4, 6), dtype="float32"), np.array([0, 2, 1, 1])

    def trained():
        optimizer = getattr(gg.optim, name)(0.1, clip_norm=clip, **OPTIMIZERS[name])
        step = gg.train_step(model, optimizer=optimizer, target=EACH)
        losses = [float(step(x, y)) for _ in range(3)]
        losses.append(float(step(np.full_like(x, np.nan), y)))
        assert step.skipped == 1
        return losses, [step.params, *step.optimizer_state.values()]

    together = trained()
    with tvm.transform.PassContext(disabled_pass=["graphgrad.fuse_horizontally"]):
        apart = trained()
    np.testing.assert_array_equal(together[0], apart[0])
    for a, b in zip(together[1], apart[1], strict=True):
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])
