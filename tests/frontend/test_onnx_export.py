import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad.errors import ArgumentError, InputError, OutputError
from graphgrad.frontend import onnx_export
from graphgrad.frontend.mode import specialize
from graphgrad.frontend.model import Model
from graphgrad.frontend.onnx_import import from_onnx
from graphgrad.train.model_onnx import to_onnx
from tests.peers import peer

from .graphs import (
    CHANNELS,
    batch_norm_arrays,
    batch_norm_model,
    batch_norm_node,
    model_of,
    random,
    run_model,
    run_onnx,
)

X = random(4, CHANNELS, 5)


def training_model(opset=17):
    """Batch norm and dropout in training form, with the new mean as an output."""
    shape = ["N", CHANNELS, 5]
    if opset >= 14:
        bn = batch_norm_node("x", "h", outputs=("new_mean", "v"), momentum=0.8, training_mode=1)
    else:
        bn = batch_norm_node("x", "h", outputs=("new_mean", "v", "sm", "sv"), momentum=0.8)
    if opset >= 12:
        drop = helper.make_node("Dropout", ["h", "ratio", "mode"], ["y", "mask"])
    else:
        drop = helper.make_node("Dropout", ["h"], ["y", "mask"], ratio=0.5)
    arrays = batch_norm_arrays()
    if opset >= 12:
        arrays |= {"ratio": np.float32(0.5), "mode": np.bool_(True)}
    outputs = {"y": shape, "new_mean": [CHANNELS]}
    proto = model_of([bn, drop], {"x": shape}, outputs, arrays, opset=opset)
    return from_onnx(proto)


def changed(arrays):
    return {name: array + np.float32(0.5) for name, array in arrays.items()}


@pytest.mark.parametrize("opset", [9, 13, 14, 17])
def test_written_file_runs_in_inference_form(tmp_path, opset):
    runtime = peer("onnxruntime")
    model = training_model(opset)
    params, state = changed(model.params), changed(model.state)
    path = tmp_path / "trained.onnx"
    to_onnx(model, params, state, path)
    onnx.checker.check_model(str(path), full_check=True)

    module = specialize(model, False)
    model.params, model.state = params, state
    outputs, _ = run_model(model, module, X)
    expected = run_onnx(runtime, str(path), {"x": X})
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [9, 17])
def test_round_trip(tmp_path, opset):
    model = training_model(opset)
    params, state = changed(model.params), changed(model.state)
    to_onnx(model, params, state, tmp_path / "m.onnx")
    again = from_onnx(tmp_path / "m.onnx")
    assert (again.inputs, again.outputs) == (model.inputs, model.outputs)
    for ours, given in ((again.params, params), (again.state, state)):
        assert list(ours) == list(given)
        for name, array in given.items():
            np.testing.assert_array_equal(ours[name], array)
    batch_norm = next(n for n in again.proto.graph.node if n.op_type == "BatchNormalization")
    assert next(a.f for a in batch_norm.attribute if a.name == "momentum") == np.float32(0.8)


def test_constants_only_training_read_are_not_written(tmp_path):
    mode = helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(np.bool_(True)))
    drop = helper.make_node("Dropout", ["x", "", "t"], ["y"])
    model = from_onnx(model_of([mode, drop], {"x": [3]}, {"y": [3]}))
    to_onnx(model, {}, None, tmp_path / "m.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node] == ["Dropout"]


def test_the_model_is_not_changed(tmp_path):
    model = training_model()
    before = model.proto.SerializeToString(deterministic=True)
    to_onnx(model, changed(model.params), changed(model.state), tmp_path / "m.onnx")
    assert model.proto.SerializeToString(deterministic=True) == before


def test_a_model_that_did_not_come_from_onnx_is_written_from_its_module(tmp_path):
    model, path = training_model(), tmp_path / "m.onnx"
    wrapped = Model(model.mod, model.params, model.state, outputs=model.outputs)
    params, state = changed(model.params), changed(model.state)
    to_onnx(wrapped, params, state, path)
    written = onnx.load(path)
    assert [value.name for value in written.graph.input] == model.inputs
    to_onnx(model, params, state, tmp_path / "from_onnx.onnx")
    runtime, inputs = peer("onnxruntime"), {"x": X}
    expected = run_onnx(runtime, onnx.load(tmp_path / "from_onnx.onnx"), inputs)
    for ours, theirs in zip(run_onnx(runtime, written, inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda p: p.pop("scale"), r"parameters do not fit.*missing \['scale'\]"),
        (lambda p: p.update(extra=X), r"not known \['extra'\]"),
        (lambda p: p.update(scale=X), r"'scale': expected shape \(3,\)"),
        (lambda p: p.update(scale=p["scale"].astype("float64")), "dtype float32, given .*float64"),
    ],
)
def test_arrays_that_do_not_fit_leave_the_old_file(tmp_path, change, message):
    path = tmp_path / "m.onnx"
    path.write_text("old")
    model = training_model()
    params = dict(model.params)
    change(params)
    with pytest.raises(InputError, match=message):
        to_onnx(model, params, model.state, path)
    assert path.read_text() == "old"


def test_state_must_be_given():
    model = from_onnx(batch_norm_model())
    with pytest.raises(InputError, match=r"statistics do not fit.*missing \['mean', 'var'\]"):
        to_onnx(model, model.params, None, "m.onnx")


def test_paths_that_cannot_be_written(tmp_path):
    model = training_model()
    for path in (tmp_path, tmp_path / "none" / "m.onnx"):
        with pytest.raises(ArgumentError, match="cannot write"):
            to_onnx(model, model.params, model.state, path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    path.write_text("old")

    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    model = training_model()
    with pytest.raises(OutputError, match="disk full"):
        to_onnx(model, model.params, model.state, path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_model_too_large_for_a_file_keeps_its_weights_in_another(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(onnx_export, "_MAX_INLINE_BYTES", 0)
    runtime = peer("onnxruntime")
    model = training_model()
    path = tmp_path / "m.onnx"
    (tmp_path / "m.onnx.data").write_text("somebody's")
    weights = []
    for params in (model.params, changed(model.params)):  # the second replaces the first
        to_onnx(model, params, changed(model.state), path)
        names = {file.name for file in tmp_path.iterdir()} - {"m.onnx", "m.onnx.data"}
        weights += [name for name in names if re.fullmatch(r"m\.onnx\.[0-9a-f]{16}\.data", name)]
        assert len(names) == 1
    assert len(set(weights)) == 2
    onnx.checker.check_model(str(path), full_check=True)
    again = from_onnx(path)
    for name, array in changed(model.params).items():
        np.testing.assert_array_equal(again.params[name], array)
    outputs, _ = run_model(again, specialize(again, False), X)
    np.testing.assert_allclose(outputs[0], run_onnx(runtime, str(path), {"x": X})[0], 1e-5, 1e-6)


def loss_model():
    """Scores, their loss by labels, and twice the loss."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss", "log_prob"]),
        helper.make_node("Mul", ["loss", "two"], ["twice"]),
    ]
    outputs = {"scores": ["N", 4], "loss": [], "twice": []}
    arrays = {"w": random(3, 4), "two": np.float32(2)}
    proto = model_of(nodes, {"x": ["N", 3]}, outputs, arrays)
    proto.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.INT64, ["N"]))
    return proto


def test_losses_and_labels_are_left_out(tmp_path):
    runtime = peer("onnxruntime")
    model = from_onnx(loss_model())
    path = tmp_path / "m.onnx"
    to_onnx(model, changed(model.params), None, path)
    written = onnx.load(path).graph
    assert [value.name for value in written.input] == ["x"]
    assert [value.name for value in written.output] == ["scores"]
    assert [tensor.name for tensor in written.initializer] == ["w"]
    (scores,) = run_onnx(runtime, str(path), {"x": random(2, 3)})
    np.testing.assert_allclose(scores, random(2, 3) @ changed(model.params)["w"], rtol=1e-5)


def test_a_model_whose_only_outputs_are_losses_stays_whole(tmp_path):
    proto = loss_model()
    del proto.graph.output[0]
    model = from_onnx(proto)
    to_onnx(model, model.params, None, tmp_path / "m.onnx")
    assert len(onnx.load(tmp_path / "m.onnx").graph.node) == 3


def ir3_model():
    proto = model_of(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        {"x": ["N", 3]},
        {"y": ["N", 4]},
        {"w": random(3, 4), "b": random(4)},
        opset=9,
        ir_version=3,
    )
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 4]))
    proto.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [4]))
    return proto


def function_model():
    function = helper.make_function(
        "f",
        "Layer",
        ["a", "w"],
        ["b"],
        [helper.make_node("MatMul", ["a", "w"], ["t"]), helper.make_node("Relu", ["t"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    nodes = [helper.make_node("Layer", ["x", "w"], ["y"], domain="f")]
    proto = model_of(nodes, {"x": ["N", 3]}, {"y": ["N", 4]}, {"w": random(3, 4)})
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("f", 1))
    return proto


def shared_model():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("MatMul", ["h", "t"], ["y"]),
    ]
    return model_of(nodes, {"x": ["N", 3]}, {"y": ["N", 3]}, {"w": random(3, 4)})


def constant_model():
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(random(3, 4))),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return model_of(nodes, {"x": ["N", 3]}, {"y": ["N", 4]})


def merged_model():
    nodes = [
        helper.make_node("Identity", ["w"], ["v"]),
        helper.make_node("Mul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "v"], ["y"]),
    ]
    return model_of(nodes, {"x": ["N", 3]}, {"y": ["N", 3]}, {"w": random(3)})


@pytest.mark.parametrize(
    "build", [ir3_model, function_model, shared_model, constant_model, merged_model]
)
def test_trained_weights_reach_onnxruntime(tmp_path, build):
    runtime = peer("onnxruntime")
    model = from_onnx(build())
    step = gg.train_step(model, loss="mse", optimizer=gg.optim.SGD(0.1))
    x = random(2, 3)
    step(x, np.zeros(model_shape(model), "float32"))
    path = tmp_path / "m.onnx"
    to_onnx(model, step.params, step.state, path)
    onnx.checker.check_model(str(path), full_check=True)
    (expected,) = run_onnx(runtime, str(path), {"x": x})
    ours = step.evaluate(x)
    np.testing.assert_allclose(np.asarray(ours["y"]), expected, rtol=1e-5, atol=1e-6)
    assert any((step.params[name] != model.params[name]).any() for name in model.params)


def model_shape(model):
    return (2, int(model.mod["main"].ret_ty.shape[1]))
