"""Training of the digits in fewer bits, as the command line does it."""

import json

import pytest

from graphgrad.cli.main import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_held_out_accuracy(tmp_path, precision):
    assert main(["train", "--precision", precision, "--out", str(tmp_path)]) == 0
    history = json.loads((tmp_path / "history.json").read_text())
    assert history["epochs"][-1]["held_out"]["accuracy"] >= 0.985
