"""Operators whose form changed over time mean the same in every opset that onnxruntime runs."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphgrad.frontend.mode import specialize
from graphgrad.frontend.onnx_import import from_onnx
from tests.peers import peer

from .graphs import model_of, random, run_model, run_onnx

SHAPE = (2, 3, 4, 6)
IMAGE = random(*SHAPE)
INT = np.int64
FLOAT = np.float32


def form(first, last, op_type, arrays=None, **attributes):
    """An operator with constant inputs, in the opsets from `first` to `last`."""
    return first, last, op_type, arrays or {}, attributes


FORMS = [
    form(7, 12, "Softmax"),
    form(7, 12, "Softmax", axis=2),
    form(13, 21, "Softmax"),
    form(11, 12, "Softmax", axis=-1),
    form(7, 12, "LogSoftmax", axis=1),
    form(13, 21, "LogSoftmax", axis=1),
    form(7, 12, "Hardmax", axis=1),
    form(7, 8, "Upsample", scales=[1.0, 1.0, 2.0, 3.0], mode="nearest"),
    form(9, 9, "Upsample", {"s": FLOAT([1, 1, 2, 3])}, mode="nearest"),
    form(9, 9, "Upsample", {"s": FLOAT([1, 1, 2, 2])}, mode="linear"),
    form(10, 10, "Resize", {"s": FLOAT([1, 1, 2, 2])}, mode="nearest"),
    form(10, 10, "Resize", {"s": FLOAT([1, 1, 2, 2])}, mode="linear"),
    form(11, 12, "Resize", {"r": FLOAT([]), "s": FLOAT([1, 1, 2, 2])}, mode="linear"),
    form(13, 19, "Resize", {"": None, "s": FLOAT([1, 1, 2, 2])}, mode="linear"),
    form(7, 9, "Slice", axes=[1, 3], starts=[0, -4], ends=[2, 9999]),
    form(7, 9, "Slice", starts=[0, 1], ends=[2, 3]),
    form(10, 17, "Slice", {"s": INT([5]), "e": INT([0]), "a": INT([-1]), "t": INT([-2])}),
    form(7, 10, "Pad", pads=[0, 0, 1, 0, 0, 0, 2, 1], value=1.5),
    form(7, 10, "Pad", pads=[0, 0, 1, 0, 0, 0, 2, 1], mode="reflect"),
    form(11, 17, "Pad", {"p": INT([0, 0, 1, 0, 0, 0, 2, 1]), "v": FLOAT(1.5)}),
    form(18, 21, "Pad", {"p": INT([1, 2]), "": None, "a": INT([-2])}),
    form(7, 10, "Clip", min=-0.5, max=0.5),
    form(7, 10, "Clip", max=0.5),
    form(11, 17, "Clip", {"lo": FLOAT(-0.5), "hi": FLOAT(0.5)}),
    form(7, 12, "Unsqueeze", axes=[0, 5]),
    form(13, 17, "Unsqueeze", {"a": INT([0, -1])}),
    form(7, 12, "ReduceSum", axes=[1, 3], keepdims=0),
    form(13, 17, "ReduceSum", {"a": INT([1, -1])}, keepdims=0),
    form(7, 17, "ReduceMean", axes=[2]),
    form(18, 21, "ReduceMean", {"a": INT([2])}),
    form(7, 17, "ReduceL2", axes=[2], keepdims=0),
    form(7, 17, "ReduceLogSumExp", keepdims=1),
    form(7, 17, "Flatten", axis=2),
    form(11, 17, "Flatten", axis=-1),
    form(7, 11, "Dropout", ratio=0.5),
    form(12, 17, "Dropout", {"r": FLOAT(0.5)}),
    form(7, 17, "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    form(10, 17, "AveragePool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    form(7, 17, "MaxPool", kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
    form(10, 17, "MaxPool", kernel_shape=[2, 2], dilations=[2, 2], strides=[1, 2], ceil_mode=1),
    form(7, 17, "LRN", size=3),
    form(7, 17, "InstanceNormalization", {"s": random(3), "b": random(3, seed=1)}),
    form(7, 17, "Elu", alpha=2.0),
    form(7, 17, "LeakyRelu", alpha=0.2),
    form(7, 17, "HardSigmoid", alpha=0.3),
    form(7, 17, "PRelu", {"s": random(3, 1, 1)}),
    form(8, 17, "Sum", {"w": random(6)}),
    form(8, 17, "Max", {"w": random(6)}),
    form(8, 17, "Expand", {"s": INT([2, 2, 1, 1, 6])}),
    form(7, 17, "Gather", {"i": INT([1, 0])}, axis=2),
    form(7, 17, "DepthToSpace", blocksize=1),
    form(11, 17, "CumSum", {"a": np.array(1)}, reverse=1),
    form(7, 17, "Transpose", perm=[3, 1, 0, 2]),
    form(7, 17, "ArgMax", axis=1),
]


def node_of(index, op_type, arrays, attributes):
    """Return the node of a form, which gives ``y<index>``, and its constants."""
    names = {name: f"{name}{index}" if name else "" for name in arrays}
    node = helper.make_node(op_type, ["x", *names.values()], [f"y{index}"], **attributes)
    return node, {names[name]: array for name, array in arrays.items() if name}


@pytest.mark.parametrize(
    "opset", [7, 12, 21, *(pytest.param(n, marks=pytest.mark.slow) for n in (9, 10, 17))]
)
def test_all_forms_of_an_opset(opset):
    runtime = peer("onnxruntime")
    nodes, arrays, kinds = [], {}, []
    for index, (first, last, op_type, given, attributes) in enumerate(FORMS):
        if first <= opset <= last:
            node, constants = node_of(index, op_type, given, attributes)
            nodes.append(node)
            arrays |= constants
            kinds.append(TensorProto.INT64 if op_type == "ArgMax" else TensorProto.FLOAT)
    proto = model_of(nodes, {"x": SHAPE}, {}, arrays, opset=opset)
    for node, kind in zip(nodes, kinds, strict=True):
        proto.graph.output.append(helper.make_tensor_value_info(node.output[0], kind, None))
    expected = run_onnx(runtime, proto, {"x": IMAGE})
    for output, array in zip(proto.graph.output, expected, strict=True):
        dims = [None] * array.ndim
        kind = output.type.tensor_type.elem_type
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, dims))
    model = from_onnx(proto)
    outputs, _ = run_model(model, specialize(model, False), IMAGE)
    for node, ours, wanted in zip(nodes, outputs, expected, strict=True):
        label = f"{node.op_type} {FORMS[int(node.output[0][1:])]}"
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5, err_msg=label)
