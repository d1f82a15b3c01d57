"""Small ONNX graphs, and ways to run them."""

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tests.running import compile_library

CHANNELS = 3


def model_of(nodes, inputs, outputs, initializers=None, *, opset=17, ir_version=8):
    """Build a float32 model; shapes by name, arrays by name."""

    def values(shapes):
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        ]

    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "graph", values(inputs), values(outputs), tensors)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def random(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def batch_norm_arrays(prefix="", seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"{prefix}scale": rng.uniform(0.5, 2, CHANNELS).astype("float32"),
        f"{prefix}bias": rng.uniform(-1, 1, CHANNELS).astype("float32"),
        f"{prefix}mean": rng.uniform(-1, 1, CHANNELS).astype("float32"),
        f"{prefix}var": rng.uniform(0.5, 2, CHANNELS).astype("float32"),
    }


def batch_norm_node(x, y, tensors=("scale", "bias", "mean", "var"), outputs=(), **attrs):
    return helper.make_node("BatchNormalization", [x, *tensors], [y, *outputs], **attrs)


def batch_norm_model(momentum=0.8, training_mode=0, *, give_statistics=False, batch=4):
    """One batch norm; if `give_statistics`, the new ones are outputs of the graph."""
    training = {"training_mode": 1} if training_mode else {}
    outputs = ("new_mean", "new_var") if training_mode else ()
    node = batch_norm_node("x", "y", outputs=outputs, momentum=momentum, **training)
    shape = [batch, CHANNELS, 5]
    given = {"new_mean": [CHANNELS], "new_var": [CHANNELS]} if give_statistics else {}
    return model_of([node], {"x": shape}, {"y": shape, **given}, batch_norm_arrays())


def run_module(module, *arrays):
    """Run main on the VM; return arrays in nested lists, as main returns tuples."""
    machine = relax.VirtualMachine(compile_library(module).mod, tvm.cpu())
    return _arrays(machine["main"](*[tvm.runtime.tensor(np.asarray(a)) for a in arrays]))


def run_model(model, module, *inputs):
    return run_module(module, *inputs, *model.params.values(), *model.state.values())


def run_onnx(runtime, proto_or_path, inputs):
    """Run a model in onnxruntime; return the list of its outputs."""
    content = proto_or_path
    if isinstance(content, onnx.ModelProto):
        content = content.SerializeToString()
    return runtime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, inputs)


def op_names(module):
    """Return the names of the Relax ops called in main, in order."""
    return [
        binding.value.op.name
        for block in module["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]


def _arrays(value):
    if isinstance(value, tvm.runtime.Tensor):
        return value.numpy()
    return [_arrays(item) for item in value]
