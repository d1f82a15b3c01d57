"""The parallel regions of a scheduled kernel, and the time that they take on more cores.

TVM gives each thread of a launch an equal share of a parallel loop's tasks, rounded up, and waits
for all of them. So a region ends when the thread with the most tasks does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

_OPERATIONS = (tvm.ir.Call, tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)
_PARALLEL, _VECTORIZED = tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED


@dataclass(frozen=True)
class Region:
    """A parallel loop of a kernel, or all of it that is in none.

    Attributes
    ----------
    tasks : int
        The iterations of the parallel loop; 1 of serial code.
    launches : int
        How often the loop is reached in a call; 0 of serial code.
    share : float
        Its part of the kernel's work, all launches together.
    """

    tasks: int
    launches: int
    share: float


@dataclass(frozen=True)
class Cores:
    """What a machine does beyond computing.

    Attributes
    ----------
    core_bandwidth : float
        Bytes per second that one core copies, both ways counted.
    saturating : float
        How many cores' bandwidth the memory has.
    launch : float
        Seconds to launch a parallel loop on one core.
    round_trip : float
        Seconds more until a second core has begun and its end is seen.
    wake : float
        Seconds more for each core beyond the second.
    """

    core_bandwidth: float
    saturating: float
    launch: float
    round_trip: float
    wake: float

    def launch_seconds(self, cores: int) -> float:
        """What a launch takes, without its tasks."""
        further = self.round_trip + self.wake * (cores - 2) if cores > 1 else 0.0
        return self.launch + further


@dataclass(frozen=True)
class Prediction:
    """The seconds of a kernel on some cores: their sum, and what it is made of.

    Attributes
    ----------
    even : float
        All work, divided evenly.
    serial : float
        What serial code takes longer than that.
    imbalance : float
        What parallel loops take longer, because their tasks cannot be divided evenly.
    barriers : float
        Launching parallel loops, and waiting for all cores.
    memory : float
        What is left, as memory does not move the bytes sooner.
    """

    even: float
    serial: float
    imbalance: float
    barriers: float
    memory: float

    @property
    def total(self) -> float:
        """The seconds of the kernel."""
        return self.even + self.lost

    @property
    def lost(self) -> float:
        """The seconds that a kernel without any limit would not need."""
        return self.serial + self.imbalance + self.barriers + self.memory


def predicted(
    seconds: float, moved: float, regions: Sequence[Region], cores: int, machine: Cores
) -> Prediction:
    """The time of a kernel on some cores, by its time on one.

    Parameters
    ----------
    seconds : float
        On one core.
    moved : float
        The bytes of its tensors.
    regions : sequence of Region
        All of its work; none of a function that is no kernel, which is serial.
    cores : int
    machine : Cores
    """
    launches = sum(region.launches for region in regions)
    work = max(seconds - launches * machine.launch_seconds(1), 0.0)
    even = work / cores
    serial = imbalance = 0.0
    for region in regions or [Region(1, 0, 1.0)]:
        part = work * region.share
        if region.launches == 0:
            serial += part - part / cores
        else:
            most = math.ceil(region.tasks / cores) / region.tasks
            imbalance += part * max(most - 1 / cores, 0.0)
    barriers = launches * machine.launch_seconds(cores)
    # A kernel whose tensors one core moves faster than a copy finds them in caches. Of the others,
    # the copy's rate is what reaches memory.
    from_memory = min(moved, work * machine.core_bandwidth)
    least = from_memory / (min(cores, machine.saturating) * machine.core_bandwidth)
    memory = max(least - even - serial - imbalance, 0.0) if cores > 1 else 0.0
    return Prediction(even, serial, imbalance, barriers, memory)


def regions_of(kernel: tirx.PrimFunc, lanes: int) -> list[Region]:
    """The parallel regions of a scheduled kernel in the order of its code, serial code last.

    Work is counted in stores, each with what it reads and computes, in vectors of so many elements;
    loops whose length depends on values count once. Parallel loops inside of parallel ones are
    serial, as TVM runs them.
    """
    counted = _Counted(lanes)
    tvm_ffi.structural_visit(
        kernel.body, [(tirx.For, counted.enter_loop), (tirx.BufferStore, counted.add_store)]
    )
    total = sum(counted.work.values()) or 1.0
    regions = [
        Region(tasks, launches, counted.work[loop] / total)
        for loop, (tasks, launches) in counted.loops.items()
    ]
    serial = counted.work[None] / total
    return [*regions, Region(1, 0, serial)] if serial or not regions else regions


class _Counted:
    """The work that a walk through a kernel has found, by the number of its parallel loop."""

    def __init__(self, lanes: int):
        self.work: dict[int | None, float] = defaultdict(float)
        self.loops: dict[int, tuple[int, int]] = {}
        self._lanes = lanes
        self._times = 1.0
        self._loop: int | None = None

    def enter_loop(self, loop: Any, visitor: Any) -> None:
        """Count what is in a loop."""
        extent = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 1
        times, outer = self._times, self._loop
        if loop.kind == _PARALLEL and outer is None and extent > 0:
            self._loop = len(self.loops)
            self.loops[self._loop] = extent, round(times)
        self._times *= math.ceil(extent / self._lanes) if loop.kind == _VECTORIZED else extent
        visitor.visit(loop.body)
        self._times, self._loop = times, outer

    def add_store(self, store: Any, _: Any) -> None:
        """Count a store, and what it reads and computes; indices are free."""
        operations = [store]

        def read(load: Any) -> Any:
            operations.append(load)
            return tvm_ffi.WalkResult.SKIP

        tvm_ffi.structural_walk(
            store.value,
            [(tvm.ir.TensorLoad, read), (_OPERATIONS, operations.append)],
            order="pre",
        )
        self.work[self._loop] += self._times * len(operations)
