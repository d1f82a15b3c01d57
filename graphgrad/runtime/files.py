"""Files and folders that are replaced in one step, and files that are read within bounds.

A new one is made beside its destination under a hidden name, flushed to the disk, and renamed. So
at every moment the destination shows the old or the new content, whole. Whoever makes one holds a
lock on it; what a killed process leaves is known by its free lock, and removed by the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows: what another process is making is taken for a leftover there
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".unfinished"
"""How names of unfinished files end."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Of Linux's ``renameat2``: a path is relative to the working folder; two names are exchanged."""

_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)
"""The errors of a file system, a kernel or a sandbox that does not exchange."""


def replace_file(path: Path, *content: bytes) -> None:
    """Write a file so that at every moment its name shows either the old or the new content.

    Parameters
    ----------
    path : Path
        A link keeps pointing at the file. The mode of a file that is replaced is kept. A device or
        a pipe is written to, not replaced.
    content : bytes
        What is written, one after the other.

    Raises
    ------
    OSError
        What stood there before is untouched.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        path.write_bytes(b"".join(content))
        return
    with unfinished(path, UNFINISHED) as new_file:
        with open(new_file, "wb") as file:
            for part in content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, new_file)
        os.replace(new_file, path)
    sync_folder(path.parent)


@contextlib.contextmanager
def unfinished(path: Path, ending: str, is_folder: bool = False) -> Iterator[Path]:
    """Make a new file or folder beside `path`, to be renamed to it; remove what is left at the end.

    In the same folder, because a rename is one step only within one file system.

    Parameters
    ----------
    path : Path
    ending : str
        How the hidden name ends. Those of equal ending are removed, unless somebody is at work on
        them.
    is_folder : bool
    """
    remove_unfinished(path, ending)
    while True:
        new_path = path.parent / f".{path.name}.{secrets.token_hex(8)}{ending}"
        new_path.mkdir() if is_folder else new_path.touch(exist_ok=False)
        descriptor = lock(new_path, wait=True)
        if new_path.exists():  # else it was removed as a leftover before it was locked
            break
        unlock(descriptor)
    try:
        yield new_path
    finally:
        _remove(new_path)
        unlock(descriptor)


def remove_unfinished(path: Path, ending: str) -> None:
    """Remove what killed processes have left unfinished beside a path; see `unfinished`."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*{ending}"):
        with contextlib.suppress(OSError):  # somebody else has removed it
            descriptor = lock(leftover, wait=False)
            _remove(leftover)
            unlock(descriptor)


def put_folder(new_folder: Path, destination: Path) -> None:
    """Rename a folder to a destination; what stood there is at the old name then, or removed.

    Linux exchanges the names in one step. Where the system or its file system does not (macOS,
    NFS), the old folder steps aside first, because one that is not empty cannot be renamed over: a
    process that is killed just then leaves it under a hidden name, from which `recover_folder`
    brings it back.

    Raises
    ------
    OSError
        What stood there before is untouched.
    """
    _flush(new_folder)
    if not destination.exists():
        os.rename(new_folder, destination)
    elif not _exchange(new_folder, destination):
        os.rename(destination, _aside(destination))
        try:
            os.rename(new_folder, destination)
        except BaseException:
            os.rename(_aside(destination), destination)
            raise
        shutil.rmtree(_aside(destination), ignore_errors=True)
    sync_folder(destination.parent)


def recover_folder(destination: Path) -> None:
    """Undo what `put_folder` has left where names cannot be exchanged, and it was killed."""
    if _aside(destination).exists():
        if destination.exists():
            shutil.rmtree(_aside(destination))
        else:
            os.rename(_aside(destination), destination)


def open_file(path: Path) -> BinaryIO:
    """A regular file, opened to be read; waits for nobody, as opening a pipe would.

    Raises
    ------
    OSError
        It cannot be opened, or is a pipe, a device or a folder.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "no regular file", str(path))


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content of a file.

    Raises
    ------
    OSError
        It cannot be read, is no regular file, or has more than `most_bytes`.
    """
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, "too large", str(path))
        return file.read(most_bytes)


def free_space(folder: Path) -> str:
    """What is free on the disk of a folder, in words, for errors of files there."""
    try:
        return f"{shutil.disk_usage(folder).free:,} bytes are free in {folder}"
    except OSError as error:
        return f"{folder} cannot be looked at ({error.strerror})"


def _aside(destination: Path) -> Path:
    return destination.parent / f".{destination.name}.replaced"


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders in one step; False where that is not possible."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    paths = (os.fsencode(first), os.fsencode(second))
    if renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


def _flush(folder: Path) -> None:
    """Bring all of a folder to the disk, so that after a crash nothing is there in name only."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; not every platform lets one be opened for that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path, wait: bool) -> int | None:
    """The descriptor that holds a file's or folder's lock; None where there are no locks.

    Raises
    ------
    OSError
        It is gone; or, without `wait`, somebody else has the lock.
    """
    if fcntl is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        if wait:
            return None
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def unlock(descriptor: int | None) -> None:
    """Let go of a lock."""
    if descriptor is not None:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
