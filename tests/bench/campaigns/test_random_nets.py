"""The networks of the campaign of networks, and a few of its cases."""

import numpy as np
import onnx
import pytest
from campaign import Case, Disagreement
from random_nets import LAYERS, MENDED, Net, layer, random_net

from tests.peers import peer


@pytest.fixture(scope="module")
def networks():
    """The campaign; it needs its peers."""
    peer("onnx_ad")
    peer("onnxruntime")
    return peer("networks")


@pytest.fixture
def case(tmp_path):
    return lambda index: Case("networks", 0, index, tmp_path)


@pytest.mark.parametrize("index", range(5))
def test_networks_of_the_campaign_agree(networks, case, index):
    networks.judge(case(index))


@pytest.mark.parametrize("what", ["values", "gradients"])
def test_what_is_wrong_is_seen(networks, case, monkeypatch, what):
    right = networks.gg.value_and_grad

    def wrong(model, wrt):
        def call(inputs, cotangents):
            values, gradients = right(model, wrt)(inputs, cotangents)
            results = {"values": values, "gradients": gradients}
            results[what] = {k: 1.001 * v + 0.001 for k, v in results[what].items()}
            return results["values"], results["gradients"]

        return call

    monkeypatch.setattr(networks.gg, "value_and_grad", wrong)
    with pytest.raises(Disagreement, match=what):
        networks.judge(case(1))


def test_a_network_is_valid_and_its_values_are_those_of_the_reference(networks):
    for seed in range(20):
        net = random_net(np.random.default_rng(seed))
        model = net.model()
        onnx.checker.check_model(model, full_check=True)
        reference = onnx.reference.ReferenceEvaluator(networks.in_float64(net), new_ops=MENDED)
        results = reference.run(None, {**net.inputs, **net.weights})
        for output, result in zip(model.graph.output, results, strict=True):
            np.testing.assert_allclose(result, net.values[output.name], rtol=1e-12, atol=1e-12)


def test_all_kinds_of_layers_come():
    operators = {
        node.op_type
        for seed in range(150)
        for node in random_net(np.random.default_rng(seed)).nodes
    }
    assert len(operators) > 70


def test_a_layer_that_leaves_the_range_is_taken_back(monkeypatch):
    monkeypatch.setattr("random_nets.LAYERS", {})

    @layer()
    def huge(net: Net, x: str) -> str:
        return net.add("Mul", net.add("Add", x, net.weight((1,))), net.table(1e6, "float64"))

    net = random_net(np.random.default_rng(0))
    assert not net.nodes and not net.weights and not net.tables
    assert set(net.values) == set(net.inputs)
    assert LAYERS
