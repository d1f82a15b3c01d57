"""The files of an export: its manifest, their digests, and the machine code of CUDA kernels."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm_ffi

from .errors import FolderError
from .files import read_file
from .manifest import fault

FORMAT = "graphgrad-export-3"
_READ = ("graphgrad-export-1", "graphgrad-export-2", FORMAT)
"""The formats that are read.

The first had no ``storage``: steps stored parameters as the model. The second had no ``recorded``.
"""

MANIFEST, KERNELS = "manifest.json", "kernels"

_MOST_MANIFEST_BYTES = 1 << 28
_CHUNK_BYTES = 1 << 20

_CUDA_COMPILE = "tvm_callback_cuda_compile"
"""The function that TVM's runtime asks for machine code where a library holds CUDA source."""


def folder_at(path: Any) -> Path:
    """The absolute path of a folder, links followed; it need not exist.

    Raises
    ------
    FolderError
        `path` is no path.
    """
    try:
        return Path(path).resolve()
    except (TypeError, ValueError) as error:
        raise FolderError(f"{path!r} is no path of a folder: {error}") from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an export.

    Raises
    ------
    FolderError
        There is no manifest of a known format, or it is damaged.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(read_file(_regular(folder, MANIFEST), _MOST_MANIFEST_BYTES))
    except OSError as error:
        raise FolderError(f"{folder} holds no export: {error}") from error
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path} is damaged: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") not in _READ:
        raise FolderError(f"{path} describes no export in the format {FORMAT}")
    if manifest.get("sha256") != digest_of(manifest):
        raise FolderError(f"{path} is damaged: its digest does not fit")
    reason = fault(manifest)
    if reason is not None:
        raise FolderError(f"{path} describes no export as graphgrad writes them: {reason}")
    return manifest


def digest_of(manifest: Mapping[str, Any]) -> str:
    """The digest of everything in a manifest but the digest itself."""
    facts = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def kernels_file(source: str) -> str:
    """The name in an export of the file with the machine code of CUDA source."""
    return f"{KERNELS}/{hashlib.sha256(source.encode()).hexdigest()}.fatbin"


def check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise `FolderError` unless all files are as the manifest says, and inside the folder.

    Called before any of them is loaded: what is in no digest, or behind a link out of the folder,
    is not run.
    """
    sizes = manifest.get("sizes", {})  # exports made before have none
    for name, digest in manifest["files"].items():
        try:
            path = _regular(folder, name)
            is_whole = name not in sizes or path.stat().st_size == sizes[name]
            if not is_whole or _file_digest(path) != digest:
                raise FolderError(
                    f"{folder / name} is damaged: its digest does not fit; copy it again"
                )
        except OSError as error:
            raise FolderError(f"{folder} is incomplete: {error}; copy all of it") from error


def _regular(folder: Path, name: str) -> Path:
    """A regular file inside a folder, links followed, or an error that says why there is none."""
    path = Path(os.path.realpath(folder / name))
    if not path.is_relative_to(os.path.realpath(folder)):
        raise FolderError(f"{folder / name} is a link out of the export; copy what it points at")
    if not stat.S_ISREG(path.stat().st_mode):
        raise FolderError(f"{folder / name} is damaged: it is no file; copy it again")
    return path


def _file_digest(path: Path) -> str:
    """The digest of a file, which may be larger than memory."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def machine_code_from(folder: Path, files: Mapping[str, str]) -> Iterator[None]:
    """While inside, TVM's runtime gets the machine code of CUDA source from the export's files."""

    def machine_code(source: str) -> bytes:
        name = kernels_file(str(source))
        if name not in files:
            raise FolderError(f"{folder} holds no machine code for its CUDA source, as {name}")
        return (folder / name).read_bytes()

    # The function is one of the whole process: what stood there before is put back.
    stock = tvm_ffi.get_global_func(_CUDA_COMPILE, allow_missing=True)
    tvm_ffi.register_global_func(_CUDA_COMPILE, machine_code, override=True)
    try:
        yield
    finally:
        if stock is None:
            tvm_ffi.remove_global_func(_CUDA_COMPILE)
        else:
            tvm_ffi.register_global_func(_CUDA_COMPILE, stock, override=True)
