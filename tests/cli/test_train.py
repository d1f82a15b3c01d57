"""Runs of ``graphgrad train`` that end early, and go on; what they lose, and what they refuse."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphgrad.cli.checkpoints import Checkpoints
from graphgrad.cli.main import main
from graphgrad.cli.train import Watcher
from graphgrad.report.training import TrainingReport
from graphgrad.train import checkpoint
from tests.io_faults import disk_full, io_operations

TINY = ["--steps", "6", "--batch", "16", "--lr", "0.1"]
"""Four steps of the first epoch and two of the second."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """What one run compiles serves the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHGRAD_CACHE", "1")
        patch.setenv("GRAPHGRAD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def built_in(monkeypatch):
    """A network with one convolution in the place of the one that a run builds for the digits."""

    def network(seed):
        generator = np.random.default_rng(seed)

        def weight(name, *shape):
            return numpy_helper.from_array(generator.standard_normal(shape).astype("f4"), name)

        nodes = [
            helper.make_node("Conv", ["input", "k"], ["c"], "conv", strides=[2, 2]),
            helper.make_node("Flatten", ["c"], ["f"], "flat"),
            helper.make_node("Gemm", ["f", "w", "b"], ["output"], "fc", transB=1),
        ]
        graph = helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 1, 8, 8])],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 10])],
            [weight("k", 2, 1, 3, 3), weight("w", 10, 18), weight("b", 10)],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    monkeypatch.setattr("graphgrad.cli.train.resnet_digits", network)


@pytest.fixture
def task(tmp_path) -> list[str]:
    return written_task(tmp_path)


def written_task(folder: Path) -> list[str]:
    """A network with batch norm and dropout, and data for it, as arguments of the command line."""
    generator = np.random.default_rng(0)

    def weight(name, *shape):
        return numpy_helper.from_array(generator.standard_normal(shape).astype("float32"), name)

    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["input", "w1", "b1"], ["h"], transB=1),
            helper.make_node(
                "BatchNormalization", ["h", "scale", "shift", "mean", "var"], ["n"], "norm"
            ),
            helper.make_node("Dropout", ["n", "ratio"], ["d"], "dropout"),
            helper.make_node("Gemm", ["d", "w2", "b2"], ["output"], transB=1),
        ],
        "net",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 3])],
        [
            *(weight("w1", 8, 4), weight("b1", 8), weight("w2", 3, 8), weight("b2", 3)),
            *(weight("scale", 8), weight("shift", 8), weight("mean", 8)),
            numpy_helper.from_array(np.ones(8, "float32"), "var"),
            numpy_helper.from_array(np.array(0.25, "float32"), "ratio"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "net.onnx")
    x = generator.standard_normal((80, 4)).astype(np.float32)
    y = (x[:, 0] > 0) + (x[:, 1] > 0).astype(np.int64)
    np.savez(folder / "data.npz", x=x[:64], y=y[:64], x_test=x[64:], y_test=y[64:])
    return [str(folder / "net.onnx"), "--data", str(folder / "data.npz")]


def train(*arguments: str, out: Path) -> int:
    return main(["train", *arguments, "--out", str(out)])


def record(out: Path) -> dict:
    return json.loads((out / "history.json").read_text())


def results(out: Path) -> tuple:
    """All that is to be bit-identical: the history but for times, and the state of training."""
    saved = Checkpoints(out / "checkpoint.safetensors").read()
    groups, facts = checkpoint.read(saved.path)
    arrays = {
        (group, name): array.tobytes()
        for group, members in groups.items()
        for name, array in members.items()
    }
    epochs = [(e.epoch, e.step, e.loss, e.held_out) for e in saved.history.epochs]
    trained = (out / "trained.onnx").read_bytes()
    del facts["extra"]
    return arrays, facts, saved.history.losses, epochs, trained


def at_step(monkeypatch, step: int, action) -> None:
    """Have something done when a run has recorded so many steps."""
    original = Watcher.on_step

    def on_step(self, history, speed):
        original(self, history, speed)
        if len(history.losses) == step:
            action()

    monkeypatch.setattr(Watcher, "on_step", on_step)


class Killed(BaseException):
    """The run ends here, and saves nothing more."""


def kill() -> None:
    raise Killed


@pytest.fixture(scope="module")
def straight_folder(tmp_path_factory) -> Path:
    """Where a run of the same task has written that nothing interrupts."""
    folder = tmp_path_factory.mktemp("straight")
    assert train(*written_task(folder), *TINY, *ADAMW, out=folder / "out") == 0
    return folder / "out"


@pytest.fixture(scope="module")
def straight(straight_folder) -> tuple:
    """Its results."""
    return results(straight_folder)


ADAMW = ["--optimizer", "adamw", "--lr", "0.02", "--accumulate", "2", "--batch", "8"]


def test_signals_leave_runs_that_go_on_bit_for_bit(task, tmp_path, straight, monkeypatch, capsys):
    """Within an epoch and at its end; each of three signals, one after the other."""
    out = tmp_path / "out"
    arguments = [*task, *TINY, *ADAMW]
    for step, number in ((2, signal.SIGTERM), (4, signal.SIGHUP), (5, signal.SIGINT)):
        with monkeypatch.context() as patch:
            at_step(patch, step, lambda number=number: signal.raise_signal(number))
            assert train(*arguments, out=out) == 128 + number
        text = capsys.readouterr().out
        assert f"stopped by {number.name} after step {step} of 6, which is saved in {out}" in text
        assert f"graphgrad train --resume --out {out}" in text
        assert len(record(out)["loss"]) == step
        arguments = ["--resume"]
    assert train("--resume", out=out) == 0
    assert f"going on from {out / 'checkpoint.safetensors'}, step 5" in capsys.readouterr().out
    assert results(out) == straight


@pytest.mark.parametrize("every, killed_at, saved", [("3", 5, 3), ("4", 6, 4)])
def test_a_killed_run_goes_on_from_what_save_every_left(
    task, tmp_path, straight, monkeypatch, capsys, every, killed_at, saved
):
    """Saved within an epoch, or between its last step and its summary."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, killed_at, kill)
        train(*task, *TINY, *ADAMW, "--save-every", every, out=out)
    assert train("--resume", out=out) == 0
    assert f"step {saved}\n" in capsys.readouterr().out
    assert results(out) == straight
    assert record(out)["save_every"] == every


def test_a_run_that_is_killed_among_the_last_renames_has_all_names(
    task, tmp_path, straight, straight_folder
):
    out = tmp_path / "out"
    names = []

    def is_last(name: str) -> bool:
        names.append(name)
        return names[-1] == "replace checkpoint.safetensors" and names.count(name) == 2

    with pytest.raises(Killed), io_operations(out, is_last, kill):
        train(*task, *TINY, *ADAMW, out=out)
    assert not (out / "checkpoint.safetensors").exists()
    assert train("--resume", out=out) == 0
    assert results(out) == straight
    for folder in (out, straight_folder):
        assert {path.name for path in folder.glob("checkpoint*")} == {
            "checkpoint.safetensors",
            "checkpoint.previous.safetensors",
        }


def test_a_damaged_checkpoint_is_told_and_the_one_before_goes_on(task, tmp_path, straight, capsys):
    out = tmp_path / "out"
    assert train(*task, *TINY, *ADAMW, "--save-every", "5", out=out) == 0
    newest = out / "checkpoint.safetensors"
    newest.write_bytes(newest.read_bytes()[:-7])
    (out / "history.json").write_text("damaged, too")
    assert train("--resume", out=out) == 0
    output = capsys.readouterr()
    assert f"{newest} is damaged" in output.err
    assert f"going on from {out / 'checkpoint.previous.safetensors'}, step 5" in output.out
    assert results(out) == straight and record(out)["loss"] == straight[2]


def test_another_model_data_or_setting_is_refused(task, tmp_path, capsys):
    out = tmp_path / "out"
    assert train(*task, *TINY, out=out) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def refused(*arguments):
        capsys.readouterr()
        assert train("--resume", *arguments, out=out) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "lr is 0.5, but the run has 0.1; seed is 4, but the run has 0" in refused(
        "--lr", "0.5", "--seed", "4"
    )
    other = tmp_path / "other.onnx"
    model = onnx.load(task[0])
    model.graph.name = "other"
    onnx.save(model, other)
    assert f"the model ({other}) has the SHA-256" in refused(str(other))
    arrays = dict(np.load(task[2]))
    arrays["y"][0] ^= 1
    os.rename(task[2], tmp_path / "moved.npz")
    np.savez(task[2], **arrays)
    assert f"the data ({task[2]}) has the SHA-256" in refused()
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}
    # The same data at another place, and what is the same anyway.
    assert train("--resume", "--data", str(tmp_path / "moved.npz"), "--lr", "0.1", out=out) == 0


def test_a_new_run_that_is_killed_before_it_saves_leaves_the_old_one(
    built_in, tmp_path, monkeypatch, capsys
):
    """With the built-in network, whose file in the folder is of the run that saved last."""
    out, options = tmp_path / "out", ["--steps", "3", "--batch", "16", "--save-every", "1"]
    assert train(*options, out=out) == 0
    losses = record(out)["loss"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Watcher, "save_is_due", lambda self, steps: kill())
        train(*options, "--seed", "1", out=out)
    assert train("--resume", out=out) == 0
    assert record(out)["settings"]["seed"] == 0 and record(out)["loss"] == losses
    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, 2, kill)
        train(*options, "--seed", "1", out=out)
    capsys.readouterr()
    assert train("--resume", out=out) == 0
    assert "checkpoint.safetensors, step 1\n" in capsys.readouterr().out
    assert record(out)["settings"]["seed"] == 1 and record(out)["loss"] != losses


def test_a_run_that_is_stopped_before_its_first_step_saves_nothing(
    task, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    assert train(*task, *TINY, out=out) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    start = TrainingReport.start

    def start_and_stop(self, *arguments, **facts):
        start(self, *arguments, **facts)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(TrainingReport, "start", start_and_stop)
    capsys.readouterr()
    assert train(*task, *TINY, "--seed", "1", out=out) == 143
    assert "before the first step; nothing is saved" in capsys.readouterr().out
    assert train(*task, *TINY, "--json", out=out) == 143
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["event"] == "interrupted" and last["saved"] is last["resume"] is None
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}


def test_the_twin_goes_on_where_it_was(built_in, tmp_path, monkeypatch):
    options = ["--steps", "3", "--batch", "16", "--compare-frozen", "--save-every", "1"]
    assert train(*options, out=tmp_path / "straight") == 0
    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("graphgrad.cli.output.OutputFolder.draw", lambda *arguments: kill())
        train(*options, out=out)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, 3, kill)
        train("--resume", out=out)
    twin = Checkpoints(out / "frozen-twin.safetensors").read()
    assert len(twin.history.losses) == 2
    taken = []
    with monkeypatch.context() as patch:
        patch.setattr(Watcher, "save_is_due", lambda self, steps: taken.append(steps))
        assert train("--resume", out=out) == 0
    assert taken == [3]
    for key in ("loss", "frozen_twin"):
        first, second = record(tmp_path / "straight")[key], record(out)[key]
        if key == "frozen_twin":
            first, second = first["loss"], second["loss"]
        assert first == second


@pytest.mark.parametrize("operation, saved", [
    ("create checkpoint.next.safetensors (unfinished)", 0),
    ("write history.json (unfinished)", 4),
    ("fsync trained.onnx (unfinished)", 6),
    ("replace loss.png", 6),
], ids=["checkpoint", "record", "model", "picture"])  # fmt: skip
def test_a_full_disk_is_one_line_and_loses_nothing(task, tmp_path, capsys, operation, saved):
    out = tmp_path / "out"
    with io_operations(out, lambda name: name == operation, disk_full):
        assert train(*task, *TINY, out=out) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "graphgrad:" in line]
    assert "No space left on device" in line and str(out) in line
    assert (f"step {saved} is saved: graphgrad train --resume" in line) == bool(saved)
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]
    if saved:
        assert train("--resume", out=out) == 0
        assert f"step {saved}\n" in capsys.readouterr().out
        assert len(record(out)["loss"]) == 6


def start(*arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "graphgrad", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_real_processes(task, tmp_path):
    """A run that is terminated, one that is refused beside it, and runs that nobody reads."""
    out = ["--out", str(tmp_path / "out")]
    long = ["train", *task, "--epochs", "100000", "--save-every", "1000", "--batch", "64"]
    with open("/dev/full", "w") as full:
        coverage = start("coverage", task[0], "--json", stdout=full)
    reading, writing = os.pipe()
    os.close(reading)
    grad = start("grad", task[0], stdout=writing)
    unread = start(
        "train", *task, *TINY, "--json", "--out", str(tmp_path / "unread"), stdout=writing
    )
    os.close(writing)
    run = start(*long, "--json", *out, stdout=subprocess.PIPE)
    for line in run.stdout:
        if json.loads(line)["event"] == "epoch":
            break
    run.send_signal(signal.SIGSTOP)  # it is there; meanwhile the others have the processor
    second = start(*long, *out, stdout=subprocess.DEVNULL)
    _, errors = second.communicate(timeout=120)
    assert second.returncode == 2
    assert f"another run writes to {tmp_path / 'out'} (process {run.pid})" in errors
    run.send_signal(signal.SIGCONT)
    run.send_signal(signal.SIGTERM)
    output, errors = run.communicate(timeout=120)
    last = json.loads(output.splitlines()[-1])
    assert run.returncode == 143, errors
    assert last["event"] == "interrupted" and last["signal"] == "SIGTERM"
    assert last["saved"] == out[1] and len(record(Path(out[1]))["loss"]) == last["done"] >= 1

    _, errors = coverage.communicate(timeout=120)
    assert coverage.returncode == 2
    assert errors == "graphgrad: standard output cannot be written: No space left on device\n"
    _, errors = grad.communicate(timeout=120)
    assert (grad.returncode, errors) == (141, "")
    _, errors = unread.communicate(timeout=120)
    assert unread.returncode == 0
    assert "standard output could not be written (Broken pipe)" in errors.splitlines()[-1]
    assert len(record(tmp_path / "unread")["loss"]) == 6
