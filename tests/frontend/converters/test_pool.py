"""Pooling from ONNX: outputs as in onnxruntime, gradients by differences."""

import numpy as np
import pytest
from onnx import TensorProto

import graphgrad as gg
from graphgrad.errors import ModelError
from tests.frontend.converters.movement import moving_node
from tests.frontend.converters.nodes import assert_like_onnxruntime, drawn, node_model
from tests.frontend.converters.sampling import assert_samples


def distinct(*shape):
    """Return different numbers around 0, in a random order."""
    order = np.random.default_rng(1).permutation(int(np.prod(shape))).reshape(shape)
    return 0.07 * (order - order.size / 2 + 0.25)


WINDOWS = [
    ((1, 2, 7), {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
    ((2, 1, 6, 5), {"kernel_shape": [2, 3], "strides": [3, 1], "pads": [1, 0, 0, 2]}),
    ((1, 1, 5, 4, 4), {"kernel_shape": [2, 2, 3], "strides": [2, 1, 2]}),
    ((1, 1, 5, 6), {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 1, 5, 6), {"kernel_shape": [3, 3], "strides": [1, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 1, 5, 6), {"kernel_shape": [3, 2], "strides": [1, 2], "auto_pad": "VALID"}),
]
CEILED = [
    ((1, 2, 6), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    (
        (1, 1, 6, 5),
        {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    ),
]
DILATED = [
    ((1, 1, 7, 6), {"kernel_shape": [2, 3], "dilations": [3, 2], "pads": [0, 2, 1, 0]}),
    (
        (1, 1, 6, 6),
        {"kernel_shape": [2, 2], "dilations": [2, 1], "strides": [3, 2], "ceil_mode": 1},
    ),
]


@pytest.mark.parametrize(("shape", "windows"), WINDOWS + CEILED + DILATED, ids=str)
def test_max_pool(shape, windows):
    assert_samples(moving_node("MaxPool", shape, **windows), distinct(*shape))


@pytest.mark.parametrize(
    ("shape", "windows", "storage_order"),
    [(*WINDOWS[0], 0), (*WINDOWS[1], 1), (*WINDOWS[2], 0), (*WINDOWS[2], 1), (*DILATED[1], 0)],
    ids=str,
)
def test_max_pool_with_indices(shape, windows, storage_order):
    proto = moving_node("MaxPool", shape, outputs=2, storage_order=storage_order, **windows)
    proto.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    assert_samples(proto, distinct(*shape))


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(("shape", "windows"), WINDOWS[:4] + CEILED + DILATED[:1], ids=str)
def test_average_pool(shape, windows, include):
    proto = moving_node("AveragePool", shape, count_include_pad=include, **windows)
    assert_samples(proto, distinct(*shape))


@pytest.mark.parametrize(
    ("shape", "windows", "p"),
    [(*WINDOWS[0], 3), (*WINDOWS[1], 1), (*WINDOWS[1], 2), (*CEILED[1], 3), (*DILATED[0], 2)],
    ids=str,
)
def test_lp_pool(shape, windows, p):
    assert_samples(moving_node("LpPool", shape, p=p, **windows), distinct(*shape))


def test_lp_pool_before_it_could_dilate():
    shape, windows = WINDOWS[1]
    assert_samples(moving_node("LpPool", shape, opset=11, **windows), distinct(*shape))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_norm_has_slope_zero_where_it_is_zero(p):
    proto = moving_node("LpPool", (1, 1, 4), kernel_shape=[2], strides=[2], p=p)
    differentiate = gg.value_and_grad(gg.from_onnx(proto), wrt=["x"])
    x = np.array([[[0.0, 0.0, 1.0, 0.0]]])
    _, gradients = differentiate({"x": x}, np.ones((1, 1, 2)))
    np.testing.assert_allclose(gradients["x"], x)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name, windows", [("GlobalLpPool", {}), ("LpPool", {"kernel_shape": [4]})])
def test_lp_pool_of_nan_is_nan(name, windows, p):
    """And so is its gradient, but for p = 1: the slope of |x| is 0 there, as in PyTorch."""
    x = np.ones((1, 3, 4))
    x[0, 1], x[0, 2, 1] = 0.0, np.nan
    model = gg.from_onnx(moving_node(name, x.shape, p=p, **windows))
    outputs, gradients = gg.value_and_grad(model, wrt=["x"])({"x": x}, np.ones((1, 3, 1)))
    (y,) = outputs.values()
    np.testing.assert_allclose(y.ravel(), [4 ** (1 / p), 0, np.nan])
    assert np.isfinite(gradients["x"][0, :2]).all()
    assert np.isnan(gradients["x"][0, 2]).any() == (p > 1)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 2, 3, 4), (1, 2, 2, 1, 3, 2)], ids=str)
@pytest.mark.parametrize("name", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pool(name, shape):
    x = distinct(*shape)
    axes = tuple(range(2, x.ndim))
    expected = {
        "GlobalAveragePool": x.mean(axes, keepdims=True),
        "GlobalMaxPool": x.max(axes, keepdims=True),
        "GlobalLpPool": np.sqrt((x * x).sum(axes, keepdims=True)),
    }[name]
    assert_samples(moving_node(name, shape), x, expected=[expected])


@pytest.mark.parametrize("name", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pool_of_symbolic_extents(name):
    x = drawn((2, 3, 4, 5))
    proto = node_model(name, {"x": x}, shapes={"x": ("n", 3, "h", 5)}, opset=20)
    assert_like_onnxruntime(proto, {"x": x})


@pytest.mark.parametrize("name", ["AveragePool", "LpPool", "MaxPool"])
def test_a_symbolic_batch(name):
    x = drawn((3, 1, 5))
    windows = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    proto = node_model(name, {"x": x}, shapes={"x": ("n", 1, 5)}, opset=22, **windows)
    assert_like_onnxruntime(proto, {"x": x})


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_max_pool_of_integers(dtype):
    x = np.arange(-9 if dtype == "int8" else 0, 100, dtype=dtype)[:16].reshape(1, 1, 4, 4)
    assert_like_onnxruntime(
        node_model("MaxPool", {"x": x}, kernel_shape=[2, 2], pads=[1, 0, 0, 1], opset=12), {"x": x}
    )


@pytest.mark.parametrize("size", [None, [1, 1, 5, 6]], ids=["inferred", "larger"])
def test_max_unpool(size):
    """Elements go to their places in the inferred shape; a larger one continues it with zeros."""
    x, index = distinct(1, 1, 2, 2), np.array([[[[5, 7], [13, 8]]]])
    settings = [index] if size is None else [index, size]
    proto = moving_node(
        "MaxUnpool", x.shape, *settings, kernel_shape=[2, 2], strides=[2, 2], opset=11
    )
    expected = np.zeros((1, 1, 5, 6))
    inner = np.zeros(16)
    inner[index.reshape(-1)] = x.reshape(-1)
    expected[0, 0, :4, :4] = inner.reshape(4, 4)
    assert_samples(proto, x, expected=[expected if size else expected[..., :4, :4]])


def test_four_spatial_axes_are_refused():
    proto = moving_node("MaxPool", (1, 1, 2, 2, 2, 2), kernel_shape=[1, 1, 1, 2])
    with pytest.raises(ModelError, match="one, two or three spatial axes"):
        gg.from_onnx(proto)


def test_auto_pad_of_a_symbolic_extent_is_refused():
    windows = {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_UPPER"}
    proto = node_model("MaxPool", {"x": drawn((1, 1, 5))}, shapes={"x": (1, 1, "w")}, **windows)
    with pytest.raises(ModelError, match="auto_pad with a stride of 2"):
        gg.from_onnx(proto)
