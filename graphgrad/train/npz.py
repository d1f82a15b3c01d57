"""Reading of .npz files: archives that are checked for what they say before any of it is unpacked.

An archive of a few megabytes can say that it holds terabytes, and mean it. Nothing in one is run:
arrays of Python objects are refused.
"""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from ..errors import InputError

_SMALL_BYTES = 1 << 29
_LARGEST_RATIO = 50
"""What archives may unpack to: this many bytes, or, of larger ones, this many times their size."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_ENDING = ".npy"
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name.

    Raises
    ------
    InputError
        The file is missing, damaged, no .npz file, or would unpack to far more than its size; an
        array holds Python objects, or has other data than its header says.
    """
    if not path.exists():
        raise InputError(f"the data file {path} does not exist")
    if not path.is_file():
        raise InputError(f"{path} is not an .npz file: it is a folder, a pipe or a device")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check_members(members, path)
            return {
                member.filename.removesuffix(_ENDING): _read_array(archive, member, path)
                for member in members
            }
    except zipfile.BadZipFile as error:
        raise InputError(
            f"{path} is not an .npz file, or is damaged ({error}); write it with numpy.savez"
        ) from error
    # What zipfile raises for fields of an archive that make no sense, and zlib for its content.
    except (OSError, EOFError, ValueError, NotImplementedError, struct.error, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}); write it again") from error


def _check_members(members: list[zipfile.ZipInfo], path: Path) -> None:
    """Raise unless an archive has the form that numpy writes, and unpacks to a size in reason."""
    names = [member.filename for member in members]
    for member in members:
        if (
            not member.filename.endswith(_ENDING)
            or member.flag_bits & _ENCRYPTED
            or member.compress_type not in _METHODS
            or names.count(member.filename) > 1
        ):
            raise InputError(
                f"{path} is a zip archive, but {member.filename!r} in it is no array as numpy "
                "writes them; write the file with numpy.savez"
            )
    unpacked, packed = sum(member.file_size for member in members), path.stat().st_size
    if unpacked > max(_SMALL_BYTES, _LARGEST_RATIO * packed):
        raise InputError(
            f"{path} has {packed:,} bytes and says that it unpacks to {unpacked:,}, over "
            f"{_LARGEST_RATIO} times as many, so it is not read; if that is right, write it with "
            "numpy.savez, which does not compress"
        )


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """The array of a member, which has as many bytes as the archive and the array itself say."""
    name = member.filename.removesuffix(_ENDING)
    with archive.open(member) as file:
        shape, _, dtype = _header(file, f"{path}: array {name}")
        header_bytes = file.tell()
    if dtype.hasobject:
        raise InputError(
            f"{path}: array {name} holds Python objects, which are not read because loading them "
            "can run code; save it with a numeric dtype"
        )
    if min(shape, default=0) < 0 or not dtype.itemsize:
        raise InputError(f"{path}: array {name} has shape {shape} and dtype {dtype}: no size")
    expected = header_bytes + math.prod(shape) * dtype.itemsize
    if expected != member.file_size:
        raise InputError(
            f"{path}: array {name} of shape {shape} and dtype {dtype} takes {expected:,} bytes, "
            f"but has {member.file_size:,}; write the file again"
        )
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _header(file: IO[bytes], label: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape, the order and the dtype that an array says it has."""
    try:
        return _HEADER_READERS[np.lib.format.read_magic(file)](file)
    # A header is Python's literal, and numpy leaves to Python how it is read.
    except (ValueError, KeyError, SyntaxError, tokenize.TokenError) as error:
        raise InputError(f"{label} is damaged ({error}); write the file again") from error
    except (MemoryError, RecursionError) as error:
        raise InputError(f"{label} is damaged: its header is no literal of a dict") from error
