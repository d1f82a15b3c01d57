"""Losses inside the model: values against onnxruntime, gradients against differences."""

import numpy as np
import pytest
from onnx import helper

import graphgrad as gg
from tests.frontend.converters.nodes import assert_like_onnxruntime, drawn, node_model, reference
from tests.frontend.graphs import model_of

LABELS = np.random.default_rng(0).integers(0, 3, (2, 4, 5))
SHAPES = {
    "rows": (drawn((5, 3), -2.0, 2.0), np.array([0, 2, 1, 1, 0])),
    "positions": (drawn((2, 3, 4), -2.0, 2.0), LABELS[:, :, 0]),
    "images": (drawn((2, 3, 4, 5), -2.0, 2.0), LABELS.astype("int32")),
}
WEIGHT = np.array([0.5, 2.0, 1.25], "float32")
OPTIONS = {
    "plain": {},
    "ignoring": {"ignore_index": 1},
    "ignoring_no_class": {"ignore_index": -5},
}


def case(op_type, shape, reduction, weighted, options, *, log_probabilities=False):
    scores, labels = SHAPES[shape]
    inputs = {"x": scores, "t": labels} | ({"w": WEIGHT} if weighted else {})
    outputs = ("y", "log_p") if log_probabilities else ("y",)
    ranks = {"y": labels.ndim if reduction == "none" else 0, "log_p": scores.ndim}
    attributes = {"reduction": reduction, "ranks": ranks, "opset": 13, **OPTIONS[options]}
    return node_model(op_type, inputs, outputs, **attributes), inputs


@pytest.mark.parametrize("options", ["plain", "ignoring"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_losses(op_type, reduction, weighted, options):
    # What a shape changes, it changes most where there are weights and labels to ignore.
    for shape in SHAPES if weighted and options == "ignoring" else ["images"]:
        proto, inputs = case(op_type, shape, reduction, weighted, options)
        assert_like_onnxruntime(proto, inputs)
    gg.check_grads(gg.from_onnx(proto), inputs)


def test_labels_that_no_class_has_are_ignored():
    proto, inputs = case("SoftmaxCrossEntropyLoss", "rows", "mean", True, "ignoring_no_class")
    inputs["t"] = np.array([0, -5, 1, -5, 2])
    assert_like_onnxruntime(proto, inputs)


def test_log_probabilities_are_the_second_output():
    arguments = ("SoftmaxCrossEntropyLoss", "images", "mean", True, "ignoring")
    proto, inputs = case(*arguments, log_probabilities=True)
    assert len(reference(proto, inputs)) == 2
    assert_like_onnxruntime(proto, inputs)
    gg.check_grads(gg.from_onnx(proto), inputs)


@pytest.mark.parametrize("label", [3, -1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_label_out_of_range_is_not_ignored(label, reduction):
    node = helper.make_node("SoftmaxCrossEntropyLoss", ["x", "t"], ["y"], reduction=reduction)
    labels = np.array([0, label, 1], "int64")
    shape = [3] if reduction == "none" else []
    model = gg.from_onnx(model_of([node], {"x": [3, 3]}, {"y": shape}, {"t": labels}))
    f = gg.value_and_grad(model, wrt="x")
    outputs, _ = f({"x": np.eye(3, dtype="float32")}, np.ones(shape, "float32"))
    expected = [False, True, False] if reduction == "none" else True
    np.testing.assert_array_equal(np.isnan(outputs["y"]), expected)
