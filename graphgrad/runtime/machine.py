"""Checks that this machine can run an export, and the loading of the parts of TVM that it needs."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from . import cudart
from .errors import ExportedStepError, InputError, MachineError, OutOfMemoryError
from .tiles import request_tiles

OUT_OF_MEMORY = "cudaErrorMemoryAllocation"
"""The error of an allocation, all of which come before a step computes.

A launch that lacks memory has another error: kernels before it may have changed something.
"""

TILES = "amx_bf16"
"""Linux's name of the feature of tile registers that kernels may use."""

_NAMES = re.compile("CUDA|cuDNN")
"""Whose error it is: one of these is in its text."""


def check_machine(manifest: Mapping[str, Any]) -> None:
    """Raise `MachineError` where loading or running would fail, or crash without a message."""
    if tvm.__version__ != manifest["tvm"]:
        raise MachineError(
            f"exported for TVM {manifest['tvm']}, but this is {tvm.__version__}; install the other"
        )
    host = manifest["host"]
    this_system = f"{platform.system()} on {platform.machine()}"
    system_of_export = f"{host['system']} on {host['machine']}"
    if this_system != system_of_export:
        raise MachineError(
            f"exported for {system_of_export}, but this is {this_system}; export again for it"
        )
    flags = processor_flags()
    missing = sorted(set(host["flags"]) - flags)
    if flags and missing:  # no flags: the system does not tell, so nothing is refused
        raise MachineError(
            f"exported for the processor {host['processor']}, but this one lacks "
            f"{', '.join(missing)}; export again on it, or for a target with its mcpu and mattr"
        )
    refusal = request_tiles() if TILES in host["flags"] else ""
    if refusal:
        raise MachineError(
            f"the export uses tile registers (AMX): {refusal}; export again for a target without "
            "+amx-bf16"
        )


def processor_flags() -> frozenset[str]:
    """What the processor can do, in Linux's names; empty where the system does not say.

    A virtual machine may hide features of the processor that its model would have.
    """
    try:
        table = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    return frozenset(" ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", table, re.M)).split())


def open_device(
    manifest: Mapping[str, Any], device: tvm.runtime.Device | None
) -> tvm.runtime.Device:
    """Load the parts of TVM's runtime that an export needs; return the device to run on.

    Raises
    ------
    MachineError
        There is no such device or no driver for it, or the GPU cannot run the export's code.
    InputError
        `device` is no device of TVM.
    """
    if device is not None and not isinstance(device, tvm.runtime.Device):
        raise InputError(f"device={device!r}: give a device of TVM, such as tvm.cpu()")
    _load_runtime("tvm_runtime_extra")
    target = manifest["target"]
    is_cuda = target["kind"] == "cuda"
    if is_cuda:
        _load_cuda()
    default_device = tvm.device("cuda" if is_cuda else "cpu")
    chosen_device = default_device if device is None else device
    if chosen_device.dlpack_device_type() != default_device.dlpack_device_type():
        raise MachineError(f"the export is for {target['kind']}, not for {chosen_device}")
    if not chosen_device.exist:
        raise MachineError(
            f"this machine has no device {chosen_device}; nvidia-smi lists what it has"
        )
    if is_cuda:
        # An export that does not say was made where nvcc was taken for granted.
        ptx = manifest.get("ptx", not target["arch"][-1].isalpha())
        _check_arch(target["arch"], ptx, str(chosen_device.compute_version))
    return chosen_device


@contextlib.contextmanager
def device_errors(device: tvm.runtime.Device, task: str) -> Iterator[None]:
    """While inside, what a CUDA device or its driver raises becomes an error of ours.

    A step takes all of its memory before it computes, so where that fails nothing has changed.

    Raises
    ------
    OutOfMemoryError
        The device has too little memory.
    MachineError
        Something that ran on it failed, perhaps earlier.
    """

    def lacks_memory() -> Exception:
        return OutOfMemoryError(
            f"{task} needs more memory than {device} has free, {device.available_global_memory} of "
            f"{device.total_global_memory} bytes; nothing has changed"
        )

    def failed(cause: str) -> Exception:
        return MachineError(
            f"{device} failed at {task}, or before: {cause}. What it holds may be lost: start a "
            "new process, from the last file that was saved"
        )

    with restated(ExportedStepError, lacks_memory, failed):
        yield


@contextlib.contextmanager
def restated(
    ours: type[Exception],
    lacks_memory: Callable[[], Exception],
    failed: Callable[[str], Exception],
) -> Iterator[None]:
    """While inside, what a CUDA device, its driver or cuDNN raises becomes one of two errors.

    Parameters
    ----------
    ours : exception class
        Errors that say what is wrong already.
    lacks_memory : callable
        The error of an allocation that failed; called when the pool has been released, whose memory
        would count as taken.
    failed : callable
        The error of any other failure, from the driver's message.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, ours) or not _NAMES.search(str(error)):
            raise
        if OUT_OF_MEMORY in str(error):
            release_pool()
            raise lacks_memory() from error
        raise failed(cuda_reason(error)) from error


def cuda_reason(error: BaseException) -> str:
    """The driver's message in an error, which for a failed launch holds the kernel's source too."""
    lines = str(error).splitlines()
    return next((line.strip() for line in lines if _NAMES.search(line)), str(error))


def release_pool() -> None:
    """Give back the memory that TVM's pool keeps for later, which the driver counts as in use."""
    tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")()


def _check_arch(arch: str, ptx: bool, capability: str) -> None:
    """Raise unless a GPU can run an architecture's code: its own, or an older one's by its PTX."""
    gpu_capability = tuple(map(int, capability.split(".")))
    digits = re.sub(r"\D", "", arch)
    code_capability = int(digits[:-1]), int(digits[-1])
    # With PTX the driver compiles for any newer GPU. Machine code alone runs on GPUs of its major
    # version, and that of an architecture such as sm_90a on those of its minor version only.
    exact_parts = 2 if arch.endswith("a") else 0 if ptx else 1
    if (
        gpu_capability < code_capability
        or gpu_capability[:exact_parts] != code_capability[:exact_parts]
    ):
        raise MachineError(
            f"exported for {arch}, but this GPU has compute capability {capability}; export again "
            f'with arch "sm_{capability.replace(".", "")}"'
        )


def _load_cuda() -> None:
    """Load TVM's CUDA runtime, after the library of CUDA that it is linked to."""
    try:
        cudart.library()
    except OSError:
        _load_packaged_cudart()
    _load_runtime("tvm_runtime_cuda")


def _load_packaged_cudart() -> None:
    """Load the CUDA runtime of a Python package, such as PyTorch's, which no search path names."""
    for folder in sys.path:
        for library in glob.glob(f"{glob.escape(folder)}/nvidia/*/lib/{cudart.NAME}"):
            with contextlib.suppress(OSError):
                ctypes.CDLL(library, ctypes.RTLD_GLOBAL)


def _load_runtime(name: str) -> None:
    """Load a part of TVM's runtime; TVM does so by itself only along with its compiler."""
    try:
        tvm_ffi.libinfo.load_lib_ctypes(
            "tvm", name, "RTLD_LOCAL", extra_lib_paths=tvm.libinfo.package_lib_paths()
        )
    except (RuntimeError, OSError) as error:
        needs = "; it needs NVIDIA's driver and CUDA 13" if name.endswith("cuda") else ""
        raise MachineError(f"TVM's library {name} cannot be loaded: {error}{needs}") from error
