import numpy as np
import pytest
from onnx import numpy_helper

import graphgrad as gg
from graphgrad import models
from tests.peers import peer


def shapes(model):
    return {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}


@pytest.mark.parametrize("width, count", [(1.0, 3_504_872), (0.5, 1_968_680)])
def test_parameter_count_is_the_published_one(width, count):
    found = shapes(models.mobilenet_v2(width=width))
    assert sum(np.prod(s) for n, s in found.items() if "running" not in n) == count


def test_names_are_those_of_torch():
    found = shapes(models.mobilenet_v2())
    assert found["features.0.0.weight"] == (32, 3, 3, 3)
    assert found["features.1.conv.0.0.weight"] == (32, 1, 3, 3)  # the first block does not expand
    assert found["features.1.conv.1.weight"] == (16, 32, 1, 1)
    assert found["features.2.conv.1.0.weight"] == (96, 1, 3, 3)
    assert found["features.2.conv.3.running_mean"] == (24,)
    assert found["features.18.0.weight"] == (1280, 320, 1, 1)
    assert found["classifier.1.weight"] == (1000, 1280)


def test_depthwise_weights_have_he_variance():
    (weight,) = (
        numpy_helper.to_array(tensor)
        for tensor in models.mobilenet_v2().graph.initializer
        if tensor.name == "features.17.conv.1.0.weight"
    )
    assert weight.std() == pytest.approx(np.sqrt(2 / 9), rel=0.05)


def test_inference_form_runs():
    model = models.mobilenet_v2(width=0.25, size=32, classes=5, training=False)
    session = peer("onnxruntime").InferenceSession(model.SerializeToString())
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    (logits,) = session.run(None, {"input": images})
    assert logits.shape == (2, 5)
    assert np.isfinite(logits).all() and np.ptp(logits) > 0


def test_bounds_of_relu6_do_not_train():
    model = gg.from_onnx(models.mobilenet_v2(width=0.25, size=32))
    names = {tensor.name for tensor in models.mobilenet_v2(width=0.25).graph.initializer}
    assert set(model.trainable()) == {name for name in names if "running" not in name}
