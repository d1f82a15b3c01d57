import json
from types import SimpleNamespace

import onnx
import pytest

from graphgrad import models
from graphgrad.cli import against
from graphgrad.cli.main import main
from graphgrad.errors import ArgumentError
from tests.peers import peer


def test_both_compete_and_compute_the_same_loss(path, capsys, monkeypatch):
    """But for the compiled form, which takes a minute."""
    peer("torch")
    monkeypatch.setattr(against, "COMPILERS", ())
    monkeypatch.setattr(against, "ROUNDS", 1)
    monkeypatch.setattr(against, "TURN_SECONDS", 0.0)
    assert main(["bench", path, "--against", "torch", "--json", "--batch", "3"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["against"], facts["batch"]) == ("torch", 3)
    ours, theirs = (facts["contenders"][name] for name in ("graphgrad", "torch"))
    assert len(facts["contenders"]) == 2
    assert ours["initial_loss"] == pytest.approx(theirs["initial_loss"], rel=1e-5)
    assert facts["ratio"] == pytest.approx(ours["step_ms"] / theirs["step_ms"])


def test_forms_of_torch_that_there_are(monkeypatch):
    arguments = SimpleNamespace(model="model.onnx", constants=None, rules="auto")

    def names(is_image):
        return list(against._entrants(arguments, "batch.npz", is_image))

    monkeypatch.setattr("shutil.which", lambda name: None)
    assert names(False) == ["graphgrad", "torch"]
    monkeypatch.setattr("shutil.which", lambda name: name)
    last = ["torch", "torch, channels_last", "torch.compile", "torch.compile, channels_last"]
    assert names(True) == ["graphgrad", *last]


def test_what_has_no_twin_is_refused(tmp_path, capsys):
    peer("torch")
    proto = models.mlp((4, 3))
    (node,) = proto.graph.node
    proto.graph.node.append(onnx.helper.make_node("Tan", ["scores"], [node.output[0]]))
    node.output[0] = "scores"
    onnx.save(proto, tmp_path / "tan.onnx")
    assert main(["bench", str(tmp_path / "tan.onnx"), "--against", "torch"]) == 2
    error = capsys.readouterr().err
    assert "no twin of this file" in error and "operator Tan" in error


@pytest.mark.parametrize(
    "option",
    [
        ["--loss", "mse"],
        ["--precision", "bfloat16"],
        ["--full-precision", "node"],
        ["--memory", "0.5"],
        ["--profile"],
        ["--steps", "10"],
    ],
)
def test_what_only_graphgrad_does_is_refused(path, capsys, option):
    assert main(["bench", path, "--against", "torch", *option]) == 2
    assert f"leave {option[0]} out" in capsys.readouterr().err


def test_missing_torch_names_the_extra(path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert main(["bench", path, "--against", "torch"]) == 2
    assert "graphgrad[torch]" in capsys.readouterr().err


def test_other_losses_end_it():
    class Running:
        def __init__(self, loss):
            self.loss = loss

    against._check_losses({"a": Running(1.0), "b": Running(1.00001)})
    with pytest.raises(ArgumentError, match="initial losses differ"):
        against._check_losses({"a": Running(1.0), "b": Running(1.01)})


def test_failures_are_told_and_end_with_1(monkeypatch, capsys, path):
    peer("torch")
    failed = {"graphgrad": {"error": "no"}, "torch": {"step_ms": 2.0, "first_step_seconds": 1.0}}
    monkeypatch.setattr(against, "_competed", lambda entrants: failed)
    assert main(["bench", path, "--against", "torch"]) == 1
    output = capsys.readouterr().out
    assert "graphgrad failed: no" in output and "2.00" in output
