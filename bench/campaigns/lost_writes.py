"""What a file system may legally show after a crash: writes and names that were not flushed go.

Recorded are the entries of each folder at each operation since it was flushed, and the content
that each file had when it was flushed. After a crash a folder shows one of its recorded states,
and a file that was changed since its flush shows its old content, the new one, or part of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from graphgrad.runtime import files

Entries = dict[str, int]
"""The files and folders of a folder: their inodes by name."""


class LostWrites:
    """The states of a folder on the disk, as far as flushes decide them.

    Parameters
    ----------
    root : Path
        What is in it is on the disk.
    shelf : Path
        An empty folder of the same file system, outside of the root: keeps files that are removed,
        so that what they held can come back and no inode is used twice.
    """

    def __init__(self, root: Path, shelf: Path):
        self._root, self._shelf = root, shelf
        self._states: dict[int, list[Entries]] = {}
        self._flushed: dict[int, bytes] = {}
        self._held: dict[int, int] = {}  # descriptors of folders
        self.note()
        for inode, states in self._states.items():
            self._states[inode] = states[-1:]
        for path in shelf.iterdir():
            self._flushed[int(path.name)] = path.read_bytes()

    def note(self) -> None:
        """Record what the folders show now."""
        for folder, _, _ in os.walk(self._root):
            entries: Entries = {}
            with os.scandir(folder) as scanned:
                for entry in scanned:
                    entries[entry.name] = entry.inode()
                    if entry.is_file() and not (self._shelf / str(entry.inode())).exists():
                        os.link(entry.path, self._shelf / str(entry.inode()))
            inode = os.stat(folder).st_ino
            if inode not in self._held:
                self._held[inode] = os.open(folder, os.O_RDONLY)
            states = self._states.setdefault(inode, [{}])
            if states[-1] != entries:
                states.append(entries)

    def flush(self, descriptor: int) -> None:
        """Record that a file or a folder has been flushed."""
        self.note()
        inode = os.fstat(descriptor).st_ino
        if inode in self._states:
            del self._states[inode][:-1]
        elif (self._shelf / str(inode)).exists():
            self._flushed[inode] = (self._shelf / str(inode)).read_bytes()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record flushes, which the disk is spared, and exchanges of folders."""
        exchange = files._exchange

        def exchanging(first: Path, second: Path) -> bool:
            self.note()
            is_done = exchange(first, second)
            self.note()
            return is_done

        with (
            mock.patch.object(os, "fsync", self.flush),
            mock.patch.object(files, "_exchange", exchanging),
        ):
            yield

    def crash(self, rng: np.random.Generator, destination: Path) -> None:
        """Write one of the states that may be found after a crash now to a new folder."""
        self.note()
        self._restore(rng, os.stat(self._root).st_ino, destination)

    def _restore(self, rng: np.random.Generator, inode: int, destination: Path) -> None:
        destination.mkdir()
        states = self._states[inode]
        for name, child in states[int(rng.integers(len(states)))].items():
            if child in self._states:
                self._restore(rng, child, destination / name)
            else:
                (destination / name).write_bytes(self._content(rng, child))

    def _content(self, rng: np.random.Generator, inode: int) -> bytes:
        now = (self._shelf / str(inode)).read_bytes()
        flushed = self._flushed.get(inode, b"")
        if now == flushed:
            return now
        part = now[: int(rng.integers(len(now) + 1))]
        zeros = part + bytes(len(now) - len(part))  # the size was written, the data was not
        return (flushed, now, part, zeros)[int(rng.integers(4))]


def put_back(crashed: Path, root: Path) -> None:
    """Replace a folder by what a crash has left of it."""
    shutil.rmtree(root)
    crashed.rename(root)
