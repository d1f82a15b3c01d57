"""Libraries that are not there, are none, or are too old: one kind of error, before any use."""

import subprocess

import pytest
from tvm.support import cc

from graphgrad.errors import LoweringError
from graphgrad.lower.cuda.library import no_device
from graphgrad.runtime.cudnn import backend
from graphgrad.runtime.cudnn.backend import CudnnError

OLD = """
#include <stddef.h>
size_t cudnnGetVersion() { return 8907; }
const char *cudnnGetErrorString(int status) { return ""; }
int cudnnBackendSetAttribute() { return 0; }
int cudnnBackendGetAttribute() { return 0; }
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a library of a source in C, or of bytes."""

    def load(content):
        path = tmp_path / "libcudnn_graph.so.9"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            command = [cc.get_cc(), "-xc", "-", "-shared", "-fPIC", "-o", str(path)]
            subprocess.run(command, input=content, text=True, check=True)
        monkeypatch.setattr(backend, "library_path", lambda: str(path))
        return backend.library.__wrapped__()

    return load


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not load.*cannot open"),
        (b"\x7fELF", "does not load.*cuda-libs"),
        ("int other() { return 0; }", "does not load.*cudnnGetVersion"),
        (OLD, "8907 is too old; graphgrad needs 90800"),
    ],
    ids=["missing", "damaged", "something else", "old"],
)
def test_what_is_no_library_that_can_be_used(load, content, message):
    with pytest.raises(CudnnError, match=message):
        load(content)


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    monkeypatch.setattr(no_device.tempfile, "gettempdir", lambda: str(tmp_path))
    return no_device.libraries.__wrapped__


def test_stand_ins_that_a_cleaner_has_removed_are_made_again(stand_ins, tmp_path):
    first, second = stand_ins()
    (folder,) = tmp_path.iterdir()
    next(folder.glob("libcuda*")).unlink()
    assert stand_ins() == [first, second]
    assert sorted(path.name for path in folder.iterdir()) == ["libcublasLt.so.13", "libcuda.so.1"]


def test_no_folder_and_no_compiler_for_stand_ins(stand_ins, tmp_path, monkeypatch):
    monkeypatch.setattr(no_device.cc, "get_cc", lambda: str(tmp_path / "none"))
    with pytest.raises(LoweringError, match="none does not run"):
        stand_ins()
    monkeypatch.setattr(no_device.tempfile, "gettempdir", lambda: str(tmp_path / "missing"))
    with pytest.raises(LoweringError, match="cannot be written"):
        stand_ins()
