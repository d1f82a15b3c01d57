import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphgrad import models
from tests.peers import peer


def weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def trainable_count(model: onnx.ModelProto) -> int:
    return sum(w.size for name, w in weights(model).items() if "running" not in name)


@pytest.mark.parametrize(
    "build, options, count",
    [
        (models.resnet18, {}, 11_689_512),
        (models.resnet34, {}, 21_797_672),
        (models.resnet50, {}, 25_557_032),
        (models.resnet101, {}, 44_549_160),
        (models.resnet18, {"stem": "cifar", "classes": 10}, 11_173_962),
    ],
)
def test_parameter_count_is_the_published_one(build, options, count):
    assert trainable_count(build(**options)) == count


@pytest.mark.parametrize(
    "build, options, shape",
    [
        (models.resnet18, {"width": 0.125, "size": 32}, (2, 1000)),
        (models.resnet34, {"width": 0.125, "size": 16, "stem": "cifar", "classes": 7}, (2, 7)),
        (models.resnet50, {"width": 0.125, "size": 32, "activation": "silu"}, (2, 1000)),
        (models.resnet50, {"width": 0.125, "size": 32, "batch": 2, "classes": 5}, (2, 5)),
        (models.resnet_digits, {}, (2, 10)),
        (models.resnet_digits, {"width": 0.5, "activation": "silu"}, (2, 10)),
    ],
)
def test_inference_form_runs(build, options, shape):
    model = build(training=False, **options)
    session = peer("onnxruntime").InferenceSession(model.SerializeToString())
    image = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    (logits,) = session.run(None, {"input": np.ones((2, *image), np.float32)})
    assert logits.shape == shape
    assert np.isfinite(logits).all() and np.ptp(logits) > 0


@pytest.mark.parametrize("width, stem", [(1.0, "imagenet"), (0.25, "cifar")])
def test_initial_weights_have_he_variance(width, stem):
    model = models.resnet18(width=width, stem=stem)
    for name, weight in weights(model).items():
        if weight.ndim == 4 and weight.size > 10_000:
            expected = np.sqrt(2 / (weight.shape[0] * weight.shape[2] * weight.shape[3]))
            assert weight.std() == pytest.approx(expected, rel=0.05), name


def test_training_form_has_three_batch_norm_outputs():
    nodes = [n for n in models.resnet_digits().graph.node if n.op_type == "BatchNormalization"]
    assert len(nodes) == 9
    for node in nodes:
        assert len(node.output) == 3
        assert {a.name: a.i for a in node.attribute}["training_mode"] == 1


def test_names_are_those_of_torch():
    names = set(weights(models.resnet18(width=0.125)))
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "fc.bias"} <= names
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.running_var"} <= names
    assert "layer1.0.downsample.0.weight" not in names


@pytest.mark.parametrize("batch, declared", [("N", "N"), (4, 4)])
def test_batch_is_symbolic_or_fixed(batch, declared):
    model = models.resnet_digits(batch=batch)
    for value in [*model.graph.input, *model.graph.output]:
        dimension = value.type.tensor_type.shape.dim[0]
        assert declared in (dimension.dim_param, dimension.dim_value)


def test_seed_decides_the_weights():
    first, same, other = (models.resnet_digits(seed=s) for s in (1, 1, 2))
    assert first.SerializeToString() == same.SerializeToString()
    assert first.SerializeToString() != other.SerializeToString()


@pytest.mark.parametrize("option", [{"stem": "tiny"}, {"activation": "gelu"}])
def test_unknown_option_is_named(option):
    with pytest.raises(ValueError, match=next(iter(option.values()))):
        models.resnet18(width=0.125, **option)
