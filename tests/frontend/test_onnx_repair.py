import onnx
import pytest
from onnx import TensorProto, helper

from graphgrad.errors import ModelError
from graphgrad.frontend.onnx_import import from_onnx
from graphgrad.frontend.onnx_repair import repair

from .graphs import CHANNELS, batch_norm_arrays, batch_norm_model, batch_norm_node, model_of, random


def version_3(inputs=True):
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    proto = model_of(nodes, {"x": [3]}, {"y": [3]}, {"w": random(3)}, opset=8, ir_version=3)
    if inputs:
        proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    return proto


def test_initializers_repeated_as_inputs():
    model = from_onnx(version_3())
    assert model.inputs == ["x"] and list(model.params) == ["w"]
    assert any("1 initializers were listed among the inputs" in note for note in model.notes)
    onnx.checker.check_model(model.proto)


def test_version_3_without_them_is_not_valid():
    with pytest.raises(ModelError, match="not valid ONNX"):
        from_onnx(version_3(inputs=False))


def test_nodes_get_stable_names():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"], name="mine"),
        helper.make_node("Relu", ["b"], ["c"], name="Relu_3"),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    proto = model_of(nodes, {"x": [3]}, {"y": [3]})
    names = [node.name for node in repair(proto, {})[0].graph.node]
    assert names == ["Relu_0", "mine", "Relu_3", "Relu_3_unnamed"]
    assert names == [node.name for node in repair(proto, {})[0].graph.node]


def test_all_unsupported_operators_are_named_at_once():
    nodes = [
        helper.make_node("RegexFullMatch", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("RegexFullMatch", ["b"], ["c"], name="second"),
        helper.make_node("StringNormalizer", ["c"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"], domain="my.domain"),
    ]
    proto = model_of(nodes, {"x": [3]}, {"y": [3]})
    proto.opset_import.append(helper.make_opsetid("my.domain", 1))
    with pytest.raises(ModelError) as error:
        from_onnx(proto)
    for part in (
        "RegexFullMatch (2): ['first', 'second']",
        "StringNormalizer (1): ['StringNormalizer_3']",
        "my.domain::Relu (1): ['Relu_4']",
    ):
        assert part in str(error.value)


def test_operators_inside_branches_are_seen():
    def branch(op_type):
        output = helper.make_tensor_value_info("z", TensorProto.FLOAT, [3])
        node = helper.make_node(op_type, ["x"], ["z"], name=f"{op_type}_inside")
        return helper.make_graph([node], "branch", [], [output])

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("RegexFullMatch")
    )
    proto = model_of([node], {"x": [3]}, {"y": [3]})
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    with pytest.raises(ModelError, match=r"RegexFullMatch \(1\): \['RegexFullMatch_inside'\]"):
        from_onnx(proto)


def test_local_functions_are_inlined():
    proto = model_of([helper.make_node("Twice", ["x"], ["y"], domain="f")], {"x": [3]}, {"y": [3]})
    opsets = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    proto.functions.append(helper.make_function("f", "Twice", ["a"], ["b"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("f", 1))
    model = from_onnx(proto)
    assert [node.op_type for node in model.proto.graph.node] == ["Add"]
    assert model.notes == ["model-local functions inlined: Twice"]


def test_unread_initializers_are_left_out():
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    proto = model_of(nodes, {"x": [3]}, {"y": [3]}, {"w": random(3), "unused": random(9)})
    model = from_onnx(proto)
    assert list(model.params) == ["w"] and "'unused'" in model.notes[0]


@pytest.mark.parametrize(
    "opset, outputs, kept",
    [
        (17, (), ["y"]),
        (17, ("m", "v"), ["y"]),
        (9, (), ["y"]),
        (9, ("m", "v", "sm", "sv"), ["y", "", "", "", ""]),
    ],
)
def test_statistics_that_nobody_reads_are_no_outputs(opset, outputs, kept):
    proto = batch_norm_model()
    training = {"training_mode": 1} if opset >= 14 and outputs else {}
    node = batch_norm_node("x", "y", outputs=outputs, **training)
    proto.graph.node[0].CopyFrom(node)
    proto.opset_import[0].version = opset
    repaired, _ = repair(proto, {})
    assert list(repaired.graph.node[0].output) == kept
    onnx.checker.check_model(repaired)


def test_saved_statistics_of_old_opsets_cannot_be_read():
    node = batch_norm_node("x", "y", outputs=("m", "v", "sm", "sv"))
    shape = [4, CHANNELS, 5]
    outputs = {"y": shape, "sm": [CHANNELS]}
    proto = model_of([node], {"x": shape}, outputs, batch_norm_arrays(), opset=9)
    with pytest.raises(ModelError, match="saved_mean"):
        from_onnx(proto)


def test_the_given_proto_is_not_changed():
    proto = version_3()
    before = proto.SerializeToString(deterministic=True)
    from_onnx(proto)
    assert proto.SerializeToString(deterministic=True) == before
