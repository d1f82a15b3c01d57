"""The part of TVM that a kit carries: its runtime, its Python files, and what those import."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_LIBRARIES = ("tvm_runtime", "tvm_runtime_extra", "tvm_runtime_cuda")
_LICENSES = ("LICENSE", "NOTICE", "licenses")

_COMPILED = ("apache-tvm-ffi", "ml_dtypes", "safetensors")
"""Packages whose machine code belongs to one version of Python."""

_FFI_SOURCES = ("3rdparty", "cython", "include", "share", "src")
"""Sources and headers of tvm_ffi, which nothing needs that is compiled already."""


def copy_runtime(destination: Path, python: str) -> None:
    """Write everything that ``import tvm`` needs with TVM's runtime alone, except numpy.

    Parameters
    ----------
    destination : path
        A new folder, to be put on Python's search path.
    python : str
        The version that it is for, such as ``"3.12"``. For another one than is running, packages
        with machine code of their own are fetched from the package index.

    Raises
    ------
    RuntimeError
        The index has no such package.
    """
    destination.mkdir(parents=True)
    _copy_tvm(destination)
    running = ".".join(platform.python_version_tuple()[:2])
    if python == running:
        for package in _COMPILED:
            _copy_installed(package, destination)
    else:
        _fetch(destination, python)
    _copy_installed("typing_extensions", destination)
    _drop_ffi_sources(destination / "tvm_ffi")


def _copy_tvm(destination: Path) -> None:
    source = Path(str(importlib.util.find_spec("tvm").origin)).parent
    for file in source.rglob("*.py"):
        _copy(file, destination / "tvm" / file.relative_to(source))
    for name in _LIBRARIES:
        _copy(source / "lib" / f"lib{name}.so", destination / "tvm" / "lib" / f"lib{name}.so")
    for name in _LICENSES:
        if (source / name).is_dir():
            shutil.copytree(source / name, destination / "tvm" / name)
        else:
            _copy(source / name, destination / "tvm" / name)


def _copy_installed(package: str, destination: Path) -> None:
    """Copy an installed package with its licenses."""
    for file in importlib.metadata.files(package) or ():
        if ".." in file.parts or file.suffix == ".pyc":
            continue
        _copy(Path(str(file.locate())), destination / file)


def _fetch(destination: Path, python: str) -> None:
    """Unpack the wheels for another version of Python, in the versions installed here."""
    pinned = [f"{package}=={importlib.metadata.version(package)}" for package in _COMPILED]
    manylinux = [f"manylinux_2_{minor}_{platform.machine()}" for minor in (28, 27, 24, 17)]
    platforms = [argument for name in manylinux for argument in ("--platform", name)]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
            "--python-version", python, "--only-binary=:all:", *platforms, *pinned,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"cannot fetch {pinned} for Python {python}:\n{done.stderr}")
        for wheel in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(destination)


def _drop_ffi_sources(package: Path) -> None:
    for name in _FFI_SOURCES:
        shutil.rmtree(package / name, ignore_errors=True)


def _copy(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)
