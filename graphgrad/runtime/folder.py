"""The files of an export: its manifest, their digests, and the machine code of CUDA kernels."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm_ffi

from .errors import FolderError

FORMAT = "graphgrad-export-2"
_READ = ("graphgrad-export-1", FORMAT)
"""The formats that are read. The first had no ``storage``: steps stored parameters as the model."""

MANIFEST, STATE, KERNELS = "manifest.json", "state.safetensors", "kernels"

LOADER = "exported_step"
"""The name that this package has in an export."""

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
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FolderError(f"{folder} holds no export: {error}") from error
    except ValueError as error:
        raise FolderError(f"{path} is damaged: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") not in _READ:
        raise FolderError(f"{path} describes no export in the format {FORMAT}")
    if manifest.get("sha256") != digest_of(manifest):
        raise FolderError(f"{path} is damaged: its digest does not fit")
    return manifest


def digest_of(manifest: Mapping[str, Any]) -> str:
    """The digest of everything in a manifest but the digest itself."""
    facts = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def kernels_file(source: str) -> str:
    """The name in an export of the file with the machine code of CUDA source."""
    return f"{KERNELS}/{hashlib.sha256(source.encode()).hexdigest()}.fatbin"


def check_files(folder: Path, files: Mapping[str, str]) -> None:
    """Raise `FolderError` unless all files are there, with the digests that the manifest names."""
    for name, expected in files.items():
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            raise FolderError(f"{folder} is incomplete: {error}; copy all of it") from error
        if hashlib.sha256(data).hexdigest() != expected:
            raise FolderError(f"{folder / name} is damaged: its digest does not fit; copy it again")


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
