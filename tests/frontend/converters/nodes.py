"""Models of one ONNX node, and what onnxruntime makes of them."""

import numpy as np
from onnx import TensorProto, helper

import graphgrad as gg
from graphgrad.frontend.mode import specialize
from tests.peers import peer
from tests.running import run


def node_model(
    op_type,
    inputs,
    outputs=("y",),
    *,
    opset=23,
    domain="",
    shapes=None,
    types=None,
    ranks=None,
    **attributes,
):
    """Return a model of one node.

    `inputs` are arrays by name in the order of the node's; None for one that is left out. `shapes`
    gives inputs other shapes, with symbolic dimensions; `types` and `ranks` give outputs other
    dtypes and ranks than those of the first input.
    """
    given = {name: array for name, array in inputs.items() if array is not None}
    last = max(position for position, name in enumerate(inputs) if name in given)
    names = [name if name in given else "" for name in list(inputs)[: last + 1]]
    node = helper.make_node(op_type, names, list(outputs), "node", domain=domain, **attributes)
    elements = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in given.items()}
    values = [
        helper.make_tensor_value_info(n, elements[n], (shapes or {}).get(n, a.shape))
        for n, a in given.items()
    ]
    first = next(iter(given))
    results = [
        helper.make_tensor_value_info(
            n,
            (types or {}).get(n, elements[first]),
            [None] * (ranks or {}).get(n, given[first].ndim),
        )
        for n in outputs
        if n
    ]
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    graph = helper.make_graph([node], "graph", values, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def forward(proto, inputs):
    """Return the outputs of an imported model."""
    module = specialize(gg.from_onnx(proto), None)
    return run(module, "main", *(a for a in inputs.values() if a is not None))


def reference(proto, inputs):
    """Return the outputs that onnxruntime gives."""
    runtime = peer("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {name: a for name, a in inputs.items() if a is not None})


def assert_like_onnxruntime(proto, inputs, tolerance=1e-5):
    """Check that all outputs have the values and dtypes that onnxruntime gives them."""
    ours, theirs = forward(proto, inputs), reference(proto, inputs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def drawn(shape, low=-1.0, high=1.0, seed=0, dtype="float32"):
    """Return random values of a shape."""
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


FLOAT = TensorProto.FLOAT
