import json

import numpy as np
import onnx
import pytest

from graphgrad.cli.job import chosen_memory
from graphgrad.cli.main import main
from tests.peers import peer


def test_text(path, capsys):
    assert main(["bench", path, "--steps", "2"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("a step takes") and "in 2 steps" in line and "are in use" in line


def test_json(path, capsys):
    assert main(["bench", path, "--steps", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"] == path and len(facts["step_seconds"]) == 2
    assert facts["median_seconds"] > 0 and facts["peak_bytes"] > 0
    assert "kernels" not in facts


def test_profile(path, capsys):
    assert main(["bench", path, "--profile", "--steps", "1"]) == 0
    output = capsys.readouterr().out
    assert "op class" in output and "Gemm" in output and "hand" in output
    assert "slowest kernels" in output and "memory in use" in output


def test_profile_as_json_and_figure(path, tmp_path, capsys):
    peer("matplotlib")
    figure = tmp_path / "profile.svg"
    arguments = ["--profile", "--steps", "1", "--json", "--batch", "3", "--figure", str(figure)]
    assert main(["bench", path, *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {kernel["phase"] for kernel in facts["kernels"]} >= {"forward", "backward"}
    assert figure.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize("loss, targets", [("cross_entropy", [1, 0, 2, 1]), ("mse", np.eye(4, 3))])
def test_data_of_a_file(path, tmp_path, capsys, loss, targets):
    y = np.asarray(targets, "int64" if loss == "cross_entropy" else "float32")
    np.savez(tmp_path / "data.npz", x=np.ones((4, 4), np.float32), y=y)
    data = ["--data", str(tmp_path / "data.npz"), "--batch", "2", "--loss", loss]
    assert main(["bench", path, "--steps", "1", "--json", *data]) == 0
    assert json.loads(capsys.readouterr().out)["median_seconds"] > 0


def test_values_are_drawn_for_a_loss_of_values(path, capsys):
    assert main(["bench", path, "--steps", "1", "--loss", "mse"]) == 0
    assert "a step takes" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["--figure", "a.svg"], "--figure draws a profile; give --profile too"),
        (["--profile", "--figure", "a.gif"], "must end in .png or .svg"),
        (["--loss", "none"], "loss='none' is unknown"),
        (["--predict", "--steps", "10"], "--predict runs nothing; leave --steps out"),
        (["--predict", "--profile"], "--predict runs nothing; leave --profile out"),
    ],
)
def test_bad_usage(path, capsys, arguments, error):
    assert main(["bench", path, *arguments]) == 2
    assert error in capsys.readouterr().err


def test_open_dimensions_beside_the_batch_need_data(tmp_path, capsys):
    shapes = [["N", "S", 4], ["N", "S", 4]]
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in zip("xy", shapes, strict=True)
    )
    w = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")], "g", [x], [y], [w]
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset), tmp_path / "open.onnx")
    assert main(["bench", str(tmp_path / "open.onnx"), "--loss", "mse"]) == 2
    assert "the symbolic dimension S beside the batch" in capsys.readouterr().err


def test_a_budget_is_compared_with_none(path, tmp_path, capsys):
    peer("matplotlib")
    figure = tmp_path / "memory.svg"
    arguments = ["bench", path, "--memory", "1.0", "--steps", "1"]
    assert main([*arguments, "--figure", str(figure)]) == 0
    output = capsys.readouterr().out
    assert "of the time without a budget" in output
    assert [line.split()[0] for line in output.splitlines()[-2:]] == ["without", "within"]
    assert "without a budget" in figure.read_text()
    assert main([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert max(facts["timeline"]) == facts["peak_bytes"]
    assert facts["without_budget"]["median_seconds"] > 0


@pytest.mark.parametrize(
    "text, budget",
    [
        ("0.6", 0.6),
        ("1.0", 1.0),
        ("2GB", 2 * 10**9),
        ("1.5g", 1_500_000_000),
        ("500M", 500 * 10**6),
        ("64k", 64_000),
        ("4096", 4096),
        ("4096B", 4096),
        (None, None),
    ],
)
def test_budgets(text, budget):
    given = chosen_memory(text)
    assert given == budget and type(given) is type(budget)


@pytest.mark.parametrize("text, error", [("x", "give a number of bytes"), ("1K", "least possible")])
def test_bad_budgets(path, capsys, text, error):
    assert main(["bench", path, "--memory", text]) == 2
    assert error in capsys.readouterr().err
