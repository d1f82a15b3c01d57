import math

import pytest

from graphgrad.report.curve import sparkline, write_picture
from tests.peers import peer


@pytest.mark.parametrize(
    "values, width, line",
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([7, 0], 60, "█▁"),
        ([1, 1, 1], 60, "▁▁▁"),
        ([0, 0, 7, 7], 2, "▁█"),
        ([0, math.nan, 7], 3, "▁ █"),
        ([0, math.nan, 7, math.inf], 2, "▁█"),
        ([math.nan], 5, " "),
        ([], 5, ""),
    ],
)
def test_sparkline(values, width, line):
    assert sparkline(values, width) == line


@pytest.mark.parametrize("losses", [[2.0, 1.0, math.nan, 0.5], [1.0, -1.0], [math.nan]])
@pytest.mark.parametrize("accuracies", [[], [(2, 0.5), (4, 0.9)]])
def test_picture_is_a_png(tmp_path, losses, accuracies):
    peer("matplotlib")
    assert write_picture(tmp_path / "loss.png", losses, accuracies)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_no_picture_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert not write_picture(tmp_path / "loss.png", [1.0], [])
    assert not (tmp_path / "loss.png").exists()
