"""Pad from ONNX, in every version, mode and sign."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.movement import assert_moves, moving_node, values
from tests.frontend.converters.nodes import assert_like_onnxruntime, node_model

SHAPE = (2, 4, 3)
WIDTHS = [0, 2, 1, 0, 1, 2]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("widths", [WIDTHS, [0] * 6, [0, -1, 1, 0, 2, 0], [0, -2, -1, 0, 0, 0]])
def test_pad(mode, widths):
    assert_moves(moving_node("Pad", SHAPE, widths, mode=mode), values(*SHAPE))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_an_axis_is_cut_where_another_gets_a_border(mode):
    """In the gradient a border of zeros is behind the sums over what was copied."""
    assert_moves(moving_node("Pad", (5, 2), [3, 0, -1, 1], mode=mode), values(5, 2))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pad_with_attributes(mode):
    proto = moving_node("Pad", SHAPE, pads=WIDTHS, mode=mode, value=2.5, opset=10)
    assert_moves(proto, values(*SHAPE))


@pytest.mark.parametrize("axes", [None, [-1, 1], [2, 0]], ids=["all", "negative", "unsorted"])
def test_pad_of_some_axes_with_a_value(axes):
    widths = WIDTHS if axes is None else [1, 0, 2, 1]
    assert_moves(moving_node("Pad", SHAPE, widths, np.array(-1.5), axes), values(*SHAPE))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad_of_a_symbolic_axis(mode):
    proto = moving_node("Pad", ["n", 4, 3], [1, 2, 0, 1, 0, 0], mode=mode)
    assert_moves(proto, values(*SHAPE))


def test_wrap_goes_round_more_than_once():
    proto = moving_node("Pad", (3,), [7, 5], mode="wrap")
    assert_moves(proto, values(3))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "int64", "bool"])
@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_pad_of_other_dtypes(dtype, mode):
    inputs = {"x": values(3, 2).astype(dtype)}
    proto = node_model("Pad", inputs, mode=mode)
    pads = helper.make_tensor("pads", TensorProto.INT64, [4], [1, 0, 1, 1])
    proto.graph.initializer.append(pads)
    proto.graph.node[0].input.append("pads")
    assert_like_onnxruntime(proto, inputs)


def test_the_value_may_be_computed():
    """It has a gradient: the sum over the border."""
    inputs = {"x": values(2, 2), "pads": None, "value": np.array(3.0)}
    proto = node_model("Pad", inputs)
    proto.graph.initializer.append(helper.make_tensor("pads", TensorProto.INT64, [4], [0, 1, 0, 2]))
    proto.graph.node[0].input[1] = "pads"
    assert_like_onnxruntime(proto, inputs)
    differentiate = gg.value_and_grad(gg.from_onnx(proto), wrt=["x", "value"])
    given = {"x": inputs["x"], "value": inputs["value"]}
    _, gradients = differentiate(given, np.ones((2, 5)))
    np.testing.assert_array_equal(gradients["x"], np.ones((2, 2)))
    np.testing.assert_array_equal(gradients["value"], 6.0)


def test_widths_that_are_inputs_are_refused():
    proto = node_model("Pad", {"x": values(2), "pads": np.array([1, 1])})
    with pytest.raises(ModelError, match=r"'node' .Pad.*input 1 .*constant"):
        gg.from_onnx(proto)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ModelError, match="mode 'mirror' is none of constant, edge"):
        gg.from_onnx(moving_node("Pad", (2,), [1, 1], mode="mirror"))


def test_as_many_pads_as_axes():
    with pytest.raises(ModelError, match="3 pads for 1 axes"):
        gg.from_onnx(moving_node("Pad", (2,), [1, 1, 1]))
