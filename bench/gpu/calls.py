"""The time of each call of an exported step: what the virtual machine calls, one by one.

On a GPU a call is between two events of CUDA, behind a copy of memory that keeps the device busy
while the host queues: so the host's time does not count, and nothing of what a call reads is in the
cache.
"""

from __future__ import annotations

import ctypes
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import tvm

_BUILTIN = "vm.builtin."

COPIED = 1 << 29
"""Bytes that are copied before each call, in more than 200 us: the host takes less."""

_ON_DEVICE = 3
"""CUDA's number of copies from the device to itself."""


def call_times(step: Any, make_step: Callable[[], Any], steps: int) -> list[tuple[str, float]]:
    """The calls of a step by name and median seconds, in order; of so many steps.

    Parameters
    ----------
    step : ExportedStep
        For the shapes of one batch alone. It is recorded as a graph no more.
    make_step : function
        Makes a step.
    steps : int
    """
    (library,) = step._libraries._libraries.values()
    package = type(step).__module__.rpartition(".")[0]
    cuda = importlib.import_module(f"{package}.cudart")  # the one that TVM has loaded
    clock = GpuClock(cuda.library()) if step._device.type == "cuda" else HostClock()
    runs: list[list[tuple[str, float]]] = []

    def watch(_: Any, name: str, before: bool, __: Any, *___: Any) -> int:
        if not name.startswith(_BUILTIN):
            if before:
                clock.start()
            else:
                runs[-1].append((name, clock.stop()))
        return tvm.runtime.vm.VMInstrumentReturnKind.NO_OP

    step.cuda_graph = False
    make_step()  # whose kernels are loaded
    library.machine.set_instrument(watch)
    for _ in range(steps):
        runs.append([])
        make_step()
    names = [name for name, _ in runs[0]]
    if any([name for name, _ in run] != names for run in runs):
        raise ValueError("the steps make different calls")
    seconds = zip(*([time for _, time in run] for run in runs), strict=True)
    return list(zip(names, map(statistics.median, seconds), strict=True))


class HostClock:
    """The clock of a processor."""

    def start(self) -> None:
        self._begun = time.perf_counter()

    def stop(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._begun


class GpuClock:
    """The clock of the GPU, on the default stream."""

    def __init__(self, cuda: ctypes.CDLL):
        self._cuda = cuda
        self._begin, self._end, self._memory = (ctypes.c_void_p() for _ in range(3))
        for event in (self._begin, self._end):
            self._check(self._cuda.cudaEventCreate(ctypes.byref(event)))
        self._check(self._cuda.cudaMalloc(ctypes.byref(self._memory), ctypes.c_size_t(2 * COPIED)))

    def __del__(self) -> None:
        self._cuda.cudaFree(self._memory)

    def start(self) -> None:
        there = ctypes.c_void_p(self._memory.value + COPIED)
        copy = there, self._memory, ctypes.c_size_t(COPIED), _ON_DEVICE, None
        self._check(self._cuda.cudaMemcpyAsync(*copy))
        self._check(self._cuda.cudaEventRecord(self._begin, None))

    def stop(self) -> float:
        """Seconds that the GPU took since the start; waits for it."""
        milliseconds = ctypes.c_float()
        self._check(self._cuda.cudaEventRecord(self._end, None))
        self._check(self._cuda.cudaEventSynchronize(self._end))
        elapsed = ctypes.byref(milliseconds), self._begin, self._end
        self._check(self._cuda.cudaEventElapsedTime(*elapsed))
        return milliseconds.value / 1e3

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"CUDA's runtime returns the error {status}")
