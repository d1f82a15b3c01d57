"""cuDNN's backend interface: descriptors that are made, given attributes, and finished.

The interface is that of NVIDIA's documentation of cuDNN 9, *Backend Descriptor Types*; the numbers
are those of its header ``cudnn_graph.h``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

LIBRARY = "libcudnn_graph.so.9"
"""The part of cuDNN that plans and executes; it loads the others where they are needed."""

_DISTRIBUTION = "nvidia-cudnn-cu13"
"""The package that `pip` brings the library in."""

OLDEST = 90800
"""The oldest version that plans for a device that is not there: 9.8."""

_MESSAGE_BYTES = 1024


class CudnnError(RuntimeError):
    """cuDNN is missing or too old, or refuses something; says what."""


class Kind(IntEnum):
    """Descriptors."""

    POINTWISE = 0
    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    ENGINE_HEURISTIC = 4
    EXECUTION_PLAN = 5
    CONVOLUTION_FORWARD = 10
    CONVOLUTION_WEIGHT_GRADIENT = 11
    CONVOLUTION_DATA_GRADIENT = 12
    POINTWISE_OPERATION = 13
    OPERATION_GRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17
    MATMUL = 18
    MATMUL_OPERATION = 19
    REDUCTION = 21
    REDUCTION_OPERATION = 22
    RESHAPE_OPERATION = 31
    DEVICE_PROPERTIES = 38


class Type(IntEnum):
    """Types of attributes."""

    HANDLE = 0
    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    VOID_PTR = 6
    CONVOLUTION_MODE = 7
    HEURISTIC_MODE = 8
    NUMERICAL_NOTE = 11
    POINTWISE_MODE = 14
    DESCRIPTOR = 15
    REDUCTION_OPERATOR = 18
    INT32 = 23
    CHAR = 24


class Attribute(IntEnum):
    """Attributes of descriptors."""

    POINTWISE_MODE = 0
    POINTWISE_COMPUTE_TYPE = 1
    POINTWISE_AXIS = 9
    CONVOLUTION_COMPUTE_TYPE = 100
    CONVOLUTION_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_SPATIAL_DIMS = 106
    HEURISTIC_MODE = 200
    HEURISTIC_GRAPH = 201
    HEURISTIC_RESULTS = 202
    HEURISTIC_DEVICE = 204
    CONFIG_ENGINE = 300
    PLAN_CONFIG = 401
    PLAN_WORKSPACE = 402
    PLAN_JSON = 405
    PLAN_DEVICE = 407
    FORWARD_ALPHA = 700
    DATA_GRADIENT_ALPHA = 706
    WEIGHT_GRADIENT_ALPHA = 712
    POINTWISE_DESCRIPTOR = 750
    POINTWISE_X = 751
    POINTWISE_B = 752
    POINTWISE_Y = 753
    POINTWISE_T = 758
    GRAPH_OPERATIONS = 801
    TENSOR_ALIGNMENT = 900
    TENSOR_DATA_TYPE = 901
    TENSOR_DIMENSIONS = 902
    TENSOR_STRIDES = 903
    TENSOR_ID = 906
    TENSOR_IS_VIRTUAL = 907
    TENSOR_IS_BY_VALUE = 908
    PACK_IDS = 1000
    PACK_POINTERS = 1001
    PACK_WORKSPACE = 1003
    ENGINE_INDEX = 1301
    ENGINE_NUMERICAL_NOTES = 1303
    MATMUL_COMPUTE_TYPE = 1500
    MATMUL_A = 1520
    MATMUL_B = 1521
    MATMUL_C = 1522
    MATMUL_DESCRIPTOR = 1523
    REDUCTION_OPERATOR = 1600
    REDUCTION_COMPUTE_TYPE = 1601
    REDUCTION_X = 1610
    REDUCTION_Y = 1611
    REDUCTION_DESCRIPTOR = 1612
    RESHAPE_X = 2200
    RESHAPE_Y = 2201
    DEVICE_HANDLE = 2701
    DEVICE_JSON = 2702


class Note(IntEnum):
    """What an engine does to numbers."""

    TENSOR_CORE = 0
    DOWN_CONVERT_INPUTS = 1
    REDUCED_PRECISION_REDUCTION = 2
    FFT = 3
    NONDETERMINISTIC = 4
    WINOGRAD = 5
    WINOGRAD_TILE_4X4 = 6
    WINOGRAD_TILE_6X6 = 7
    WINOGRAD_TILE_13X13 = 8
    STRICT_NAN_PROPAGATION = 9


HEURISTIC_A, HEURISTIC_FALLBACK = 3, 2
"""How engines are proposed: by a decision tree; and those that serve whatever is asked."""

CROSS_CORRELATION = 1

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "int32": 4, "bfloat16": 9, "bool": 11}

_HELD = {
    Type.HANDLE: ctypes.c_void_p,
    Type.BOOLEAN: ctypes.c_bool,
    Type.INT64: ctypes.c_int64,
    Type.FLOAT: ctypes.c_float,
    Type.VOID_PTR: ctypes.c_void_p,
    Type.DESCRIPTOR: ctypes.c_void_p,
    Type.CHAR: ctypes.c_char,
}
"""How a value of an attribute is held; those that are left out, as a C integer."""


def library_path() -> str | None:
    """Where cuDNN is: in its Python package, or None, where the loader may know of it."""
    # Not by importing: any module of the name `nvidia` would hide it.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        installed = importlib.metadata.distribution(_DISTRIBUTION)
        path = Path(str(installed.locate_file(f"nvidia/cudnn/lib/{LIBRARY}")))
        if path.exists():
            return str(path)
    return None


@functools.cache
def library() -> Any:
    """The library, loaded.

    Raises
    ------
    CudnnError
        It is not there, or older than 9.8.
    """
    try:
        # Global, since its other libraries look for what this one defines.
        loaded = ctypes.CDLL(library_path() or LIBRARY, mode=ctypes.RTLD_GLOBAL)
        loaded.cudnnGetVersion.restype = ctypes.c_size_t
        loaded.cudnnGetErrorString.restype = ctypes.c_char_p
        which: list[Any] = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
        loaded.cudnnBackendSetAttribute.argtypes = [*which, ctypes.c_void_p]
        loaded.cudnnBackendGetAttribute.argtypes = [*which, ctypes.c_void_p, ctypes.c_void_p]
    except (OSError, AttributeError) as error:  # missing, damaged, or something else
        raise CudnnError(
            f"cuDNN does not load: {error}; pip install 'graphgrad[cuda-libs]'"
        ) from error
    if (number := loaded.cudnnGetVersion()) < OLDEST:
        raise CudnnError(f"cuDNN {number} is too old; graphgrad needs {OLDEST} (9.8) or newer")
    return loaded


def version() -> int:
    """The version of cuDNN, such as 92801 for 9.28.1."""
    return int(library().cudnnGetVersion())


def check(status: int, action: str) -> None:
    """Raise `CudnnError` unless a status says that all went well."""
    if status:
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        library().cudnnGetLastErrorString(message, ctypes.c_size_t(_MESSAGE_BYTES))
        name = library().cudnnGetErrorString(status).decode()
        detail = message.value.decode(errors="replace").strip()
        raise CudnnError(f"cuDNN cannot {action}: {name}{f' ({detail})' if detail else ''}")


class Descriptor:
    """A descriptor of cuDNN, destroyed with the object.

    Raises
    ------
    CudnnError
        From all methods, where cuDNN refuses.
    """

    def __init__(self, kind: Kind):
        self._kind = kind
        self._pointer = ctypes.c_void_p()
        # A finished descriptor refers to those that it was made of.
        self._parts: list[Any] = []
        check(
            library().cudnnBackendCreateDescriptor(int(kind), ctypes.byref(self._pointer)),
            f"make a {kind.name}",
        )

    def __del__(self) -> None:
        if self._pointer:
            library().cudnnBackendDestroyDescriptor(self._pointer)

    @property
    def pointer(self) -> int:
        """The address that cuDNN knows it by."""
        return int(self._pointer.value or 0)

    def set(self, attribute: int, type_: Type, values: Sequence[Any] | bytes) -> Descriptor:
        """Set an attribute, by its number; returns the descriptor itself."""
        if isinstance(values, bytes):
            array: Any = ctypes.create_string_buffer(values, len(values))
        else:
            plain = [each.pointer if isinstance(each, Descriptor) else each for each in values]
            held: Any = _HELD.get(type_, ctypes.c_int)
            array = (held * len(plain))(*plain)
            self._parts.extend(each for each in values if isinstance(each, Descriptor))
        status = library().cudnnBackendSetAttribute(
            self._pointer, int(attribute), int(type_), len(values), array
        )
        check(status, f"set attribute {int(attribute)} of a {self._kind.name}")
        return self

    def finish(self) -> Descriptor:
        """Finish the descriptor, which checks it; returns itself."""
        status = library().cudnnBackendFinalize(self._pointer)
        check(status, f"serve a {self._kind.name}")
        return self

    def count(self, attribute: Attribute, type_: Type) -> int:
        """How many values an attribute has."""
        return self._read(attribute, type_, 0, None)

    def values(self, attribute: Attribute, type_: Type) -> list[Any]:
        """The values of an attribute; characters come as their numbers."""
        count = self.count(attribute, type_)
        held = ctypes.c_ubyte if type_ is Type.CHAR else _HELD.get(type_, ctypes.c_int)
        array = (held * count)()
        return list(array[: self._read(attribute, type_, count, array)])

    def fill(self, attribute: Attribute, parts: Sequence[Descriptor]) -> int:
        """Fill descriptors with those of an attribute; returns how many are filled."""
        array = (ctypes.c_void_p * len(parts))(*(part.pointer for part in parts))
        return self._read(attribute, Type.DESCRIPTOR, len(parts), array)

    def _read(self, attribute: Attribute, type_: Type, count: int, array: Any) -> int:
        read = ctypes.c_int64()
        status = library().cudnnBackendGetAttribute(
            self._pointer, int(attribute), int(type_), count, ctypes.byref(read), array
        )
        check(status, f"tell {attribute.name} of a {self._kind.name}")
        return int(read.value)
