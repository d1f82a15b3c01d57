"""A function of a GPU whose work is recorded once, and then queued as a whole: one launch a call.

A call of a compiled function queues hundreds of kernels, each of which takes the host longer than
short ones take the GPU. CUDA records what is queued on a stream as a *graph* (CUDA's programming
guide, *CUDA Graphs*), in which the addresses of that call are fixed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi

from .arrays import empty
from .cudart import library, set_device

_THREAD_LOCAL = 1
"""The mode of a capture in which other threads may do as they like meanwhile."""

_NON_BLOCKING = 1
"""The kind of stream that does not wait for the default one, which other threads may use."""

Tensors = Sequence[tvm.runtime.Tensor]
Form = tuple[Sequence[int], str]
"""The shape and dtype of a tensor."""


class GraphError(RuntimeError):
    """CUDA refuses to record or launch a graph."""


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
    results : sequence of Form
        Of what it returns.

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
        results: Sequence[Form],
    ):
        self._function = function
        self._device = device
        self._overwritten = frozenset(overwritten)
        self._forms = list(results)
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

    def forget(self) -> None:
        """Let go of the graph and of the scratch memory, which is about to be freed."""
        self._graph, self._scratch, self._addresses = None, None, []

    def __call__(
        self, scratch: Tensors, *arguments: tvm.runtime.Tensor, records: bool = True
    ) -> list[tvm.runtime.Tensor]:
        """The results of the function.

        Parameters
        ----------
        scratch : sequence of tensors
            Further arguments, without values before or after the call: the same list as long as
            they are in the same place.
        *arguments : tensors
        records : bool
            False computes this call as the function does it.

        Raises
        ------
        GraphError
            A graph is not launched; nothing has been computed.
        """
        # Before anything is queued that overwrites: where memory is short, nothing has changed.
        results = [empty(shape, dtype, self._device) for shape, dtype in self._forms]
        is_default_stream = not tvm_ffi.get_raw_stream(self._device)  # of copies, in any case
        if not records or self.refusal is not None or not is_default_stream:
            return self._plain(scratch, arguments, results)
        if self._graph is None or scratch is not self._scratch or not self._graph.serves(arguments):
            self._graph = None
            if not self._stay(scratch, arguments):
                self._scratch = None
                computed = self._plain(scratch, arguments, results)
                self._scratch = scratch  # not before: a call that fails has loaded nothing
                return computed
            try:
                self._graph = _Graph(
                    lambda *copies: self._function(*copies, *scratch),
                    self._device,
                    arguments,
                    self._moving,
                )
            except GraphError as error:
                self.refusal = str(error)
                warnings.warn(f"a function is not recorded as a graph: {error}", stacklevel=2)
                return self._plain(scratch, arguments, results)
        return self._graph.launch(arguments, results)

    def _plain(
        self, scratch: Tensors, arguments: Tensors, into: Tensors
    ) -> list[tvm.runtime.Tensor]:
        """The results of the function, computed as it is."""
        return _copied(self._function(*arguments, *scratch), into)

    def _stay(self, scratch: Tensors, arguments: Tensors) -> bool:
        """Whether the scratch and what is overwritten are where they were at the call before.

        Takes in where all are now, and which others have moved.
        """
        before, self._addresses = self._addresses, [each.data_ptr() for each in arguments]
        moved = {i for i, (a, b) in enumerate(zip(before, self._addresses, strict=False)) if a != b}
        self._moving |= moved - self._overwritten
        return scratch is self._scratch and not moved & self._overwritten


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
            argument = arguments[position]
            self._arguments[position] = empty(argument.shape, str(argument.dtype), device)
        self._moving = sorted(moving)
        self._fixed = {
            position: argument.data_ptr()
            for position, argument in enumerate(self._arguments)
            if position not in moving
        }
        self._results, self._executable = _recorded(lambda: function(*self._arguments), device)

    def __del__(self) -> None:
        if hasattr(self, "_executable"):
            library().cudaGraphExecDestroy(self._executable)

    def serves(self, arguments: Tensors) -> bool:
        """Whether the arguments that the graph reads where they are, are there."""
        return all(arguments[i].data_ptr() == address for i, address in self._fixed.items())

    def launch(self, arguments: Tensors, results: Tensors) -> list[tvm.runtime.Tensor]:
        """Queue the work on the default stream; return its results, copied to some tensors."""
        for position in self._moving:
            arguments[position].copyto(self._arguments[position])
        set_device(self._device.index)
        _check(library().cudaGraphLaunch(self._executable, None), "launch a graph")
        return _copied(self._results, results)


def _recorded(
    work: Callable[[], Any], device: tvm.runtime.Device
) -> tuple[list[tvm.runtime.Tensor], ctypes.c_void_p]:
    """What is queued by a call, not computed, as an executable graph; with the call's results."""
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    set_device(device.index)
    stream = _stream(device.index)
    failure: RuntimeError | None = None
    try:
        with _without_collection():
            status = library().cudaStreamBeginCapture(stream, _THREAD_LOCAL)
            _check(status, "record a stream")
            try:
                with tvm_ffi.use_raw_stream(device, stream.value):
                    results = list(work())
            except RuntimeError as error:
                failure = error
            finally:
                status = library().cudaStreamEndCapture(stream, ctypes.byref(graph))
                library().cudaGetLastError()  # a spoilt capture is no fault of what follows
        if failure is not None:
            raise GraphError(str(failure)) from failure
        _check(status, "record the function")
        no_flags = ctypes.c_ulonglong()
        status = library().cudaGraphInstantiate(ctypes.byref(executable), graph, no_flags)
        _check(status, "make a graph")
    finally:
        if graph:
            library().cudaGraphDestroy(graph)
    return results, executable


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Collect garbage now, and not inside: to free a tensor while recording ends the process."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _copied(tensors: Tensors, into: Tensors) -> list[tvm.runtime.Tensor]:
    """Tensors, copied to others."""
    return [tensor.copyto(place) for tensor, place in zip(tensors, into, strict=True)]


@functools.cache
def _stream(index: int) -> ctypes.c_void_p:
    """A stream for captures on a device, kept for the process: libraries remember it."""
    stream = ctypes.c_void_p()
    status = library().cudaStreamCreateWithFlags(ctypes.byref(stream), _NON_BLOCKING)
    _check(status, f"make a stream on device {index}")
    return stream


def _check(status: int, action: str) -> None:
    if status:
        name = library().cudaGetErrorName(status).decode()
        raise GraphError(f"CUDA cannot {action}: {name}")
