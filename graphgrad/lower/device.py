"""The device that a target's code runs on: whether it exists, and errors for its failures."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import tvm

from ..errors import DeviceError, GraphGradError, OutOfMemoryError
from ..runtime import cudart
from ..runtime.machine import cuda_reason, restated
from ..runtime.tiles import request_tiles
from .cpu.features import missing_features, uses_tiles
from .cuda.architecture import architecture_of, runs_on
from .cuda.compiler import gives_ptx

_LIBRARIES = {
    "libcuda.so.1": "it comes with the NVIDIA driver",
    cudart.NAME: "it comes with CUDA 13, or with `pip install nvidia-cuda-runtime`, and must "
    "be where the loader looks, such as in LD_LIBRARY_PATH",
}
"""The libraries that TVM's CUDA runtime is linked to, and where to get each."""


def device_of(target: tvm.target.Target) -> tvm.runtime.Device:
    """The first device of a target's kind.

    Raises
    ------
    DeviceError
        The machine has no such device, lacks what is needed to use it, or has one of an
        architecture that the target's code does not run on; or the processor lacks what the
        code may use.
    """
    kind = str(target.kind.name)
    if kind == "cuda":
        return _cuda_device(str(target.attrs["arch"]))
    missing = missing_features(target) if kind == "llvm" else []
    if missing:
        raise DeviceError(
            f"the code is for a processor with {', '.join(missing)}, which this one lacks; leave "
            "mcpu and mattr out of the target to get this machine's"
        )
    request_registers(target)
    device = tvm.device_from_target(target)
    if not device.exist:
        raise DeviceError(
            f"this machine has no {kind} device to run on; choose another target, such as 'llvm'"
        )
    return device


def request_registers(target: tvm.target.Target) -> None:
    """Ask the system for registers that a target's code uses, if this machine has them.

    Raises
    ------
    DeviceError
        It does not give them.
    """
    if str(target.kind.name) != "llvm" or not uses_tiles(target) or missing_features(target):
        return
    refusal = request_tiles()
    if refusal:
        raise DeviceError(
            f"the code uses tile registers (AMX): {refusal}; leave +amx-bf16 out of the target"
        )


def cuda_absence() -> str:
    """Why this machine cannot run CUDA programs, in words; empty if it can."""
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        return _missing_library() or "this build of TVM has no CUDA runtime"
    if tvm.cuda().exist:
        return ""
    try:
        tvm.get_global_func("runtime.GetCudaDeviceCount")()
        reason = "it counts none"
    except RuntimeError as error:
        reason = cuda_reason(error)
    return (
        f"the NVIDIA driver shows no device ({reason}); see what nvidia-smi lists, and whether "
        "CUDA_VISIBLE_DEVICES hides it"
    )


def cuda_architecture() -> str:
    """The architecture of this machine's CUDA device, such as ``"sm_90"``."""
    return architecture_of(tvm.cuda().compute_version)


@contextmanager
def reported(
    device: tvm.runtime.Device, task: str, needs: int = 0, remedy: str = "use a smaller batch"
) -> Iterator[None]:
    """Turn errors of a CUDA device or its driver, in the ``with`` block, into errors of ours.

    Parameters
    ----------
    device : Device
    task : str
        The task in the block, as errors name it: "a training step".
    needs : int
        Bytes that it takes on the device beyond what is allocated; zero if that is not known.
    remedy : str
        Advice for the case that memory is short.

    Raises
    ------
    OutOfMemoryError
        The device has too little memory.
    DeviceError
        Something that ran on it failed, perhaps earlier.
    """

    def failed(cause: str) -> Exception:
        return DeviceError(
            f"{device.type}:{device.index} failed at {task}, or before: {cause}. What it holds may "
            "be lost: start a new process, from the last checkpoint"
        )

    with restated(
        GraphGradError,
        lambda: OutOfMemoryError(_out_of_memory(device, task, needs, remedy)),
        failed,
    ):
        yield


def describe(device: tvm.runtime.Device) -> str:
    """A device in words, such as ``cuda:0 (NVIDIA H100)``."""
    return f"{device.type}:{device.index} ({device.device_name})"


def _cuda_device(arch: str) -> tvm.runtime.Device:
    """The first CUDA device, if code for an architecture runs on it; else an error."""
    absence = cuda_absence()
    if absence:
        raise DeviceError(f"cannot run code for the GPU {arch} here: {absence}")
    device = tvm.cuda()
    if not runs_on(arch, device.compute_version, gives_ptx(arch)):
        gpu = architecture_of(device.compute_version)
        raise DeviceError(
            f"the code is for the GPU {arch}, but {describe(device)} is a {gpu}, which cannot run "
            f"it; choose the target {{'kind': 'cuda', 'arch': {gpu!r}}}"
        )
    return device


def _missing_library() -> str:
    """Which library of TVM's CUDA runtime does not load, in words; empty if all do."""
    for name, remedy in _LIBRARIES.items():
        try:
            ctypes.CDLL(name)
        except OSError as error:
            return f"cannot load {error}; {remedy}"
    return ""


def _out_of_memory(device: tvm.runtime.Device, task: str, needs: int, remedy: str) -> str:
    free, total = device.available_global_memory, device.total_global_memory
    request = f"needs {size_text(needs)} more" if needs else "asked for more"
    return (
        f"out of memory: {task} {request} on {describe(device)}, of whose {size_text(total)} "
        f"{size_text(free)} are free. Nothing has changed; {remedy}, or free what else is on the "
        "device"
    )


def size_text(count: int) -> str:
    """A number of bytes in words, exact where it matters."""
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 else f"{count:,} bytes"
