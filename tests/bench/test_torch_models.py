import numpy as np
import pytest
from onnx import numpy_helper

from graphgrad.models import resnet18, resnet50, resnet_digits
from tests.peers import peer


def weights(proto):
    torch = peer("torch")
    return {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in proto.graph.initializer
    }


@pytest.mark.parametrize(
    "build, options",
    [
        (resnet_digits, {"batch": 2}),
        (resnet18, {"batch": 2, "width": 0.125, "stem": "cifar", "size": 16, "classes": 7}),
    ],
)
def test_twin_computes_what_the_file_says(build, options):
    torch = peer("torch")
    from torch_models import residual_network

    proto = build(training=False, **options)
    session = peer("onnxruntime").InferenceSession(proto.SerializeToString())
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    (expected,) = session.run(None, {"input": images})
    with torch.no_grad():
        given = residual_network(weights(proto)).eval()(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


def test_weights_of_another_network_are_refused():
    proto = resnet50(width=0.125, size=32)
    values = weights(proto)
    from torch_models import residual_network

    with pytest.raises(RuntimeError):
        residual_network(values)
