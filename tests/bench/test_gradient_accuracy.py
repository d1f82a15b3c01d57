"""Whole networks keep the numeric policy: small ones here, the published ones among slow tests."""

import importlib

import gradient_accuracy
import numpy as np
import pytest
from gradient_accuracy import Distance, Network, distance, judge, verdict

from graphgrad.models.resnet import basic_block, bottleneck_block, resnet
from tests.peers import peer


def small(block, activation):
    """Two stages at full width on 16 × 16 images: convolutions of 64 and 128 channels."""

    def build(**options):
        return resnet("small", block, (1, 1), stem="cifar", activation=activation, **options)

    return Network(build, 4, 16)


@pytest.mark.slow
@pytest.mark.parametrize("block", [basic_block, bottleneck_block])
def test_small_networks(block):
    torch = peer("torch")
    torch.set_num_threads(1)
    result = judge(small(block, "silu"), 1)
    assert result["kept"], result
    assert result["float32"].keys() == {"graphgrad", "graphgrad, direct", "torch"}
    assert result["torch_float64"]["worst"] <= gradient_accuracy.EXACT
    # Otherwise nothing was filtered, and both forms are one.
    assert result["float32"]["graphgrad"] != result["float32"]["graphgrad, direct"]


@pytest.mark.slow
@pytest.mark.parametrize("name", gradient_accuracy.NETWORKS)
def test_published_networks(name):
    peer("torch")
    result = judge(gradient_accuracy.NETWORKS[name], 2)
    assert result["kept"], result


def gradients(**values):
    return {name: np.array(value, "float64") for name, value in values.items()}


def test_distances_are_of_norms_and_over_batches():
    reference = [gradients(a=[3.0, 4.0], b=[0.0]), gradients(a=[5.0, 0.0], b=[0.0])]
    given = [gradients(a=[3.0, 4.5], b=[0.0]), gradients(a=[5.0, 0.5], b=[0.0])]
    assert distance(given, reference) == Distance(0.1, 0.05, 0.1)
    assert distance(reference, reference) == Distance(0, 0, 0)
    given[0]["b"] += 1e-7  # the floor is 1e-6 of the whole gradient
    assert distance(given, reference).worst == pytest.approx(0.1)
    given[0]["b"] += 1e-6
    assert distance(given, reference).worst == pytest.approx(1.1e-6 / 5e-6 / 2**0.5)


@pytest.mark.parametrize("ours, exact, kept", [
    (3.9e-6, 1e-9, True), (4.1e-6, 1e-9, False), (1e-6, 1e-7, False), (1e-6, None, True),
])  # fmt: skip
def test_the_verdict(ours, exact, kept):
    distances = {
        "graphgrad": Distance(ours, ours, ours),
        "graphgrad, direct": Distance(2e-6, 0, 0),
        "torch": Distance(1e-6, 0, 0),
    }
    wide = None if exact is None else Distance(0, 0, exact)
    result = verdict(distances, wide)
    assert result["kept"] is kept
    assert result["ratio_to"]["graphgrad, direct"] == pytest.approx(ours / 2e-6)
    assert "torch" in gradient_accuracy.text({"net": result})


def test_gradients_of_the_twin_have_the_names_of_the_file():
    peer("torch")
    network = small(basic_block, "relu")
    proto = network.proto()
    shapes = {t.name: tuple(t.dims) for t in proto.graph.initializer if "running" not in t.name}
    module = importlib.import_module("torch_gradients")
    [found] = module.gradients(proto, list(shapes), network.batches(1))
    assert {name: array.shape for name, array in found.items()} == shapes
