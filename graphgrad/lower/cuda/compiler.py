"""CUDA source to machine code, by nvcc or by NVRTC.

Not through TVM's own call of either: that one always asks for fast mathematics (approximate
exponentials and divisions, denormals flushed to zero), which the accuracy policy forbids, and is
only made where a CUDA driver is loaded. This one runs anywhere.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from ...errors import LoweringError

_CALLBACK = "tvm_callback_cuda_compile"
"""The function that TVM's runtime asks for machine code wherever it meets CUDA source."""

_LOCK = threading.RLock()
"""Held while the callback is ours: it is global, and knows no target."""

_OPTIONS = ("-std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
"""Mathematics as IEEE 754 has it, said aloud so that no default decides."""


def executable_sources(executable: Any) -> list[str]:
    """Return the CUDA source of every device module in an executable."""
    found: list[str] = []

    def visit(module: Any) -> None:
        if str(module.kind) == "cuda":
            found.append(str(module.inspect_source("cuda")))
        for imported in module.imports:
            visit(imported)

    visit(executable.mod)
    return found


def arch_of(target: tvm.target.Target) -> str:
    """Return the architecture of a CUDA target, such as ``"sm_90"``."""
    return str(target.attrs["arch"])


@contextlib.contextmanager
def compiling_for(target: tvm.target.Target) -> Iterator[None]:
    """While inside, TVM's runtime gets its machine code from `machine_code`, for `target`."""
    arch = arch_of(target)
    with _LOCK:
        stock = tvm_ffi.get_global_func(_CALLBACK, allow_missing=True)
        tvm_ffi.register_global_func(
            _CALLBACK, lambda source: machine_code(str(source), arch), override=True
        )
        try:
            yield
        finally:
            if stock is None:
                tvm_ffi.remove_global_func(_CALLBACK)
            else:
                tvm_ffi.register_global_func(_CALLBACK, stock, override=True)


@functools.lru_cache(maxsize=64)
def machine_code(source: str, arch: str) -> bytes:
    """Return the machine code of CUDA source.

    Parameters
    ----------
    source : str
    arch : str
        Such as ``"sm_90"``. With nvcc the result also holds PTX, which newer GPUs translate.

    Raises
    ------
    LoweringError
        There is neither nvcc nor NVRTC, or the compiler refuses the source.
    """
    if shutil.which("nvcc"):
        return _by_nvcc(source, arch)
    try:
        from cuda.bindings import nvrtc  # noqa: PLC0415 (optional)
    except ImportError:
        raise LoweringError(
            "no CUDA compiler: put nvcc (CUDA toolkit) on the PATH, or install NVRTC with "
            "`pip install 'graphgrad[cuda]'`"
        ) from None
    return _by_nvrtc(nvrtc, source, arch)


def _by_nvcc(source: str, arch: str) -> bytes:
    virtual = arch.replace("sm_", "compute_")
    with tempfile.TemporaryDirectory() as folder:
        code, binary = Path(folder, "kernels.cu"), Path(folder, "kernels.fatbin")
        code.write_text(source)
        command = [
            "nvcc", "--fatbin", "-O3", "-gencode", f"arch={virtual},code=[{arch},{virtual}]",
            *_OPTIONS, "-o", str(binary), str(code),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LoweringError(_refused("nvcc", arch, done.stderr or done.stdout))
        return binary.read_bytes()


def _by_nvrtc(nvrtc: Any, source: str, arch: str) -> bytes:
    def call(function: Any, *arguments: Any) -> Any:
        status, *results = function(*arguments)
        return status, results[0] if results else None

    _, program = call(nvrtc.nvrtcCreateProgram, source.encode(), b"kernels.cu", 0, [], [])
    options = [f"--gpu-architecture={arch}".encode(), *(option.encode() for option in _OPTIONS)]
    status, _ = call(nvrtc.nvrtcCompileProgram, program, len(options), options)
    if int(status):
        _, size = call(nvrtc.nvrtcGetProgramLogSize, program)
        log = b" " * size
        call(nvrtc.nvrtcGetProgramLog, program, log)
        raise LoweringError(_refused("NVRTC", arch, log.decode(errors="replace")))
    _, size = call(nvrtc.nvrtcGetCUBINSize, program)
    binary = b" " * size
    call(nvrtc.nvrtcGetCUBIN, program, binary)
    return binary


def _refused(compiler: str, arch: str, log: str) -> str:
    errors = [line for line in log.splitlines() if "error" in line or "fatal" in line]
    said = "\n".join((errors or log.splitlines())[:8])
    return f"{compiler} refuses the kernels for {arch}:\n{said}"
