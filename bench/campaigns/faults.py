"""What ends a piece of work, or goes wrong in it, at an operation on files; for campaigns.

    code = work_with_fault(work, KILLED, root, scratch, at=12, half=True, rng=rng)

The work is done in a copy of this process. Afterwards the folder `root` is as a crash leaves it.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import paths  # noqa: F401 (where the modules of `bench` are found)
from lost_writes import LostWrites, put_back

from tests.io_faults import in_process, io_operations, killed

KILLED, LOST, FULL, FAILING = "killed", "unsynced writes lost", "disk full", "disk failing"
FAULTS = (KILLED, LOST, FULL, FAILING)
LATE = "killed at a moment"

BAD_DISK = {FULL: errno.ENOSPC, FAILING: errno.EIO}
"""The faults that work survives, and their error."""

Work = Callable[[], int | None]
"""Work, and its exit code, where it is not 0."""


def work_with_fault(
    work: Work,
    fault: str,
    root: Path,
    scratch: Path,
    *,
    at: int,
    half: bool,
    rng: np.random.Generator,
) -> int:
    """Do work in a copy of this process; its exit code, or minus the number of what ended it.

    Parameters
    ----------
    work : callable
    fault : str
        Of `FAULTS`, or `LATE`.
    root : Path
        The folder whose operations are counted.
    scratch : Path
        A folder of the same file system, for what is needed meanwhile.
    at : int
        The operation that the fault comes at; of `LATE` the hundredth of a second.
    half : bool
        Whether half of a write is done when the process is killed there.
    rng : Generator
        Decides what of unsynced writes is lost.
    """
    if fault in BAD_DISK:

        def work_there() -> int | None:
            with bad_disk(root, at, BAD_DISK[fault]):
                return work()

    elif fault == KILLED:

        def work_there() -> int | None:
            with io_operations(root, at, killed, half):
                return work()

    elif fault == LATE:
        return in_process(work, [(at / 100, signal.SIGKILL)])
    else:
        return _work_and_lose(work, root, scratch, at, rng)
    return in_process(work_there)


def bad_disk(root: Path, at: int, code: int) -> AbstractContextManager[list[str]]:
    """A disk on which all writes, new files and flushes fail from an operation on."""
    count = 0

    def fails(name: str) -> bool:
        nonlocal count
        count += 1
        return count > at and name.startswith(("write", "create", "touch", "mkdir", "fsync"))

    def fault() -> None:
        raise OSError(code, os.strerror(code))

    return io_operations(root, fails, fault)


def _work_and_lose(work: Work, root: Path, scratch: Path, at: int, rng: np.random.Generator) -> int:
    """Do work, and crash at an operation, or at the end; what was not flushed may be gone."""
    shelf, crashed = scratch / "shelf", scratch / "crashed"
    shelf.mkdir()
    count = 0

    def work_and_crash() -> None:
        disk = LostWrites(root, shelf)

        def comes(name: str) -> bool:
            nonlocal count
            disk.note()
            count += 1
            return count > at

        def crash() -> None:
            disk.crash(rng, crashed)
            killed()

        with disk.recording(), io_operations(root, comes, crash):
            work()
        crash()

    code = in_process(work_and_crash)
    if crashed.exists():
        put_back(crashed, root)
    shutil.rmtree(shelf)
    return code
