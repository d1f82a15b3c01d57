import json

import pytest

from graphgrad.cli.main import main
from tests.unknown_ops import take_away


def test_text(path, capsys):
    assert main(["coverage", path]) == 0
    output = capsys.readouterr().out
    assert "relax.matmul" in output
    assert "nothing is missing" in output


def test_json(path, capsys):
    assert main(["coverage", path, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    assert facts["complete"]
    assert {row["op"]: row["count"] for row in facts["rows"]}["relax.matmul"] == 2


def test_derived_rules(path, capsys):
    assert main(["coverage", path, "--rules", "derived", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rules"] == "derived"
    assert {row["provenance"] for row in facts["rows"]} == {"derived"}


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_something_missing(path, option, capsys, monkeypatch):
    take_away(monkeypatch, "relax.nn.relu")
    assert main(["coverage", path, *option]) == 1
    assert "missing" in capsys.readouterr().out


def test_no_such_file(tmp_path, capsys):
    assert main(["coverage", str(tmp_path / "none.onnx")]) == 2
    assert "none.onnx" in capsys.readouterr().err
