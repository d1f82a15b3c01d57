import json
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm

from graphgrad import models
from graphgrad.cli.main import main, parser
from tests.labels import label
from tests.peers import peer

TINY = ["--steps", "6", "--batch", "16", "--lr", "0.1"]


@pytest.fixture
def task(tmp_path) -> list[str]:
    """A perceptron file and data for it, as arguments of the command line."""
    onnx.save(models.mlp((4, 8, 3)), tmp_path / "mlp.onnx")
    generator = np.random.default_rng(0)
    x = generator.standard_normal((80, 4)).astype(np.float32)
    y = (x[:, 0] > 0) + (x[:, 1] > 0).astype(np.int64)
    np.savez(tmp_path / "data.npz", x=x[:64], y=y[:64], x_test=x[64:], y_test=y[64:])
    return [str(tmp_path / "mlp.onnx"), "--data", str(tmp_path / "data.npz")]


def train(*arguments: str, out: Path) -> int:
    return main(["train", *arguments, "--out", str(out)])


def record(out: Path) -> dict:
    return json.loads((out / "history.json").read_text())


COMMAND = "import runpy; runpy.run_module('graphgrad', run_name='__main__')"


@pytest.mark.slow
def test_digits_by_default_and_convolutions_matter(tmp_path, python):
    """The main job, shortened: the ResNet learns, and less so without convolution gradients."""
    done = python.run(COMMAND, "train", "--epochs", "4", "--compare-frozen", "--out", tmp_path)
    output, errors = done.stdout, done.stderr
    assert done.returncode == 0, errors
    for text in ("the digits ResNet", "held-out accuracy", "with frozen convolutions: held-out"):
        assert text in output
    assert re.search(
        r"epoch 4, step 176/176, loss \d+\.\d+, accuracy \d+\.\d+ %, [\d,]+ images/s", errors
    )
    names = {"model.onnx", "trained.onnx", "history.json", "checkpoint.safetensors"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    history, twin = record(tmp_path), record(tmp_path)["frozen_twin"]
    assert twin["loss"][0] == history["loss"][0] and twin["loss"][1] != history["loss"][1]
    accuracy, twin_accuracy = (r["epochs"][-1]["held_out"]["accuracy"] for r in (history, twin))
    assert accuracy > 0.95 and twin_accuracy < accuracy - 0.02
    assert accuracy == pytest.approx(onnx_accuracy(tmp_path))


def onnx_accuracy(out: Path) -> float:
    from graphgrad.train.data import digits

    examples = digits().held_out
    session = peer("onnxruntime").InferenceSession(out / "trained.onnx")
    (logits,) = session.run(None, {"input": examples.inputs["x"]})
    return float(np.mean(logits.argmax(1) == examples.targets))


def test_learns_and_tells_json_lines(task, tmp_path, capsys):
    arguments = [*task, "--epochs", "20", "--batch", "16", "--lr", "0.2", "--json"]
    assert train(*arguments, out=tmp_path / "out") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["event"] for e in events] == ["start", *["epoch"] * 20, "done"]
    assert events[-1]["held_out"]["accuracy"] > 0.8
    assert events[1]["loss"] > 2 * events[-2]["loss"]


def test_freeze_keeps_weights(task, tmp_path):
    assert train(*task, *TINY, "--freeze", "fc1.*", out=tmp_path) == 0
    before = {t.name: t.raw_data for t in onnx.load(task[0]).graph.initializer}
    after = {t.name: t.raw_data for t in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    assert {name for name in before if before[name] != after[name]} == {"fc2.weight", "fc2.bias"}


@pytest.mark.parametrize(
    "arguments, trained",
    [
        (["--wrt", "fc2.*"], {"fc2.weight", "fc2.bias"}),
        (["--constants", "fc1.*", "--constants", "fc2.bias"], {"fc2.weight"}),
    ],
    ids=["wrt", "constants"],
)
def test_weights_that_are_named_train(task, tmp_path, arguments, trained):
    assert train(*task, *TINY, *arguments, out=tmp_path) == 0
    before = {t.name: t.raw_data for t in onnx.load(task[0]).graph.initializer}
    after = {t.name: t.raw_data for t in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    assert {name for name in before if before[name] != after[name]} == trained


def test_grad_of_all_but_the_constants(task, capsys):
    assert main(["grad", task[0], "--constants", "fc1.*", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gradients"] == ["fc2.weight", "fc2.bias"]


def test_accumulated_batches_are_one_big_one(task, tmp_path):
    def losses(*arguments):
        assert train(*task, "--steps", "6", *arguments, out=tmp_path / "out") == 0
        return record(tmp_path / "out")["loss"]

    expected = losses("--batch", "16")
    assert losses("--batch", "8", "--accumulate", "2") == pytest.approx(expected, rel=1e-5)


def test_mean_squared_error(tmp_path, capsys):
    onnx.save(models.mlp((2, 1)), tmp_path / "linear.onnx")
    x = np.random.default_rng(0).standard_normal((32, 2)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=x[:, :1], x_test=x, y_test=x[:, :1])
    data = ["--data", str(tmp_path / "d.npz"), "--loss", "mse", "--lr", "0.2"]
    arguments = [str(tmp_path / "linear.onnx"), *data, "--epochs", "40", "--batch", "32"]
    assert train(*arguments, out=tmp_path / "out") == 0
    assert "held-out mean squared error" in capsys.readouterr().out
    assert record(tmp_path / "out")["epochs"][-1]["held_out"]["mean_squared_error"] < 1e-2


def test_a_loss_that_stays_non_finite_fails(task, tmp_path, capsys):
    x = np.full((16, 4), np.inf, np.float32)
    np.savez(task[2], x=x, y=np.zeros(16, np.int64))
    assert train(*task, "--steps", "50", "--batch", "16", out=tmp_path / "out") == 1
    assert "not finite in each of the last 20 steps" in capsys.readouterr().err
    assert record(tmp_path / "out")["loss"] == [None] * 20


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere.onnx"], "nowhere.onnx"),
        (["{model}", "--data", "nowhere.npz"], "nowhere.npz does not exist"),
        (["--data", "{data}"], "--data is given without a model"),
        (
            ["{model}", "--data", "{data}", "--freeze", "conv9*"],
            "--freeze conv9* matches no weight",
        ),
        (["{model}", "--data", "{data}", "--freeze", "*"], "no weight is left to train"),
        (["{model}", "--data", "{data}", "--wrt", "conv9"], "--wrt conv9 matches no weight"),
        (["{model}", "--data", "{data}", "--constants", "conv9"], "has no weight 'conv9'"),
        (
            ["{model}", "--data", "{data}", "--constants", "fc1.*", "--wrt", "fc1.bias"],
            "['fc1.bias'] are frozen, by freeze or constants=",
        ),
        (["{model}", "--data", "{data}", "--compare-frozen"], "has no convolution"),
        (["{model}", "--data", "{data}", "--batch", "65"], "64 training examples do not fill"),
        (["{model}", "--data", "{data}", "--loss", "hubris"], "hubris"),
        (["{model}", "--data", "{data}", "--target", "abacus"], "abacus"),
        (["{model}", "--data", "{data}", "--momentum", "0", "--nesterov"], "nesterov"),
        (["{model}", "--data", "{data}", "--loss", "mse"], "targets"),
        (["{model}"], "input"),
        (["--resume"], "nothing to resume"),
        (["--save-every", "often"], "--save-every often: give a number of steps"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_exits_with_2(task, tmp_path, capsys, arguments, message):
    arguments = [a.format(model=task[0], data=task[2]) for a in arguments]
    assert train(*arguments, out=tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arrays, message", [
    ({"x": np.zeros((64, 5), "float32"), "y": np.zeros(64, int)}, "expected shape"),
    ({"x": np.zeros((64, 4)), "y": np.zeros(64, int)}, "expected dtype float32"),
    ({"x": np.zeros((64, 4), "float32"), "y": np.full(64, 3)}, "label 3"),
], ids=["shape", "dtype", "label"])  # fmt: skip
def test_data_that_do_not_fit_are_told_before_a_run_is(task, tmp_path, capsys, arrays, message):
    np.savez(task[2], **arrays)
    assert train(*task, *TINY, "--json", out=tmp_path / "out") == 2
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert event["event"] == "error" and message in event["message"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("spec, message", [
    ('{"kind": "cuda", "arch": "sm_99"}', "'sm_99' is not served"),
    ('{"kind": "cuda"', "cannot read the target"),
    ("cuda", "this machine's GPU"),
    ("nvidia/nvidia-h100", "cannot run code for the GPU sm_90a here"),
], ids=label)  # fmt: skip
def test_a_target_that_cannot_be_used_is_told_before_anything_is_read(
    tmp_path, capsys, spec, message
):
    if "arch" not in spec and tvm.cuda().exist:
        pytest.skip("this machine has a CUDA device")
    assert train("nowhere.onnx", "--data", "x.npz", "--target", spec, out=tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_label_out_of_range_leaves_an_earlier_run_alone(task, tmp_path, capsys):
    out = tmp_path / "out"
    assert train(*task, *TINY, out=out) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    np.savez(task[2], x=np.zeros((64, 4), np.float32), y=np.full(64, 7))
    assert train(*task, *TINY, out=out) == 2
    assert "7" in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}


def test_bad_input_in_json(tmp_path, capsys):
    assert train("nowhere.onnx", "--json", out=tmp_path / "out") == 2
    assert json.loads(capsys.readouterr().out)["event"] == "error"


def test_unusable_output_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert train(out=tmp_path / "file") == 2
    assert "cannot be made" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["train", "--epochs", "0"],
        ["train", "--epochs", "1", "--steps", "1"],
        ["train", "--lr", "nan"],
        ["train", "--momentum", "1"],
        ["train", "--batch", "many"],
        ["train", "--optimizer", "lion"],
        ["grad"],
    ],
    ids=" ".join,
)
def test_bad_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert "usage: graphgrad" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train", "grad"])
def test_help_has_examples_and_exit_codes(name, capsys):
    with pytest.raises(SystemExit) as exit:
        parser().parse_args([name, "--help"])
    text = capsys.readouterr().out
    assert exit.value.code == 0
    assert f"examples:\n  graphgrad {name}" in text and "exit codes:" in text and "--json" in text


def test_digits_that_a_model_does_not_take(task, tmp_path, capsys):
    """Whoever names a model and no data did not mean the digits."""
    assert train(task[0], out=tmp_path / "out") == 2
    assert "without --data a model gets the built-in digits: float32 of" in capsys.readouterr().err


def test_grad_prints_the_differentiated_module(task, capsys):
    assert main(["grad", task[0]]) == 0
    text = capsys.readouterr().out
    assert "# inputs: input ('N', 4) float32\n" in text
    assert "# 4 weights, 67 numbers; 0 running statistics\n" in text
    assert "# gradients of 4 values, in this order:\n#   fc1.weight (8, 4)\n" in text
    assert "def main_vjp(" in text
    compile(text, "module", "exec")


def test_grad_to_a_file_in_json(task, tmp_path, capsys):
    out = tmp_path / "vjp.py"
    assert main(["grad", task[0], "--wrt", "input", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gradients"] == ["input"]
    assert "def main_vjp(" in out.read_text()


@pytest.mark.parametrize("rules", ["auto", "derived"])
def test_grad_tells_where_the_gradients_come_from(task, capsys, rules):
    assert main(["grad", task[0], "--wrt", "fc1.weight", "--rules", rules]) == 0
    text = capsys.readouterr().out
    origin = {"auto": "hand", "derived": "derived"}[rules]
    assert re.search(rf"#   relax.nn.relu +1  {origin} +activation1\n", text)
    assert ("call_tir" in text) == (rules == "derived")
    assert main(["grad", task[0], "--rules", rules, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rules"] == rules
    assert {row["provenance"] for row in facts["provenance"]} == {origin}


def test_training_by_derived_gradients(task, tmp_path):
    assert train(*task, *TINY, "--rules", "derived", out=tmp_path / "derived") == 0
    assert train(*task, *TINY, out=tmp_path / "auto") == 0
    losses = [record(tmp_path / rules)["loss"] for rules in ("derived", "auto")]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert record(tmp_path / "derived")["settings"]["rules"] == "derived"


@pytest.mark.parametrize(
    "arguments, message",
    [(["--wrt", "fc9.weight"], "fc9.weight"), (["--out", os.devnull + "/x"], "cannot write")],
)
def test_grad_bad_input(task, capsys, arguments, message):
    assert main(["grad", task[0], *arguments]) == 2
    assert message in capsys.readouterr().err
