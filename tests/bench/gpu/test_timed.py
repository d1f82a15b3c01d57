from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.peers import peer


@pytest.mark.parametrize("name", ["resnet18-64", "encoder-tiny", "bert-32", "gpt2-4"])
def test_torch_has_a_place_for_each_weight(name):
    """All contenders draw their weights by the names and shapes of the packed model."""
    torch = peer("torch")
    import pack
    import timed
    import twins

    spec = small(timed.TIMED[name])
    graph = pack.onnx_file(spec).graph
    described = [{"name": t.name, "shape": list(t.dims)} for t in graph.initializer]
    weights = timed.draw_weights(described, [])
    again = timed.draw_weights(described, [])
    assert all(np.array_equal(array, again[key]) for key, array in weights.items())
    net = twins.timed(spec.model, weights, **spec.sizes)
    held = {key: tensor for key, tensor in net.state_dict().items() if key in weights}
    assert held.keys() == weights.keys()
    assert all(np.array_equal(held[key].numpy(), array) for key, array in weights.items())
    assert all(torch.isfinite(tensor).all() for tensor in held.values())


@pytest.mark.parametrize("name", ["encoder-tiny", "bert-32", "gpt2-4"])
def test_torch_computes_what_the_file_does(name):
    """A race compares initial losses on a GPU; by then a wrong twin costs a machine's time."""
    torch = peer("torch")
    import onnxruntime
    import pack
    import timed
    import twins

    spec = small(timed.TIMED[name])
    proto = pack.onnx_file(spec)
    described = [{"name": t.name, "shape": list(t.dims)} for t in proto.graph.initializer]
    weights = timed.draw_weights(described, [])
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name], tensor.name))
    inputs, labels = spec.data()
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = session.run(None, inputs)
    net = twins.timed(spec.model, weights, **spec.sizes)
    with torch.no_grad():
        logits = net(*(torch.from_numpy(array) for array in inputs.values())).numpy()
    assert len(logits) == len(labels)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def small(spec):
    """The same model with sizes that a test affords."""
    sizes = {
        "bert": {"layers": 1, "width": 48, "feed_forward": 96, "sequence": 8, "words": 32},
        "gpt2": {"layers": 1, "width": 48, "length": 8, "classes": 32},
    }.get(spec.model)
    return spec if sizes is None else replace(spec, batch=2, sizes={**spec.sizes, **sizes})


def test_weights_have_their_roles():
    import timed

    described = [
        {"name": "conv.weight", "shape": [64, 32, 3, 3]},
        {"name": "bn.weight", "shape": [5]},
        {"name": "bn.bias", "shape": [5]},
    ]
    state = [{"name": "bn.running_mean", "shape": [5]}, {"name": "bn.running_var", "shape": [5]}]
    drawn = timed.draw_weights(described, state)
    assert drawn["conv.weight"].std() == pytest.approx(np.sqrt(2 / (32 * 9)), rel=0.02)
    ones = {name for name, array in drawn.items() if (array == 1).all()}
    zeros = {name for name, array in drawn.items() if (array == 0).all()}
    assert ones == {"bn.weight", "bn.running_var"} and zeros == {"bn.bias", "bn.running_mean"}
