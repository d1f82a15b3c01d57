import numpy as np
import onnx
import pytest
from onnx import helper

from graphgrad.errors import ModelError
from graphgrad.frontend.onnx_load import check, load

from .graphs import batch_norm_model, model_of

GOOD = batch_norm_model().SerializeToString()


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (GOOD[: len(GOOD) // 2], "not an ONNX file, or is truncated"),
        (b"just some text\n", "not an ONNX file, or is truncated"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not an ONNX file, or is truncated"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "has no graph"),
    ],
)
def test_damaged_files(tmp_path, content, message):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    for length in range(len(GOOD)):
        path.write_bytes(GOOD[:length])
        with pytest.raises(ModelError):
            check(load(path))


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        load(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        load(str(tmp_path))


@pytest.mark.parametrize("value", [None, 3, b"bytes", onnx.GraphProto()])
def test_wrong_type(value):
    with pytest.raises(ModelError, match=f"given a {type(value).__name__}"):
        load(value)


def _without(field):
    proto = batch_norm_model()
    proto.graph.ClearField(field)
    return proto


@pytest.mark.parametrize("field, message", [("node", "no nodes"), ("output", "no outputs")])
def test_nothing_to_compute(field, message):
    with pytest.raises(ModelError, match=message):
        load(_without(field))


def test_old_ir_version():
    proto = batch_norm_model()
    proto.ir_version = 2
    with pytest.raises(ModelError, match="IR version 2"):
        load(proto)


@pytest.mark.parametrize(
    "opset, message",
    [
        (6, "uses opset 6; 7 to .* convert it with onnx.version_converter"),
        (999, "uses opset 999; 7 to .* install an onnx package that knows it"),
    ],
)
def test_opsets_that_are_not_served(opset, message):
    proto = batch_norm_model()
    proto.opset_import[0].version = opset
    with pytest.raises(ModelError, match=message):
        load(proto)


def test_versions_of_other_domains_are_their_own():
    proto = batch_norm_model()
    proto.opset_import.append(helper.make_opsetid("my.domain", 1))
    assert len(load(proto).opset_import) == 2


def test_missing_external_data(tmp_path):
    proto = batch_norm_model()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights", size_threshold=0)
    assert load(path).graph.initializer[0].raw_data
    (tmp_path / "weights").unlink()
    with pytest.raises(ModelError, match="external data"):
        load(path)


def test_external_data_of_a_proto_that_was_not_loaded(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(
        batch_norm_model(), path, save_as_external_data=True, location="weights", size_threshold=0
    )
    with pytest.raises(ModelError, match=r"external data.*give the path"):
        load(onnx.load(path, load_external_data=False))


def test_a_proto_is_copied():
    proto = batch_norm_model()
    load(proto).graph.node[0].name = "changed"
    assert proto.graph.node[0].name == ""


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Relu", ["nothing"], ["y"]),
        helper.make_node("Relu", ["x"], ["y"], no_such_attribute=1),
        helper.make_node("Relu", ["x", "x"], ["y"]),
    ],
)
def test_the_checker_speaks_through_our_error(node):
    with pytest.raises(ModelError, match="not valid ONNX"):
        check(model_of([node], {"x": [2]}, {"y": [2]}))


@pytest.mark.parametrize("repeated", [False, True])
def test_large_weights_are_checked_by_name(repeated):
    """The checker sees them as inputs, whether the file lists them there, too, or not."""
    inputs = {"x": [1, 64]} | ({"w": [64, 64]} if repeated else {})
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    proto = model_of([node], inputs, {"y": [1, 64]}, {"w": np.ones((64, 64), "float32")})
    check(load(proto))
    proto.graph.node.append(helper.make_node("Relu", ["y"], ["w"]))
    with pytest.raises(ModelError, match=r"single static assignment[^\n]*'w'"):
        check(load(proto))
