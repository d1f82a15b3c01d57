"""The function by which compiled programs have cuDNN compute, on the device where tensors are.

A program calls `NAME` with the inputs, the text of a `Plan`, the outputs, and the workspace. All is
queued on TVM's stream of the device; nothing waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi

from ..cudart import set_device
from . import plans
from .backend import Attribute, CudnnError, Descriptor, Kind, Type, check, library
from .nodes import ALIGNMENT
from .plans import Plan
from .problem import Problem, TensorForm

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
    (text,) = (each for each in arguments if isinstance(each, str))
    *tensors, workspace = (each for each in arguments if not isinstance(each, str))
    with _LOCK:
        set_device(workspace.device.index)
        device = _device(workspace.device.index)
        loaded = _loaded(text, workspace.device.index, workspace.numel())
        problem = loaded.plan.problem
        tensors = given_tensors(problem, tensors)
        _check_forms(problem, tensors)
        pointers = dict(enumerate(map(_address, tensors, problem.tensors), 1))
        base = workspace.data_ptr()
        pointers |= {number: base + offset for number, offset in loaded.plan.scratches}
        pointers |= {number: ctypes.addressof(each) for number, each in loaded.constants.items()}
        pack = Descriptor(Kind.VARIANT_PACK)
        pack.set(Attribute.PACK_IDS, Type.INT64, list(pointers))
        pack.set(Attribute.PACK_POINTERS, Type.VOID_PTR, list(pointers.values()))
        pack.set(Attribute.PACK_WORKSPACE, Type.VOID_PTR, [base + loaded.plan.scratch_bytes])
        pack.finish()
        stream = ctypes.c_void_p(tvm_ffi.get_raw_stream(workspace.device))
        check(library().cudnnSetStream(device.handle, stream), "use the stream")
        status = library().cudnnBackendExecute(
            device.handle, ctypes.c_void_p(loaded.executable.pointer), ctypes.c_void_p(pack.pointer)
        )
        check(status, f"compute {problem.op}")


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


@dataclass(frozen=True)
class _Loaded:
    """A plan, what cuDNN executes, and the numbers that it is given, in memory that stays."""

    plan: Plan
    executable: Descriptor
    constants: dict[int, ctypes.c_float]


@functools.lru_cache(maxsize=4096)
def _loaded(text: str, index: int, workspace: int) -> _Loaded:
    """A plan, ready to be executed.

    It is made anew, within a workspace that is allocated already, where it is of another version,
    or cuDNN refuses it: it takes plans alone of devices that are alike to the number of the driver.
    """
    plan, device = Plan.from_json(text), _device(index)
    if plan.workspace <= workspace:
        with contextlib.suppress(CudnnError):
            return _with_constants(plan, plans.load(plan, device.properties))
    plan = plans.make_plan(plan.problem, device.properties, device.architecture, workspace)
    return _with_constants(plan, plans.load(plan, device.properties))


def _with_constants(plan: Plan, executable: Descriptor) -> _Loaded:
    constants = {number: ctypes.c_float(value) for number, value in plan.constants}
    return _Loaded(plan, executable, constants)


def given_tensors(problem: Problem, tensors: Sequence[Any]) -> list[Any]:
    """The tensor of each form of a problem, in their order, of those that a program gives."""
    count = len(problem.inputs)
    copies = len(problem.outputs) if problem.joined else 1
    return [*tensors[:count], *list(tensors[count:]) * copies]


def _address(tensor: Any, form: TensorForm) -> int:
    """Where the first element of a form is."""
    return int(tensor.data_ptr()) + form.offset_bytes


def _check_forms(problem: Problem, tensors: Sequence[Any]) -> None:
    """Raise unless the tensors are those of a problem: cuDNN sees their addresses alone."""
    op, forms = problem.op, problem.tensors
    sizes = [each.numel() for each in tensors]
    if sizes != [form.size for form in forms]:
        raise CudnnError(f"cuDNN: {op} of {forms}, but tensors of {sizes} elements are given")
    dtypes = [str(each.dtype) for each in tensors]
    if dtypes != [form.dtype for form in forms]:
        raise CudnnError(f"cuDNN: {op} of {forms}, but tensors of {dtypes} are given")
    for tensor, form in zip(tensors, forms, strict=True):
        if tensor.device != tensors[-1].device:
            raise CudnnError(f"cuDNN: {op} of tensors on {tensor.device} and {tensors[-1].device}")
        if not tensor.is_contiguous() or _address(tensor, form) % ALIGNMENT:
            raise CudnnError(
                f"cuDNN: {op} of a tensor that is strided, or begins at no multiple of {ALIGNMENT} "
                "bytes; pass a copy (graphgrad.copy)"
            )
