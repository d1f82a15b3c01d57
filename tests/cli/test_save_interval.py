import pytest

from graphgrad.cli import save_interval
from graphgrad.cli.save_interval import SaveInterval
from graphgrad.errors import ArgumentError


def due(interval, steps):
    """The steps at which a run is saved."""
    saves = []
    for step in steps:
        if interval.is_due(step):
            interval.saved(step)
            saves.append(step)
    return saves


def test_steps_are_multiples_wherever_a_run_goes_on():
    assert due(SaveInterval("5"), range(1, 21)) == [5, 10, 15, 20]
    assert due(SaveInterval("5", done=7), range(8, 21)) == [10, 15, 20]
    assert due(SaveInterval("5", done=10), range(11, 16)) == [15]


@pytest.mark.parametrize("text, expected", [(None, [301, 601]), ("2.5m", [151, 301, 451, 601])])
def test_minutes(monkeypatch, text, expected):
    """Seconds pass as steps do."""
    now = [0.5]
    monkeypatch.setattr(save_interval.time, "monotonic", lambda: now[0])
    interval = SaveInterval(text)
    saves = []
    for step in range(1, 700):
        now[0] = step
        if interval.is_due(step):
            interval.saved(step)
            saves.append(step)
    assert saves == expected


def test_epochs_are_saved_by_default_alone():
    assert SaveInterval(None).each_epoch
    assert not SaveInterval("5m").each_epoch and not SaveInterval("5").each_epoch


@pytest.mark.parametrize("text", ["0", "-3", "0m", "-1m", "nan", "nanm", "infm", "2.5", "5h", "m"])
def test_what_is_no_interval(text):
    with pytest.raises(ArgumentError, match=f"--save-every {text}: give a number of steps"):
        SaveInterval(text)
