import os
import stat
import threading

import pytest

from graphgrad.errors import OutputError
from graphgrad.files import write_file


def test_an_error_names_the_path_the_reason_and_the_space(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*none.x: No such file.*cannot be looked"):
        write_file(tmp_path / "none" / "x", b"1")
    with pytest.raises(OutputError, match=r"Is a directory; [\d,]+ bytes are free in"):
        write_file(tmp_path, b"1")
    assert list(tmp_path.iterdir()) == []


def test_devices_are_written_and_not_replaced():
    write_file(os.devnull, b"1")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_pipes_are_written_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=write_file, args=(tmp_path / "pipe", b"content"))
    writer.start()
    assert (tmp_path / "pipe").read_bytes() == b"content"
    writer.join()
