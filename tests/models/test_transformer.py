import numpy as np
import pytest
from onnx import numpy_helper

import graphgrad as gg
from graphgrad import models
from tests.peers import peer

SMALL = {"layers": 2, "width": 16, "heads": 4, "feed_forward": 24, "sequence": 5, "classes": 3}


def initializers(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_names_and_shapes_are_those_of_torch():
    torch = peer("torch")
    layer = torch.nn.TransformerEncoderLayer(16, 4, 24)
    expected = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    found = initializers(models.transformer_encoder(**SMALL))
    for index in range(2):
        prefix = f"layers.{index}."
        own = {n.removeprefix(prefix): a.shape for n, a in found.items() if n.startswith(prefix)}
        assert own == expected
    others = [name for name in found if not name.startswith("layers.")]
    assert others == ["classifier.weight", "classifier.bias"]


@pytest.mark.parametrize("norm_first", [False, True])
def test_runs_for_any_batch(norm_first):
    model = models.transformer_encoder(**SMALL, norm_first=norm_first)
    assert any(t.name == "norm.weight" for t in model.graph.initializer) == norm_first
    session = peer("onnxruntime").InferenceSession(model.SerializeToString())
    x = np.random.default_rng(0).standard_normal((3, 5, 16), np.float32)
    (logits,) = session.run(None, {"input": x})
    assert logits.shape == (3, 3)
    (alone,) = session.run(None, {"input": x[1:2]})
    np.testing.assert_allclose(alone[0], logits[1], rtol=1e-4, atol=1e-5)


def test_order_of_positions_is_no_matter():
    model = models.transformer_encoder(**SMALL)
    session = peer("onnxruntime").InferenceSession(model.SerializeToString())
    x = np.random.default_rng(0).standard_normal((1, 5, 16), np.float32)
    (logits,) = session.run(None, {"input": x})
    (turned,) = session.run(None, {"input": x[:, ::-1].copy()})
    np.testing.assert_allclose(turned, logits, rtol=1e-4, atol=1e-5)
    (other,) = session.run(None, {"input": 2 * x})
    assert not np.allclose(other, logits, rtol=1e-2)


def test_all_weights_train_and_nothing_else():
    proto = models.transformer_encoder(**SMALL)
    assert set(gg.from_onnx(proto).trainable()) == set(initializers(proto))


def test_seed_decides_the_weights():
    first, again, other = (models.transformer_encoder(**SMALL, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    weight = initializers(models.transformer_encoder())["layers.0.linear1.weight"]
    assert weight.std() == pytest.approx(1 / np.sqrt(256), rel=0.05)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="width=10 is no multiple of heads=4"):
        models.transformer_encoder(width=10, heads=4)
