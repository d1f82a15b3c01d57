"""A few cases of the campaign of crashes; and that writers which forget to flush are noticed."""

import os
import shutil
from pathlib import Path

import crashes
import faults
import numpy as np
import pytest
from campaign import Disagreement

from graphgrad.runtime import state_file


def judge(folder, name, fault, seeds):
    for seed in seeds:
        shutil.rmtree(folder / "case", ignore_errors=True)
        (folder / "case").mkdir()
        rng = np.random.default_rng(seed)
        crashes.judge_writer(crashes.WRITERS[name], fault, folder / "case", rng)


@pytest.mark.parametrize("fault", faults.FAULTS)
@pytest.mark.parametrize("name", crashes.WRITERS)
def test_the_old_or_the_new_is_there(tmp_path, name, fault):
    judge(tmp_path, name, fault, range(8))


def test_a_file_that_is_renamed_unflushed_is_noticed(tmp_path, monkeypatch):
    def replace_file(path: Path, *content: bytes) -> None:
        new_file = path.with_suffix(".new")
        new_file.write_bytes(b"".join(content))
        os.replace(new_file, path)

    monkeypatch.setattr(state_file, "replace_file", replace_file)
    with pytest.raises(Disagreement, match="unsynced writes lost"):
        judge(tmp_path, "file", faults.LOST, range(40))


def test_a_rename_whose_folder_is_not_flushed_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("graphgrad.runtime.files.sync_folder", lambda folder: None)
    with pytest.raises(Disagreement, match="an older version than was saved"):
        judge(tmp_path, "file", faults.LOST, range(40))
