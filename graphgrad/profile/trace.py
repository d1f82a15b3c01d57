"""A profile as a trace of events, which Perfetto and the tracing of Chromium open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .profile import KernelTime, Profile

_PROCESS = 1
_PHASES, _KERNELS = 1, 2


def trace_json(profile: Profile) -> str:
    """One step as JSON in the format of trace events: phases, kernels, and bytes in use.

    Each kernel has its median time, and they follow each other without gaps: what the virtual
    machine needs in between is told as a whole, in ``otherData``.
    """
    facts = {
        "displayTimeUnit": "ms",
        "otherData": {
            "target": profile.target,
            "machine_seconds": profile.machine_seconds,
            "kernel_seconds": profile.kernel_seconds,
        },
        "traceEvents": [*_names(), *_phases(profile), *_kernels(profile)],
    }
    return json.dumps(facts)


def _names() -> Iterator[dict[str, Any]]:
    """Yield the events that name the process and its tracks."""
    names = [("process_name", 0, "training step"), ("thread_name", _PHASES, "phases")]
    for kind, thread, name in [*names, ("thread_name", _KERNELS, "kernels")]:
        arguments = {"name": name}
        yield {"ph": "M", "pid": _PROCESS, "tid": thread, "name": kind, "args": arguments}


def _slice(name: str, thread: int, start: float, seconds: float, **facts: Any) -> dict[str, Any]:
    """The event of something that takes time; events are in microseconds."""
    event = {"ph": "X", "pid": _PROCESS, "tid": thread, "name": name}
    return event | {"ts": 1e6 * start, "dur": 1e6 * seconds, "args": facts}


def _phases(profile: Profile) -> Iterator[dict[str, Any]]:
    """Yield an event for each run of kernels of one phase."""
    start = 0.0
    for phase, members in groupby(profile.kernels, key=lambda kernel: kernel.phase):
        seconds = sum(kernel.seconds for kernel in members)
        yield _slice(phase, _PHASES, start, seconds)
        start += seconds


def _kernels(profile: Profile) -> Iterator[dict[str, Any]]:
    """Yield an event for each kernel, and the bytes in use while it runs."""
    start = 0.0
    for kernel in profile.kernels:
        yield _slice(kernel.op_class, _KERNELS, start, kernel.seconds, **_facts(kernel))
        if profile.memory is not None and kernel.call is not None:
            in_use = {
                "tensors": profile.memory.tensors[kernel.call],
                "held by kernels": profile.memory.scratch[kernel.call],
            }
            counter = {"ph": "C", "pid": _PROCESS, "name": "bytes in use", "ts": 1e6 * start}
            yield counter | {"args": in_use}
        start += kernel.seconds


def _facts(kernel: KernelTime) -> dict[str, Any]:
    """What is told of a kernel when its event is selected."""
    return {
        "kernel": kernel.kernel,
        "nodes": ", ".join(kernel.nodes),
        "gradients": ", ".join(kernel.gradients),
        "bytes": kernel.bytes,
        "floats": ", ".join(kernel.dtypes),
    }
