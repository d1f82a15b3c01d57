import json
import math

import pytest

from graphgrad.cli.output import OutputFolder, epoch_to_json
from graphgrad.errors import ArgumentError, OutputError
from graphgrad.train.run import Epoch, History
from tests.io_faults import disk_full, io_operations


def test_what_is_not_finite_is_null_in_the_record(tmp_path):
    folder = OutputFolder(tmp_path)
    epoch = Epoch(1, 1, math.nan, {"mean_squared_error": math.inf}, math.nan)
    folder.write_history({"settings": {}}, History([1.0, math.nan], [epoch]))
    record = json.loads(folder.history.read_text())
    assert record["loss"] == [1.0, None]
    assert record["epochs"] == [epoch_to_json(epoch)]
    assert record["epochs"][0]["held_out"] == {"mean_squared_error": None}
    assert record["epochs"][0]["images_per_second"] is None


def test_a_model_of_somebody_else_is_not_replaced(tmp_path):
    folder = OutputFolder(tmp_path)
    folder.model.write_bytes(b"mine")
    with pytest.raises(ArgumentError, match="would be replaced"):
        folder.check_model(b"other")
    folder.check_model(b"mine")
    folder.write_history({}, History())
    folder.check_model(b"other")
    folder.write_model(b"other")
    assert folder.model.read_bytes() == b"other"


def test_a_record_on_a_full_disk_keeps_the_old_one(tmp_path):
    folder = OutputFolder(tmp_path)
    folder.write_history({}, History([1.0]))
    before = folder.history.read_text()
    with io_operations(tmp_path) as performed:
        folder.write_history({}, History([1.0]))
    for index in range(len(performed)):
        with (
            io_operations(tmp_path, index, disk_full, half=True),
            pytest.raises(OutputError, match=r"cannot write .*history.json: No space left"),
        ):
            folder.write_history({}, History([1.0, 2.0]))
        replaced = performed.index("replace history.json") < index
        assert (folder.history.read_text() == before) != replaced
        assert [path.name for path in tmp_path.iterdir()] == ["history.json"]
        folder.write_history({}, History([1.0]))


def test_folders_that_are_made_are_flushed(tmp_path):
    with io_operations(tmp_path) as performed, OutputFolder(tmp_path / "a" / "b").opened():
        pass
    assert {f"fsync {tmp_path.name}", "fsync a"} <= set(performed)
    with io_operations(tmp_path) as performed, OutputFolder(tmp_path / "a" / "b").opened():
        pass
    assert not [name for name in performed if name.startswith("fsync")]


def test_what_killed_runs_left_half_written_is_removed(tmp_path):
    folder = OutputFolder(tmp_path)
    for file in (folder.trained, folder.history, folder.model, folder.picture):
        file.with_name(f".{file.name}.0123456789abcdef.unfinished").touch()
    (tmp_path / ".trained.onnx.fedcba9876543210.unfinished").mkdir()
    (tmp_path / "mine").touch()
    with folder.opened():
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "mine"]


@pytest.mark.parametrize("name", ["history.json", "loss.png", "checkpoint.safetensors"])
def test_a_folder_where_a_file_is_to_be(tmp_path, name):
    (tmp_path / name).mkdir()
    with (
        pytest.raises(ArgumentError, match=f"{name} is a folder, where a file is to be written"),
        OutputFolder(tmp_path).opened(),
    ):
        pass


def test_a_file_system_that_cannot_be_written(tmp_path, monkeypatch):
    def read_only(path, *arguments):
        raise OSError(30, "Read-only file system", path)

    monkeypatch.setattr("os.open", read_only)
    with (
        pytest.raises(ArgumentError, match=r"cannot be made or written \(Read-only file system\)"),
        OutputFolder(tmp_path).opened(),
    ):
        pass


@pytest.mark.parametrize(
    ("losses", "skipping"),
    [
        ([], False),
        ([math.nan] * 3, True),
        ([math.nan, 1.0], False),
        ([1.0, math.nan], False),
        ([1.0] * 5 + [math.nan] * 13, True),
        ([1.0] + [math.nan] * 20, True),
    ],
)
def test_a_run_that_ended_skipping(losses, skipping):
    history = History()
    history.losses.extend(losses)
    assert history.ended_skipping == skipping
