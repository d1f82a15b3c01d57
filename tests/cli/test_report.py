import json

import numpy as np
import onnx
import pytest

from graphgrad import models
from graphgrad.cli.main import main
from tests.unknown_ops import take_away


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(models.mlp((4, 5, 3)), tmp_path / "mlp.onnx")
    return "mlp.onnx"


def facts_of(page):
    """The facts in the text of a page."""
    start = '<script id="facts" type="application/json">'
    return json.loads(page.read_text("utf-8").partition(start)[2].partition("</script>")[0])


def test_text(path, tmp_path, capsys):
    assert main(["report", path, "--steps", "1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("a step takes")
    assert second == "wrote graphgrad-report.html and graphgrad-report.trace.json"
    facts = facts_of(tmp_path / "graphgrad-report.html")
    assert facts["title"] == "mlp.onnx" and len(facts["profile"]["kernels"]) > 3
    assert "traceEvents" in json.loads((tmp_path / "graphgrad-report.trace.json").read_text())


def test_json_and_options(path, tmp_path, capsys):
    np.savez("d.npz", x=np.ones((4, 4), np.float32), y=np.eye(4, 3, dtype=np.float32))
    options = ["--data", "d.npz", "--loss", "mse", "--batch", "2", "--freeze", "fc1.*"]
    options += ["--rules", "derived", "--out", "r.html", "--steps", "1", "--json"]
    assert main(["report", path, *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == ["r.html", "r.trace.json"] and told["missing"] == []
    assert told["step"]["median_seconds"] > 0 and told["rules"] == "derived"
    facts = facts_of(tmp_path / "r.html")
    reasons = {entry["name"]: entry["reason"] for entry in facts["untrained"]}
    assert reasons == {"fc1.weight": "frozen", "fc1.bias": "frozen"}
    assert "derived" in {node["origin"] for node in facts["graph"]["nodes"]}


@pytest.mark.parametrize("option", [["--memory", "0.5"], ["--batch", "4"], ["--data", "d.npz"]])
def test_what_a_report_without_steps_would_ignore(path, capsys, option):
    assert main(["report", path, "--steps", "0", *option]) == 2
    assert f"leave {option[0]} out" in capsys.readouterr().err


def test_without_steps_nothing_is_compiled(path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("graphgrad.cli.report.train_step", None)
    assert main(["report", path, "--steps", "0", "--wrt", "fc2.*"]) == 0
    assert "wrote graphgrad-report.html\n" in capsys.readouterr().out
    assert {p.name for p in tmp_path.iterdir()} == {"mlp.onnx", "graphgrad-report.html"}
    facts = facts_of(tmp_path / "graphgrad-report.html")
    assert facts["profile"] is None and "--steps 0" in facts["why_no_profile"]
    assert {entry["name"] for entry in facts["untrained"]} == {"fc1.weight", "fc1.bias"}


def test_a_missing_gradient_is_drawn_and_fails(path, tmp_path, capsys, monkeypatch):
    take_away(monkeypatch, "relax.nn.relu")
    assert main(["report", path, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["missing"] == ["relax.nn.relu"] and told["step"] is None
    facts = facts_of(tmp_path / "graphgrad-report.html")
    assert "missing" in {node["origin"] for node in facts["graph"]["nodes"]}
    assert "gradients are missing" in facts["why_no_profile"]


def test_nothing_trains(path, tmp_path, capsys):
    assert main(["report", path, "--constants", "*"]) == 0
    assert "nothing is missing" in capsys.readouterr().out
    facts = facts_of(tmp_path / "graphgrad-report.html")
    assert "no weight trains" in facts["why_no_profile"]


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["none.onnx"], "none.onnx"),
        (["{path}", "--out", "report.txt"], "must end in .html"),
        (["{path}", "--out", "none/report.html"], "none is none"),
        (["{path}", "--wrt", "conv*"], "--wrt conv* matches no weight"),
        (["{path}", "--loss", "none"], "loss='none' is unknown"),
        (["{path}", "--data", "none.npz"], "none.npz"),
    ],
)
def test_bad_input_writes_nothing(path, tmp_path, capsys, arguments, error):
    assert main(["report", *[text.format(path=path) for text in arguments]]) == 2
    assert error in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mlp.onnx"]
