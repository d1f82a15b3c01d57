"""CUDA source to machine code, by nvcc or by NVRTC.

Not through TVM's own call of either: that one always asks for fast mathematics (approximate
exponentials and divisions, denormals flushed to zero), which the accuracy policy forbids, and is
only made where a CUDA driver is loaded. This one runs anywhere.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
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
from ...runtime.files import free_space

_CALLBACK = "tvm_callback_cuda_compile"
"""The function that TVM's runtime asks for machine code wherever it meets CUDA source."""

_LOCK = threading.RLock()
"""Held while the callback is ours: it is global, and knows no target."""

_OPTIONS = ("-std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
"""Options of both nvcc and NVRTC. Arithmetic is as IEEE 754 has it, stated so that no default
decides."""

_SOURCE_NAME = "kernels.cu"
"""What a compiler calls the source in its messages."""

_MAX_REPORTED_LINES = 8
"""Lines of a compiler's complaint that an error repeats."""

_INSTALL_HINT = (
    "install the CUDA toolkit (nvcc on the PATH, in $CUDA_HOME/bin or in /usr/local/cuda/bin), or "
    "NVRTC by `pip install 'graphgrad[cuda]'`"
)


def executable_sources(executable: Any) -> list[str]:
    """The CUDA source of every device module in an executable."""
    sources: list[str] = []

    def visit(module: Any) -> None:
        if str(module.kind) == "cuda":
            sources.append(str(module.inspect_source("cuda")))
        for imported in module.imports:
            visit(imported)

    visit(executable.mod)
    return sources


def arch_of(target: tvm.target.Target) -> str:
    """The architecture of a CUDA target, such as ``"sm_90"``."""
    return str(target.attrs["arch"])


@contextlib.contextmanager
def compiling_for(target: tvm.target.Target) -> Iterator[None]:
    """Have TVM's runtime get its machine code from `machine_code`, for `target`, while inside."""
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


def gives_ptx(arch: str) -> bool:
    """Whether `machine_code` adds PTX, which newer GPUs translate.

    nvcc does, unless the architecture ends in a letter (``"sm_90a"``); NVRTC gives one kind of code
    alone.
    """
    return find_nvcc() is not None and not arch[-1].isalpha()


@functools.lru_cache(maxsize=64)
def machine_code(source: str, arch: str) -> bytes:
    """The machine code of CUDA source, as a driver takes it.

    Parameters
    ----------
    source : str
    arch : str
        Such as ``"sm_90"``. What newer GPUs can run of it, `gives_ptx` decides.

    Raises
    ------
    LoweringError
        There is neither nvcc nor NVRTC, it does not serve the architecture, or it refuses the
        source; the error names the kernel.
    """
    nvcc = find_nvcc()
    return _by_nvrtc(source, arch) if nvcc is None else _by_nvcc(nvcc, source, arch)


def check_compiler() -> None:
    """Raise unless there is a compiler for CUDA source.

    Raises
    ------
    LoweringError
    """
    if find_nvcc() is None:
        _load_nvrtc()


def find_nvcc() -> str | None:
    """The path of nvcc: on the PATH, in the toolkit named by CUDA_HOME or the usual one."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [str(Path(home, "bin")) for home in (*homes, "/usr/local/cuda") if home]
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(folders))


def _by_nvcc(nvcc: str, source: str, arch: str) -> bytes:
    """The machine code of CUDA source by nvcc, with PTX where `gives_ptx` says so."""
    # Machine code for the architecture, and PTX for later ones. An architecture with a letter is
    # for particular GPUs alone, and PTX of it would run on no others.
    virtual = arch.replace("sm_", "compute_")
    code = arch if arch[-1].isalpha() else f"[{arch},{virtual}]"
    command = [
        nvcc, "--fatbin", "-O3", "-gencode", f"arch={virtual},code={code}",
        *_OPTIONS, "-o", "kernels.fatbin", _SOURCE_NAME,
    ]  # fmt: skip
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            Path(folder, _SOURCE_NAME).write_text(source, "utf-8")
            result = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=folder
            )
            if result.returncode == 0:
                return Path(folder, "kernels.fatbin").read_bytes()
    except OSError as error:
        raise LoweringError(
            f"{nvcc} does not run, or its files cannot be written: {error}; "
            f"{free_space(Path(tempfile.gettempdir()))}; {_INSTALL_HINT}"
        ) from error
    messages = result.stderr or result.stdout
    if "Unsupported gpu architecture" in messages:
        architectures = subprocess.run(
            [nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False
        )
        raise LoweringError(_unsupported_message(nvcc, arch, architectures.stdout.split()))
    raise LoweringError(_refused(nvcc, arch, messages, source))


def _by_nvrtc(source: str, arch: str) -> bytes:
    """The machine code of CUDA source by NVRTC, without PTX."""
    nvrtc, headers = _load_nvrtc()
    options = [f"--gpu-architecture={arch}", *_OPTIONS, *(f"--include-path={h}" for h in headers)]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), _SOURCE_NAME.encode(), 0, [], [])
    try:
        encoded = [option.encode() for option in options]
        status, *_ = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if int(status) == 0:
            return _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        log = _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    messages = log.decode("utf-8", "replace").rstrip("\0")
    if "--gpu-architecture" in messages:
        _, served = nvrtc.nvrtcGetSupportedArchs()
        raise LoweringError(
            _unsupported_message("NVRTC", arch, [f"sm_{number}" for number in served])
        )
    raise LoweringError(_refused("NVRTC", arch, messages, source))


def _load_nvrtc() -> tuple[Any, list[str]]:
    """The bindings of NVRTC, and the folders of the headers that generated code includes."""
    try:
        from cuda.bindings import nvrtc  # noqa: PLC0415 (optional)
        from cuda.pathfinder import find_nvidia_header_directory  # noqa: PLC0415 (optional)

        nvrtc.nvrtcVersion()  # loads the library
        folders = [find_nvidia_header_directory(name) for name in ("cudart", "cccl")]
    except (ImportError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LoweringError(f"no CUDA compiler ({reason}): {_INSTALL_HINT}") from error
    if not all(folders):
        raise LoweringError(f"NVRTC is here, but not the headers of CUDA: {_INSTALL_HINT}")
    return nvrtc, [str(folder) for folder in folders]


def _fetch(size_of: Any, read: Any, program: Any) -> bytes:
    """The bytes that NVRTC writes into a buffer of the size that it asks for."""
    _, size = size_of(program)
    buffer = b" " * size
    read(program, buffer)
    return buffer


def _unsupported_message(compiler: str, arch: str, served: list[str]) -> str:
    return (
        f"{compiler} does not compile for {arch}; it serves {', '.join(served)}. Give the target "
        'one of these, such as {"kind": "cuda", "arch": "sm_90"}'
    )


def _refused(compiler: str, arch: str, log: str, source: str) -> str:
    errors = [line for line in log.splitlines() if "error" in line or "fatal" in line]
    reported = [
        _name_kernel(line, source) for line in (errors or log.splitlines())[:_MAX_REPORTED_LINES]
    ]
    return "\n".join([f"{compiler} refuses the kernels for {arch}:", *reported])


def _name_kernel(line: str, source: str) -> str:
    """A line of a compiler's complaint, with the name of the kernel that it points into."""
    position = re.match(rf"{re.escape(_SOURCE_NAME)}\((\d+)\)", line)
    if position is None:
        return line
    before = "\n".join(source.splitlines()[: int(position[1])])
    kernels = re.findall(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", before)
    return f"{line} [in {kernels[-1]}]" if kernels else line
