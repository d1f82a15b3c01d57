"""Tensors made of extents, against onnxruntime."""

import pytest
from onnx import TensorProto

from tests.frontend.converters.nodes import assert_like_onnxruntime, drawn, node_model


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32])
@pytest.mark.parametrize("k", [0, -1])
def test_eye_like(k, dtype):
    x = {"x": drawn((2, 3))}
    assert_like_onnxruntime(node_model("EyeLike", x, types={"y": dtype}, k=k, dtype=dtype), x)
