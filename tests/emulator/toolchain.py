"""Builds the emulated libraries and compiler, and says in which environment they are used."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent

_DRIVER_SOURCES = ("driver.cpp", "execution.cpp", "device_memory.cpp", "graph.cpp")
_HEADERS = ("device.h", "module.h")
_PROGRAMS = ("nvcc.py", "toolchain.py", "translate.py")

_VERSIONS = "libcudart.so.13 { global: cuda*; local: *; };\n"
"""Symbol versions, as in NVIDIA's library: TVM's library asks for them."""

KERNEL_FLAGS = (
    "-std=c++17", "-O1", "-w", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique",
    "-fsanitize=bounds", "-fno-sanitize-recover=bounds", "-ffp-contract=off",
    "-fno-strict-aliasing",
)  # fmt: skip
"""How kernels are compiled. The last, as nvcc does: vectors are read through cast pointers."""


class MissingToolError(Exception):
    """The emulator cannot be built on this machine."""


def environment() -> dict[str, str]:
    """Return the environment in which a process sees the emulated GPU, building it if needed.

    Raises
    ------
    MissingToolError
        The machine lacks g++, the CUDA headers, or the kind of processor that TVM's CUDA runtime
        is for.
    """
    folder = build()
    changed = dict(os.environ)
    for name, part in (("LD_LIBRARY_PATH", "lib"), ("PATH", "bin")):
        changed[name] = os.pathsep.join(filter(None, [str(folder / part), os.environ.get(name)]))
    changed["GRAPHGRAD_EMULATOR"] = str(folder)
    return changed


def build() -> Path:
    """Return the folder with the libraries and the compiler, named by a hash of the sources.

    Raises
    ------
    MissingToolError
        See `environment`.
    """
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise MissingToolError("the CUDA emulator runs on Linux with an x86-64 processor")
    compiler = shutil.which("g++")
    if compiler is None:
        raise MissingToolError("the CUDA emulator is compiled by g++, which is not on the PATH")
    headers = _cuda_headers()
    folder = Path(tempfile.gettempdir()) / f"graphgrad-cuda-emulator-{_hash(headers)}"
    if not folder.exists():
        partial = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            _build_into(partial, compiler, headers)
            partial.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _build_into(folder: Path, compiler: str, headers: Path) -> None:
    libraries, include, programs = folder / "lib", folder / "include", folder / "bin"
    package = folder / "python" / "tests" / "emulator"
    for path in (libraries, include, programs, package, folder / "cache"):
        path.mkdir(parents=True)
    for name in _HEADERS:
        shutil.copy(SOURCES / name, include)
    for name in _PROGRAMS:
        shutil.copy(SOURCES / name, package)
    shared = [
        compiler,
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-U_FORTIFY_SOURCE",
        f"-I{headers}",
    ]
    driver, runtime = libraries / "libcuda.so.1", libraries / "libcudart.so.13"
    versions = folder / "versions"
    versions.write_text(_VERSIONS)
    sources = [str(SOURCES / name) for name in _DRIVER_SOURCES]
    _run([*shared, *sources, "-o", str(driver), f"-Wl,-soname,{driver.name}", "-ldl"])
    _run(
        [*shared, str(SOURCES / "runtime.cpp"), "-o", str(runtime), str(driver),
         f"-Wl,-soname,{runtime.name}", f"-Wl,--version-script={versions}"]
    )  # fmt: skip
    _run([compiler, *KERNEL_FLAGS, f"-I{headers}", "-x", "c++-header", str(include / "device.h")])
    nvcc = programs / "nvcc"
    interpreter = shlex.join([sys.executable, "-S"])
    arguments = f'"$emulator/python/tests/emulator/nvcc.py" {shlex.quote(compiler)} "$emulator"'
    nvcc.write_text(
        f'#!/bin/sh\nemulator=$(dirname "$0")/..\n'
        f'exec {interpreter} {arguments} {shlex.quote(str(headers))} "$@"\n'
    )
    nvcc.chmod(0o755)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stderr}")


def _hash(headers: Path) -> str:
    hashed = hashlib.sha256(f"{headers} {sys.executable}".encode())
    for name in (
        *_DRIVER_SOURCES,
        *_HEADERS,
        *_PROGRAMS,
        "runtime.cpp",
        "device_memory.h",
        "graph.h",
    ):
        hashed.update((SOURCES / name).read_bytes())
    return hashed.hexdigest()[:16]


def _cuda_headers() -> Path:
    nvcc = shutil.which("nvcc", path=_real_path())
    roots = [Path(nvcc).resolve().parents[1]] if nvcc else []
    roots += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    roots += sorted(Path("/usr/local").glob("cuda-13*"))
    for root in roots:
        if (root / "include" / "cuda_runtime_api.h").exists():
            return root / "include"
    raise MissingToolError(
        "the CUDA emulator is compiled with the headers of CUDA 13, which are neither beside nvcc "
        "nor in CUDA_HOME"
    )


def _real_path() -> str:
    """Return the search path without the emulated compiler."""
    emulated = os.environ.get("GRAPHGRAD_EMULATOR")
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(f for f in folders if not emulated or not f.startswith(emulated))
