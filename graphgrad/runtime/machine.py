"""Whether this machine can run an export, and the parts of TVM that it needs for that."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from .errors import ExportedStepError, InputError, MachineError, OutOfMemoryError

_OUT_OF_MEMORY = "cudaErrorMemoryAllocation"
"""Of an allocation, all of which come first; a launch that lacks memory may come after others."""


def check_machine(manifest: Mapping[str, Any]) -> None:
    """Raise `MachineError` where loading or running would fail, or end the process untold."""
    if tvm.__version__ != manifest["tvm"]:
        raise MachineError(
            f"exported for TVM {manifest['tvm']}, but this is {tvm.__version__}; install the other"
        )
    host = manifest["host"]
    given = f"{platform.system()} on {platform.machine()}"
    wanted = f"{host['system']} on {host['machine']}"
    if given != wanted:
        raise MachineError(f"exported for {wanted}, but this is {given}; export again for it")
    flags = processor_flags()
    missing = sorted(set(host["flags"]) - flags)
    if flags and missing:
        raise MachineError(
            f"exported for the processor {host['processor']}, but this one lacks "
            f"{', '.join(missing)}; export again on it, or for a target with its mcpu and mattr"
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
    first = tvm.device("cuda" if is_cuda else "cpu")
    chosen = first if device is None else device
    if chosen.dlpack_device_type() != first.dlpack_device_type():
        raise MachineError(f"the export is for {target['kind']}, not for {chosen}")
    if not chosen.exist:
        raise MachineError(f"this machine has no device {chosen}; nvidia-smi lists what it has")
    if is_cuda:
        # An export that does not say was made where nvcc was taken for granted.
        ptx = manifest.get("ptx", not target["arch"][-1].isalpha())
        _check_arch(target["arch"], ptx, str(chosen.compute_version))
    return chosen


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
    try:
        yield
    except ExportedStepError:
        raise
    except RuntimeError as error:
        if "CUDA" not in str(error):
            raise
        if _OUT_OF_MEMORY in str(error):
            release_pool()
            raise OutOfMemoryError(
                f"{task} needs more memory than {device} has free, "
                f"{device.available_global_memory} of {device.total_global_memory} bytes; nothing "
                "has changed"
            ) from error
        # A failed launch shows all its source besides.
        said = next(line.strip() for line in str(error).splitlines() if "CUDA" in line)
        raise MachineError(
            f"{device} failed at {task}, or before: {said}. What it holds may be lost: start a new "
            "process, from the last file that was saved"
        ) from error


def release_pool() -> None:
    """Give back what TVM's pool keeps for later: it counts as taken, though nobody uses it."""
    tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")()


def _check_arch(arch: str, ptx: bool, capability: str) -> None:
    """Raise unless a GPU can run an architecture's code: its own, or an older one's by its PTX."""
    given = tuple(map(int, capability.split(".")))
    digits = re.sub(r"\D", "", arch)
    wanted = int(digits[:-1]), int(digits[-1])
    # Without PTX code is for its major version; a letter "a" binds it to the minor one, too.
    bound = 2 if arch.endswith("a") else 0 if ptx else 1
    if given < wanted or given[:bound] != wanted[:bound]:
        raise MachineError(
            f"exported for {arch}, but this GPU has compute capability {capability}; export again "
            f'with arch "sm_{capability.replace(".", "")}"'
        )


def _load_cuda() -> None:
    try:
        ctypes.CDLL("libcudart.so.13")
    except OSError:
        _load_packaged_cudart()
    _load_runtime("tvm_runtime_cuda")


def _load_packaged_cudart() -> None:
    """Load the CUDA runtime of a Python package, such as PyTorch's, which no search path names."""
    for folder in sys.path:
        for library in glob.glob(f"{glob.escape(folder)}/nvidia/*/lib/libcudart.so.13"):
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
