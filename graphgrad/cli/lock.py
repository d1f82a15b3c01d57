"""A lock that keeps a second run out of a folder, and that no killed run leaves locked."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ArgumentError
from ..runtime.files import lock, unlock


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; the operating system lets go of it when the process ends.

    Raises
    ------
    ArgumentError
        Another process holds it.
    OSError
        Nothing can be written into the folder.
    """
    path = folder / ".lock"
    descriptor = _acquire(path)
    try:
        path.write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        # Before it is let go of: afterwards the file may be that of the next run.
        with contextlib.suppress(OSError):
            path.unlink()
        unlock(descriptor)


def _acquire(path: Path) -> int | None:
    """A descriptor of the file at a path, with the lock on it; None where there are no locks."""
    while True:
        path.touch()
        try:
            descriptor = lock(path, wait=False)
        except FileNotFoundError:  # the run before has just removed it
            continue
        except BlockingIOError as error:
            raise ArgumentError(
                f"another run writes to {path.parent} (process {_owner(path)}); wait for its end, "
                "or choose another folder with --out"
            ) from error
        # The run before may have removed the file since it was opened.
        if descriptor is None or _is_at(path, descriptor):
            return descriptor
        unlock(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether what a descriptor has opened is at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _owner(path: Path) -> str:
    """The number of the process that a lock's file names."""
    try:
        return path.read_text(encoding="ascii") or "unknown"
    except (OSError, ValueError):
        return "unknown"
