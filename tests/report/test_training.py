import io
import json
import sys
from pathlib import Path

import pytest

from graphgrad.report.training import TrainingReport
from graphgrad.train.run import Epoch, History

HISTORY = History([1.0, float("nan"), 0.5], [Epoch(1, 3, 0.75, {"accuracy": 0.985}, 10.0)], 2.5)
FACTS = {"weights": 3, "train": 10, "held_out": 2, "done": 0, "steps": 3}


def tell_all(as_json: bool) -> None:
    report = TrainingReport(as_json)
    report.start("model.onnx", **FACTS)
    report.frozen_twin(HISTORY)
    report.finish(HISTORY, [Path("out", "trained.onnx")], drawn=False)
    report.interrupted(HISTORY, 9, "SIGTERM", Path("out"), "graphgrad train --resume")
    report.diverged(History([0.5, *[float("nan")] * 13]))


def test_json_is_one_object_per_line(capsys):
    tell_all(as_json=True)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = ["start", "frozen_twin", "done", "interrupted", "diverged"]
    assert [event["event"] for event in events] == names
    assert events[2]["held_out"] == {"accuracy": 0.985} and events[2]["skipped_steps"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "training model.onnx: 3 weights, 10 examples (2 held out), steps 0 to 3",
        "with frozen convolutions: held-out accuracy 98.50 %",
        "held-out accuracy 98.50 %",
        "3 steps, 1 skipped in 2.5 s",
        "loss █ ▁",
        "stopped by SIGTERM after step 3 of 9, which is saved in out; go on with: "
        "graphgrad train --resume",
        "for the curve as a picture: pip install 'graphgrad[plot]'",
    ],
)
def test_text(capsys, line):
    tell_all(as_json=False)
    assert line in capsys.readouterr().out.splitlines()


def test_failure_goes_to_standard_error(capsys):
    tell_all(as_json=False)
    assert "not finite in each of the last 13 steps (up to step 14)" in capsys.readouterr().err


def test_a_terminal_without_blocks_gets_questions(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    TrainingReport(False).text("loss █▁")
    assert stream.buffer.getvalue().strip() == b"loss ??"


def test_a_run_that_goes_on_names_its_checkpoint_and_the_damaged_one(capsys):
    TrainingReport(False).resume(Path("out", "previous"), 7, ["out/newest is damaged"])
    output = capsys.readouterr()
    assert output.out == "going on from out/previous, step 7\n"
    assert output.err == "graphgrad: out/newest is damaged\n"


class Full(io.StringIO):
    """A stream on a disk without space."""

    def flush(self):
        raise OSError(28, "No space left on device")


def test_output_that_cannot_be_written_is_told_once_at_the_end(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Full())
    report = TrainingReport(False)
    report.text("first")
    report.text("second")
    assert sys.stdout.getvalue() == "first\n"
    report.close(Path("out"))
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line and "what it wrote is in out" in line


def test_nobody_reads_either_stream(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", Full())
    tell_all(as_json=True)
    tell_all(as_json=False)
    TrainingReport(False).close(Path("out"))
