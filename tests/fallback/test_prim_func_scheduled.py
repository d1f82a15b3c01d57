"""Derived gradients as functions that schedules take: the same values."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, topi
from tvm.s_tir import Schedule

import graphgrad as gg
from graphgrad.fallback import create_prim_func
from graphgrad.fallback.gradient import te_gradient
from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.lower.cpu.tuning import processor_of
from tests.fallback.interpreter import evaluate
from tests.fallback.running import run, unwritten

X = te.placeholder((2, 3, 8, 8), "float32", name="x")
W = te.placeholder((4, 3, 3, 3), "float32", name="w")
A = te.placeholder((6, 16), "float32", name="a")
G = te.placeholder((16,), "float32", name="g")
CONVOLUTION = topi.nn.conv2d_nchw(X, W, 2, 1, 1)
SECOND_HEAD = te.placeholder(CONVOLUTION.shape, "float32", name="second_head")

PRIMALS = {
    "convolution": (CONVOLUTION, [X, W], [X, W]),
    "convolution, second order": (
        te_gradient(CONVOLUTION, [X], SECOND_HEAD)[0],
        [W, SECOND_HEAD],
        [X, W, SECOND_HEAD],
    ),
    "softmax": (topi.nn.softmax(A), [A], [A]),
    "layer norm": (topi.nn.layer_norm(A, G, G, [1]), [A, G], [A, G]),
    "swish": (topi.multiply(A, topi.sigmoid(A)), [A], [A]),
    "average pool": (topi.nn.pool2d(X, [3, 3], [2, 2], [1, 1], [1] * 4, "avg"), [X], [X]),
}


@pytest.mark.parametrize("name", PRIMALS)
def test_schedules_keep_the_values(name):
    output, by, inputs = PRIMALS[name]
    head = te.placeholder(output.shape, "float32", name="head")
    outputs = te_gradient(output, by, head)
    generator = np.random.default_rng(0)
    known = [
        (t, generator.standard_normal([int(e) for e in t.shape]).astype("float32"))
        for t in [*inputs, head]
    ]
    func = create_prim_func([*inputs, head, *outputs])
    scheduled = schedule_loops(func, processor_of(tvm.target.Target("llvm")))
    assert not scheduled.same_as(func)
    arrays = [array for _, array in known]
    expected = evaluate(outputs, known)
    for other in (Schedule(func).mod["main"], scheduled):
        given = run(other, *arrays, *unwritten(*outputs))[len(arrays) :]
        _compare(given, expected)
    _compare(_by_relax(func, arrays, outputs), expected)


def _compare(given, expected):
    for array, other in zip(given, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


def _by_relax(func, arrays, outputs):
    """Return what a module that calls the function computes."""
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"v{i}", relax.TensorType(array.shape, "float32"))
        for i, array in enumerate(arrays)
    ]
    types = [relax.TensorType([int(e) for e in t.shape], "float32") for t in outputs]
    with builder.function("main", variables):
        name = builder.add_func(func, "gradient")
        called = relax.call_tir(name, relax.Tuple(variables), types if types[1:] else types[0])
        builder.emit_func_output(builder.emit(called))
    machine = relax.VirtualMachine(gg.compile(builder.get(), gg.target("llvm")), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, arrays))
    return [r.numpy() for r in (result if types[1:] else [result])]
