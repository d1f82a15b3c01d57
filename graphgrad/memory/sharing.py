"""Whether arrays share memory, at run time. See ``docs/aliasing.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..errors import InputError

_MAX_COMPARISON_STEPS = 10_000
"""Steps after which the exact comparison of two strided arrays gives up (`numpy.shares_memory`)."""


def shares_memory(a: Any, b: Any) -> bool:
    """Whether some byte belongs to both of two arrays.

    Parameters
    ----------
    a, b : array, or a list, tuple or dict of arrays
        Arrays of numpy, torch or TVM, of any strides, on any device. An object with ``__dlpack__``
        on the CPU counts too. Of containers, any array of one with any of the other.

    Returns
    -------
    bool
        Exact; only where strides make that too long to find out (it is a bounded integer linear
        program) true if the ranges from first to last byte overlap. Arrays on different devices
        share nothing.

    Raises
    ------
    InputError
        One of them is no array.

    Examples
    --------
    >>> x = np.arange(6)
    >>> gg.shares_memory(x[::2], x[1::2]), gg.shares_memory(x[::2], x[2:])
    (False, True)
    """
    spans_of_b = list(_spans(b))
    return any(
        device == other_device and _overlap(span, other_span)
        for device, span in _spans(a)
        for other_device, other_span in spans_of_b
    )


def _spans(value: Any) -> Iterator[tuple[tuple[str, int], np.ndarray]]:
    """Yield the device and the memory of each array of a value.

    The memory is in the form of a numpy array, which must not be read: it may be on a GPU.
    """
    if isinstance(value, Mapping):
        yield from (span for item in value.values() for span in _spans(item))
    elif isinstance(value, list | tuple):
        yield from (span for item in value for span in _spans(item))
    else:
        yield _span(value)


def _span(value: Any) -> tuple[tuple[str, int], np.ndarray]:
    """The device and the memory of one array, as `_spans` yields them."""
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray | np.generic):
        return ("cpu", 0), np.asarray(value)
    if isinstance(value, tvm.runtime.Tensor):
        size = np.dtype(str(value.dtype)).itemsize
        device = (str(value.device.type), value.device.index)
        return device, _Memory.of(value.data_ptr(), value.shape, value.strides, size)
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_meta or value.layout != torch.strided:
            raise no_array(value)
        device = (value.device.type, value.device.index or 0)
        return device, _Memory.of(
            value.data_ptr(), value.shape, value.stride(), value.element_size()
        )
    if hasattr(value, "__dlpack__"):
        try:
            return ("cpu", 0), np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            raise no_array(value) from error
    raise no_array(value)


class _Memory:
    """Memory of any device in the form of numpy, which compares addresses and reads nothing."""

    def __init__(self, interface: dict[str, Any]):
        self.__array_interface__ = interface

    @staticmethod
    def of(
        address: int, shape: Sequence[int], strides: Sequence[int] | None, size: int
    ) -> np.ndarray:
        """A numpy array over some memory.

        Parameters
        ----------
        address : int
        shape : sequence of int
        strides : sequence of int, optional
            In elements; None if the elements lie in row-major order without gaps.
        size : int
            Bytes of one element.
        """
        interface = {
            "version": 3,
            "shape": tuple(map(int, shape)),
            "typestr": f"|V{size}",
            "data": (int(address), True),  # read-only
            "strides": tuple(int(s) * size for s in strides) if strides else None,
        }
        return np.asarray(_Memory(interface))


def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays share a byte; of strides too hard to decide, whether their ranges do."""
    try:
        return np.shares_memory(a, b, max_work=_MAX_COMPARISON_STEPS)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return np.may_share_memory(a, b)


def no_array(value: Any) -> InputError:
    """The error of a value that is no array."""
    expression = ", or a Relax tensor for a copy" if isinstance(value, relax.Expr) else ""
    return InputError(
        f"a value of type {type(value).__name__} is no array whose memory is known; give a numpy "
        f"array, a torch tensor or a TVM tensor{expression}"
    )
