"""The function by which compiled programs have cuDNN compute, on the device where tensors are.

A program calls `NAME` with the inputs, the text of a `Plan`, the output, and the workspace. All is
queued on TVM's stream of the device; nothing waits.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi

from . import backend, plans
from .backend import Attribute, CudnnError, Descriptor, Kind, Type, check, library
from .plans import Plan
from .problem import TensorForm

NAME = "gg.lib.cudnn"

_LOCK = threading.Lock()
"""Held while a handle is used: cuDNN lets one thread use one at a time."""


@dataclass(frozen=True)
class _Device:
    """A GPU as cuDNN knows it."""

    handle: ctypes.c_void_p
    properties: Descriptor
    architecture: int


def register() -> None:
    """Make the function known to TVM, once for the process; another of that name stays."""
    if tvm_ffi.get_global_func(NAME, allow_missing=True) is None:
        tvm_ffi.register_global_func(NAME, compute)


def compute(*arguments: Any) -> None:
    """Compute a problem by its plan; see the module.

    Raises
    ------
    CudnnError
        cuDNN is missing, too old, or cannot compute it here; nothing has been written then.
    """
    *inputs, text, output, workspace = arguments
    with _LOCK:
        device = _device(output.device.index)
        made, executable = _loaded(str(text), output.device.index)
        tensors = [*inputs, output]
        _check_forms(made, tensors)
        if made.workspace > workspace.numel():
            raise CudnnError(
                f"{made.problem.op} wants {made.workspace} bytes of workspace, but the program was "
                f"compiled with {workspace.numel()}; compile it with this version of cuDNN"
            )
        pack = Descriptor(Kind.VARIANT_PACK)
        pack.set(Attribute.PACK_IDS, Type.INT64, range(1, len(tensors) + 1))
        pack.set(Attribute.PACK_POINTERS, Type.VOID_PTR, [each.data_ptr() for each in tensors])
        pack.set(Attribute.PACK_WORKSPACE, Type.VOID_PTR, [workspace.data_ptr()]).finish()
        stream = ctypes.c_void_p(tvm_ffi.get_raw_stream(output.device))
        check(library().cudnnSetStream(device.handle, stream), "use the stream")
        status = library().cudnnBackendExecute(
            device.handle, ctypes.c_void_p(executable.pointer), ctypes.c_void_p(pack.pointer)
        )
        check(status, f"compute {made.problem.op}")


@functools.cache
def _device(index: int) -> _Device:
    """A handle on a GPU, kept for the process."""
    handle = ctypes.c_void_p()
    # A handle belongs to the device that is current; TVM makes the one of its tensors current.
    check(library().cudnnCreate(ctypes.byref(handle)), f"use the CUDA device {index}")
    properties = Descriptor(Kind.DEVICE_PROPERTIES)
    properties.set(Attribute.DEVICE_HANDLE, Type.HANDLE, [handle.value]).finish()
    major, minor = tvm.runtime.device("cuda", index).compute_version.split(".")
    return _Device(handle, properties, 10 * int(major) + int(minor))


@functools.lru_cache(maxsize=4096)
def _loaded(text: str, index: int) -> tuple[Plan, Descriptor]:
    """A plan, and what cuDNN executes; made anew where it is of another version or device."""
    made, device = Plan.from_json(text), _device(index)
    if made.cudnn != backend.version() or made.architecture != device.architecture:
        # The workspace is allocated already, so no more than that may be asked for.
        made = plans.plan(made.problem, device.properties, device.architecture, made.workspace)
    return made, plans.load(made, device.properties)


def _check_forms(made: Plan, tensors: Sequence[Any]) -> None:
    """Raise unless as many tensors of such sizes are given as the plan is of."""
    forms = made.problem.tensors
    sizes = [each.numel() for each in tensors]
    if sizes != [_elements(form) for form in forms]:
        raise CudnnError(f"{made.problem.op} of {forms}, but tensors of {sizes} elements are given")


def _elements(form: TensorForm) -> int:
    """Elements of a tensor that is laid out without gaps."""
    span = zip(form.shape, form.strides, strict=True)
    return 1 + sum((extent - 1) * stride for extent, stride in span)
