import numpy as np
import onnx
import pytest

import graphgrad as gg
from tests.frontend.converters.nodes import (
    FLOAT,
    assert_like_onnxruntime,
    drawn,
    forward,
    node_model,
    reference,
)

UINT8 = onnx.TensorProto.UINT8


def integers(shape, dtype, low=-90, high=90, seed=0):
    values = np.random.default_rng(seed).integers(low, high, shape)
    return np.array(np.clip(values, np.iinfo(dtype).min, np.iinfo(dtype).max), dtype)


SCALES = {
    "one": ((), {}),
    "one in a vector": ((1,), {}),
    "axis": ((3,), {"axis": 1}),
    "last axis": ((4,), {"axis": -1}),
    "blocks": ((2, 3, 2), {"axis": 2, "block_size": 2}),
    "blocks that do not fit": ((2, 3, 2), {"axis": -1, "block_size": 3}),
}
by_scale = pytest.mark.parametrize("case", SCALES, ids=str)


@by_scale
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_dequantize(case, dtype):
    shape, attributes = SCALES[case]
    inputs = {
        "x": integers((2, 3, 4), dtype),
        "scale": drawn(shape, 0.1, 0.5),
        "zero": None if dtype == "int32" else integers(shape, dtype, 0, 9, seed=1),
    }
    proto = node_model("DequantizeLinear", inputs, types={"y": FLOAT}, **attributes)
    assert_like_onnxruntime(proto, inputs)
    if dtype == "int8" or case == "axis":  # each scale, and each dtype
        given = {name: array for name, array in inputs.items() if array is not None}
        assert gg.check_grads(gg.from_onnx(proto), given).precision == "float64"


@by_scale
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_quantize(case, dtype):
    shape, attributes = SCALES[case]
    inputs = {
        "x": drawn((2, 3, 4), -60, 60),
        "scale": drawn(shape, 0.1, 0.5),
        "zero": integers(shape, dtype, 0, 9, seed=1),
    }
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = node_model("QuantizeLinear", inputs, types={"y": element}, **attributes)
    assert_like_onnxruntime(proto, inputs)


@pytest.mark.parametrize("attributes", [{}, {"output_dtype": onnx.TensorProto.INT8}], ids=str)
def test_quantize_without_a_zero_point(attributes):
    inputs = {"x": drawn((3, 4), -60, 60), "scale": drawn((), 0.1, 0.5)}
    element = attributes.get("output_dtype", UINT8)
    proto = node_model("QuantizeLinear", inputs, types={"y": element}, **attributes)
    assert_like_onnxruntime(proto, inputs)


OUTPUTS = {"outputs": ("y", "scale", "zero"), "types": {"y": UINT8, "scale": FLOAT, "zero": UINT8}}


@pytest.mark.parametrize("bounds", [(-3, 3), (0.5, 6), (-6, -0.5)], ids=str)
def test_dynamic_quantize(bounds):
    inputs = {"x": drawn((3, 4), *bounds)}
    ranks = {"scale": 0, "zero": 0}
    proto = node_model("DynamicQuantizeLinear", inputs, ranks=ranks, **OUTPUTS)
    assert_like_onnxruntime(proto, inputs)
    result = gg.check_grads(gg.from_onnx(proto), inputs)
    assert result.precision == "float64"


def test_dynamic_quantize_of_zeros():
    inputs = {"x": np.zeros((3, 4), "float32")}
    proto = node_model("DynamicQuantizeLinear", inputs, ranks={"scale": 0, "zero": 0}, **OUTPUTS)
    y, _, zero = forward(proto, inputs)
    expected = reference(proto, inputs)
    np.testing.assert_array_equal(y, expected[0])
    np.testing.assert_array_equal(zero, expected[2])


def test_a_scale_of_another_rank_is_refused():
    inputs = {"x": integers((2, 3), "int8"), "scale": drawn((3,), 0.1, 0.5)}
    proto = node_model("DequantizeLinear", inputs, types={"y": FLOAT}, axis=1, block_size=2)
    with pytest.raises(gg.ModelError, match="need a scale of rank 2"):
        gg.from_onnx(proto)
