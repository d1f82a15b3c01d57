"""A lock that keeps a second run out of a folder, and that no killed run leaves locked."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ArgumentError
from ..runtime.files import lock


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; the operating system lets go of it when the process ends.

    On Windows, which has no such locks, a second run is not noticed.

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
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        # Before it is let go of: afterwards the file may be that of the next run.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path) -> int:
    """A descriptor of the file at a path, with the lock on it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock(descriptor, wait=False)
            # The run before may have removed the file since it was opened.
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        except BlockingIOError as error:
            owner = os.read(descriptor, 20).decode(errors="replace") or "unknown"
            os.close(descriptor)
            raise ArgumentError(
                f"another run writes to {path.parent} (process {owner}); wait for its end, or "
                "choose another folder with --out"
            ) from error
        os.close(descriptor)
