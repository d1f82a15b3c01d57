"""Convolutions from ONNX, against onnxruntime and torch, and their gradients."""

import numpy as np
import pytest

import graphgrad as gg
from tests.frontend.converters.nodes import assert_like_onnxruntime, drawn, forward, node_model
from tests.frontend.graphs import op_names
from tests.peers import peer

CONVOLUTIONS = {
    "plain": ((2, 3, 5, 6), (4, 3, 3, 2), {}),
    "asymmetric_pads": ((1, 3, 5, 6), (4, 3, 3, 3), {"pads": [0, 1, 2, 1], "strides": [2, 1]}),
    "kernel_shape": ((1, 3, 5, 6), (4, 3, 3, 3), {"kernel_shape": [3, 3]}),
    "dilation_groups": ((1, 4, 7, 6), (6, 2, 3, 2), {"dilations": [2, 3], "group": 2}),
    "valid": ((1, 2, 5, 5), (3, 2, 3, 3), {"auto_pad": "VALID", "strides": [2, 2]}),
    "same_upper": ((1, 2, 5, 6), (3, 2, 3, 2), {"auto_pad": "SAME_UPPER"}),
    "same_lower": ((1, 2, 5, 6), (3, 2, 3, 2), {"auto_pad": "SAME_LOWER"}),
    "upper_strides": ((1, 2, 6, 7), (3, 2, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    "lower_strides": ((1, 2, 6, 7), (3, 2, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    "same_kernel_one": ((1, 2, 5, 5), (3, 2, 1, 1), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    "one": ((2, 3, 7), (4, 3, 3), {"pads": [2, 0], "strides": [2]}),
    "one_same_lower": ((2, 3, 7), (4, 3, 4), {"auto_pad": "SAME_LOWER"}),
    "one_depthwise": ((2, 3, 7), (6, 1, 3), {"group": 3}),
    "three": ((1, 2, 4, 3, 5), (3, 2, 2, 3, 2), {"pads": [1, 0, 1, 0, 2, 1]}),
    "three_same": (
        (1, 2, 4, 3, 5),
        (2, 2, 2, 3, 2),
        {"auto_pad": "SAME_UPPER", "strides": [2, 1, 2]},
    ),
}  # fmt: skip

TRANSPOSED = {
    "plain": ((2, 3, 4, 3), (3, 2, 3, 2), {}),
    "output_padding": ((1, 3, 3, 3), (3, 2, 3, 3), {"strides": [2, 3], "output_padding": [1, 2]}),
    "pads": ((1, 3, 4, 3), (3, 2, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 2]}),
    "groups": ((1, 4, 3, 3), (4, 3, 2, 3), {"group": 2, "dilations": [2, 1], "strides": [2, 1]}),
    "valid": ((1, 2, 3, 3), (2, 1, 2, 2), {"auto_pad": "VALID", "strides": [2, 2]}),
    "same_upper": ((1, 2, 3, 3), (2, 1, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    "same_lower": ((1, 2, 3, 3), (2, 1, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    "same_small_kernel": ((1, 2, 3), (2, 2, 2), {"auto_pad": "SAME_UPPER", "strides": [3]}),
    "output_shape": ((1, 2, 3, 3), (2, 2, 3, 3), {"output_shape": [6, 8], "strides": [3, 2]}),
    "output_shape_odd": ((1, 2, 3, 3), (2, 2, 3, 4), {"output_shape": [6, 7], "strides": [2, 2]}),
    "output_shape_upper": (
        (1, 2, 3, 3),
        (2, 2, 3, 4),
        {"output_shape": [6, 7], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    "output_shape_beyond": (
        (1, 2, 3, 3),
        (2, 1, 3, 3),
        {"output_shape": [10, 8], "strides": [3, 2], "output_padding": [1, 1]},
    ),
    "one": ((2, 3, 4), (3, 2, 3), {"pads": [1, 0], "strides": [2]}),
    "three": ((1, 2, 2, 3, 2), (2, 3, 2, 2, 3), {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 0, 1]}),
    "three_groups": (
        (1, 4, 2, 2, 2),
        (4, 1, 2, 3, 2),
        {"group": 4, "output_padding": [1, 0, 0], "strides": [2, 2, 2]},
    ),
}  # fmt: skip


def case(op_type, x, w, attributes, dtype="float32"):
    channels = w[0] if op_type == "Conv" else w[1] * attributes.get("group", 1)
    inputs = {
        name: drawn(shape, seed=seed, dtype=dtype)
        for seed, (name, shape) in enumerate({"x": x, "w": w, "b": (channels,)}.items())
    }
    return inputs, attributes


@pytest.mark.parametrize("opset", [11, 22])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, opset):
    inputs, attributes = case("Conv", *CONVOLUTIONS[name])
    proto = node_model("Conv", inputs, opset=opset, **attributes)
    assert_like_onnxruntime(proto, inputs)
    rank = inputs["x"].ndim - 2
    assert op_names(gg.from_onnx(proto).mod)[0] == f"relax.nn.conv{rank}d"


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions(name):
    inputs, attributes = case("ConvTranspose", *TRANSPOSED[name])
    assert_like_onnxruntime(node_model("ConvTranspose", inputs, **attributes), inputs)


@pytest.mark.parametrize("op_type, cases, names", [
    ("Conv", CONVOLUTIONS, ["lower_strides", "one", "three_same"]),
    ("ConvTranspose", TRANSPOSED, ["same_upper", "output_shape_beyond"]),
])  # fmt: skip
def test_gradients(op_type, cases, names):
    for name in names:
        inputs, attributes = case(op_type, *cases[name])
        gg.check_grads(gg.from_onnx(node_model(op_type, inputs, **attributes)), inputs, order=2)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtypes_without_bias(op_type, dtype):
    inputs, _ = case(op_type, (1, 2, 4, 4), (2, 2, 3, 3), {}, dtype)
    inputs["b"] = None
    torch = peer("torch")
    x, w = (torch.tensor(inputs[name].astype("float64")) for name in "xw")
    function = torch.conv2d if op_type == "Conv" else torch.conv_transpose2d
    y = forward(node_model(op_type, inputs), inputs)[0]
    assert y.dtype == dtype
    tolerance = {"float16": 2e-3, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(y, function(x, w).numpy(), rtol=tolerance, atol=tolerance)


def test_same_with_dilation_which_onnxruntime_refuses():
    inputs, attributes = case("Conv", (1, 2, 7, 8), (3, 2, 3, 3), {"dilations": [2, 3]}, "float64")
    proto = node_model("Conv", inputs, auto_pad="SAME_UPPER", **attributes)
    torch = peer("torch")
    tensors = [torch.tensor(inputs[name]) for name in "xwb"]
    theirs = torch.nn.functional.conv2d(*tensors, padding="same", dilation=(2, 3))
    np.testing.assert_allclose(forward(proto, inputs)[0], theirs.numpy(), rtol=1e-12, atol=1e-12)


def test_output_padding_beyond_the_stride_which_onnxruntime_refuses():
    attributes = {"dilations": [3], "output_padding": [2]}
    inputs, _ = case("ConvTranspose", (1, 2, 4), (2, 3, 3), attributes, "float64")
    proto = node_model("ConvTranspose", inputs, **attributes)
    torch = peer("torch")
    tensors = [torch.tensor(inputs[name]) for name in "xwb"]
    theirs = torch.conv_transpose1d(*tensors, dilation=3, output_padding=2)
    np.testing.assert_allclose(forward(proto, inputs)[0], theirs.numpy(), rtol=1e-12, atol=1e-12)
    gg.check_grads(gg.from_onnx(proto), inputs, order=2)


@pytest.mark.parametrize("op_type, attributes", [
    ("Conv", {"auto_pad": "SAME_UPPER"}),
    ("Conv", {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("ConvTranspose", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
])  # fmt: skip
def test_symbolic_extents(op_type, attributes):
    inputs, _ = case(op_type, (2, 2, 5, 6), (2, 2, 3, 3), {})
    shapes = {"x": ("n", 2, "h", "w")}
    assert_like_onnxruntime(node_model(op_type, inputs, shapes=shapes, **attributes), inputs)


REFUSED = {
    "too_small": ("Conv", (1, 1, 3, 3), (1, 1, 5, 5), {}, "positive"),
    "nothing_left": ("ConvTranspose", (1, 1, 2), (1, 1, 1), {"pads": [1, 1]}, "positive"),
    "channels": ("Conv", (1, 3, 4, 4), (2, 2, 3, 3), {}, "belong together"),
    "groups": ("Conv", (1, 4, 4, 4), (3, 2, 3, 3), {"group": 2}, "belong together"),
    "transposed_channels": ("ConvTranspose", (1, 3, 4, 4), (2, 2, 3, 3), {}, "belong together"),
    "kernel_shape": ("Conv", (1, 2, 4, 4), (2, 2, 3, 3), {"kernel_shape": [2, 2]}, "kernel_shape"),
    "strides": ("Conv", (1, 2, 4, 4), (2, 2, 3, 3), {"strides": [0, 1]}, "strides are"),
    "pads": ("Conv", (1, 2, 4, 4), (2, 2, 3, 3), {"pads": [-1, 0, 0, 0]}, "pads are"),
    "count": ("Conv", (1, 2, 4, 4), (2, 2, 3, 3), {"dilations": [1]}, "dilations has 1"),
    "rank": ("Conv", (1, 2), (2, 2), {}, "2 axes"),
    "four_axes": ("Conv", (1, 1, 2, 2, 2, 2), (1, 1, 1, 1, 1, 1), {}, "6 axes"),
    "auto_pad": ("Conv", (1, 2, 4, 4), (2, 2, 3, 3), {"auto_pad": "SAME"}, "auto_pad"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    op_type, x, w, attributes, message = REFUSED[name]
    inputs = {"x": drawn(x), "w": drawn(w)}
    with pytest.raises(gg.ModelError, match=message):
        gg.from_onnx(node_model(op_type, inputs, **attributes))


@pytest.mark.parametrize("op_type, attributes", [
    ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("ConvTranspose", {"output_shape": [6, 6]}),
])  # fmt: skip
def test_padding_that_needs_an_unknown_extent(op_type, attributes):
    inputs, _ = case(op_type, (1, 2, 5, 5), (2, 2, 3, 3), {})
    proto = node_model(op_type, inputs, shapes={"x": (1, 2, "h", 5)}, **attributes)
    with pytest.raises(gg.ModelError, match="shapes="):
        gg.from_onnx(proto)
