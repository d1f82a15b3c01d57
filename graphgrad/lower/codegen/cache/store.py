"""The cache's folder: entries are written whole or not at all, checked when read, and bounded.

Any number of processes may use a folder at once. An entry appears under its name in one step, and
none depends on another, so that a lost race costs an entry at most, which is made again.

What is read here is run as code. So the folder must belong to the user, and be writable by nobody
else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ....errors import ArgumentError
from ....runtime.files import UNFINISHED, free_space, read_file, replace_file

SWITCH, FOLDER, SIZE = "GRAPHGRAD_CACHE", "GRAPHGRAD_CACHE_DIR", "GRAPHGRAD_CACHE_SIZE"
"""Environment variables: ``0`` for no cache, its folder, the megabytes that it may take."""

_DEFAULT_MEGABYTES = 2048
"""Megabytes that the folder may take."""

_ENDING = ".entry"

_MAGIC = b"graphgrad compiled program 1\n"
_HEADER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size

_ABANDONED_SECONDS = 3600
"""Age of an unfinished entry whose writer must have died."""

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH

_warned: set[str] = set()


@dataclass(frozen=True)
class Store:
    """A folder of entries by key, which takes a limited number of bytes.

    Attributes
    ----------
    folder : Path
        The folder. It is created when something is first written, for the user alone.
    most_bytes : int
        The limit, above which the entries that were used longest ago are dropped.
    """

    folder: Path
    most_bytes: int

    def read(self, key: str) -> bytes | None:
        """The content of an entry; None if there is none, or it is damaged and dropped."""
        if not self._is_safe():
            return None
        path = self._path(key)
        try:
            entry = read_file(path, self.most_bytes)
        except OSError:
            return None
        content = entry[_HEADER_BYTES:]
        if entry[:_HEADER_BYTES] != _header(key, content):
            self._drop(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the time of a file is when it was last used; the oldest go first
        return content

    def write(self, key: str, content: bytes) -> None:
        """Keep an entry; if that fails, warn once and go on without."""
        if _HEADER_BYTES + len(content) > self.most_bytes:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_safe():
                return
            path = self._path(key)
            if not path.is_file():
                self._drop(path)  # a pipe would be written to, and waited for
            replace_file(path, _header(key, content), content)
        except OSError as error:
            warn_once(
                f"compiled programs cannot be kept in {self.folder}: {error}; "
                f"{free_space(self.folder)}; name another folder in the environment variable "
                f"{FOLDER}, or set {SWITCH}=0",
                subject=str(self.folder),
            )
            return
        self._make_room()

    def sizes(self) -> list[int]:
        """The bytes of each entry."""
        return [size for _, size, _ in self._entries()]

    def clear(self) -> None:
        """Drop all entries, also those that another process is writing."""
        for path in self._files(_ENDING, UNFINISHED):
            self._drop(path)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_ENDING}"

    def _is_safe(self) -> bool:
        """Whether nobody else can have written to the folder; warn once if somebody can.

        On a system without POSIX users (Windows) the user's folder is taken to be safe.
        """
        if not hasattr(os, "geteuid"):
            return True
        try:
            folder_stat = self.folder.stat()
        except OSError:
            return False  # it does not exist yet, or cannot be looked at
        if folder_stat.st_uid == os.geteuid() and not folder_stat.st_mode & _OTHERS_MAY_WRITE:
            return True
        warn_once(
            f"compiled programs are not kept: others may write to {self.folder}, or own it; "
            f"run `chmod 700` on it, or name another folder in the environment variable {FOLDER}"
        )
        return False

    def _make_room(self) -> None:
        """Drop what dead writers have left, and the entries used longest ago above the limit."""
        for path in self._files(UNFINISHED):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    self._drop(path)
        entries = sorted(self._entries())
        excess = sum(size for _, size, _ in entries) - self.most_bytes
        for _, size, path in entries:
            if excess <= 0:
                break
            self._drop(path)
            excess -= size

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """Yield when each entry was last used, its size and its file."""
        for path in self._files(_ENDING):
            with contextlib.suppress(OSError):  # somebody else has dropped it
                file_stat = path.stat()
                yield file_stat.st_mtime, file_stat.st_size, path

    def _files(self, *endings: str) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if path.suffix in endings]
        except OSError:
            return []

    def _drop(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()


def chosen_store() -> Store | None:
    """The store of compiled programs that the environment chooses; None if there is none.

    There is none either if the user has no home directory, which is warned of once.

    Raises
    ------
    ArgumentError
        The size is no number, or the folder is in the home directory of a user who has none.
    """
    if os.environ.get(SWITCH, "").strip() == "0":
        return None
    folder, size = _folder(), _megabytes() << 20
    if folder is None:
        warn_once(
            "compiled programs are not kept for the next process, because there is no home "
            f"directory; name a folder in the environment variable {FOLDER}, or set {SWITCH}=0"
        )
        return None
    return Store(folder, size)


def warn_once(message: str, subject: str | None = None) -> None:
    """Warn of something that stands in the way of the cache, the first time in a process.

    Messages of one subject, such as a folder, differ in details that need not be told twice.
    """
    if (subject or message) not in _warned:
        _warned.add(subject or message)
        warnings.warn(message, stacklevel=2)


def _folder() -> Path | None:
    """The folder that is named, or the usual one; None if the user has no home directory."""
    chosen = os.environ.get(FOLDER)
    if chosen:
        try:
            return Path(chosen).expanduser()
        except RuntimeError as error:
            raise ArgumentError(f"{FOLDER}={chosen!r} names no folder: {error}") from error
    is_windows = os.name == "nt"
    base = os.environ.get("LOCALAPPDATA" if is_windows else "XDG_CACHE_HOME")
    subfolder = Path("graphgrad", "cache") if is_windows else Path("graphgrad")
    if base:
        return Path(base) / subfolder
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return (home if is_windows else home / ".cache") / subfolder


def _megabytes() -> int:
    text = os.environ.get(SIZE, "").strip()
    if not text:
        return _DEFAULT_MEGABYTES
    if not text.isdecimal():
        raise ArgumentError(f"{SIZE}={text!r} must be a whole number of megabytes")
    return int(text)


def _header(key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(f"{key}\n".encode())
    digest.update(content)
    return _MAGIC + digest.digest()
