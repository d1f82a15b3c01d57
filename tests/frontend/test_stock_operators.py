"""TVM's translations with corrections."""

import numpy as np
import pytest

import graphgrad as gg
from tests.frontend.converters.nodes import forward, node_model

FACTORS = {"a": np.array([[4, 1]], "int32"), "b": np.array([[3], [2]], "int32")}


def test_a_product_of_integers_with_a_factor():
    (y,) = forward(node_model("Gemm", FACTORS, alpha=2.0), FACTORS)
    assert (y.dtype, y.tolist()) == (np.int32, [[28]])


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_a_factor_that_is_no_integer_is_refused(dtype):
    """TVM's translation cuts its digits off."""
    arrays = {name: array.astype(dtype) for name, array in FACTORS.items()}
    with pytest.raises(gg.ModelError, match=rf"its alpha, 0.5, is not a value of .* {dtype}"):
        gg.from_onnx(node_model("Gemm", arrays, alpha=0.5))


def test_unique_elements_are_numbered_along_one_axis():
    inputs = {"x": np.array([[5, 2, 5]])}
    ranks = {"y": 1, "index": 1, "inverse": 1}
    model = node_model("Unique", inputs, ("y", "index", "inverse"), ranks=ranks)
    results = forward(model, inputs)
    assert [a.tolist() for a in results] == [[2, 5], [1, 0], [1, 0, 1]]
