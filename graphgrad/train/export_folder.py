"""A folder that appears whole or not at all, and replaces nothing but an export."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CheckpointError, ExportError
from ..runtime.errors import FolderError
from ..runtime.files import free_space, put_folder, recover_folder, unfinished
from ..runtime.folder import MANIFEST, folder_at, read_manifest

_UNFINISHED = ".export-unfinished"
"""How names of unfinished exports end.

Unfinished state files end otherwise, so that `save` and `export` to one path each remove only what
their own kind has left when it was killed.
"""


@contextmanager
def replace_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new folder beside `path`; put it there when all has gone well.

    On any error the new folder is removed and what stood there before is untouched. A process that
    is killed may leave a hidden folder; the next export to the same path removes it.

    Raises
    ------
    ExportError
        At `path` there is something else than an export, or it cannot be written.
    """
    try:
        destination = folder_at(path)  # a link keeps pointing at the folder
    except FolderError as error:
        raise ExportError(str(error)) from error
    try:
        recover_folder(destination)
        _check_replaceable(destination)
        with unfinished(destination, _UNFINISHED, is_folder=True) as new_folder:
            yield new_folder
            # Again, because compiling takes long, and others may have written there.
            _check_replaceable(destination)
            put_folder(new_folder, destination)
    except (OSError, CheckpointError) as error:
        raise ExportError(
            f"cannot write the export {path}: {error}; {free_space(destination.parent)}; what "
            "stood there before is untouched"
        ) from error


def _check_replaceable(destination: Path) -> None:
    """Raise unless a path is free, an empty folder, or an export and nothing more."""
    if not destination.parent.is_dir():
        raise ExportError(
            f"cannot write the export {destination}: there is no folder {destination.parent}"
        )
    if not destination.exists():
        return
    if not destination.is_dir():
        raise ExportError(f"{destination} is a file; an export is a folder, give the path of one")
    files_present = {
        file.relative_to(destination).as_posix()
        for file in destination.rglob("*")
        if not file.is_dir() and file.parent.name != "__pycache__"
    }
    try:
        files_of_export = (
            {*read_manifest(destination)["files"], MANIFEST} if files_present else set()
        )
    except FolderError as error:
        raise ExportError(f"{error}; an export replaces none but an export: remove it") from error
    foreign_files = sorted(files_present - files_of_export)
    if foreign_files:
        raise ExportError(
            f"{destination} holds {foreign_files[0]}, which is no part of the export there and "
            "would be lost; move it away"
        )
