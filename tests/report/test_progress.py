import io
import math
import re

import pytest

from graphgrad.report.progress import ProgressLine, describe
from graphgrad.train.run import Epoch


class Terminal(io.StringIO):
    def isatty(self):
        return True


def play(stream: io.StringIO, label: str = "") -> str:
    with ProgressLine(4, stream, done=2, label=label) as line:
        line.step(0.5, 100.0, {})
        line.step(0.25, 100.0, {"accuracy": 0.5})
        line.epoch(Epoch(1, 4, 0.375, {"accuracy": 0.75}, 1234.0))
    return stream.getvalue()


@pytest.mark.parametrize("label, start", [("", "epoch 1"), ("twin", "twin: epoch 1")])
def test_plain_line_per_epoch(label, start):
    rest = ", step 4/4, loss 0.3750, accuracy 75.00 %, 1,234 images/s\n"
    assert play(io.StringIO(), label) == start + rest


def test_moving_line_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    text = re.sub(r"\x1b\[[\d;?]*\w", "", play(Terminal(), "twin"))  # without colors
    assert "twin: step 2/4" in text
    assert "twin: step 4/4, loss 0.3750, accuracy 75.00 %, 1,234 images/s 0:00:0" in text


@pytest.mark.parametrize(
    "loss, held_out, text",
    [
        (0.5, {}, "loss 0.5000, 10 images/s"),
        (math.nan, {}, "skipped (not finite), 10 images/s"),
        (
            0.5,
            {"mean_squared_error": 0.12345},
            "loss 0.5000, mean squared error 0.1235, 10 images/s",
        ),
    ],
)
def test_describe(loss, held_out, text):
    assert describe(loss, 10.0, held_out) == text


class Closed(io.StringIO):
    """A terminal that was closed."""

    def isatty(self):
        return True

    def write(self, text):
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("stream", [Closed(), None], ids=["hung up", "closed"])
def test_a_run_outlives_its_terminal(stream):
    with ProgressLine(4, stream) as line:
        line.step(0.5, 100.0, {})
        line.epoch(Epoch(1, 4, 0.375, {}, 1234.0))
