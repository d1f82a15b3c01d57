"""Files and folders that are replaced: whole at every moment, also where a process is killed."""

import errno
import multiprocessing
import os
import signal
import sys
import threading

import pytest

from graphgrad.runtime import files
from graphgrad.runtime.files import put_folder, read_file, recover_folder, replace_file, unfinished

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills forked processes")

ENDING = ".folder-unfinished"


def replace_folder(path, text):
    recover_folder(path)
    with unfinished(path, ENDING, is_folder=True) as new_folder:
        (new_folder / "inner").mkdir()
        (new_folder / "inner" / "file").write_text(text)
        put_folder(new_folder, path)


def replace_text(path, text):
    replace_file(path, text.encode())


def folder_text(path):
    return (path / "inner" / "file").read_text()


KINDS = {
    "file": (replace_text, lambda path: path.read_text()),
    "folder": (replace_folder, folder_text),
}

CALLS = ("fsync", "rename", "replace", "close", "unlink", "rmdir", "open")
"""Calls of `os` before each of which, and behind each of which, a process may die."""


def killed_at(count, write, path):
    """Run `write` in a fork that dies at its call of number `count`; return whether it did."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    calls = 0

    def counted(function):
        def run(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return run

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    files._exchange = counted(files._exchange)
    write(path, "new")
    os._exit(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_call_leaves_the_old_or_the_new(kind, tmp_path):
    write, read = KINDS[kind]
    path, seen = tmp_path / "it", []
    for count in range(1, 100):
        write(path, "old")
        was_killed = killed_at(count, write, path)
        seen.append(read(path))
        if not was_killed:
            break
    assert seen[0] == "old" and seen[-1] == "new" and {*seen} == {"old", "new"} and count > 4
    write(path, "again")
    assert read(path) == "again"
    assert list(tmp_path.iterdir()) == [path], "leftovers are removed by the next"


def test_a_kill_where_names_cannot_be_exchanged(tmp_path, monkeypatch):
    """The old folder may be missing, and the next call brings it back."""
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    path = tmp_path / "it"
    for count in range(1, 100):
        replace_folder(path, "old")
        was_killed = killed_at(count, replace_folder, path)
        recover_folder(path)
        assert folder_text(path) in ("old", "new")
        if not was_killed:
            break
    replace_folder(path, "again")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_a_file_system_that_exchanges_no_names(tmp_path, monkeypatch, code):
    class NoExchange:
        def renameat2(self, *_):
            files.ctypes.set_errno(code)
            return -1

    replace_folder(tmp_path / "it", "old")
    monkeypatch.setattr(files.ctypes, "CDLL", lambda *_, **__: NoExchange())
    replace_folder(tmp_path / "it", "new")
    assert folder_text(tmp_path / "it") == "new"
    assert list(tmp_path.iterdir()) == [tmp_path / "it"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_are_writing_is_left_alone(kind, tmp_path):
    """Any number of threads and processes may replace one path at once; none fails."""
    write, read = KINDS[kind]
    path = tmp_path / "it"
    failures = []

    def work():
        try:
            for number in range(20):
                write(path, f"content {number}")
        except Exception as error:
            failures.append(error)

    def work_alone():
        work()
        os._exit(len(failures))

    write(path, "first")
    process = multiprocessing.get_context("fork").Process(target=work_alone)
    process.start()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.join()
    assert not failures and process.exitcode == 0
    assert read(path).startswith("content")
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    replace_file(tmp_path / "it", b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "it", b"new")
    assert (tmp_path / "it").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [tmp_path / "it"]


def test_the_mode_of_a_file_is_kept(tmp_path):
    replace_file(tmp_path / "it", b"old")
    (tmp_path / "it").chmod(0o640)
    replace_file(tmp_path / "it", b"n", b"ew")
    assert (tmp_path / "it").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "it").read_bytes() == b"new"


def test_what_is_read(tmp_path):
    (tmp_path / "it").write_bytes(b"content")
    assert read_file(tmp_path / "it", 7) == b"content"
    with pytest.raises(OSError, match="too large"):
        read_file(tmp_path / "it", 6)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(OSError):
            read_file(path, 1000)
