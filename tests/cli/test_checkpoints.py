"""Checkpoints of a run: whatever happens, the newest that is whole is one of the last two."""

import math
import os
import signal

import numpy as np
import pytest

from graphgrad.cli.checkpoints import Checkpoints
from graphgrad.errors import CheckpointError, OutputError
from graphgrad.train import checkpoint
from graphgrad.train.run import Epoch, History
from tests.io_faults import disk_full, in_process, io_operations, killed

RUN = {"settings": {"model": "m.onnx", "lr": 0.1}, "digests": {"model": "12"}, "save_every": None}


class Step:
    """A training step whose parameter says how often it was taken."""

    def __init__(self, steps):
        self.steps = steps

    def save(self, path, extra):
        weights = {"params": {"w": np.full(3, self.steps)}}
        checkpoint.write(path, weights, {"steps": self.steps, "extra": extra})


def history(steps):
    epochs = [Epoch(1, 1, math.nan, {"mean_squared_error": math.inf}, 5.0)]
    return History([1.0, math.nan, *map(float, range(steps - 2))], epochs, 2.5)


def save(checkpoints, steps, run=RUN):
    checkpoints.save(Step(steps), run, history(steps))


def assert_at(saved, steps):
    """Check that everything in a checkpoint is of one step."""
    groups, facts = checkpoint.read(saved.path)
    assert facts["steps"] == steps and set(groups["params"]["w"]) == {steps}
    assert repr(saved.history) == repr(history(steps))
    assert saved.run == RUN


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Flushing is counted among the operations, but not waited for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def folder(tmp_path):
    """A folder with checkpoints of the steps 2 and 3."""
    checkpoints = Checkpoints(tmp_path / "c.safetensors")
    save(checkpoints, 2)
    save(checkpoints, 3)
    return tmp_path


def reader(folder):
    return Checkpoints(folder / "c.safetensors")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_last_two_are_kept(folder):
    assert names(folder) == ["c.previous.safetensors", "c.safetensors"]
    saved = reader(folder).read()
    assert_at(saved, 3)
    assert saved.path.name == "c.safetensors" and saved.damaged == []


@pytest.mark.parametrize("damage", [b"", b"\0" * 500, None], ids=["empty", "zeros", "cut"])
def test_of_a_damaged_one_the_previous_is_taken_and_kept(folder, damage):
    newest = folder / "c.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] if damage is None else damage)
    checkpoints = reader(folder)
    saved = checkpoints.read()
    assert_at(saved, 2)
    assert len(saved.damaged) == 1 and str(newest) in saved.damaged[0]
    save(checkpoints, 4)
    assert_at(reader(folder).read(), 4)
    newest.unlink()
    assert_at(reader(folder).read(), 2)


def test_when_all_are_damaged_each_is_named(folder):
    for path in folder.iterdir():
        path.write_text("x")
    with pytest.raises(CheckpointError, match=r"c.safetensors is damaged.*c.previous"):
        reader(folder).read()


def test_a_checkpoint_of_something_else(folder):
    checkpoint.write(folder / "c.safetensors", {}, {"steps": 1, "extra": {"epoch": 3}})
    saved = reader(folder).read()
    assert_at(saved, 2)
    assert "was not saved by graphgrad train" in saved.damaged[0]


def test_another_run_takes_the_place_of_both(folder):
    save(reader(folder), 5)
    assert names(folder) == ["c.safetensors"]
    assert_at(reader(folder).read(), 5)


def test_of_a_run(folder):
    moved = RUN | {"settings": {"model": "elsewhere.onnx", "lr": 0.1}}
    assert_at(reader(folder).read_of(moved), 3)
    checkpoints = reader(folder)
    assert checkpoints.read_of(RUN | {"digests": {"model": "34"}}) is None
    save(checkpoints, 5)
    assert names(folder) == ["c.safetensors"]


def operations(tmp_path):
    """The names of what saving does, once for a run that goes on."""
    checkpoints = Checkpoints(tmp_path / "c.safetensors")
    save(checkpoints, 2)
    save(checkpoints, 3)
    with io_operations(tmp_path) as performed:
        save(checkpoints, 4)
    return performed


def test_the_faults_are_where_saving_writes(tmp_path):
    performed = operations(tmp_path)
    for name in [
        "touch c.next.safetensors (unfinished)",
        "create c.next.safetensors (unfinished)",
        "write c.next.safetensors (unfinished)",
        "replace c.next.safetensors",
        "replace c.previous.safetensors",
        "replace c.safetensors",
    ]:
        assert performed.count(name) == 1, performed
    assert sum(name.startswith("fsync") for name in performed) == 3


@pytest.mark.parametrize("fault", [killed, disk_full])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "new run"])
def test_a_fault_at_any_operation_loses_nothing_that_was_saved(tmp_path, fault, half, goes_on):
    for index, operation in enumerate(operations(tmp_path)):
        folder = tmp_path / str(index)
        folder.mkdir()
        checkpoints = reader(folder)
        save(checkpoints, 2)
        save(checkpoints, 3)

        def save_once(folder=folder, checkpoints=checkpoints, index=index):
            with io_operations(folder, index, fault, half):
                save(checkpoints if goes_on else reader(folder), 4)

        if fault is killed:
            assert in_process(save_once) == -signal.SIGKILL, operation
        else:
            with pytest.raises((OutputError, CheckpointError), match="No space left on device"):
                save_once()
            assert not any("unfinished" in name for name in names(folder)), operation
        checkpoints = reader(folder)
        saved = checkpoints.read()
        steps = len(saved.history.losses)
        assert steps in (3, 4) and saved.damaged == []
        assert_at(saved, steps)
        save(checkpoints, 5)
        assert not any("unfinished" in name for name in names(folder)), operation
        (folder / "c.safetensors").write_text("lost")
        saved = reader(folder).read()
        assert_at(saved, len(saved.history.losses))
