import os
import signal
import time

import pytest

from graphgrad.cli.lock import locked
from graphgrad.errors import ArgumentError


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of a folder until it is killed."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        with locked(tmp_path):
            os.write(writing, b"x")
            time.sleep(600)
        os._exit(0)
    os.read(reading, 1)
    yield process
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def test_a_second_run_is_refused(tmp_path, holder):
    with (
        pytest.raises(ArgumentError, match=rf"{tmp_path} \(process {holder}\)"),
        locked(tmp_path),
    ):
        pass


def test_the_lock_of_a_killed_run_is_free(tmp_path):
    process = os.fork()
    if process == 0:
        with locked(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    assert (tmp_path / ".lock").read_text() == str(process)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_nothing_is_left(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    assert not list(tmp_path.iterdir())
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "none"):
        pass
