import numpy as np
import pytest

from graphgrad import models
from tests.peers import peer


@pytest.mark.parametrize(
    "options, shape",
    [
        ({}, (3, 1, 28, 28)),
        ({"size": 32, "channels": 3}, (3, 3, 32, 32)),
        ({"size": 13, "activation": "silu"}, (3, 1, 13, 13)),
        ({"size": 12, "batch": 3}, (3, 1, 12, 12)),
    ],
)
def test_runs(options, shape):
    session = peer("onnxruntime").InferenceSession(models.lenet(**options).SerializeToString())
    (logits,) = session.run(None, {"input": np.ones(shape, np.float32)})
    assert logits.shape == (3, 10)


def test_parameter_count_is_the_published_one():
    assert sum(np.prod(t.dims) for t in models.lenet().graph.initializer) == 61_706


def test_too_small_an_image_is_refused():
    with pytest.raises(ValueError, match="at least 12"):
        models.lenet(size=11)
