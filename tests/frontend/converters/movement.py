"""Checking nodes that move elements: outputs as in onnxruntime, gradients by differences."""

import numpy as np
import tvm
from onnx import TensorProto, helper, numpy_helper, shape_inference
from tvm import relax

import graphgrad as gg
from graphgrad.check import compare_gradients, flat
from graphgrad.frontend.mode import specialize
from graphgrad.ir.arrays import to_tensor
from tests.frontend.converters.nodes import reference
from tests.frontend.graphs import op_names


def values(*shape):
    """Return different float64 numbers of a shape."""
    return np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)


def moving_node(op_type, shape, *settings, opset=23, outputs=1, **attributes):
    """Return a float64 model of a node; its settings are constants, None where left out."""
    constants = {
        f"c{k}": setting if isinstance(setting, np.ndarray) else np.array(setting, "int64")
        for k, setting in enumerate(settings)
        if setting is not None
    }
    names = ["x", *(f"c{k}" if f"c{k}" in constants else "" for k in range(len(settings)))]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op_type, names, results, "node", **attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, shape)],
        [helper.make_tensor_value_info(y, TensorProto.DOUBLE, None) for y in results],
        [numpy_helper.from_array(a, name) for name, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    inferred = shape_inference.infer_shapes(model)
    for output in inferred.graph.output:  # onnx asks for a rank, and a bad node has none
        output.type.tensor_type.shape.SetInParent()
    return inferred


def assert_moves(proto, x, expected=None):
    """Check a node's outputs, its gradient, and that it is imported as Relax ops.

    Outputs are expected to be those of onnxruntime, unless they are given.
    """
    model = gg.from_onnx(proto)
    module = specialize(model, None)
    assert "relax.call_tir" not in op_names(module)
    machine = relax.VirtualMachine(gg.compile(gg.vjp(module, wrt=["x"])), tvm.cpu())

    params = list(model.params.values())

    def run(array):
        return flat(machine["main"](*map(to_tensor, [array, *params])))

    outputs = run(x)
    for ours, theirs in zip(outputs, expected or reference(proto, {"x": x}), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    generator = np.random.default_rng(0)
    cotangents = [generator.uniform(-1, 1, output.shape) for output in outputs]
    gradients = flat(machine["main_vjp"](*map(to_tensor, [x, *params, *cotangents]))[1])
    compare_gradients(run, [x], cotangents, gradients, generator, "node")
