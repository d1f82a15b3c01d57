"""Random recurrent models beside PyTorch and onnxruntime.

`python bench/campaigns/recurrences.py` judges as many as one likes.
"""

import onnx
import pytest

from tests.fallback.choices import Choices
from tests.peers import peer

BLOCK = 3

MORE = [pytest.param(block, marks=pytest.mark.slow) for block in range(1, 10)]


@pytest.fixture
def models():
    peer("torch")
    peer("onnxruntime")
    from tests.frontend import random_recurrent

    return random_recurrent


@pytest.mark.parametrize("block", [0, *MORE])
@pytest.mark.parametrize("kind", ["layer", "scan"])
def test_results_and_gradients(models, kind, block):
    draw = {"layer": models.random_layer, "scan": models.random_scan}[kind]
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        model = draw(Choices(seed))
        try:
            model.judge(alone=seed % 2 == 0)
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{model.text}")


def test_models_are_valid_and_of_all_kinds(models):
    layers = [models.random_layer(Choices(seed)) for seed in range(25)]
    scans = [models.random_scan(Choices(seed)) for seed in range(12)]
    for one in (*layers, *scans):
        onnx.checker.check_model(one.model, full_check=True)
    nodes = [one.model.graph.node[0] for one in (*layers, *scans)]
    assert {node.op_type for node in nodes} == {"RNN", "GRU", "LSTM", "Scan", "Loop"}
    attributes = {attribute.name for node in nodes for attribute in node.attribute}
    assert attributes >= {
        "activations", "activation_alpha", "clip", "direction", "input_forget", "layout",
        "linear_before_reset", "scan_input_axes", "scan_output_directions",
    }  # fmt: skip


def test_layers_are_those_of_onnxruntime(models):
    """The twins, and so what gradients are compared with, of all that it serves in float32."""
    served = 0
    for seed in range(40):
        one = models.random_layer(Choices(seed))
        theirs = one.by_onnxruntime()
        served += theirs is not None
        if theirs is not None:
            expected = models.results(one.twin, list(one.arrays.values()))
            models.compare("result", theirs, expected, "float32")
    assert served > 12
