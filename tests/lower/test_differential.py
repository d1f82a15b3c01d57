"""In place, never in place, and in garbage: the same bits. A sample; see `tests.differential`."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.models import lenet
from tests.differential import differential
from tests.running import function, run

op = relax.op
F32 = "float32"


def random(*shapes):
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape, np.float32) for shape in shapes]


def test_a_training_step():
    images, labels = random((8, 1, 28, 28))[0], np.arange(8) % 10
    with differential() as state:
        step = gg.train_step(gg.from_onnx(lenet()), optimizer=gg.optim.SGD(0.1, momentum=0.9))
        losses = [float(step(images, labels)) for _ in range(3)]
        step.evaluate(images)
    assert state.compared == 4
    assert state.in_place == 1
    assert losses[-1] < losses[0]


def test_accumulated_gradients():
    def layer(builder, x, w, b):
        return builder.emit(op.nn.relu(op.add(op.matmul(x, w), b)))

    shapes = [(17, 33), (33, 19), (19,)]
    mod = gg.vjp(function(layer, *[(shape, F32) for shape in shapes]), grad_req="add")
    with differential() as state:
        run(mod, "main_vjp", *random(*shapes, (17, 19), *shapes))
    assert (state.compared, state.in_place) == (1, 1)


def test_a_difference_is_found():
    """What reads memory that nobody wrote is caught."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), F32))
    kernel = tvm.te.create_prim_func(
        [a := tvm.te.placeholder((4,), F32), tvm.te.compute((4,), lambda i: a[i])]
    )
    nothing = kernel.with_body(tvm.tirx.Evaluate(0))
    with builder.function("main", [x]):
        name = builder.add_func(nothing, "writes_nothing")
        result = builder.emit(relax.call_tir(name, relax.Tuple([x]), relax.TensorType((4,), F32)))
        builder.emit_func_output(result)
    with differential():
        vm = relax.VirtualMachine(gg.compile(builder.get()), tvm.cpu())
        with pytest.raises(AssertionError, match=r"main .* returns other bits"):
            vm["main"](to_tensor(np.zeros(4, np.float32)))
