"""The switch of winograd: where it is off no kernel filters, and results are the same."""

import numpy as np
import pytest
from onnx import helper

import graphgrad as gg
from graphgrad.lower.cpu import schedule as cpu
from tests.frontend.graphs import model_of, random
from tests.lower.cpu.winograd.convolutions import is_filtered

X, Y = random(4, 32, 16, 16), np.arange(4)


@pytest.fixture(scope="module")
def model():
    """A convolution that is worth filtering, and scores of four classes."""
    arrays = {"weight": 0.05 * random(64, 32, 3, 3), "fc": random(4, 64)}
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["conv"], pads=[1] * 4),
        helper.make_node("Tanh", ["conv"], ["bent"]),
        helper.make_node("GlobalAveragePool", ["bent"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc"], ["scores"], transB=1),
    ]
    return gg.from_onnx(model_of(nodes, {"x": list(X.shape)}, {"scores": [4, 4]}, arrays))


@pytest.fixture
def filtered(monkeypatch):
    """A list that says of each kernel that is scheduled whether it filters."""
    found = []
    schedule = cpu._scheduled

    def noting(*arguments):
        kernel = schedule(*arguments)
        found.append(is_filtered(kernel))
        return kernel

    monkeypatch.setattr(cpu, "_scheduled", noting)
    return found


def stepped(model, path, **options):
    return [gg.train_step(model, **options)(X, Y)]


def evaluated(model, path, **options):
    return [gg.train_step(model, **options).evaluate(X)["scores"]]


def ended(model, path, **options):
    step = gg.train_step(model, accumulate=2, **options)
    return [step(X, Y), step(X, Y)]


def differentiated(model, path, **options):
    function = gg.value_and_grad(model, wrt=["x", "weight"], loss="cross_entropy", **options)
    return list(function({"x": X, "targets": Y})[1].values())


def exported(model, path, **options):
    gg.export_step(model, path / "export", **options)
    return []


@pytest.mark.parametrize("use", [stepped, evaluated, ended, differentiated, exported])
def test_the_switch(model, filtered, tmp_path, use):
    fast = use(model, tmp_path)
    used, filtered[:] = sum(filtered), []
    direct = use(model, tmp_path, winograd=False)
    assert used > 0 and not any(filtered)
    for ours, expected in zip(fast, direct, strict=True):
        assert np.linalg.norm(ours - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("winograd", [None, 1, "off"])
def test_what_is_no_switch_is_refused(model, tmp_path, winograd):
    for use in (stepped, differentiated, exported):
        with pytest.raises(gg.ArgumentError, match="winograd="):
            use(model, tmp_path, winograd=winograd)
