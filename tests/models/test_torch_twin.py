import numpy as np
import onnx
import pytest

from graphgrad import models
from tests.peers import peer


@pytest.fixture
def twin():
    peer("torch")
    from graphgrad.models.torch_twin import twin

    return twin


@pytest.mark.parametrize(
    "build, options",
    [
        (models.lenet, {"size": 12}),
        (models.mobilenet_v2, {"width": 0.25, "size": 32}),
        (models.resnet18, {"width": 0.125, "size": 32, "activation": "silu"}),
        (models.resnet50, {"width": 0.125, "stem": "cifar", "size": 16, "classes": 7}),
        (models.transformer_encoder, {"layers": 2, "width": 32, "sequence": 6}),
        (models.transformer_encoder, {"layers": 1, "width": 32, "heads": 4, "norm_first": True}),
        (models.vgg16_bn, {"width": 0.125, "size": 32}),
    ],
)
def test_computes_what_the_file_says(twin, build, options):
    torch = peer("torch")
    has_norms = build not in (models.lenet, models.transformer_encoder)
    form = {"training": False} if has_norms else {}
    proto = build(batch=3, **form, **options)
    session = peer("onnxruntime").InferenceSession(proto.SerializeToString())
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    (expected,) = session.run(None, {"input": images})
    with torch.no_grad():
        given = twin(proto).eval()(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_every_weight_trains_and_statistics_do_not(twin):
    proto = models.mobilenet_v2(width=0.25, size=32)
    module = twin(proto)
    weights = [t for t in proto.graph.initializer if "running" not in t.name]
    assert [tuple(p.shape) for p in module.parameters()] == [tuple(t.dims) for t in weights]
    assert module.training


def test_what_no_layer_stands_for_is_refused(twin):
    proto = models.mlp((4, 3))
    proto.graph.node.append(onnx.helper.make_node("Tan", ["input"], ["y"]))
    with pytest.raises(ValueError, match="Tan"):
        twin(proto)
