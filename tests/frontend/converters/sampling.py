"""Checking nodes that sample their input: outputs as in onnxruntime, gradients by differences."""

import copy

import numpy as np
import tvm
from onnx import TensorProto
from tvm import relax

import graphgrad as gg
from graphgrad.check import compare_gradients, flat
from graphgrad.frontend.mode import specialize
from graphgrad.ir.arrays import to_tensor
from tests.frontend.converters.nodes import reference
from tests.frontend.graphs import op_names


def in_float32(proto):
    """Return a float64 model with float32 inputs and outputs: onnxruntime pools no float64."""
    narrow = copy.deepcopy(proto)
    for value in [*narrow.graph.input, *narrow.graph.output]:
        if value.type.tensor_type.elem_type == TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return narrow


def assert_samples(proto, *arrays, expected=None):
    """Check the outputs and gradients of a float64 node; outputs are those of onnxruntime or given.

    Gradients are checked in the float inputs; an integer output has none.
    """
    module = specialize(gg.from_onnx(proto), None)
    assert "relax.call_tir" not in op_names(module)
    machine = relax.VirtualMachine(gg.compile(gg.vjp(module)), tvm.cpu())

    def run(*given):
        outputs = flat(machine["main"](*map(to_tensor, given)))
        return [output for output in outputs if output.dtype.kind == "f"]

    names = [value.name for value in proto.graph.input]
    if expected is None:
        narrow = [a.astype("float32") if a.dtype == np.float64 else a for a in arrays]
        expected = reference(in_float32(proto), dict(zip(names, narrow, strict=True)))
    for ours, theirs in zip(flat(machine["main"](*map(to_tensor, arrays))), expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    generator = np.random.default_rng(0)
    cotangents = [generator.uniform(-1, 1, output.shape) for output in run(*arrays)]
    gradients = flat(machine["main_vjp"](*map(to_tensor, [*arrays, *cotangents]))[1])
    compare_gradients(run, list(arrays), cotangents, gradients, generator, "node")
