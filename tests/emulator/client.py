"""The emulated driver, called without TVM: kernels of our own, launched by ctypes.

Imported where `tests.emulator` has set the environment.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

Extent = int | tuple[int, ...]


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


_FOLDER = Path(os.environ["GRAPHGRAD_EMULATOR"], "lib")
driver = ctypes.CDLL(str(_FOLDER / "libcuda.so.1"))
runtime = ctypes.CDLL(str(_FOLDER / "libcudart.so.13"))
runtime.cudaGetErrorName.restype = ctypes.c_char_p

TO_DEVICE, TO_HOST = 1, 2


def error_name(code: int) -> str:
    """Return the name of an error of the runtime, such as ``"cudaErrorInvalidValue"``."""
    return runtime.cudaGetErrorName(code).decode()


def driver_error(code: int) -> str:
    """Return the name of an error of the driver, such as ``"CUDA_ERROR_INVALID_VALUE"``."""
    text = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(text))
    return (text.value or b"").decode()


def allocate(size: int) -> tuple[str, int]:
    """Return the name of the error, and the address."""
    address = ctypes.c_void_p()
    code = runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))
    return error_name(code), address.value or 0


def free(address: int) -> str:
    """Return the name of the error."""
    return error_name(runtime.cudaFree(ctypes.c_void_p(address)))


def available() -> int:
    """Return how many bytes of the device are free."""
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    runtime.cudaMemGetInfo(ctypes.byref(left), ctypes.byref(total))
    return left.value


def copy(to: int, source: int, size: int, kind: int) -> str:
    """Return the name of the error."""
    arguments = (ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), kind, None)
    return error_name(runtime.cudaMemcpyAsync(*arguments))


def compiled(source: str, arch: str = "sm_90") -> bytes:
    """Return what the emulated nvcc makes of a source; raise with what it says if it refuses."""
    virtual = arch.replace("sm_", "compute_")
    with tempfile.TemporaryDirectory() as folder:
        code, binary = Path(folder, "kernels.cu"), Path(folder, "kernels.fatbin")
        code.write_text(source)
        options = ["--fatbin", "-O3", "-gencode", f"arch={virtual},code=[{arch},{virtual}]"]
        done = subprocess.run(
            ["nvcc", *options, "-o", str(binary), str(code)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr)
        return binary.read_bytes()


def load(image: bytes) -> tuple[str, ctypes.c_void_p]:
    """Return the name of the error, and the module."""
    module = ctypes.c_void_p()
    return driver_error(driver.cuModuleLoadData(ctypes.byref(module), image)), module


def launch(
    source: str, grid: Extent, block: Extent, *arrays: np.ndarray | int, shared: int = 0
) -> tuple[str, list[np.ndarray]]:
    """Run the kernel ``f`` of a source.

    Parameters
    ----------
    source : str
    grid, block : int or tuple of int
    *arrays : array or int
        The kernel's parameters: arrays are copied to the device, an int is an address.
    shared : int
        Bytes of dynamic shared memory.

    Returns
    -------
    error : str
        The name of the error of the launch.
    results : list of array
        What the arrays hold on the device afterwards.
    """
    error, module = load(compiled(source))
    assert error == "CUDA_SUCCESS", error
    function = ctypes.c_void_p()
    driver.cuModuleGetFunction(ctypes.byref(function), module, b"f")
    addresses = [a if isinstance(a, int) else _on_device(a) for a in arrays]
    values = [ctypes.c_void_p(address) for address in addresses]
    parameters = (ctypes.c_void_p * len(values))(
        *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
    )
    config = _Config(*_padded(grid), *_padded(block), shared, None, None, 0)
    code = driver.cuLaunchKernelEx(ctypes.byref(config), function, parameters, None)
    results = []
    for array, address in zip(arrays, addresses, strict=True):
        if not isinstance(array, int):
            result = np.empty_like(array)
            copy(result.ctypes.data, address, result.nbytes, TO_HOST)
            results.append(result)
    return driver_error(code), results


def _on_device(array: np.ndarray) -> int:
    error, address = allocate(array.nbytes)
    assert error == "cudaSuccess", error
    copy(address, array.ctypes.data, array.nbytes, TO_DEVICE)
    return address


def _padded(extent: Extent) -> tuple[int, ...]:
    given = (extent,) if isinstance(extent, int) else extent
    return (*given, 1, 1, 1)[:3]
