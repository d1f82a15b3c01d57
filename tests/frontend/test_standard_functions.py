"""Operators that are written out as the standard defines them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.nodes import assert_like_onnxruntime, drawn, forward, node_model

LINEAR = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}


def swiglu():
    arrays = {"x": drawn((2, 3)), "gate": drawn((2, 3), seed=1)}
    return node_model("SwiGLU", arrays, opset=28), arrays


def test_outputs_and_gradients():
    proto, arrays = swiglu()
    model = gg.from_onnx(proto)
    assert any("written out" in note and "SwiGLU" in note for note in model.notes)
    (ours,) = forward(proto, arrays)
    (theirs,) = ReferenceEvaluator(proto).run(None, arrays)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    gg.check_grads(model, arrays)


def test_an_input_that_is_left_out():
    """The function holds a Scan, and its second optional input is given without the first."""
    shape = (1, 3, 4)
    arrays = {k: drawn(shape, seed=seed) for seed, k in enumerate("qkv")}
    proto = node_model("LinearAttention", arrays, ("y", "state"), opset=27, **LINEAR)
    proto.graph.node[0].input.append("")
    (ours, *_) = forward(proto, arrays)
    q, k, v = (arrays[name].reshape(3, 2, 2).transpose(1, 0, 2) for name in "qkv")
    weights = np.tril(q @ k.transpose(0, 2, 1)) / np.sqrt(2)
    expected = (weights @ v).transpose(1, 0, 2).reshape(shape)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_the_operator_of_a_user_goes_first():
    proto, _ = swiglu()

    def sum_of(inputs, attributes):
        return inputs[0] + inputs[1]

    model = gg.from_onnx(proto, custom_ops={("", "SwiGLU"): sum_of})
    assert not any("written out" in note for note in model.notes)
    assert "R.add" in model.mod["main"].script()


def test_what_the_standard_does_not_define_is_refused():
    proto, _ = swiglu()
    proto.graph.node.append(helper.make_node("Mystery", ["y"], ["z"], domain="mine"))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (2, 3)))
    with pytest.raises(ModelError, match="mine::Mystery"):
        gg.from_onnx(proto)


def test_an_operator_whose_inputs_have_no_known_type_is_refused():
    arrays = {k: drawn((1, 3, 4)) for k in "qkv"}
    proto = node_model("LinearAttention", arrays, ("y", "state"), opset=27, **LINEAR)
    mine = helper.make_node("Mine", ["q"], ["a"], domain="mine")
    proto.graph.node.insert(0, mine)
    proto.graph.node[1].input[0] = "a"
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(ModelError, match=r"LinearAttention \(1\)"):
        gg.from_onnx(proto, custom_ops={("mine", "Mine"): lambda inputs, attributes: inputs[0]})


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_attributes_that_are_left_out_have_their_defaults(name):
    size = {"size": np.array(5)}
    proto = node_model(name, size, opset=17, types={"y": TensorProto.FLOAT}, ranks={"y": 1})
    constant = numpy_helper.from_array(size["size"], "size")
    proto.graph.initializer.append(constant)
    del proto.graph.input[:]
    assert_like_onnxruntime(proto, {})
