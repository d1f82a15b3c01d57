import numpy as np
import pytest
from onnx import helper, numpy_helper

from graphgrad.frontend import split_initializers
from graphgrad.frontend.onnx_graph import readers
from graphgrad.frontend.onnx_import import from_onnx
from graphgrad.frontend.onnx_repair import repair
from graphgrad.train.value_and_grad import value_and_grad

from .graphs import CHANNELS, batch_norm_arrays, batch_norm_node, model_of, random, run_model

SHAPE = [2, CHANNELS, 4]


def identity(x, y, name=""):
    return helper.make_node("Identity", [x], [y], name=name)


def bn_model(nodes, arrays, outputs=None, **options):
    return model_of(nodes, {"x": SHAPE}, outputs or {"y": SHAPE}, arrays, **options)


def repaired(model):
    proto, notes = repair(model, {})
    return proto.graph, notes


def test_identity_copies_get_their_own_names():
    """What torch's legacy exporter writes for a fresh model in inference form."""
    nodes = [
        identity("one.scale", "two.scale"),
        identity("one.scale", "one.var"),
        identity("one.scale", "two.var"),
        identity("one.bias", "one.mean"),
        identity("one.bias", "two.mean"),
        identity("one.bias", "two.bias"),
        batch_norm_node("x", "h", [f"one.{n}" for n in ("scale", "bias", "mean", "var")]),
        batch_norm_node("h", "y", [f"two.{n}" for n in ("scale", "bias", "mean", "var")]),
    ]
    arrays = {"one.scale": np.ones(CHANNELS, "float32"), "one.bias": np.zeros(CHANNELS, "float32")}
    model = from_onnx(bn_model(nodes, arrays))
    assert set(model.params) == {"one.scale", "one.bias", "two.scale", "two.bias"}
    assert set(model.state) == {"one.mean", "one.var", "two.mean", "two.var"}
    assert all((model.params[f"{n}.scale"] == 1).all() for n in ("one", "two"))
    assert not np.shares_memory(model.params["one.scale"], model.params["two.scale"])
    assert len(model.notes) == 2 and all("two." in note for note in model.notes)


def test_clones_stay_one_weight():
    """What torch's newer exporter writes for a module that clones a weight where it reads it."""
    nodes = [
        identity("w", "clone", "node_clone"),
        identity("w", "clone_1", "node_clone_1"),
        identity("clone_1", "alias", "node_alias"),
        helper.make_node("Mul", ["x", "clone"], ["a"]),
        helper.make_node("Mul", ["a", "alias"], ["y"]),
    ]
    model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}, {"w": random(3)}))
    assert list(model.params) == ["w"]
    x, w = random(3, seed=1), model.params["w"]
    _, gradients = value_and_grad(model)(x, np.ones(3, "float32"))
    np.testing.assert_allclose(gradients["w"], 2 * x * w, rtol=1e-6)


def test_chain_of_identities():
    nodes = [
        identity("w", "w2"),
        identity("w2", "w3"),
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "w2"], ["b"]),
        helper.make_node("Add", ["b", "w3"], ["y"]),
    ]
    model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}, {"w": random(3)}))
    assert list(model.params) == ["w", "w2", "w3"]
    x = random(3, seed=1)
    np.testing.assert_allclose(run_model(model, model.mod, x), x + 3 * model.params["w"], rtol=1e-6)


def test_identity_with_the_only_reader_keeps_the_name_of_the_tensor():
    nodes = [
        identity("mean", "alias"),
        batch_norm_node("x", "y", ("scale", "bias", "alias", "var")),
    ]
    model = from_onnx(bn_model(nodes, batch_norm_arrays()))
    assert list(model.state) == ["mean", "var"] and model.notes == []


def test_direct_readers_stay_tied():
    nodes = [helper.make_node("Add", ["x", "w"], ["h"]), helper.make_node("Mul", ["h", "w"], ["y"])]
    model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}, {"w": random(3)}))
    assert list(model.params) == ["w"] and model.notes == []


def test_identity_of_an_output_stays():
    nodes = [identity("w", "y"), helper.make_node("Add", ["x", "w"], ["z"])]
    model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3], "z": [3]}, {"w": random(3)}))
    assert model.outputs == ["y", "z"] and list(model.params) == ["w"]


@pytest.mark.parametrize("position", [3, 4])
def test_weight_used_as_statistic_is_split(position):
    tensors = ["scale", "bias", "mean", "var"]
    tensors[position - 1] = "scale"
    arrays = batch_norm_arrays()
    del arrays[("mean", "var")[position - 3]]
    node = batch_norm_node("x", "y", tensors, name="bn")
    model = from_onnx(bn_model([node], arrays))
    statistic = ("bn.running_mean", "bn.running_var")[position - 3]
    assert list(model.params) == ["scale", "bias"] and statistic in model.state
    np.testing.assert_array_equal(model.state[statistic], model.params["scale"])
    assert any("'scale'" in note and statistic in note for note in model.notes)


def test_one_tensor_as_mean_and_variance_is_split():
    arrays = {k: v for k, v in batch_norm_arrays().items() if k != "mean"}
    node = batch_norm_node("x", "y", ("scale", "bias", "var", "var"), name="bn")
    model = from_onnx(bn_model([node], arrays))
    assert list(model.state) == ["var", "bn.running_var"] and len(model.notes) == 1


def test_statistics_of_different_layers_are_split():
    first, second = batch_norm_arrays(), batch_norm_arrays("two.")
    nodes = [
        batch_norm_node("x", "h", name="bn1"),
        batch_norm_node("h", "y", ("two.scale", "two.bias", "mean", "var"), name="bn2"),
    ]
    arrays = first | {k: second[k] for k in ("two.scale", "two.bias")}
    model = from_onnx(bn_model(nodes, arrays))
    assert list(model.state) == ["mean", "var", "bn2.running_mean", "bn2.running_var"]
    assert len(model.notes) == 2


def test_one_layer_applied_twice_keeps_one_set_of_statistics():
    nodes = [batch_norm_node("x", "h", name="bn1"), batch_norm_node("h", "y", name="bn2")]
    model = from_onnx(bn_model(nodes, batch_norm_arrays()))
    assert list(model.state) == ["mean", "var"] and model.notes == []


def test_statistics_held_by_constants_become_state():
    arrays = batch_norm_arrays()
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(arrays.pop(name)))
        for name in ("mean", "var")
    ]
    nodes.append(batch_norm_node("x", "y", name="bn"))
    model = from_onnx(bn_model(nodes, arrays))
    assert list(model.state) == ["bn.running_mean", "bn.running_var"] and len(model.notes) == 2
    np.testing.assert_array_equal(model.state["bn.running_var"], batch_norm_arrays()["var"])


def test_settings_do_not_train():
    nodes = [
        helper.make_node("Clip", ["x", "low"], ["h"]),
        helper.make_node("Add", ["h", "w"], ["y"]),
    ]
    arrays = {"low": np.float32(0), "w": random(3)}
    model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}, arrays))
    assert list(model.params) == ["w"]


def test_a_setting_that_is_also_a_weight_is_split():
    nodes = [
        helper.make_node("Clip", ["x", "low"], ["h"], name="clip"),
        helper.make_node("Add", ["h", "low"], ["y"]),
    ]
    model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}, {"low": np.float32(0.5)}))
    assert list(model.params) == ["low"] and "low.setting" in model.notes[0]


def test_new_names_do_not_clash():
    arrays = {**batch_norm_arrays(), "bn.running_var": random(CHANNELS)}
    del arrays["var"]
    nodes = [
        batch_norm_node("x", "h", ("scale", "bias", "mean", "scale"), name="bn"),
        helper.make_node("Add", ["h", "extra"], ["y"]),
    ]
    arrays["extra"] = random(4)
    nodes.append(helper.make_node("Identity", ["bn.running_var"], ["z"]))
    graph, _ = repaired(bn_model(nodes, arrays, {"y": SHAPE, "z": [CHANNELS]}))
    names = [tensor.name for tensor in graph.initializer]
    assert "bn.running_var_1" in names and len(names) == len(set(names))


def test_the_graph_is_searched_a_fixed_number_of_times(monkeypatch):
    """However many initializers were merged: an import is linear in the number of nodes."""
    calls = []
    monkeypatch.setattr(
        split_initializers, "readers", lambda graph: calls.append(graph) or readers(graph)
    )
    counts = []
    for copies in (2, 20):
        names = [f"w{index}" for index in range(copies)]
        nodes = [helper.make_node("Identity", ["w"], [name]) for name in names]
        nodes.append(helper.make_node("Sum", ["x", *names], ["y"]))
        model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}, {"w": random(3)}))
        assert list(model.params) == names
        counts.append(len(calls))
        calls.clear()
    assert counts[0] == counts[1]
