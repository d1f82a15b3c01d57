import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphgrad import models
from tests.peers import peer


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return (
        peer("onnxruntime").InferenceSession(model.SerializeToString()).run(None, {"input": x})[0]
    )


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_values_are_those_of_the_formula(activation):
    model = models.mlp((3, 5, 2), activation=activation, seed=4)
    w = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    hidden = x @ w["fc1.weight"].T + w["fc1.bias"]
    hidden = np.maximum(hidden, 0) if activation == "relu" else hidden / (1 + np.exp(-hidden))
    expected = hidden @ w["fc2.weight"].T + w["fc2.bias"]
    np.testing.assert_allclose(run(model, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("features, nodes", [((4, 2), 1), ((4, 3, 2), 3), ((4, 3, 3, 2), 5)])
def test_layers(features, nodes):
    assert len(models.mlp(features).graph.node) == nodes


def test_one_width_is_refused():
    with pytest.raises(ValueError, match="input and an output width"):
        models.mlp((4,))
