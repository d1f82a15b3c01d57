"""The number of processor cores that a process may compute on.

Systems count *processors*, two of which may be halves of one core (hyper-threads). Kernels that
keep a core busy gain nothing from its second half.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

_PAIRED = ("x86_64", "AMD64")
"""Machines each two of whose processors are taken for one core where the system does not tell."""


def processors() -> list[int]:
    """The numbers of the processors that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores(root: Path = Path("/")) -> int:
    """The number of cores that the calling thread may compute on, at least 1.

    On Linux those of its processors (``taskset``, cpusets), but no more than may be busy at once by
    the CPU quota of its control group, as containers have one; a part of a core counts as one.
    Elsewhere half of the processors of an x86-64, and all of others.

    Parameters
    ----------
    root : Path
        Where the system's files are.
    """
    if platform.system() != "Linux":
        return max(len(processors()) // (2 if platform.machine() in _PAIRED else 1), 1)
    cores = {_core(root, processor) for processor in processors()}
    return max(min(len(cores), _quota(root)), 1)


def _core(root: Path, processor: int) -> str:
    """A name of the core that a processor is part of, equal for all processors of that core.

    It is the system's list of these processors, or the processor alone where there is none.
    """
    topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
    return _text(topology / "thread_siblings_list") or str(processor)


def _quota(root: Path) -> int:
    """How many processors a process's control groups let run at once, rounded up."""
    lowest_limit = min(
        (limit for group in _groups(root) for limit in _limits(group)), default=math.inf
    )
    return math.ceil(lowest_limit) if math.isfinite(lowest_limit) else len(processors())


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, and of those they are in.

    In a container the system may tell paths as they are outside of it. Of such a path only the
    mount point exists inside, which then is the container's own group.
    """
    # A line is number:controllers:path; version 2 leaves the controllers empty.
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", maxsplit=2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = mount / path.lstrip("/")
        yield group
        yield from (parent for parent in group.parents if parent.is_relative_to(mount))


def _limits(group: Path) -> Iterator[float]:
    """Yield the quota of a control group, in processors: of version 2, or of version 1."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        fields = " ".join(_text(group / name) for name in files).split()
        # No limit is "max" in version 2, and -1 in version 1: neither consists of digits.
        if len(fields) == 2 and all(field.isdigit() for field in fields):
            quota, period = map(int, fields)
            yield quota / max(period, 1)


def _text(path: Path) -> str:
    """The content of a system's file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
