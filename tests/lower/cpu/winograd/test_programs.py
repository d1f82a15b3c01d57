"""Convolutions by minimal filtering in programs: maps behind, gradients, accumulators, switch."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.pipeline import generate, lower
from graphgrad.lower.target import target
from tests.lower.cpu.winograd.convolutions import error, is_filtered
from tests.running import function

op = relax.op
HOST = target("llvm")
IMAGES, WEIGHT, BIAS = (4, 16, 16, 32), (3, 3, 32, 64), (64,)
RESULT = (*IMAGES[:3], 64)


def layer(b, x, w, bias, residual):
    conv = b.emit(op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO"))
    return b.emit(op.nn.relu(b.emit(op.add(b.emit(op.add(conv, bias)), residual))))


def program(**options):
    types = [(shape, "float32") for shape in (IMAGES, WEIGHT, BIAS, RESULT)]
    return gg.vjp(function(layer, *types), **options)


def arrays(mod, name):
    generator = np.random.default_rng(0)
    shapes = [[int(n) for n in param.ty.shape] for param in mod[name].params]
    return [generator.standard_normal(shape).astype("float32") for shape in shapes]


def filtered(mod):
    """Return how many kernels compute convolutions by minimal filtering."""
    kernels = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    return sum(is_filtered(func) for func in kernels)


def results(lowered, name, tensors):
    machine = relax.VirtualMachine(generate(lowered, HOST), tvm.cpu())
    outputs, gradients = machine[name](*tensors)
    return [outputs, *gradients] if isinstance(outputs, tvm.runtime.Tensor) else list(gradients)


def test_a_layer_and_its_gradients():
    mod = program()
    del mod["main"]
    fast, direct = lower(mod, HOST), lower(mod, HOST, winograd=False)
    assert (filtered(fast), filtered(direct)) == (3, 0)
    given = arrays(mod, "main_vjp")
    pairs = zip(
        results(fast, "main_vjp", list(map(to_tensor, given))),
        results(direct, "main_vjp", list(map(to_tensor, given))),
        strict=True,
    )
    for ours, expected in pairs:
        assert error(ours.numpy(), expected.numpy()) < 4e-6


def test_bias_and_activation_are_in_the_kernel():
    mod = lower(program(), HOST)
    kernels = {v.name_hint for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    calls = [b.value.op for block in mod["main"].body.blocks for b in block.bindings]
    called = [name for call in calls if (name := getattr(call, "name_hint", "")) in kernels]
    assert len([name for name in called if not name.endswith("_check")]) == 1


def test_weight_gradients_are_added_in_place():
    added, written = program(wrt=["x1"], grad_req="add"), program(wrt=["x1"])
    for mod in (added, written):
        del mod["main"]
    low = lower(added, HOST)
    assert filtered(low) == 2
    given = arrays(added, "main_vjp")
    tensors = list(map(to_tensor, given))
    total = results(low, "main_vjp", tensors)[-1]
    assert total.data_ptr() == tensors[-1].data_ptr()
    tensors = list(map(to_tensor, given[:-1]))
    gradient = results(lower(written, HOST, winograd=False), "main_vjp", tensors)[-1]
    assert error(total.numpy() - given[-1], gradient.numpy()) < 4e-6


@pytest.mark.parametrize("winograd", [True, False])
def test_the_switch(winograd):
    mod = function(layer, *[(shape, "float32") for shape in (IMAGES, WEIGHT, BIAS, RESULT)])
    assert filtered(gg.pipeline(HOST, winograd=winograd)(mod)) == int(winograd)
    given = [to_tensor(array) for array in arrays(mod, "main")]
    wanted = relax.VirtualMachine(generate(lower(mod, HOST, None, winograd), HOST), tvm.cpu())
    compiled = relax.VirtualMachine(gg.compile(mod, HOST, winograd=winograd), tvm.cpu())
    assert (compiled["main"](*given).numpy() == wanted["main"](*given).numpy()).all()
