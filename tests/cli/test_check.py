import json
import sys

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.cli.main import main
from graphgrad.frontend import stock_operators
from graphgrad.registry import unregister
from tests.peers import peer
from tests.unknown_ops import take_away


@pytest.fixture
def wrong_relu():
    gg.register_gradient("relax.nn.relu")(lambda inputs, outputs, cts, attrs: [cts[0] * 2.0])
    yield
    unregister("relax.nn.relu")


def events(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_plain_text(path, capsys):
    assert main(["check", path]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert len(lines) == 5  # three nodes, the model, the summary
    assert all(line.startswith("ok") for line in lines[:4])
    assert "agree with finite differences in float64" in lines[-1]
    assert output.err == ""


def test_table_on_a_terminal(path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")  # without colors
    assert main(["check", path]) == 0
    header = capsys.readouterr().out.splitlines()[0]
    assert header.split() == ["gradient", "error", "dtype", "of", "remarks"]


def test_json(path, capsys):
    assert main(["check", path, "--json", "--order", "2", "--seed", "3"]) == 0
    *parts, result = events(capsys)
    assert [part["event"] for part in parts] == ["part"] * 4
    assert parts[0]["node"] == "fc1"
    assert {part["precision"] for part in parts} == {"float64"}
    assert result["event"] == "result"
    assert result["agrees"]
    assert result["first"] is None


def test_first_wrong_node_is_named(path, capsys, wrong_relu):
    assert main(["check", path]) == 1
    output = capsys.readouterr()
    assert "the first that disagrees: relax.nn.relu (node 'activation1')" in output.err
    assert [line.split()[0] for line in output.out.splitlines()] == ["ok", "WRONG", "ok", "WRONG"]


def test_wrong_node_in_json(path, capsys, wrong_relu):
    assert main(["check", path, "--json"]) == 1
    *parts, result = events(capsys)
    assert result["first"] == "relax.nn.relu (node 'activation1')"
    mismatch = parts[1]["mismatch"]
    assert abs(mismatch["given"] - mismatch["expected"]) > 0.1
    assert len(mismatch["index"]) == 2


def test_rules_of_users_are_told(path, capsys):
    gg.register_gradient("relax.nn.relu")(lambda i, o, cts, a: [cts[0] * relax.op.sign(o[0])])
    try:
        assert main(["check", path, "--json"]) == 0
        assert main(["check", path]) == 0
    finally:
        unregister("relax.nn.relu")
    output = capsys.readouterr().out.splitlines()
    parts = [json.loads(line) for line in output[:4]]
    assert [part["rule"] is None for part in parts] == [True, False, True, True]
    assert "test_check.py:" in parts[1]["rule"]
    assert parts[1]["speed"]["ratio"] > 0
    assert parts[0]["speed"] is None
    assert [line for line in output if "with the rule, value and gradient take" in line]


def test_inputs_from_a_file(path, tmp_path, capsys):
    (name,) = gg.from_onnx(path).inputs
    np.savez(tmp_path / "data.npz", **{name: np.ones((2, 4), "float32")})
    assert main(["check", path, "--input", str(tmp_path / "data.npz")]) == 0


def test_inputs_that_do_not_fit(path, tmp_path, capsys):
    np.savez(tmp_path / "data.npz", other=np.ones((2, 4), "float32"))
    assert main(["check", path, "--input", str(tmp_path / "data.npz")]) == 2
    assert "no input 'other'" in capsys.readouterr().err
    assert main(["check", path, "--input", str(tmp_path / "none.npz")]) == 2


def test_missing_gradient_fails_the_check(path, capsys, monkeypatch):
    take_away(monkeypatch, "relax.nn.relu")
    assert main(["check", path, "--json"]) == 1
    output = capsys.readouterr()
    assert "relax.nn.relu" in output.err
    assert json.loads(output.out)["missing"] == [["relax.nn.relu", ["activation1"]]]


def test_order_is_one_or_two(path):
    with pytest.raises(SystemExit) as caught:
        main(["check", path, "--order", "3"])
    assert caught.value.code == 2


def test_values_agree_with_onnxruntime(path, capsys):
    peer("onnxruntime")
    assert main(["check", path, "--against", "onnxruntime"]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 3
    assert "Gemm 'fc1'" in lines[0]
    assert summary.startswith("3 values agree with onnxruntime")


@pytest.fixture
def wrong_gemm(monkeypatch):
    translate = stock_operators.translate

    def wrong(builder, node, *arguments):
        outputs = translate(builder, node, *arguments)
        if node.name != "fc2":
            return outputs
        return [builder.emit(relax.op.add(outputs[0], relax.const(0.5, "float32")))]

    monkeypatch.setattr(stock_operators, "translate", wrong)


def test_the_first_value_that_differs_is_named(path, capsys, wrong_gemm, tmp_path):
    peer("onnxruntime")
    np.savez(tmp_path / "x.npz", input=np.zeros((2, 4), "float32"))
    arguments = ["check", path, "--against", "onnxruntime", "--input", str(tmp_path / "x.npz")]
    assert main([*arguments, "--json"]) == 1
    output = capsys.readouterr()
    *values, result = [json.loads(line) for line in output.out.splitlines()]
    assert [value["mismatch"] is None for value in values] == [True, True, False]
    first = result["first"]
    assert (first["operator"], first["node"], first["output"]) == (
        "Gemm",
        "fc2",
        values[2]["output"],
    )
    assert first["ours"] - first["theirs"] == pytest.approx(0.5)
    assert len(first["index"]) == 2
    assert first["ulps"] > 1000
    assert "the first that differs: Gemm 'fc2'" in output.err


@pytest.mark.parametrize("option", [["--order", "1"], ["--constants", "fc1.weight"]])
def test_what_a_comparison_of_values_would_ignore(path, capsys, option):
    assert main(["check", path, "--against", "onnxruntime", *option]) == 2
    assert f"leave {option[0]} out" in capsys.readouterr().err


def test_a_comparison_without_onnxruntime(path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["check", path, "--against", "onnxruntime"]) == 2
    assert "pip install 'graphgrad[onnxruntime]'" in capsys.readouterr().err
