"""Stand-ins for the driver and for cuBLASLt, with which cuDNN plans where no GPU is.

cuDNN's libraries ask for both by name when they are loaded. While it plans, it calls little of
them: it loads the machine code that it has compiled, and asks how large clusters may be. Whatever
would need a device answers that there is none. They are for processes that plan alone.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from tvm.support import cc

from ....errors import LoweringError

_DRIVER = """
#include <stdint.h>
static uintptr_t count;
#define HANDLE(name) int name(void **made) { *made = (void *)(64 * ++count); return 0; }
#define DONE(name) int name() { return 0; }
#define ABSENT(name) int name() { return 100; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuCtxGetCurrent(void **context) { *context = 0; return 0; }
int cuKernelGetAttribute(int *value) { *value = 0; return 0; }
int cuOccupancyMaxPotentialClusterSize(int *size) { *size = 8; return 0; }
HANDLE(cuLibraryLoadData) HANDLE(cuModuleLoadData) HANDLE(cuLibraryGetKernel)
HANDLE(cuModuleGetFunction) HANDLE(cuKernelGetFunction)
DONE(cuKernelSetAttribute) DONE(cuLibraryUnload) DONE(cuModuleUnload)
ABSENT(cuInit) ABSENT(cuCtxGetLimit) ABSENT(cuCtxPopCurrent) ABSENT(cuCtxPushCurrent)
ABSENT(cuGetErrorString) ABSENT(cuGetErrorName) ABSENT(cuGetProcAddress)
ABSENT(cuGetProcAddress_v2) ABSENT(cuDeviceGetCount) ABSENT(cuLaunchCooperativeKernel)
ABSENT(cuLaunchKernel) ABSENT(cuLaunchKernelEx) ABSENT(cuLibraryLoadFromFile)
ABSENT(cuLinkAddData) ABSENT(cuLinkComplete) ABSENT(cuLinkCreate) ABSENT(cuLinkDestroy)
ABSENT(cuStreamGetCtx) ABSENT(cuTensorMapEncodeIm2col) ABSENT(cuTensorMapEncodeTiled)
"""

_CUBLASLT = """
#include <stddef.h>
#define ABSENT(name) int name() { return 1; }
size_t cublasLtGetVersion(void) { return 130100; }
int cublasLtGetProperty(int type, int *value) { *value = type == 0 ? 13 : type == 1; return 0; }
ABSENT(cublasLtCreate) ABSENT(cublasLtDestroy) ABSENT(cublasLtMatmul)
ABSENT(cublasLtMatmulDescCreate) ABSENT(cublasLtMatmulDescDestroy)
ABSENT(cublasLtMatmulDescSetAttribute) ABSENT(cublasLtMatmulDescGetAttribute)
ABSENT(cublasLtMatrixLayoutCreate) ABSENT(cublasLtMatrixLayoutDestroy)
ABSENT(cublasLtMatrixLayoutSetAttribute) ABSENT(cublasLtMatmulPreferenceCreate)
ABSENT(cublasLtMatmulPreferenceDestroy) ABSENT(cublasLtMatmulPreferenceSetAttribute)
ABSENT(cublasLtMatmulAlgoGetHeuristic) ABSENT(cublasLtMatmulAlgoInit)
ABSENT(cublasLtMatmulAlgoCheck) ABSENT(cublasLtMatmulAlgoGetIds)
ABSENT(cublasLtMatmulAlgoCapGetAttribute) ABSENT(cublasLtMatmulAlgoConfigSetAttribute)
ABSENT(cublasLtMatmulAlgoConfigGetAttribute) ABSENT(cublasLtMatrixTransform)
"""

_SOURCES = {"libcuda.so.1": _DRIVER, "libcublasLt.so.13": _CUBLASLT}


@functools.cache
def libraries() -> list[str]:
    """The paths of the stand-ins, compiled where that has not been done yet.

    Raises
    ------
    LoweringError
        There is no C compiler, or it fails.
    """
    digest = hashlib.sha256("".join(_SOURCES.values()).encode()).hexdigest()[:16]
    try:
        folder = Path(tempfile.gettempdir()) / f"graphgrad-no-device-{os.getuid()}-{digest}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise LoweringError(
                f"{folder} is another user's: what is in it would be run; remove it"
            )
        for name, source in _SOURCES.items():
            if not (folder / name).exists():
                unfinished = folder / f".{name}.{os.getpid()}"
                _compile(source, name, unfinished)
                unfinished.replace(folder / name)
    except OSError as error:
        raise LoweringError(f"stand-ins for the driver cannot be written: {error}") from error
    return [str(folder / name) for name in _SOURCES]


def _compile(source: str, name: str, path: Path) -> None:
    compiler = cc.get_cc()
    if compiler is None:
        raise LoweringError(
            "cuDNN plans with a C compiler at hand: install g++, gcc or clang, or name one in CXX"
        )
    # By its name inside, the loader takes it for the library that it stands for.
    command = [compiler, "-xc", "-", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}"]
    try:
        process = subprocess.run(
            [*command, "-o", str(path)], input=source, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise LoweringError(f"the C compiler {compiler} does not run: {error}") from error
    if process.returncode:
        raise LoweringError(f"{compiler} fails on a stand-in of {name}: {process.stderr}")
