import numpy as np
import pytest

from graphgrad import models
from tests.peers import peer


def shapes(model):
    return {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}


def test_parameter_count_is_the_published_one():
    # torchvision's 14,723,136 of the convolutions and norms, and 512 * 10 + 10
    found = shapes(models.vgg16_bn(head="cifar", classes=10, size=32))
    assert sum(np.prod(s) for n, s in found.items() if "running" not in n) == 14_728_266


def test_names_are_those_of_torch():
    found = shapes(models.vgg16_bn(width=0.125, size=64, classes=7))
    assert found["features.0.weight"] == (8, 3, 3, 3)
    assert found["features.7.weight"] == (16, 8, 3, 3)  # behind the pooling, which is number 6
    assert found["features.41.running_var"] == (64,)
    assert found["classifier.0.weight"] == (512, 64 * 2 * 2)
    assert found["classifier.6.weight"] == (7, 512)


@pytest.mark.parametrize("head", ["imagenet", "cifar"])
def test_inference_form_runs(head):
    model = models.vgg16_bn(width=0.125, size=32, head=head, classes=5, training=False)
    session = peer("onnxruntime").InferenceSession(model.SerializeToString())
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    (logits,) = session.run(None, {"input": images})
    assert logits.shape == (2, 5)
    assert np.isfinite(logits).all() and np.ptp(logits) > 0


@pytest.mark.parametrize(
    "options, text",
    [({"size": 48}, "multiple of 32"), ({"size": 0}, "multiple of 32"), ({"head": "x"}, "'cifar'")],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        models.vgg16_bn(**options)
