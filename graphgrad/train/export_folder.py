"""A folder that appears whole or not at all, and replaces nothing but an export."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CheckpointError, ExportError
from ..runtime.errors import FolderError
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
    is killed may leave hidden folders; the next export to the same path removes them.

    Raises
    ------
    ExportError
        At `path` there is something else than an export, or it cannot be written.
    """
    try:
        destination = folder_at(path)  # a link keeps pointing at the folder
    except FolderError as error:
        raise ExportError(str(error)) from error
    new_folder = destination.parent / f".{destination.name}.{secrets.token_hex(8)}{_UNFINISHED}"
    replaced_folder = destination.parent / f".{destination.name}.replaced"
    try:
        _clean(destination, replaced_folder)
        _check_replaceable(destination)
        new_folder.mkdir()
        yield new_folder
        _flush(new_folder)
        _check_replaceable(
            destination
        )  # again: compiling takes long, and others may have written there
        _exchange(new_folder, destination, replaced_folder)
    except (OSError, CheckpointError) as error:
        raise ExportError(
            f"cannot write the export {path}: {error}; what stood there before is untouched"
        ) from error
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)


def _clean(destination: Path, replaced_folder: Path) -> None:
    """Undo what a process that was killed has left beside the destination."""
    for leftover in destination.parent.glob(f".{glob.escape(destination.name)}.*{_UNFINISHED}"):
        shutil.rmtree(leftover)
    if replaced_folder.exists():
        if destination.exists():
            shutil.rmtree(replaced_folder)
        else:  # it was killed between the two renames of `_exchange`
            os.rename(replaced_folder, destination)


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


def _flush(folder: Path) -> None:
    """Bring all files to the disk, so that after a crash none is there in name only."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def _exchange(new_folder: Path, destination: Path, replaced_folder: Path) -> None:
    """Rename the new folder to the destination, and remove what was there.

    A folder that is not empty cannot be renamed over, so the old one steps aside first.
    """
    if not destination.exists():
        os.rename(new_folder, destination)
        return
    os.rename(destination, replaced_folder)
    try:
        os.rename(new_folder, destination)
    except BaseException:
        os.rename(replaced_folder, destination)
        raise
    shutil.rmtree(replaced_folder, ignore_errors=True)
