"""Conversion of arrays of any library to tensors of TVM's runtime, and memory for the copies."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from .errors import InputError
from .huge_pages import advise_huge_pages
from .machine import OUT_OF_MEMORY, release_pool

ALIGNMENT = 64
"""Bytes to which generated code expects every tensor to be aligned; it crashes where one is not."""

Arrays = dict[str, np.ndarray]

_EXTENSION_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


class _DLTensor(ctypes.Structure):
    """A tensor as DLPack lays it out in memory; its elements begin at ``data + byte_offset``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


_capsule_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def to_arrays(tensors: Mapping[str, tvm.runtime.Tensor]) -> Arrays:
    """Copy tensors to numpy arrays."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def to_array(label: str, value: Any) -> np.ndarray:
    """A value as an array of numbers in native byte order, which may share the value's memory.

    Floats of Python, alone or in lists, become float32.

    Raises
    ------
    InputError
        It is no array of numbers; `label` names it.
    """
    return numbers(label, _read(label, value))


def numbers(label: str, value: Any) -> np.ndarray:
    """As `to_array`, of an array of numpy, a tensor of TVM, or numbers of Python in lists."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(
            f"{label} is a masked array with {np.ma.count_masked(value)} masked values, and no "
            "kernel knows masks: fill it with .filled(value); of labels, with the ignore_index of "
            "the loss"
        )
    try:
        array = value.numpy() if isinstance(value, tvm.runtime.Tensor) else np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"{label} cannot be read as an array: {error}") from error
    if not is_number(array.dtype):
        raise InputError(
            f"{label} with dtype {array.dtype} is not an array of real numbers or booleans; give a "
            "numpy array, a torch tensor or a TVM tensor"
        )
    # Numpy makes float64 of Python's floats by default; an array or a tensor has it on purpose.
    chosen = isinstance(value, np.ndarray | np.generic | tvm.runtime.Tensor)
    if array.dtype == np.float64 and not chosen:
        return array.astype(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def is_number(dtype: np.dtype) -> bool:
    """Whether a dtype is one of booleans, integers or real numbers."""
    # The dtypes that numpy does not know by itself have the kind of raw memory, V.
    return dtype.kind in "biuf" or (dtype.kind == "V" and dtype.name in _EXTENSION_DTYPES)


def lend(label: str, value: Any, device: tvm.runtime.Device) -> tvm.runtime.Tensor | np.ndarray:
    """The value itself as a tensor, without a copy, if a kernel can read it; else a numpy array.

    A kernel can read what is on the device, and as `is_readable` says.

    What is lent never overlaps what a step overwrites: that memory is handed to nobody.

    Raises
    ------
    InputError
        It is no array of numbers.
    """
    tensor_or_value = _read(label, value)
    if (
        isinstance(tensor_or_value, tvm.runtime.Tensor)
        and tensor_or_value.device == device
        and is_readable(tensor_or_value)
    ):
        return tensor_or_value
    return numbers(label, tensor_or_value)


def is_readable(tensor: tvm.runtime.Tensor) -> bool:
    """Whether kernels can read a tensor's memory: contiguous, aligned, from its address on.

    Views that TVM makes may begin at an offset, which kernels do not add.
    """
    if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
        return False
    capsule = tensor.__dlpack__()  # its memory begins with a `_DLTensor`
    address = _capsule_address(capsule, b"dltensor")
    return _DLTensor.from_address(address).byte_offset == 0


def empty(shape: Sequence[int], dtype: str, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    """A tensor in new memory of a device; on the host in huge pages, if it is large.

    Raises
    ------
    RuntimeError
        The driver has no memory; see `device_errors`.
    """
    tensor = _allocate(shape, dtype, device)
    if device.type == "cpu":
        bits = math.prod(shape) * tvm_ffi.dtype(dtype).bits
        advise_huge_pages(tensor.data_ptr(), bits // 8)
    return tensor


def _allocate(shape: Sequence[int], dtype: str, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    try:
        return tvm.runtime.empty(shape, dtype, device)
    except RuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
    # The virtual machine keeps what its functions gave back, and makes room for its own needs only.
    release_pool()
    return tvm.runtime.empty(shape, dtype, device)


def copy(
    array: np.ndarray, device: tvm.runtime.Device, into: tvm.runtime.Tensor | None = None
) -> tvm.runtime.Tensor:
    """A tensor on a device, aligned: a new one, or `into`, which is overwritten.

    Waits for nothing that a GPU has still to do: its driver reads ordinary memory at once, and puts
    the copy behind the rest.
    """
    if into is None:
        into = empty(array.shape, str(array.dtype), device)
    if device.type == "cpu":
        # At once, also of an array of other strides: of zeros that are one element.
        memory_of(into)[...] = array
        return into
    return tvm.runtime.tensor(np.asarray(array, order="C")).copyto(into)


def memory_of(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor on the host as an array, which dies with the tensor.

    TVM's own ways to and from numpy take as long as a small kernel.
    """
    shape, dtype = tuple(tensor.shape), np.dtype(str(tensor.dtype))
    size = math.prod(shape) * dtype.itemsize
    return np.ndarray(shape, dtype, (ctypes.c_byte * size).from_address(tensor.data_ptr()))


Buffer = tuple[tvm.runtime.Tensor, "np.ndarray | None"]
"""A tensor, and its memory as a numpy array if that is on the host."""


class Staging:
    """Memory on a device that arrays are copied to, kept for the next ones.

    To take memory from a GPU's driver, and to give it back, costs more than most copies.
    """

    def __init__(self, device: tvm.runtime.Device):
        self._device = device
        self._held: dict[Any, Any] = {}

    def queue(self, label: str, array: np.ndarray) -> tvm.runtime.Tensor:
        """An array on the device; the next of its label, shape and dtype overwrites it."""
        tensor, memory = self._buffer(label, array)
        if memory is None:
            return copy(array, self._device, into=tensor)
        memory[...] = array
        return tensor

    def on_device(self, label: str, lent: tvm.runtime.Tensor | np.ndarray) -> tvm.runtime.Tensor:
        """What `lend` returned, on the device: where it is, or else a copy, as by `queue`."""
        return self.queue(label, lent) if isinstance(lent, np.ndarray) else lent

    def clear(self) -> None:
        """Give the memory back."""
        self._held.clear()

    def _buffer(self, label: str, array: np.ndarray) -> Buffer:
        """The memory for arrays of a label, shape and dtype, allocated when first asked for."""
        key = label, array.shape, array.dtype
        if key not in self._held:
            self._held[key] = self._allocated(array)
        return self._held[key]

    def _allocated(self, array: np.ndarray) -> Buffer:
        tensor = empty(array.shape, str(array.dtype), self._device)
        return tensor, memory_of(tensor) if self._device.type == "cpu" else None


def _read(label: str, value: Any) -> Any:
    """The tensor of another library as one of TVM's; anything else, or numpy's, as it is."""
    if isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__dlpack__"):
        return value
    try:
        if hasattr(value, "detach"):
            # DLPack does not say that a tensor is to be read with the opposite sign.
            value = _ready(value.detach().resolve_neg().contiguous())
        tensor = tvm.runtime.from_dlpack(value)
        _ = tensor.dtype  # raises for numbers that TVM does not know
        return tensor
    except (RuntimeError, BufferError, ValueError) as error:
        try:
            return np.from_dlpack(value)  # unlike TVM, takes any alignment
        except (RuntimeError, BufferError, TypeError):
            raise InputError(f"{label} cannot be read as an array: {error}") from error


def _ready(tensor: Any) -> Any:
    """A tensor of PyTorch, in order with what TVM does on a GPU: on the default stream.

    PyTorch may still be writing the tensor on another stream. And it would hand the memory out
    again as soon as the tensor, or the copy that made it contiguous, is gone here, though a step
    that nobody waits for has still to read it.
    """
    if getattr(tensor, "is_cuda", False):
        cuda = sys.modules["torch"].cuda
        stream = cuda.default_stream(tensor.device)
        stream.wait_stream(cuda.current_stream(tensor.device))
        tensor.record_stream(stream)
    return tensor
