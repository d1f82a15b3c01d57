import json

import numpy as np
import pytest
from layer_cases import LAYERS, PARTS, Layer, LayerCase, layer_from_json

from tests.peers import peer


def test_bytes_are_those_that_must_be_moved():
    layer = Layer("batch norm", (2, 3, 4, 5), (2, 3, 4, 5), scaled=True)
    assert LayerCase(layer, "forward").bytes == 4 * 2 * 120
    assert LayerCase(layer, "training").bytes == 4 * 5 * 120
    pool = Layer("average pool 2/2", (2, 4, 4, 5), (2, 2, 2, 5), keeps_data=False)
    assert LayerCase(pool, "training").bytes == 4 * 2 * (160 + 40)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_a_case_survives_its_journey(layer, part):
    case = LayerCase(layer, part)
    assert layer_from_json(json.loads(json.dumps(case.to_json()))) == case


def test_inputs_are_what_a_part_reads():
    layer = Layer("group norm NCHW", (2, 8, 4, 5), (2, 8, 4, 5), scaled=True)
    shapes = [array.shape for array in LayerCase(layer, "training").inputs()]
    assert shapes == [(2, 8, 4, 5), (8,), (8,), (2, 8, 4, 5)]
    assert len(LayerCase(layer, "forward").inputs()) == 3


def _small(layer):
    """Return a layer of the same kind whose tensors are small."""
    shape = (2, 16, 4, 4) if layer.kind.endswith("NCHW") else (2, 4, 4, 16)
    shape = shape if len(layer.shape) == 4 else (4, 32)
    scale = {28: 0.5, 112: 2}.get(layer.result[1], 1) if len(shape) == 4 else 1
    result = tuple(int(n * scale) if axis in (1, 2) else n for axis, n in enumerate(shape))
    result = (2, 1, 1, 16) if layer.kind == "global average pool" else result
    return Layer(layer.kind, shape, result, layer.scaled, layer.keeps_data)


@pytest.mark.parametrize("layer", dict.fromkeys(map(_small, LAYERS)), ids=lambda one: one.name)
def test_contenders_compute_the_same(layer):
    peer("torch")
    from contenders import layers_ours, layers_torch

    for part in PARTS:
        case = LayerCase(layer, part)
        (run, ours), (_, theirs) = (m.prepare(case, 1) for m in (layers_ours, layers_torch))
        run()
        assert ours().shape == theirs().shape
        np.testing.assert_allclose(ours(), theirs(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_json_form(bench):
    peer("torch")
    peer("psutil")
    result = bench("layers.py", "--json", "--match", "relu", "--rounds", "1", "--threads", "1")
    assert result["benchmark"] == "layers" and result["peak"]["gb_per_s"] > 0
    assert [entry["part"] for entry in result["cases"]] == list(PARTS)
    for entry in result["cases"]:
        assert entry["graphgrad"]["ms"] > 0 and entry["torch"]["of_copy"] > 0


def test_report_names_what_failed():
    import layers

    good = {"ms": 1.0, "gb_per_s": 10.0, "of_copy": 0.5, "quiet": True}
    entry = {"name": "relu 2", "part": "forward", "bytes": 8}
    cases = [
        entry | {"graphgrad": good, "torch": good | {"ms": 2.0}},
        entry | {"part": "training", "graphgrad": {"error": "no"}, "torch": good},
    ]
    machine = {"processor": "P", "cores": 2}
    result = {"cases": cases, "machine": machine, "peak": {"gb_per_s": 20.0}, "threads": 1}
    lines = layers.report(result).splitlines()
    assert lines[2].split()[:6] == ["relu", "2", "forward", "1.000", "2.000", "2.00"]
    assert "relu 2 training: graphgrad failed: no" in lines
