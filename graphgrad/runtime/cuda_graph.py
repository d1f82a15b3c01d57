"""A function of a GPU whose work is recorded once, and then queued as a whole: one launch a call.

A call of a compiled function queues hundreds of kernels, each of which takes the host longer than
short ones take the GPU. CUDA records what is queued on a stream as a *graph* (CUDA's programming
guide, *CUDA Graphs*), in which the addresses of that call are fixed.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi

_LIBRARY = "libcudart.so.13"

_THREAD_LOCAL = 1
"""The mode of a capture in which other threads may do as they like meanwhile."""

Tensors = Sequence[tvm.runtime.Tensor]


class GraphError(Exception):
    """A function cannot be recorded; nothing of it has been computed."""


class Recorded:
    """A function of device tensors that is recorded at its second call with the same tensors.

    The first call loads its kernels. Later ones copy those arguments that have ever moved to where
    they were when the function was recorded, launch the graph, and copy the results to memory of
    their own. Where another argument has moved, the function is recorded anew; where one that it
    overwrites, or the scratch memory has, at the call after.

    Parameters
    ----------
    function : callable
        Queues work on TVM's current stream alone, and allocates nothing. It takes tensors on the
        device and returns a sequence of such, in its scratch memory.
    device : Device
    overwritten : collection of int
        The positions of arguments that it overwrites.

    Attributes
    ----------
    refusal : str or None
        Why the function cannot be recorded; None if it can, as far as that is known.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        device: tvm.runtime.Device,
        overwritten: Collection[int],
    ):
        self._function = function
        self._device = device
        self._overwritten = frozenset(overwritten)
        self._moving: set[int] = set()
        """The positions of arguments that have been elsewhere at another call."""
        self._scratch: Tensors | None = None
        self._addresses: list[int] = []
        """Where the arguments of the call before were."""
        self._graph: _Graph | None = None
        self.refusal: str | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether calls are launches of a graph."""
        return self._graph is not None

    def __call__(self, scratch: Tensors, *arguments: tvm.runtime.Tensor) -> Any:
        """The results of the function.

        Parameters
        ----------
        scratch : sequence of tensors
            Further arguments, without values before or after the call: the same list as long as
            they are in the same place.
        *arguments : tensors
        """
        if self.refusal is not None:
            return self._plain(scratch, arguments)
        if self._graph is not None and scratch is self._scratch and self._graph.serves(arguments):
            return self._graph.launch(arguments)
        self._graph = None
        if not self._stay(scratch, arguments):
            return self._plain(scratch, arguments)
        try:
            self._graph = _Graph(
                lambda *given: self._function(*given, *scratch),
                self._device,
                arguments,
                self._moving,
            )
        except GraphError as error:
            self.refusal = str(error)
            return self._plain(scratch, arguments)
        return self._graph.launch(arguments)

    def _plain(self, scratch: Tensors, arguments: Tensors) -> list[tvm.runtime.Tensor]:
        """The results of the function, computed as it is."""
        results = self._function(*arguments, *scratch)
        return [_copy(result, self._device) for result in results]

    def _stay(self, scratch: Tensors, arguments: Tensors) -> bool:
        """Whether the scratch and what is overwritten are where they were at the call before.

        Takes in where all are now, and which others have moved.
        """
        before, self._addresses = self._addresses, [each.data_ptr() for each in arguments]
        moved = {i for i, (a, b) in enumerate(zip(before, self._addresses, strict=False)) if a != b}
        self._moving |= moved - self._overwritten
        is_same, self._scratch = scratch is self._scratch, scratch
        return is_same and not moved & self._overwritten


class _Graph:
    """The recorded work of a call.

    Parameters
    ----------
    function, device
        As of `Recorded`.
    arguments : sequence of tensors
    moving : collection of int
        The positions of arguments that are elsewhere at other calls.

    Raises
    ------
    GraphError
    """

    def __init__(
        self,
        function: Callable[..., Any],
        device: tvm.runtime.Device,
        arguments: Tensors,
        moving: Collection[int],
    ):
        self._device = device
        self._arguments = list(arguments)
        for position in moving:
            given = arguments[position]
            self._arguments[position] = tvm.runtime.empty(given.shape, given.dtype, device)
        self._moving = sorted(moving)
        self._fixed = {
            position: argument.data_ptr()
            for position, argument in enumerate(self._arguments)
            if position not in moving
        }
        with _stream() as stream:
            self._results, self._executable = _recorded(
                lambda: function(*self._arguments), device, stream
            )

    def __del__(self) -> None:
        if hasattr(self, "_executable"):
            _library().cudaGraphExecDestroy(self._executable)

    def serves(self, arguments: Tensors) -> bool:
        """Whether the arguments that the graph reads where they are, are there."""
        return all(arguments[i].data_ptr() == address for i, address in self._fixed.items())

    def launch(self, arguments: Tensors) -> list[tvm.runtime.Tensor]:
        """Queue the work on the current stream; return its results in memory of their own."""
        for position in self._moving:
            arguments[position].copyto(self._arguments[position])
        stream = ctypes.c_void_p(tvm_ffi.get_raw_stream(self._device))
        _check(_library().cudaGraphLaunch(self._executable, stream), "launch a graph")
        return [_copy(result, self._device) for result in self._results]


def _recorded(
    work: Callable[[], Any], device: tvm.runtime.Device, stream: ctypes.c_void_p
) -> tuple[list[tvm.runtime.Tensor], ctypes.c_void_p]:
    """What is queued by a call, not computed, as an executable graph; with the call's results."""
    library = _library()
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    _check(library.cudaStreamBeginCapture(stream, _THREAD_LOCAL), "record a stream")
    failure: RuntimeError | None = None
    try:
        with tvm_ffi.use_raw_stream(device, stream.value):
            results = list(work())
    except RuntimeError as error:
        failure = error
    finally:
        status = library.cudaStreamEndCapture(stream, ctypes.byref(graph))
        library.cudaGetLastError()  # a capture that was spoilt is no fault of what follows
    if failure is not None:
        raise GraphError(str(failure)) from failure
    _check(status, "record the function")
    try:
        made = library.cudaGraphInstantiate(ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        _check(made, "make a graph")
    finally:
        library.cudaGraphDestroy(graph)
    return results, executable


def _copy(tensor: tvm.runtime.Tensor, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    return tensor.copyto(tvm.runtime.empty(tensor.shape, tensor.dtype, device))


@contextlib.contextmanager
def _stream() -> Iterator[ctypes.c_void_p]:
    """A stream for a capture: the default one cannot be recorded."""
    stream = ctypes.c_void_p()
    _check(_library().cudaStreamCreate(ctypes.byref(stream)), "make a stream")
    try:
        yield stream
    finally:
        _library().cudaStreamDestroy(stream)


def _library() -> Any:
    """CUDA's runtime, which TVM's has loaded."""
    library = ctypes.CDLL(_LIBRARY)
    library.cudaGetErrorName.restype = ctypes.c_char_p
    return library


def _check(status: int, action: str) -> None:
    if status:
        name = _library().cudaGetErrorName(status).decode()
        raise GraphError(f"CUDA cannot {action}: {name}")
