import numpy as np
import pytest
from onnx import helper, numpy_helper

import graphgrad as gg
from graphgrad.errors import ModelError
from graphgrad.frontend import constant_weights
from graphgrad.frontend.onnx_import import from_onnx

from .graphs import batch_norm_node, model_of, random, run_model


def constant(name, array):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def filled(name, *, shape):
    return helper.make_node("ConstantOfShape", [shape], [name])


def test_weights_held_by_constants_train():
    nodes = [
        constant("w", random(3, 4)),
        constant("b", random(4)),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["b", "h"], ["y"]),
    ]
    model = from_onnx(model_of(nodes, {"x": [2, 3]}, {"y": [2, 4]}))
    assert model.trainable() == ["w", "b"]
    assert any("made parameters: ['w', 'b']" in note for note in model.notes)
    x, cotangent = random(2, 3), random(2, 4, seed=1)
    _, gradients = gg.value_and_grad(model)({"x": x}, cotangent)
    np.testing.assert_allclose(gradients["w"], x.T @ cotangent, rtol=1e-5)
    np.testing.assert_allclose(gradients["b"], cotangent.sum(0), rtol=1e-5)


def test_weights_made_by_constant_of_shape_train_through_views():
    nodes = [
        filled("w", shape="s"),
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("Gemm", ["x", "t"], ["y"]),
    ]
    model = from_onnx(model_of(nodes, {"x": [2, 3]}, {"y": [2, 4]}, {"s": np.array([4, 3])}))
    assert model.trainable() == ["w"] and not model.params["w"].any()
    model.params["w"][:] = random(4, 3)
    x = random(2, 3)
    np.testing.assert_allclose(run_model(model, model.mod, x), x @ random(4, 3).T, rtol=1e-5)


def test_a_large_weight_made_by_constant_of_shape_is_lifted():
    """VGG-19's first linear layer has 411 MB; what is not lifted would silently not train."""
    node, extents = filled("w", shape="s"), numpy_helper.from_array(np.array([4096, 25088]), "s")
    array = constant_weights._held(node, {}, {"s": extents})
    assert array.shape == (4096, 25088) and array.strides == (0, 0)


def test_weights_that_no_message_holds_are_refused(monkeypatch):
    monkeypatch.setattr(constant_weights, "_MOST_BYTES", 100)
    nodes = [
        filled("w", shape="s"),
        filled("v", shape="s"),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    proto = model_of(nodes, {"x": [1, 4]}, {"y": [1, 4]}, {"s": np.array([4, 4])})
    with pytest.raises(ModelError, match=r"'v' and the weights before it.* 128 bytes, and 100 are"):
        from_onnx(proto)


def test_statistics_made_by_constant_of_shape_are_state():
    nodes = [filled(name, shape="s") for name in ("scale", "bias", "mean", "var")]
    nodes.append(batch_norm_node("x", "y"))
    shape = [4, 3, 5]
    model = from_onnx(model_of(nodes, {"x": shape}, {"y": shape}, {"s": np.array([3])}))
    assert (list(model.params), list(model.state)) == (["scale", "bias"], ["mean", "var"])


def test_scale_and_shift_after_batch_norm_are_weights():
    nodes = [
        batch_norm_node("x", "h"),
        filled("gain", shape="s"),
        filled("shift", shape="s"),
        helper.make_node("Unsqueeze", ["gain", "axes"], ["gain1"]),
        helper.make_node("Unsqueeze", ["shift", "axes"], ["shift1"]),
        helper.make_node("Mul", ["h", "gain1"], ["scaled"]),
        helper.make_node("Add", ["scaled", "shift1"], ["y"]),
    ]
    arrays = {name: random(3) for name in ("scale", "bias", "mean", "var")}
    arrays |= {"s": np.array([3]), "axes": np.array([1])}
    model = from_onnx(model_of(nodes, {"x": [4, 3, 5]}, {"y": [4, 3, 5]}, arrays))
    assert model.trainable() == ["scale", "bias", "gain", "shift"]


def test_a_mask_is_no_weight():
    nodes = [
        constant("mask", np.triu(np.full((2, 2), -1e9, "float32"))),
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["y"]),
    ]
    model = from_onnx(model_of(nodes, {"x": [2, 3]}, {"y": [2, 2]}, {"w": random(3, 2)}))
    assert model.trainable() == ["w"]
    assert "float tensors of Constant nodes stay constant: ['mask']" in model.notes


@pytest.mark.parametrize(
    "name, trains",
    [
        ("head.temperature", True),
        ("logit_scale", True),
        ("pool.p", True),
        ("scale2", True),
        ("12", False),
        ("onnx::Mul_12", False),
        ("/block/Constant_output_0", False),
        ("val_3", False),
        ("const_fold_opt__7", False),
        ("_tensor_constant0", False),
        ("scalar_tensor_default_1", False),
        ("model/mul/y:0", False),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_single_float_trains_if_it_is_named_like_a_parameter(name, trains, shape):
    nodes = [
        helper.make_node("Mul", ["x", name], ["h"]),
        helper.make_node("Mul", ["h", "w"], ["y"]),
    ]
    arrays = {name: np.full(shape, 0.5, "float32"), "w": random(3)}
    model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}, arrays))
    assert model.trainable() == ([name, "w"] if trains else ["w"])
    assert any("named" in n or "names are those" in n for n in model.notes) is not trains


def test_one_number_in_a_layer_is_a_weight_whatever_its_name():
    nodes = [helper.make_node("Conv", ["x", "onnx::Conv_1", "onnx::Conv_2"], ["y"])]
    arrays = {"onnx::Conv_1": random(1, 1, 1), "onnx::Conv_2": random(1)}
    model = from_onnx(model_of(nodes, {"x": [1, 1, 4]}, {"y": [1, 1, 4]}, arrays))
    assert model.trainable() == list(arrays)
