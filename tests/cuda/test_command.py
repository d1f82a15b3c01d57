"""The command line and an emulated device: one that is there, is missing, or too small."""

import json

import numpy as np
import onnx
import pytest

from graphgrad import models

PROGRAM = "import runpy; runpy.run_module('graphgrad', run_name='__main__')"


@pytest.fixture
def train(tmp_path, beside_emulator):
    """Return a function that trains a perceptron on a device with some properties."""
    onnx.save(models.mlp((4, 8, 3)), tmp_path / "mlp.onnx")
    x = np.random.default_rng(0).standard_normal((80, 4)).astype("float32")
    y = (x[:, 0] > 0) + (x[:, 1] > 0).astype("int64")
    np.savez(tmp_path / "data.npz", x=x[:64], y=y[:64], x_test=x[64:], y_test=y[64:])

    def run(target, out, **properties):
        settings = {f"GRAPHGRAD_EMULATOR_{name}": value for name, value in properties.items()}
        options = ["--data", str(tmp_path / "data.npz"), "--steps", "6", "--batch", "16"]
        options += ["--target", target, "--out", str(out)]
        return beside_emulator(PROGRAM, "train", tmp_path / "mlp.onnx", *options, **settings)

    return run


def test_training_follows_the_host(train, tmp_path):
    histories = []
    for target in ("llvm", "cuda"):
        done = train(target, tmp_path / target)
        assert done.returncode == 0, done.stderr
        histories.append(json.loads((tmp_path / target / "history.json").read_text()))
    host, device = histories
    assert len(device["loss"]) == 6 and device["epochs"][-1]["held_out"]["accuracy"] > 0
    np.testing.assert_allclose(device["loss"], host["loss"], rtol=1e-5)


@pytest.mark.parametrize("target, properties, message", [
    ("cuda", {"DEVICES": "0"}, "this machine's GPU, but there is none to ask: the NVIDIA driver"),
    ("cuda", {"MEMORY": "32768"}, "out of memory: "),
], ids=["absent", "full"])  # fmt: skip
def test_what_cannot_be_is_told(train, tmp_path, target, properties, message):
    done = train(target, tmp_path / "out", **properties)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
