"""Writing of files: whole or not at all, with graphgrad's own error where it fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import ArgumentError, OutputError
from .runtime.files import free_space, replace_file


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that at every moment its name shows either the old or the new content.

    Raises
    ------
    OutputError
        It cannot be written; what stood there before is untouched.
    """
    with writing(path):
        replace_file(Path(path), data)


def check_path(path: str | os.PathLike[str]) -> Path:
    """A path at which a file can be written.

    Raises
    ------
    ArgumentError
        It is a folder, or the folder above does not exist.
    """
    checked = Path(path)
    if checked.is_dir() or not checked.parent.is_dir():
        raise ArgumentError(
            f"cannot write {checked}: it is a folder, or the folder above is missing"
        )
    return checked


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """While inside, what the operating system raises becomes an `OutputError` about a path."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write {os.fspath(path)}: {error.strerror or error}; "
            f"{free_space(Path(path).parent)}; what stood there before is untouched"
        ) from error
