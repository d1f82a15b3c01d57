"""Exports that are damaged or not whole."""

import json
import re

import pytest

from graphgrad.runtime import ExportedStep, FolderError
from tests.exports import reseal


@pytest.mark.parametrize(
    "name, message",
    [
        ("manifest.json", "manifest.json is damaged"),
        ("step-0.so", "step-0.so is damaged"),
        ("state.safetensors", "state.safetensors is damaged"),
        ("exported_step/step.py", "step.py is damaged"),
    ],
)
def test_a_changed_byte(folder, name, message):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(FolderError, match=message):
        ExportedStep(folder)


@pytest.mark.parametrize("name", ["manifest.json", "step-1.so", "state.safetensors"])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(FolderError, match=name):
        ExportedStep(folder)


def test_a_format_of_the_future(folder):
    reseal(folder, format="graphgrad-export-3")
    with pytest.raises(FolderError, match="no export in the format graphgrad-export-2"):
        ExportedStep(folder)


def test_the_first_format(folder):
    """It did not say in which order parameters are stored: as the model has them."""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest.pop("storage") == {}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    reseal(folder, format="graphgrad-export-1")
    assert ExportedStep(folder).steps == 2


@pytest.mark.parametrize("folder", [5, None, b"export", "a\0b"], ids=repr)
def test_what_is_no_path(folder):
    with pytest.raises(FolderError, match=f"{re.escape(repr(folder))} is no path of a folder"):
        ExportedStep(folder)
