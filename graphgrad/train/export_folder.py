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
"""Not as files end that a killed `save` to the same path has left: each removes its own kind."""


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
        place = folder_at(path)  # a link keeps pointing at the folder
    except FolderError as error:
        raise ExportError(str(error)) from error
    fresh = place.parent / f".{place.name}.{secrets.token_hex(8)}{_UNFINISHED}"
    old = place.parent / f".{place.name}.replaced"
    try:
        _clean(place, old)
        _check_replaceable(place)
        fresh.mkdir()
        yield fresh
        _flush(fresh)
        _check_replaceable(place)
        _exchange(fresh, place, old)
    except (OSError, CheckpointError) as error:
        raise ExportError(
            f"cannot write the export {path}: {error}; what stood there before is untouched"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _clean(place: Path, old: Path) -> None:
    """Undo what a killed process has left beside a place."""
    for left in place.parent.glob(f".{glob.escape(place.name)}.*{_UNFINISHED}"):
        shutil.rmtree(left)
    if old.exists():
        if place.exists():
            shutil.rmtree(old)
        else:
            os.rename(old, place)


def _check_replaceable(place: Path) -> None:
    """Raise unless a path is free, an empty folder, or an export and nothing more."""
    if not place.parent.is_dir():
        raise ExportError(f"cannot write the export {place}: there is no folder {place.parent}")
    if not place.exists():
        return
    if not place.is_dir():
        raise ExportError(f"{place} is a file; an export is a folder, give the path of one")
    found = {
        file.relative_to(place).as_posix()
        for file in place.rglob("*")
        if not file.is_dir() and file.parent.name != "__pycache__"
    }
    try:
        known = {*read_manifest(place)["files"], MANIFEST} if found else set()
    except FolderError as error:
        raise ExportError(f"{error}; an export replaces none but an export: remove it") from error
    foreign = sorted(found - known)
    if foreign:
        raise ExportError(
            f"{place} holds {foreign[0]}, which is no part of the export there and would be lost; "
            "move it away"
        )


def _flush(folder: Path) -> None:
    """Bring all files to the disk, so that after a crash none is there in name only."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def _exchange(fresh: Path, place: Path, old: Path) -> None:
    """Put a folder in a place, and remove what was there."""
    if not place.exists():
        os.rename(fresh, place)
        return
    os.rename(place, old)
    try:
        os.rename(fresh, place)
    except BaseException:
        os.rename(old, place)
        raise
    shutil.rmtree(old, ignore_errors=True)
