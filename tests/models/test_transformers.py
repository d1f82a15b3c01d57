"""Transformers beside their twins in torch: values by onnxruntime, gradients in float64."""

import numpy as np
import onnx
import pytest

import graphgrad as gg
from graphgrad import models
from graphgrad.models import builder
from tests.peers import peer

SMALL = {
    models.transformer_encoder: {"sequence": 6, "feed_forward": 24, "norm_first": True},
    models.bert: {"sequence": 6, "feed_forward": 24, "words": 11},
    models.gpt2: {"length": 6},
    models.vit: {"patch": 4, "size": 8},
    models.llama: {"length": 6, "groups": 2, "feed_forward": 24},
}
SIZES = {"layers": 2, "width": 16, "heads": 4, "classes": 11}


def build(make, **options):
    return make(**SIZES, **SMALL[make], **options)


def inputs_of(proto, batch):
    value = proto.graph.input[0].type.tensor_type
    shape = [batch, *(d.dim_value for d in value.shape.dim[1:])]
    generator = np.random.default_rng(0)
    if value.elem_type == onnx.TensorProto.INT64:
        return generator.integers(0, 11, shape)
    return generator.standard_normal(shape).astype(
        onnx.helper.tensor_dtype_to_np_dtype(value.elem_type)
    )


def by_onnxruntime(proto, inputs):
    session = peer("onnxruntime").InferenceSession(proto.SerializeToString())
    return session.run(None, {"input": inputs})[0]


@pytest.mark.parametrize("make", SMALL, ids=lambda make: make.__name__)
def test_gradients_are_those_of_torch(make, monkeypatch):
    torch = peer("torch")
    from graphgrad.models.torch_twin import twin

    monkeypatch.setattr(builder, "FLOAT", np.dtype(np.float64))
    proto = build(make, batch=3)
    inputs = inputs_of(proto, 3)
    module = twin(proto)
    assert all(weight.dtype == torch.float64 for weight in module.parameters())
    weights = dict(module.named_parameters())
    logits = module(torch.from_numpy(inputs))
    cotangent = np.random.default_rng(1).standard_normal(logits.shape)
    wanted = torch.autograd.grad(logits, list(weights.values()), torch.from_numpy(cotangent))
    model = gg.from_onnx(proto)
    assert set(model.trainable()) == set(weights)
    outputs, ours = gg.value_and_grad(model, wrt=list(weights))(
        {"input": inputs}, cotangent=cotangent
    )
    np.testing.assert_allclose(outputs["logits"], logits.detach(), rtol=1e-9, atol=1e-9)
    floor = 1e-6 * np.sqrt(sum(float((each**2).sum()) for each in wanted))
    for name, expected in zip(weights, wanted, strict=True):
        scale = max(float(expected.norm()), floor)
        assert np.linalg.norm(ours[name] - expected.numpy()) <= 1e-8 * scale, name


@pytest.mark.parametrize("make", SMALL, ids=lambda make: make.__name__)
def test_values_are_those_of_onnxruntime_for_any_batch(make):
    torch = peer("torch")
    from graphgrad.models.torch_twin import twin

    proto = build(make)
    inputs = inputs_of(proto, 3)
    expected = by_onnxruntime(proto, inputs)
    with torch.no_grad():
        given = twin(proto)(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
    alone = by_onnxruntime(proto, inputs[1:2])
    rows = slice(len(alone), 2 * len(alone))
    np.testing.assert_allclose(alone, expected[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [models.gpt2, models.llama])
def test_no_position_sees_a_later_one(make):
    proto = build(make, batch=1)
    tokens = inputs_of(proto, 1)
    other = tokens.copy()
    other[0, 4] = (tokens[0, 4] + 1) % 11
    first, second = by_onnxruntime(proto, tokens), by_onnxruntime(proto, other)
    np.testing.assert_array_equal(first[:4], second[:4])
    assert np.abs(first[4:] - second[4:]).max(axis=1).min() > 1e-4


@pytest.mark.parametrize(
    "make, options, text",
    [
        (models.bert, {"width": 10, "heads": 4}, "width=10 is no multiple of heads=4"),
        (models.gpt2, {"width": 10, "heads": 4}, "width=10 is no multiple of heads=4"),
        (models.vit, {"size": 30}, "size=30 is no multiple of patch=16"),
        (models.llama, {"groups": 3}, "heads=8 is no multiple of groups=3"),
        (models.llama, {"width": 24}, "width=24 is no multiple of 2 · heads=16"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(make, options, text):
    with pytest.raises(ValueError, match=text):
        make(**options)
